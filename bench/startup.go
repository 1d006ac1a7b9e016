package main

import (
	"fmt"
	"syscall"
	"time"
)

// startLimit is how long a server may take to serve.
const startLimit = 10 * time.Minute

// startup measures a node without load: its first start, its idle state, and its start after a crash with data.
func (b *bench) startup(k kind) error {
	if !b.wants("start-clean", "idle", "start-killed-2g") {
		return nil
	}
	s, err := b.create(k)
	if err != nil {
		return err
	}
	if err := b.settle(nil); err != nil {
		return err
	}
	if err := s.start(); err != nil {
		return err
	}
	c, err := s.firstAnswer(startLimit)
	if err != nil {
		return err
	}
	b.note(s, "start-clean", "time", time.Since(s.started).Seconds(), "s")
	b.noteStartCPU(s, "start-clean")
	if b.wants("idle") {
		if err := b.idle(s, "idle"); err != nil {
			return err
		}
	}
	if !b.wants("start-killed-2g") {
		c.close()
		return s.discard()
	}
	t, err := c.newTopic("big", manyPartitions)
	c.close()
	if err != nil {
		return err
	}
	sum, _, err := b.fill(s, "fill", t, produceLoad{bytes: b.scaled(2 << 30), batch: 64 << 10, perRequest: 12})
	if err != nil {
		return err
	}
	if err := s.end(syscall.SIGKILL); err != nil {
		return err
	}
	if err := b.settle(nil); err != nil {
		return err
	}
	return b.restart(s, "start-killed-2g", []topic{t}, sum.records)
}

// restart starts a server, measures until all partitions serve, and discards it. records is how many there must be in the first
// topic.
func (b *bench) restart(s *server, name string, ts []topic, records int64) error {
	if err := b.again(s, name, ts, records); err != nil {
		return err
	}
	return s.discard()
}

// again starts a server and measures until all partitions of the topics serve.
func (b *bench) again(s *server, name string, ts []topic, records int64) error {
	if err := s.start(); err != nil {
		return err
	}
	stop := b.profileStart(s, name)
	c, err := s.firstAnswer(startLimit)
	if err != nil {
		return err
	}
	defer c.close()
	b.note(s, name, "first_answer", time.Since(s.started).Seconds(), "s")
	if err := c.awaitServing(ts, startLimit); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	b.note(s, name, "time", time.Since(s.started).Seconds(), "s")
	stop()
	b.noteStartCPU(s, name)
	if got, err := c.records(ts[0]); err != nil || got != records {
		return fmt.Errorf("%s: %d records were acknowledged, the log has %d: %w", name, records, got, err)
	}
	return nil
}

func (b *bench) noteStartCPU(s *server, name string) {
	if cpu, err := processCPU(s.pid()); err == nil {
		b.note(s, name, "server_cpu", cpu.Seconds(), "s")
	}
	if m, err := memory(s.pid(), "VmHWM"); err == nil {
		b.note(s, name, "peak_rss", float64(m)/(1<<20), "MiB")
	}
}

// idle lets the server come to rest and then looks at its memory and CPU time.
func (b *bench) idle(s *server, name string) error {
	time.Sleep(b.restTime)
	w, err := startWatch(s.pid())
	if err != nil {
		return err
	}
	time.Sleep(b.idleTime)
	l, err := w.stop()
	if err != nil {
		return err
	}
	m, err := memory(s.pid(), "VmRSS")
	if err != nil {
		return err
	}
	b.note(s, name, "rss", float64(m)/(1<<20), "MiB")
	b.note(s, name, "server_cpu", 100*l.server.Seconds()/l.took.Seconds(), "%")
	return nil
}

// perTopic is how many partitions a topic has where there are many.
const perTopic = 100

// topicsFor names the topics for n partitions.
func (b *bench) topicsFor(n int) (names []string) {
	for i := range (b.scaledCount(n) + perTopic - 1) / perTopic {
		names = append(names, fmt.Sprintf("t%04d", i))
	}
	return names
}

// partitions measures a node with n empty partitions, 100 to a topic: restarts after a clean stop and after a crash.
func (b *bench) partitions(k kind, n int) error {
	base := fmt.Sprintf("partitions-%d", n)
	if !b.wants(base) {
		return nil
	}
	s, err := b.create(k)
	if err != nil {
		return err
	}
	if err := s.start(); err != nil {
		return err
	}
	c, err := s.firstAnswer(startLimit)
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.patience(adminTimeout); err != nil {
		return err
	}
	names := b.topicsFor(n)
	stop := b.profile(s, base+"-create")
	begin := time.Now()
	ts, err := c.createTopics(names, perTopic, 1)
	if err == nil {
		err = c.awaitServing(ts, adminTimeout)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", base, err)
	}
	b.note(s, base, "create", time.Since(begin).Seconds(), "s")
	stop()
	b.noteStartCPU(s, base)
	begin = time.Now()
	if err := s.end(syscall.SIGTERM); err != nil {
		return err
	}
	b.note(s, base, "stop", time.Since(begin).Seconds(), "s")
	if err := b.settle(nil); err != nil {
		return err
	}
	if err := b.again(s, base+"-restart", ts, 0); err != nil {
		return err
	}
	if err := s.end(syscall.SIGKILL); err != nil {
		return err
	}
	if err := b.settle(nil); err != nil {
		return err
	}
	return b.restart(s, base+"-killed", ts, 0)
}
