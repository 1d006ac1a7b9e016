package log

import (
	"slices"
	"sync"
	"time"
)

// background does a Manager's deferred and periodic work: syncs after a roll, the identity of new replicas, checkpoints,
// retention, expiry, removal of deleted files. One goroutine does it all, so that none of it competes with itself for the disk;
// with NoBackground the caller of Tick does.
type background struct {
	m *Manager

	mu       sync.Mutex // guards below
	flushes  []*Log
	fresh    []*Log // new replicas whose identity isn't durable
	tasks    []func()
	unlinks  []unlink
	removals []unlink

	run     sync.Mutex // one round at a time; guards the times below
	started time.Time
	last    [taskCount]time.Time

	wake chan struct{}
	stop chan struct{}
	done sync.WaitGroup
}

// unlink is a file or directory to remove at a time.
type unlink struct {
	path string
	due  time.Time
}

const (
	taskRecovery = iota
	taskStart
	taskHighWatermark
	taskRetention
	taskExpiry
	taskFlush
	taskClean
	taskCount
)

// groupSync is from how many new replicas on one sync of the whole file system is cheaper than three for each.
const groupSync = 16

func (b *background) init(m *Manager) {
	b.m = m
	b.wake = make(chan struct{}, 1)
	b.stop = make(chan struct{})
	b.started = m.e.clock.Now()
	for i := range b.last {
		b.last[i] = b.started
	}
}

func (b *background) start() {
	b.done.Add(1)
	go func() {
		defer b.done.Done()
		t := time.NewTicker(time.Second)
		defer t.Stop()
		for {
			select {
			case <-b.stop:
				return
			case <-b.wake:
			case <-t.C:
			}
			b.m.Tick()
		}
	}()
}

func (b *background) close() {
	b.mu.Lock()
	select {
	case <-b.stop:
	default:
		close(b.stop)
	}
	b.mu.Unlock()
	b.done.Wait()
}

func (b *background) poke() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (m *Manager) flushLater(l *Log) {
	m.bg.mu.Lock()
	if !slices.Contains(m.bg.flushes, l) {
		m.bg.flushes = append(m.bg.flushes, l)
	}
	m.bg.mu.Unlock()
	m.bg.poke()
}

func (m *Manager) later(f func()) {
	m.bg.mu.Lock()
	m.bg.tasks = append(m.bg.tasks, f)
	m.bg.mu.Unlock()
	m.bg.poke()
}

// identityLater leaves a new replica's syncs to the next round, which comes within a second: many are made at a time.
func (b *background) identityLater(l *Log) {
	b.mu.Lock()
	b.fresh = append(b.fresh, l)
	b.mu.Unlock()
}

func (m *Manager) unlinkAfter(path string, delay time.Duration) {
	m.bg.mu.Lock()
	m.bg.unlinks = append(m.bg.unlinks, unlink{path, m.e.clock.Now().Add(delay)})
	m.bg.mu.Unlock()
}

func (m *Manager) removeAfter(d *logDir, path string) {
	m.bg.mu.Lock()
	m.bg.removals = append(m.bg.removals, unlink{path, m.e.clock.Now().Add(m.o.DeleteDelay)})
	m.bg.mu.Unlock()
}

// Tick does the work that is due. It is called by itself every second unless NoBackground is set.
func (m *Manager) Tick() {
	b := &m.bg
	b.run.Lock()
	defer b.run.Unlock()
	now := m.e.clock.Now()
	b.mu.Lock()
	flushes, fresh, tasks := b.flushes, b.fresh, b.tasks
	b.flushes, b.fresh, b.tasks = nil, nil, nil
	unlinks := takeDue(&b.unlinks, now)
	removals := takeDue(&b.removals, now)
	b.mu.Unlock()

	for _, f := range tasks {
		f()
	}
	for _, l := range flushes {
		m.warn(l.flushTo(l.active().base, false), "flush after a roll")
	}
	m.syncFresh(fresh)
	for _, u := range unlinks {
		m.warn(removeIfExists(m.e.fs, u.path), "remove a deleted file")
	}
	for _, u := range removals {
		m.warn(m.e.fs.RemoveAll(u.path), "remove a deleted replica")
	}
	iv := &m.o.Intervals
	if b.due(taskFlush, now, iv.Flush) {
		m.flushOld(now)
	}
	if b.due(taskHighWatermark, now, iv.HighWatermark) {
		m.warn(m.CheckpointHighWatermarks(), "checkpoint high watermarks")
	}
	if b.due(taskRecovery, now, iv.RecoveryPoint) {
		m.warn(m.CheckpointRecoveryPoints(), "checkpoint recovery points")
	}
	if b.due(taskStart, now, iv.LogStart) {
		m.warn(m.CheckpointLogStarts(), "checkpoint log start offsets")
	}
	if now.Sub(b.started) >= iv.InitialDelay && b.due(taskRetention, now, b.retentionInterval()) {
		m.RunRetention()
	}
	if b.due(taskExpiry, now, iv.ProducerExpiry) {
		m.expireProducers()
	}
}

// retentionInterval makes the first run come right after the initial delay.
func (b *background) retentionInterval() time.Duration {
	if b.last[taskRetention].Equal(b.started) {
		return 0
	}
	return b.m.o.Intervals.Retention
}

func (b *background) due(task int, now time.Time, every time.Duration) bool {
	if now.Sub(b.last[task]) < every {
		return false
	}
	b.last[task] = now
	return true
}

func takeDue(list *[]unlink, now time.Time) []unlink {
	var due []unlink
	*list = slices.DeleteFunc(*list, func(u unlink) bool {
		if u.due.After(now) {
			return false
		}
		due = append(due, u)
		return true
	})
	return due
}

func (m *Manager) warn(err error, what string) {
	if err != nil {
		m.e.logger.Warn("background work failed: "+what, "err", err)
	}
}

// syncFresh makes the directories and topic ids of new replicas durable.
func (m *Manager) syncFresh(fresh []*Log) {
	perDir := make(map[*logDir][]*Log)
	for _, l := range fresh {
		perDir[l.parent] = append(perDir[l.parent], l)
	}
	for _, d := range m.dirs {
		logs := perDir[d]
		if len(logs) == 0 || d.offline() != nil {
			continue
		}
		if len(logs) >= groupSync {
			if err := m.e.fs.SyncAll(d.path); err != nil {
				d.fail(err)
				continue
			}
			for _, l := range logs {
				m.warn(l.nameIdentity(), "name the topic id of a new replica")
			}
			continue
		}
		for _, l := range logs {
			l.mu.Lock()
			gone := l.closed != nil
			l.mu.Unlock()
			if !gone {
				m.warn(l.flushTo(0, false), "sync a new replica")
			}
		}
	}
}

// nameIdentity gives partition.metadata its name after the temporary file was synced with others.
func (l *Log) nameIdentity() error {
	l.mu.Lock()
	defer l.unlock()
	if !l.metaDirty || l.closed != nil {
		return nil
	}
	name := l.file(partitionMetadataFile)
	if err := l.e.fs.Rename(name+suffixTmp, name); err != nil {
		return l.ioError("write the topic id of", err)
	}
	l.metaDirty = false
	return nil
}

// flushOld syncs logs whose flush.ms has passed since their last sync.
func (m *Manager) flushOld(now time.Time) {
	for l := range m.every() {
		every := l.cfg.Load().FlushInterval
		if every <= 0 || every == maxOffset {
			continue
		}
		l.mu.Lock()
		due := now.Sub(l.lastFlush) >= every && l.closed == nil
		l.mu.Unlock()
		if due {
			m.warn(l.Flush(), "flush")
		}
	}
}

func (m *Manager) expireProducers() {
	now := m.e.nowMs()
	for l := range m.every() {
		l.mu.Lock()
		if n := l.prod.expire(now, m.e.producerExpiration); n > 0 {
			l.touched = true
		}
		l.mu.Unlock()
	}
}
