package main

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// machine is the name under which the machine's own limits are noted: what the least possible server would need for the same
// bytes, a thread that does nothing but the system calls and the checksum.
const machine = "limit"

// pair is the two ends of a TCP connection over the loopback interface, as blocking sockets.
func pair() (a, b int, err error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, 0, err
	}
	defer l.Close()
	c, err := dial(l.Addr().(*net.TCPAddr).Port)
	if err != nil {
		return 0, 0, err
	}
	nc, err := l.(*net.TCPListener).Accept()
	if err != nil {
		return 0, 0, err
	}
	defer nc.Close()
	f, err := nc.(*net.TCPConn).File() // a duplicate, which is blocking
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	fd, err := unix.Dup(int(f.Fd()))
	if err != nil {
		return 0, 0, err
	}
	return c.fd, fd, errors.Join(unix.SetNonblock(fd, false), unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
}

func readFull(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Read(fd, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return errors.New("the other end is gone")
		}
		b = b[n:]
	}
	return nil
}

func writeFull(fd int, b []byte) error { return (&conn{fd: fd}).write(b) }

// limits measures the machine. The thread that stands for the server is the one whose time counts.
func (b *bench) limits() error {
	if !b.wants(machine) {
		return nil
	}
	defer lockThread()()
	for _, l := range plainLoads {
		if err := b.limitProduce(l.name, l.load, b.scaled(l.load.bytes)); err != nil {
			return fmt.Errorf("limit of %s: %w", l.name, err)
		}
	}
	if err := b.limitRecovery(); err != nil {
		return fmt.Errorf("limit of recovery: %w", err)
	}
	if err := b.limitFetch(b.scaled(1 << 30)); err != nil {
		return fmt.Errorf("limit of fetch: %w", err)
	}
	if err := b.limitTiny(); err != nil {
		return fmt.Errorf("limit of small requests: %w", err)
	}
	return os.RemoveAll(b.limitFile())
}

func (b *bench) limitFile() string { return filepath.Join(b.dir, "limit") }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// limitProduce reads requests as large as those of a load from a socket, checks the CRC-32C of each batch, and writes each to a
// file, which grows by a batch at a time as a partition does.
func (b *bench) limitProduce(name string, load produceLoad, total int64) error {
	size := load.batch * load.perRequest
	if err := os.RemoveAll(b.limitFile()); err != nil {
		return err
	}
	unix.Sync()
	f, err := os.Create(b.limitFile())
	if err != nil {
		return err
	}
	defer f.Close()
	from, to, err := pair()
	if err != nil {
		return err
	}
	defer unix.Close(to)
	bal, err := holdBallast(total)
	if err != nil {
		return err
	}
	defer bal.drop()
	requests := int(total / int64(size))
	sent := make(chan error, 1)
	go func() {
		defer unix.Close(from)
		data := bytes.Repeat([]byte("limit of this machine "), size/22+1)[:size]
		var err error
		for i := 0; i < requests && err == nil; i++ {
			bal.give(int64(size))
			err = writeFull(from, data)
		}
		sent <- err
	}()
	buf := make([]byte, size)
	sum := uint32(0)
	begin, at := threadCPU(), time.Now()
	for range requests {
		if err := readFull(to, buf); err != nil {
			return err
		}
		for batch := range slices.Chunk(buf, load.batch) {
			sum ^= crc32.Checksum(batch, castagnoli)
			if _, err := f.Write(batch); err != nil {
				return err
			}
		}
	}
	b.limitPerByte(name, int64(requests)*int64(size), threadCPU()-begin, time.Since(at))
	runtime.KeepAlive(sum)
	return <-sent
}

// limitRecovery reads the file that limitProduce wrote last, all cores at once, and computes its CRC-32C.
func (b *bench) limitRecovery() error {
	f, err := os.Open(b.limitFile())
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	threads := int64(runtime.NumCPU())
	var wg sync.WaitGroup
	errs := make([]error, threads)
	begin := time.Now()
	for i := range threads {
		wg.Go(func() {
			buf := make([]byte, 1<<20)
			for pos := st.Size() / threads * i; pos < st.Size()/threads*(i+1); pos += int64(len(buf)) {
				n, err := f.ReadAt(buf, pos)
				if n < len(buf) && pos+int64(n) < st.Size() {
					errs[i] = err
					return
				}
				crc32.Checksum(buf[:n], castagnoli)
			}
		})
	}
	wg.Wait()
	b.put(machine, "start-killed-2g", "time", time.Since(begin).Seconds()*float64(b.scaled(2<<30))/float64(st.Size()), "s")
	return errors.Join(errs...)
}

// limitFetch sends the same file to a socket with sendfile, as much at a time as a consumer gets of a partition, while one
// consumer reads; a second run has four of them, each with its own.
func (b *bench) limitFetch(total int64) error {
	f, err := os.Open(b.limitFile())
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	for _, l := range fetchLoads {
		name, consumers := l.name, l.clients
		var wg sync.WaitGroup
		errs := make([]error, 2*consumers)
		cpu := make([]time.Duration, consumers)
		begin := time.Now()
		for i := range consumers {
			from, to, err := pair()
			if err != nil {
				return err
			}
			// As gregor does for clients on its own machine, and for the same reason: the floor is meant to be one.
			if err := unix.SetsockoptString(to, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno"); err != nil {
				return err
			}
			wg.Go(func() {
				defer unix.Close(from)
				buf := make([]byte, receiveBuffer)
				for n := int64(0); n < total && errs[2*i] == nil; n += int64(len(buf)) {
					errs[2*i] = readFull(from, buf[:min(int64(len(buf)), total-n)])
				}
			})
			wg.Go(func() {
				defer lockThread()()
				defer unix.Close(to)
				start := threadCPU()
				for sent := int64(0); sent < total; {
					pos := sent % st.Size()
					n, err := unix.Sendfile(to, int(f.Fd()), &pos, int(min(1<<20, total-sent, st.Size()-pos)))
					if err != nil && err != unix.EINTR {
						errs[2*i+1] = err
						return
					}
					sent += int64(n)
				}
				cpu[i] = threadCPU() - start
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		sum := time.Duration(0)
		for _, d := range cpu {
			sum += d
		}
		b.limitPerByte(name, total*int64(consumers), sum, time.Since(begin))
	}
	return nil
}

func (b *bench) limitPerByte(name string, n int64, cpu, took time.Duration) {
	b.put(machine, name, "server_cpu", cpu.Seconds()/(float64(n)/(1<<30)), "s/GiB")
	b.put(machine, name, "rate", float64(n)/1e6/took.Seconds(), "MB/s")
}

// limitTiny passes requests of the size of tinyWorkload's to and fro.
func (b *bench) limitTiny() error {
	for _, l := range tinyLoads {
		name, n := l.name, l.clients
		begin := time.Now()
		end := begin.Add(b.tinyTime / 3)
		lats := make([][]time.Duration, n)
		cpu := make([]time.Duration, n)
		errs := make([]error, n)
		var wg sync.WaitGroup
		for i := range n {
			from, to, err := pair()
			if err != nil {
				return err
			}
			const request, response = 250, 60 // as Kafka's are with a value of 100 bytes
			wg.Go(func() {
				defer lockThread()()
				defer unix.Close(from)
				q, a := make([]byte, request), make([]byte, response)
				for at := time.Now(); at.Before(end); {
					if errs[i] = writeFull(from, q); errs[i] != nil {
						return
					}
					if errs[i] = readFull(from, a); errs[i] != nil {
						return
					}
					now := time.Now()
					lats[i] = append(lats[i], now.Sub(at))
					at = now
				}
			})
			wg.Go(func() {
				defer lockThread()()
				defer unix.Close(to)
				q, a := make([]byte, request), make([]byte, response)
				start := threadCPU()
				for readFull(to, q) == nil && writeFull(to, a) == nil {
				}
				cpu[i] = threadCPU() - start
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		all := slices.Concat(lats...)
		sum := time.Duration(0)
		for _, d := range cpu {
			sum += d
		}
		b.put(machine, name, "server_cpu", sum.Seconds()/float64(len(all))*1e6, "us/request")
		b.put(machine, name, "rate", float64(len(all))/time.Since(begin).Seconds(), "requests/s")
		slices.Sort(all)
		for _, p := range percentiles {
			b.put(machine, name, p.name, ms(quantile(all, p.q)), "ms")
		}
	}
	return nil
}
