package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// tick is the unit of CPU time in /proc: USER_HZ, which is 100 on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// processCPU is the user and system time that a process has used, all its threads together.
func processCPU(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])) // from the state on, the third field
	var sum time.Duration
	for _, s := range f[11:13] {
		v, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
		}
		sum += time.Duration(v) * tick
	}
	return sum, nil
}

// machineCPU is the time that all processors together were not idle.
func machineCPU() (time.Duration, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(b), "\n")
	var sum time.Duration
	for i, s := range strings.Fields(line)[1:9] {
		v, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat: %w", err)
		}
		if i != 3 && i != 4 && i != 7 { // idle, waiting for the disk, stolen by the host
			sum += time.Duration(v) * tick
		}
	}
	return sum, nil
}

func ownCPU() time.Duration { return usage(unix.RUSAGE_SELF) }

// threadCPU is what the calling thread has used; the goroutine must be locked to it.
func threadCPU() time.Duration { return usage(unix.RUSAGE_THREAD) }

func usage(who int) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(who, &u); err != nil {
		return 0 // only for a wrong argument
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// memory is a line of /proc/PID/status in bytes: VmRSS, or VmHWM for its peak.
func memory(pid int, line string) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for l := range strings.Lines(string(b)) {
		if f := strings.Fields(l); len(f) == 3 && f[0] == line+":" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no %s", pid, line)
}

// stopwatch notes what the clock and the processors say at the start of a workload.
type stopwatch struct {
	pids                 []int
	at                   time.Time
	server, own, machine time.Duration
}

// lap is what a workload took: by the clock, and of CPU time.
type lap struct {
	took                 time.Duration
	server, own, machine time.Duration
}

func startWatch(pids ...int) (stopwatch, error) {
	w := stopwatch{pids: pids, own: ownCPU()}
	var err error
	if w.machine, err = machineCPU(); err != nil {
		return w, err
	}
	for _, pid := range pids {
		used, err := processCPU(pid)
		if err != nil {
			return w, err
		}
		w.server += used
	}
	w.at = time.Now()
	return w, nil
}

func (w stopwatch) stop() (lap, error) {
	took := time.Since(w.at)
	e, err := startWatch(w.pids...)
	return lap{took, e.server - w.server, e.own - w.own, e.machine - w.machine}, err
}

// others is what everything but the server and this program used, in percent of one core.
func (l lap) others() float64 {
	return 100 * max(0, (l.machine-l.server-l.own).Seconds()) / l.took.Seconds()
}

// awaitQuiet waits until what else runs on the machine uses little, at most limit.
func awaitQuiet(limit time.Duration, pids ...int) error {
	const look, quiet = 200 * time.Millisecond, 15
	for end := time.Now().Add(limit); time.Now().Before(end); {
		w, err := startWatch(pids...)
		if err != nil {
			return err
		}
		time.Sleep(look)
		l, err := w.stop()
		if err != nil || l.others() < quiet {
			return err
		}
	}
	return nil
}
