package main

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// lockThread gives the calling goroutine a thread of its own that the kernel wakes as precisely as it can.
func lockThread() (unlock func()) {
	runtime.LockOSThread()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // without it, timers are up to 50 us late
	return runtime.UnlockOSThread
}

// sleepUntil sleeps in the kernel, not on Go's timers.
func sleepUntil(at time.Time) {
	for d := time.Until(at); d > 0; d = time.Until(at) {
		ts := unix.NsecToTimespec(int64(d))
		_ = unix.Nanosleep(&ts, nil) // a signal ends it early; then it sleeps on
	}
}

// tinyValue is the size of the one value in a request.
const tinyValue = 100

// tinyWorkload sends one small request after another on each of n connections, each when the one before is answered.
func (b *bench) tinyWorkload(s *server, name string, n int, span time.Duration) error {
	t, err := b.freshTopic(s, manyPartitions)
	if err != nil {
		return err
	}
	if err := b.settle(s); err != nil {
		return err
	}
	conns := make([]*conn, n)
	frames := make([][]byte, n)
	v := newValues(3)
	for i := range conns {
		if conns[i], err = s.connect(); err != nil {
			return err
		}
		defer conns[i].close()
		if frames[i], err = oneBatch(t, i%t.partitions, v.next(tinyValue)); err != nil {
			return err
		}
	}
	all := make([][]time.Duration, n)
	for i := range all {
		all[i] = make([]time.Duration, 0, int(span/time.Second+1)*200_000/n)
	}
	// The first requests of a connection find cold caches and grow buffers; they are not counted.
	warm := span / 10
	begin := time.Now().Add(warm)
	end := begin.Add(span)
	var wg sync.WaitGroup
	var failed error
	wg.Go(func() {
		defer lockThread()()
		if n == 1 {
			failed = oneAtATime(conns[0], frames[0], end, func(sent, now time.Time) {
				if sent.After(begin) {
					all[0] = append(all[0], now.Sub(sent))
				}
			})
			return
		}
		failed = takeTurns(conns, frames, end, func(i int, sent, now time.Time) {
			if sent.After(begin) {
				all[i] = append(all[i], now.Sub(sent))
			}
		})
	})
	time.Sleep(time.Until(begin))
	stop := b.profile(s, name)
	w, err := startWatch(s.pid())
	if err != nil {
		return err
	}
	wg.Wait()
	took, err := w.stop()
	stop()
	if err = errors.Join(failed, err); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	var lat []time.Duration
	for _, l := range all {
		lat = append(lat, l...)
	}
	requests := float64(len(lat))
	b.note(s, name, "rate", requests/took.took.Seconds(), "requests/s")
	b.note(s, name, "server_cpu", took.server.Seconds()/requests*1e6, "us/request")
	b.note(s, name, "client_cpu", took.own.Seconds()/requests*1e6, "us/request")
	b.note(s, name, "others_cpu", took.others(), "%")
	b.latencies(s, name, lat)
	return nil
}

// oneAtATime sends frame again and again, each time when the answer to the last one is there.
func oneAtATime(c *conn, frame []byte, end time.Time, done func(sent, now time.Time)) error {
	for sent := time.Now(); sent.Before(end); {
		if err := c.write(frame); err != nil {
			return err
		}
		if err := c.produceAnswer(); err != nil {
			return err
		}
		now := time.Now()
		done(sent, now)
		sent = now
	}
	return nil
}

// takeTurns does the same on many connections with one thread, which waits for whichever is answered first. A thread for each
// would cost more than the server, and what would be measured is how the kernel switches between them.
func takeTurns(conns []*conn, frames [][]byte, end time.Time, done func(i int, sent, now time.Time)) error {
	poll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	defer unix.Close(poll)
	sent := make([]time.Time, len(conns))
	for i, c := range conns {
		if err := unix.EpollCtl(poll, unix.EPOLL_CTL_ADD, c.fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(i)}); err != nil {
			return fmt.Errorf("epoll: %w", err)
		}
		sent[i] = time.Now()
		if err := c.write(frames[i]); err != nil {
			return err
		}
	}
	ready := make([]unix.EpollEvent, len(conns))
	for open := len(conns); open > 0; {
		n, err := unix.EpollWait(poll, ready, int(time.Minute.Milliseconds()))
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return fmt.Errorf("no answer in a minute: %w", err)
		}
		for _, e := range ready[:n] {
			i := int(e.Fd)
			if err := conns[i].produceAnswer(); err != nil {
				return err
			}
			now := time.Now()
			done(i, sent[i], now)
			if !now.Before(end) {
				open--
				continue
			}
			sent[i] = now
			if err := conns[i].write(frames[i]); err != nil {
				return err
			}
		}
	}
	return nil
}
