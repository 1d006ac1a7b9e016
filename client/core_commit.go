package client

import (
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// coreCommits commits offsets, one request after the other, so that a later commit is never overtaken by an earlier one.
type coreCommits struct {
	k        *core
	queue    []*pendingCommit
	inFlight bool
	next     time.Time // of the commit by the clock
	failures int
	retryAt  time.Time
	idle     []func() // what waits for all commits to be done
}

// pendingCommit is a commit that waits or is tried again.
type pendingCommit struct {
	offsets  []CommittedOffset
	once     bool
	deadline time.Time
	then     func(error)
}

var errNoGroup = errors.New("a consumer without a group has nowhere to commit to")

// consumed are the offsets that the caller is through with, of these partitions, where that is news.
func (c *coreCommits) consumed(tps []TopicPartition) []CommittedOffset {
	var out []CommittedOffset
	for _, tp := range tps {
		if p := c.k.parts[tp]; p != nil && p.consumed >= 0 && p.consumed != p.committed {
			out = append(out, CommittedOffset{TopicPartition: tp, Offset: p.consumed, LeaderEpoch: p.consumedEpoch})
		}
	}
	return out
}

// request takes the caller's commit.
func (c *coreCommits) request(e eventCommit) {
	if c.k.o.Group == "" {
		c.k.emit(effectDone{e.ticket, errNoGroup})
		return
	}
	offsets := e.offsets
	if offsets == nil {
		offsets = c.consumed(c.k.all())
	}
	c.add(&pendingCommit{offsets: offsets, once: e.once, deadline: c.k.now.Add(c.k.o.timeout), then: func(err error) {
		c.k.emit(effectDone{e.ticket, err})
	}})
}

// auto commits what was consumed of these partitions.
func (c *coreCommits) auto(tps []TopicPartition, within time.Duration, then func(error)) {
	c.next = c.k.now.Add(c.k.o.AutoCommit)
	c.add(&pendingCommit{offsets: c.consumed(tps), deadline: c.k.now.Add(within), then: then})
}

func (c *coreCommits) add(p *pendingCommit) {
	if len(p.offsets) == 0 {
		p.then(nil)
		return
	}
	c.queue = append(c.queue, p)
}

func (c *coreCommits) tick() {
	k := c.k
	if k.o.Group != "" && k.o.AutoCommit > 0 && !k.closing && len(k.parts) > 0 {
		if c.next.IsZero() {
			c.next = k.now.Add(k.o.AutoCommit)
		}
		if !c.inFlight && len(c.queue) == 0 && k.due(c.next) {
			c.auto(k.all(), k.o.AutoCommit, func(err error) {
				if err != nil {
					k.log.Warn("offsets can't be committed", "group", k.o.Group, "err", err)
				}
			})
		}
	}
	for !c.inFlight && len(c.queue) > 0 {
		p := c.queue[0]
		if !k.now.Before(p.deadline) {
			c.queue = c.queue[1:]
			p.then(fmt.Errorf("commit offsets: %w", RequestTimedOut))
			continue
		}
		k.wakeAt(p.deadline)
		if !k.due(c.retryAt) {
			return
		}
		node, ok := k.coord.get()
		if !ok {
			return
		}
		c.send(node, p)
	}
	if idle := c.idle; len(idle) > 0 && c.isIdle() {
		c.idle = nil
		for _, f := range idle {
			f()
		}
		k.wakeAt(k.now) // the other managers may have something to do now
	}
}

func (c *coreCommits) isIdle() bool { return !c.inFlight && len(c.queue) == 0 }

// whenIdle calls f when no commit is under way or waits.
func (c *coreCommits) whenIdle(f func()) {
	if c.isIdle() {
		f()
		return
	}
	c.idle = append(c.idle, f)
}

// refuse fails all commits that wait, because there's no coordinator that would take them.
func (c *coreCommits) refuse(err error) {
	kept := 0
	if c.inFlight {
		kept = 1
	}
	failed := c.queue[kept:]
	c.queue = c.queue[:kept:kept]
	for _, p := range failed {
		p.then(err)
	}
}

func (c *coreCommits) send(node int32, p *pendingCommit) {
	c.inFlight = true
	who := c.k.identity()
	req := commitRequest(c.k.o.Group, who.id, who.instance, who.generation, p.offsets)
	c.k.send(effectSend{node: node, lane: laneGroup, req: req, highest: 9}, func(resp kmsg.Response, err error) {
		c.inFlight = false
		_, err = respondError(resp, err, commitError)
		c.done(p, err)
	})
}

func (c *coreCommits) done(p *pendingCommit, err error) {
	k := c.k
	k.coord.failed(err)
	code, known := Code(err)
	// The epoch may have moved on since the request was made; the next heartbeat's answer brings the member's own up to date.
	again := Retriable(err) || known && code == staleMemberEpoch
	if err != nil && again && !p.once {
		c.retryAt = k.now.Add(k.backoff(c.failures))
		c.failures++
		return
	}
	c.queue, c.failures, c.retryAt = c.queue[1:], 0, time.Time{}
	if err == nil {
		for _, o := range p.offsets {
			if q := k.parts[o.TopicPartition]; q != nil {
				q.committed = o.Offset
			}
		}
	} else {
		err = fmt.Errorf("commit offsets of group %q: %w", k.o.Group, err)
		if k.member != nil {
			k.member.failedCommit(err)
		}
	}
	p.then(err)
}

const staleMemberEpoch = 113
