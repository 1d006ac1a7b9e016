package quorum

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	noError            = 0
	unknownTopic       = 3
	topicAlreadyExists = 36
)

// quickly is the usual pace of changes.
const quickly = 20 * time.Millisecond

// churn creates and deletes topics until it is stopped, and knows which ones there must be: a change that was acknowledged may
// not be lost. A change whose fate is not known is asked for again until it is.
type churn struct {
	c    *cluster
	done chan struct{}
	end  chan struct{}
	acks atomic.Int64
	pace time.Duration // between changes

	turn sync.Mutex // held while a change is under way; whoever holds it sees all settled

	mu     sync.Mutex // guards the rest
	addrs  []string   // of brokers
	topics map[string]bool
	faults []string
}

// churn starts the changes; each waits for the one before and a moment.
func (c *cluster) churn(pace time.Duration) *churn {
	h := &churn{c: c, pace: pace, done: make(chan struct{}), end: make(chan struct{}), topics: map[string]bool{}}
	for _, m := range c.members {
		if m.addr != "" {
			h.addrs = append(h.addrs, m.addr)
		}
	}
	go h.run()
	c.tb.Cleanup(h.stop)
	return h
}

func (h *churn) stop() {
	select {
	case <-h.done:
	default:
		close(h.done)
	}
	<-h.end
}

func (h *churn) stopped() bool {
	select {
	case <-h.done:
		return true
	default:
		return false
	}
}

func (h *churn) run() {
	defer close(h.end)
	for i := 0; !h.stopped(); i++ {
		h.turn.Lock()
		if i%4 == 3 {
			h.mu.Lock()
			var there []string
			for name, ok := range h.topics {
				if ok {
					there = append(there, name)
				}
			}
			h.mu.Unlock()
			if len(there) > 0 {
				slices.Sort(there)
				h.delete(there[rand.IntN(len(there))])
			}
		} else {
			h.create(fmt.Sprintf("t%05d", i))
		}
		h.turn.Unlock()
		time.Sleep(h.pace)
	}
}

// addr is any broker's address: the one that is up is found by trying.
func (h *churn) addr() string { return h.addrs[rand.IntN(len(h.addrs))] }

// settle asks again until the answer is one of two: done, or done already by an earlier try.
func (h *churn) settle(what string, already int16, try func(addr string) (int16, string, error)) bool {
	before, _, _ := h.c.quorum()
	disturbed := h.c.disturbed.Load()
	for attempt := 0; !h.stopped(); attempt++ {
		code, text, err := try(h.addr())
		switch {
		case err == nil && code == noError:
			h.acks.Add(1)
			return true
		case err == nil && code == already:
			// A broker asks again by itself when the controller changes while it waits for the answer.
			after, _, ok := h.c.quorum()
			if attempt == 0 && ok && after.LeaderEpoch == before.LeaderEpoch && h.c.disturbed.Load() == disturbed {
				h.fault("%s: the first try was answered with error %d (%s)", what, code, text)
			}
			h.acks.Add(1)
			return true
		}
		time.Sleep(20 * time.Millisecond)
	}
	return false
}

func (h *churn) create(name string) {
	ok := h.settle("create "+name, topicAlreadyExists, func(addr string) (int16, string, error) {
		return createTopic(addr, name, nil)
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	if ok {
		h.topics[name] = true
	} // else the test is over
}

func (h *churn) delete(name string) {
	ok := h.settle("delete "+name, unknownTopic, func(addr string) (int16, string, error) {
		req := kmsg.NewPtrDeleteTopicsRequest()
		req.Version, req.TimeoutMillis = 6, 5000
		req.Topics = []kmsg.DeleteTopicsRequestTopic{{Topic: &name}}
		resp, err := ask[*kmsg.DeleteTopicsResponse](addr, req, 8*time.Second)
		if err != nil {
			return 0, "", err
		}
		return resp.Topics[0].ErrorCode, text(resp.Topics[0].ErrorMessage), nil
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	if ok {
		h.topics[name] = false
	}
}

func createTopic(addr, name string, configs map[string]string) (int16, string, error) {
	req := kmsg.NewPtrCreateTopicsRequest()
	req.Version, req.TimeoutMillis = 7, 5000
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = name, 1, 1
	for k, v := range configs {
		t.Configs = append(t.Configs, kmsg.CreateTopicsRequestTopicConfig{Name: k, Value: &v})
	}
	req.Topics = []kmsg.CreateTopicsRequestTopic{t}
	resp, err := ask[*kmsg.CreateTopicsResponse](addr, req, 8*time.Second)
	if err != nil {
		return 0, "", err
	}
	return resp.Topics[0].ErrorCode, text(resp.Topics[0].ErrorMessage), nil
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func (h *churn) fault(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults = append(h.faults, fmt.Sprintf(format, args...))
}

// progress waits until n more changes are acknowledged.
func (h *churn) progress(n int64) {
	h.c.tb.Helper()
	until := h.acks.Load() + n
	h.c.await(fmt.Sprintf("%d changes of topics", n), func() (string, bool) {
		if now := h.acks.Load(); now < until {
			return fmt.Sprintf("%d of them are done", now-(until-n)), false
		}
		return "", true
	})
}

// check compares the topics that each running broker tells of with those that there must be.
func (h *churn) check() {
	h.c.tb.Helper()
	h.turn.Lock()
	defer h.turn.Unlock()
	h.mu.Lock()
	var want []string
	for name, there := range h.topics {
		if there {
			want = append(want, name)
		}
	}
	faults := h.faults
	h.mu.Unlock()
	slices.Sort(want)
	if len(faults) > 0 {
		h.c.tb.Fatalf("changes of topics: %q", faults)
	}
	for _, m := range h.c.running() {
		if m.addr == "" {
			continue
		}
		h.c.await(fmt.Sprintf("the topics of %s", m), func() (string, bool) {
			req := kmsg.NewPtrMetadataRequest()
			req.Version = 12
			resp, err := ask[*kmsg.MetadataResponse](m.addr, req, 10*time.Second)
			if err != nil {
				return err.Error(), false
			}
			var got []string
			for _, t := range resp.Topics {
				if t.Topic != nil {
					got = append(got, *t.Topic)
				}
			}
			slices.Sort(got)
			if slices.Equal(got, want) {
				return "", true
			}
			missing := slices.DeleteFunc(slices.Clone(want), func(s string) bool { return slices.Contains(got, s) })
			extra := slices.DeleteFunc(slices.Clone(got), func(s string) bool { return slices.Contains(want, s) })
			return fmt.Sprintf("%d topics of %d; lost %v, too many %v", len(got), len(want), missing, extra), false
		})
	}
	h.c.logf("%d topics are there", len(want))
}

// finish checks for a last time, ends the changes, kills all members and compares their directories.
func (h *churn) finish() {
	c := h.c
	c.tb.Helper()
	h.check()
	h.stop()
	c.caughtUp(c.running()...)
	hw := int64(-1)
	c.await("a high watermark", func() (string, bool) {
		q, _, ok := c.quorum()
		hw = q.HighWatermark
		return "none is known", ok && hw >= 0
	})
	c.caughtUp(c.running()...)
	for _, m := range c.running() {
		m.kill() // a node does not stop well without a majority
	}
	c.compareDirectories(hw)
}
