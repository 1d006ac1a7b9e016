package client

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// randReader makes random bytes.
type randReader struct{ r *rand.Rand }

func (r randReader) Read(b []byte) (int, error) {
	for i := 0; i < len(b); i += 8 {
		var w [8]byte
		binary.LittleEndian.PutUint64(w[:], r.r.Uint64())
		copy(b[i:], w[:])
	}
	return len(b), nil
}

// run is the network's side: it feeds the core and does what it says.
func (u *Consumer) run(k *core) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		now := time.Now()
		effects, wake := k.step(now, u.takeEvents()...)
		u.mu.Lock()
		u.waiting = len(k.onPoll) > 0 || k.member != nil && k.pollExpired()
		u.member = k.identity()
		missed := u.waiting && u.polling > 0 && !k.polling // the caller came meanwhile
		u.mu.Unlock()
		for _, e := range effects {
			u.do(e)
		}
		wait := time.Hour
		if !wake.IsZero() {
			wait = max(0, wake.Sub(now))
		}
		if missed {
			wait = 0
		}
		timer.Reset(wait)
		select {
		case <-u.wake:
		case <-timer.C:
		case <-u.ctx.Done():
			return
		}
	}
}

// takeEvents are the events posted, behind what the caller has done meanwhile.
func (u *Consumer) takeEvents() []any {
	u.mu.Lock()
	defer u.mu.Unlock()
	e := eventPolled{polling: u.polling > 0, at: u.polled, freed: u.freed}
	u.freed = nil
	kept := u.dirty[:0]
	for _, p := range u.dirty {
		if !p.dirty || u.parts[p.tp] != p {
			p.dirty = false
			continue
		}
		e.positions = append(e.positions, consumedPosition{p.tp, p.gen, p.processed, p.epoch})
		if p.processed == p.position {
			p.dirty = false
		} else {
			kept = append(kept, p)
		}
	}
	clear(u.dirty[len(kept):])
	u.dirty = kept
	events := append([]any{e}, u.events...)
	u.events = nil
	return events
}

// do does what the core says.
func (u *Consumer) do(e any) {
	switch e := e.(type) {
	case effectSend:
		u.wg.Go(func() { u.exchange(e) })
	case effectData:
		u.mu.Lock()
		if p := u.parts[e.data.tp]; p != nil && p.gen == e.gen {
			p.end = e.data.end
			u.ready = append(u.ready, e.data)
			u.wakePollers()
		} else {
			u.free(e.data)
		}
		u.mu.Unlock()
	case effectLag:
		u.mu.Lock()
		if p := u.parts[e.tp]; p != nil && p.gen == e.gen {
			p.end = e.end
		}
		u.mu.Unlock()
	case effectPosition:
		u.mu.Lock()
		if p := u.parts[e.tp]; p != nil && p.gen == e.gen {
			p.position, p.processed, p.epoch, p.valid = e.offset, e.offset, e.epoch, true
		}
		u.mu.Unlock()
	case effectParts:
		u.setParts(e)
	case effectPurge:
		u.mu.Lock()
		u.purge(e.tps)
		u.mu.Unlock()
	case effectCallback:
		u.mu.Lock()
		u.callbacks = append(u.callbacks, e)
		u.wakePollers()
		u.mu.Unlock()
	case effectDone:
		u.finish(e.ticket, e.err)
	case effectError:
		u.mu.Lock()
		if !e.fatal {
			u.errs = append(u.errs, e.err)
		} else if u.fatal == nil {
			u.fatal = e.err
		}
		u.wakePollers()
		u.mu.Unlock()
	case effectHint:
		for _, b := range e.brokers {
			u.c.pool.addBroker(b)
		}
		u.c.meta.hint(e.tp, e.leader, e.epoch)
	case effectForget:
		u.c.forgetCoordinator(coordinator{coordinatorGroup, u.o.Group}, anyNode)
	}
}

func (u *Consumer) finish(t *ticket, err error) {
	t.err = err
	close(t.done)
	if t.notify == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.async, t)
	u.told = append(u.told, func() { t.notify(err) })
	u.wakePollers()
}

// setParts changes what is assigned.
func (u *Consumer) setParts(e effectParts) {
	u.mu.Lock()
	defer u.mu.Unlock()
	gone := slices.Clone(e.removed)
	for _, tp := range e.removed {
		delete(u.parts, tp)
	}
	for _, a := range e.added {
		p := &consumed{tp: a.tp, gen: a.gen, position: -1, processed: -1, epoch: -1, end: -1}
		if old := u.parts[a.tp]; old != nil {
			p.paused, p.end = old.paused, old.end
		}
		u.parts[a.tp] = p
		gone = append(gone, a.tp)
	}
	u.purge(gone)
}

// purge drops what is buffered of partitions, and what is being decoded. mu is held.
func (u *Consumer) purge(tps []TopicPartition) {
	for _, f := range u.hand {
		f.stale = f.stale || slices.Contains(tps, f.tp)
	}
	u.ready = slices.DeleteFunc(u.ready, func(f *fetched) bool {
		if !slices.Contains(tps, f.tp) {
			return false
		}
		u.free(f)
		return true
	})
}

// free gives the room of fetched data back. mu is held.
func (u *Consumer) free(f *fetched) {
	u.freed = append(u.freed, freed{f.tp, f.gen, f.size})
	u.signal()
}

// exchange sends a request of the core and posts the answer.
func (u *Consumer) exchange(s effectSend) {
	to := target{node: s.node, purpose: u.lanes[s.lane], highest: s.highest, timeout: s.timeout}
	ctx, cancel := context.WithTimeout(u.ctx, s.timeout)
	resp, err := exchange[kmsg.Response](ctx, u.c, to, s.req)
	cancel()
	if u.ctx.Err() != nil {
		return
	}
	if err != nil && ctx.Err() != nil {
		err = &errConn{"ask", "a broker", errTimeout}
	}
	switch r := resp.(type) {
	case *kmsg.MetadataResponse:
		if err == nil && r.ErrorCode == 0 {
			u.c.learn(r)
		}
	case *kmsg.FindCoordinatorResponse:
		if err == nil {
			if b, err := coordinatorOf(r); err == nil {
				u.c.pool.addBroker(b)
			}
		}
	}
	u.post(eventResponse{s.id, resp, err})
}
