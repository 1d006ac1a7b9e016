package raft

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/message"
)

// Manual is a Node without goroutines: whoever made it moves it on, so that everything that happens follows from the calls.
// Simulations of whole clusters are built on it. It shares with Node all but the loop itself, and has the same methods where a
// controller or a loader uses them.
//
// Whoever drives it calls Move when it was woken or its Deadline has come, lets syncs run through StartSync, hands over to
// listeners with HandOver, and looks at Err after each of them. It is not safe for concurrent use.
type Manual struct {
	o       Options
	r       *replica
	feed    *feed
	pace    pace
	world   World
	syncing bool
	deleted []string
	queue   []Event // of calls that don't wait in a Node either

	nextID  uint64
	replies map[uint64]func(kmsg.Response)
	subs    map[Listener]*subscription
}

// World is what a Manual needs of its driver.
type World interface {
	// Send sends a request. A Responded is to be stepped for it at some time, or never.
	Send(Send)
	// Wake asks for Move, soon.
	Wake()
}

// OpenManual is Open. wrap, unless nil, puts something around the log.
func OpenManual(o Options, world World, wrap func(Log) Log) (*Manual, error) {
	o = o.withDefaults()
	dir := filepath.Join(o.Dir, DirName)
	if err := o.FS.MkdirAll(dir); err != nil {
		return nil, fmt.Errorf("raft: make %s: %w", dir, err)
	}
	log, err := openLog(context.Background(), o)
	if err != nil {
		return nil, err
	}
	if wrap != nil {
		log = wrap(log)
	}
	r, err := newReplica(o, o.Logger, dir, log)
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	m := &Manual{
		o: o, r: r, world: world, pace: pace{linger: o.AppendLinger},
		replies: map[uint64]func(kmsg.Response){}, subs: map[Listener]*subscription{},
	}
	m.feed = newFeed(r.store, func(err error) { r.failed = err })
	r.env = m
	r.acc = newAccumulator(world.Wake)
	if err := r.start(o.Clock.Now()); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	return m, nil
}

// Err is why the node can't go on; nil while it can.
func (m *Manual) Err() error { return m.r.failed }

// Core is the core, to look at.
func (m *Manual) Core() *Core { return m.r.core }

// Step takes an event.
func (m *Manual) Step(ev Event) {
	m.r.step(m.o.Clock.Now(), ev)
	m.pace.drain(m.r, m.o.Clock.Now(), m.syncing)
}

// Move does what is due or has been asked for.
func (m *Manual) Move() {
	queue := m.queue
	m.queue = nil
	for _, ev := range queue {
		m.Step(ev)
	}
	m.Step(Ticked{})
}

// Deadline is when Move is due at the latest; zero is never.
func (m *Manual) Deadline() time.Time {
	d := m.r.deadline()
	if !m.pace.until.IsZero() && (d.IsZero() || m.pace.until.Before(d)) {
		d = m.pace.until
	}
	return d
}

// StartSync begins the sync of the log that is due, if one is. sync is to be called then, at once or later, and done with its
// result, at once or later; until then no other begins.
func (m *Manual) StartSync() (sync func() error, done func(error), due bool) {
	if !m.r.dirty || m.syncing || m.r.failed != nil {
		return nil, nil, false
	}
	m.r.dirty, m.syncing = false, true
	end, gen := m.r.store.log.EndOffset(), m.r.gen
	return m.r.store.log.Sync, func(err error) {
		m.syncing = false
		switch {
		case err != nil:
			m.r.failed = fmt.Errorf("raft: sync the log: %w", err)
		case gen == m.r.gen:
			m.Step(Synced{end})
		default:
			m.Step(Ticked{})
		}
	}, true
}

// HandleRequest is Node's.
func (m *Manual) HandleRequest(from RequestContext, req kmsg.Request, reply func(kmsg.Response)) {
	m.nextID++
	m.replies[m.nextID] = reply
	m.Step(Requested{ID: m.nextID, Listener: from.Listener, Request: req})
}

// Register is Node's; the listener is told of things by HandOver.
func (m *Manual) Register(l Listener) {
	s := newSubscription(l)
	m.subs[l] = s
	m.feed.listeners = append(m.feed.listeners, s)
}

// HandOver tells a listener of what comes next for it, a piece at a time; false when there is nothing.
func (m *Manual) HandOver(l Listener) bool {
	if m.r.failed != nil {
		return false
	}
	moved, err := m.feed.handOver(m.subs[l])
	if err != nil {
		m.r.failed = err
		return false
	}
	return moved
}

// PrepareAppend is Node's.
func (m *Manual) PrepareAppend(epoch int32, records []message.Versioned) (lastOffset int64, err error) {
	return m.r.acc.prepare(epoch, m.o.Clock.Now().UnixMilli(), records)
}

// SchedulePreparedAppend is Node's.
func (m *Manual) SchedulePreparedAppend() { m.r.acc.schedule() }

// LogEndOffset is Node's.
func (m *Manual) LogEndOffset() int64 { return m.r.store.log.EndOffset() }

// LogStartOffset is Node's.
func (m *Manual) LogStartOffset() int64 { return m.r.store.log.StartOffset() }

// HighWatermark is Node's.
func (m *Manual) HighWatermark() int64 { return m.r.core.HighWatermark() }

// KRaftVersion is Node's.
func (m *Manual) KRaftVersion() int16 { return m.r.core.KRaftVersion() }

// Resign is Node's.
func (m *Manual) Resign(epoch int32) {
	m.queue = append(m.queue, ResignAsked{epoch})
	m.world.Wake()
}

// UpgradeKRaftVersion is Node's.
func (m *Manual) UpgradeKRaftVersion(epoch int32, version int16, validateOnly bool) (offset int64, err error) {
	offset, err = -1, errStopped
	m.Step(UpgradeAsked{Epoch: epoch, Version: version, ValidateOnly: validateOnly, Done: func(last int64, e error) { offset, err = last, e }})
	return offset, err
}

// CreateSnapshot is Node's.
func (m *Manual) CreateSnapshot(id OffsetAndEpoch, lastContainedLogTime int64) (w *SnapshotWriter, err error) {
	err = errStopped
	m.Step(snapshotAsked{id, func(ok bool, refused error, version int16, voters VoterSet) {
		if err = refused; err == nil && ok {
			w, err = m.r.store.writeSnapshot(id, lastContainedLogTime, version, voters, func() { m.Step(SnapshotTaken{id}) })
		}
	}})
	return w, err
}

// Clean does what Node does from time to time: see RetentionBytes and RetentionAge.
func (m *Manual) Clean() error {
	var err error
	m.deleted, err = m.r.clean(m.o.Clock.Now(), m.o.RetentionBytes, m.o.RetentionAge, m.deleted)
	return err
}

// Close lets go of the log, as the end of a process does: nothing is synced.
func (m *Manual) Close() error { return m.r.store.log.Close() }

// The environment of the replica.

func (m *Manual) send(s Send) { m.world.Send(s) }

func (m *Manual) reply(id uint64, resp kmsg.Response) {
	f := m.replies[id]
	if f == nil {
		panic(fmt.Sprintf("raft: request %d is answered twice", id))
	}
	delete(m.replies, id)
	f(resp)
}

func (m *Manual) appended(epoch int32, batches []pendingBatch) { m.feed.appended(epoch, batches) }
func (m *Manual) truncated(offset int64, restarted bool)       { m.feed.truncated(offset, restarted) }
func (m *Manual) committed(offset int64)                       { m.feed.committed(offset) }
func (m *Manual) leaderChanged(l LeaderChanged)                { m.feed.leaderChanged(l) }
