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
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i, c := range conns {
		wg.Go(func() {
			defer lockThread()()
			at := time.Now()
			for at.Before(end) {
				if errs[i] = c.write(frames[i]); errs[i] != nil {
					return
				}
				if errs[i] = c.produceAnswer(); errs[i] != nil {
					return
				}
				now := time.Now()
				if at.After(begin) {
					all[i] = append(all[i], now.Sub(at))
				}
				at = now
			}
		})
	}
	time.Sleep(time.Until(begin))
	stop := b.profile(s, name)
	w, err := startWatch(s.pid())
	if err != nil {
		return err
	}
	wg.Wait()
	took, err := w.stop()
	stop()
	if err = errors.Join(append(errs, err)...); err != nil {
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
