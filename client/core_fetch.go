package client

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/record"
)

// prefetched is how many answers of a partition may wait to be consumed: one is being read while the next comes.
const prefetched = 2

// coreFetch asks brokers for records: one request at a time a broker, in a session (KIP-227), so that only what has changed is
// named.
type coreFetch struct {
	k        *core
	nodes    map[int32]*fetchNode
	buffered int // bytes fetched and not consumed
	reserved int // bytes that requests under way may bring
	asked    uint64
}

// fetchNode is a broker and the session with it.
type fetchNode struct {
	inFlight bool
	asked    uint64 // the number of the last request: who has waited longest goes first
	id       int32  // of the session, 0 without one
	epoch    int32  // of the next request; 0 begins a session
	parts    map[TopicPartition]sessionPart
	names    map[UUID]string
	retry    retryTimer
}

// sessionPart is what the broker has been told of a partition.
type sessionPart struct {
	gen         uint64
	topic       UUID
	offset      int64
	leaderEpoch int32
}

type fetchWant struct {
	p     *part
	topic *Topic
	epoch int32
}

func (f *coreFetch) init(k *core) { f.k, f.nodes = k, map[int32]*fetchNode{} }

func (f *coreFetch) tick() {
	k := f.k
	if k.closing {
		return
	}
	wants := map[int32][]fetchWant{}
	held := map[int32]bool{} // partitions of the broker are left out because enough of them is buffered
	for _, p := range k.sorted() {
		if p.state != positionReady || p.paused || p.revoking || p.awaiting || p.busy || !k.due(p.retryAt) {
			continue
		}
		t, mp := k.meta.partition(p.tp)
		if mp == nil || mp.LeaderEpoch > p.checked && p.epoch >= 0 {
			continue // to be validated first
		}
		node := mp.Leader
		if p.replica >= 0 {
			if k.now.Before(p.replicaUntil) {
				node = p.replica
			} else {
				p.replica = -1
			}
		}
		if p.chunks >= prefetched {
			held[node] = true
			continue
		}
		wants[node] = append(wants[node], fetchWant{p, t, mp.LeaderEpoch})
	}
	nodes := sortedKeys(wants)
	for _, node := range nodes {
		if f.nodes[node] == nil {
			f.nodes[node] = &fetchNode{}
		}
	}
	// Brokers share the room: one that has nothing, and is asked again and again, must not keep it from the others.
	slices.SortStableFunc(nodes, func(a, b int32) int { return cmp.Compare(f.nodes[a].asked, f.nodes[b].asked) })
	least := min(int(k.o.PartitionBytes), k.o.BufferBytes/4)
	share := max(least, k.o.BufferBytes/max(1, len(nodes)))
	for _, node := range nodes {
		ws, n := wants[node], f.nodes[node]
		if n.inFlight || !n.retry.due(k) {
			continue
		}
		if held[node] {
			// A fetch of partitions without data would wait on the broker, and those held back, once consumed, behind it.
			if ws = slices.DeleteFunc(ws, func(w fetchWant) bool { return !w.p.more }); len(ws) == 0 {
				continue
			}
		}
		room := k.o.BufferBytes - f.buffered - f.reserved
		if room < least {
			if f.buffered+f.reserved > 0 {
				continue
			}
			room = least
		}
		f.ask(node, n, ws, min(int(k.o.MaxBytes), room, share, len(ws)*int(k.o.PartitionBytes)))
	}
}

// ask sends a fetch.
func (f *coreFetch) ask(node int32, n *fetchNode, ws []fetchWant, maxBytes int) {
	k := f.k
	req := kmsg.NewPtrFetchRequest()
	req.ReplicaID, req.MaxWaitMillis, req.MinBytes, req.MaxBytes = -1, int32(k.o.MaxWait.Milliseconds()), k.o.MinBytes, int32(maxBytes)
	req.Rack = k.o.Rack
	if k.o.ReadCommitted {
		req.IsolationLevel = 1
	}
	send := effectSend{node: node, lane: laneFetch, timeout: k.o.MaxWait + k.o.requestTimeout, req: req}
	for _, w := range ws {
		if w.topic.ID == (UUID{}) {
			send.highest = 12 // later ones name topics by id
		}
		if old, ok := n.parts[w.p.tp]; ok && old.topic != w.topic.ID {
			n.epoch = 0 // the topic was made anew
		}
	}
	if n.id == 0 {
		n.epoch = 0
	}
	req.SessionID, req.SessionEpoch = n.id, n.epoch
	full := n.epoch == 0
	if full {
		n.parts, n.names = map[TopicPartition]sessionPart{}, map[UUID]string{}
	}
	now := make(map[TopicPartition]struct{}, len(ws))
	for _, w := range ws {
		tp := w.p.tp
		now[tp] = struct{}{}
		sp := sessionPart{w.p.gen, w.topic.ID, w.p.offset, w.epoch}
		if old, ok := n.parts[tp]; ok && old == sp {
			continue
		}
		n.parts[tp], n.names[w.topic.ID] = sp, tp.Topic
		if i := len(req.Topics); i == 0 || req.Topics[i-1].Topic != tp.Topic {
			rt := kmsg.NewFetchRequestTopic()
			rt.Topic, rt.TopicID = tp.Topic, w.topic.ID
			req.Topics = append(req.Topics, rt)
		}
		rp := kmsg.NewFetchRequestTopicPartition()
		rp.Partition, rp.FetchOffset, rp.CurrentLeaderEpoch, rp.PartitionMaxBytes = tp.Partition, w.p.offset, w.epoch, k.o.PartitionBytes
		rt := &req.Topics[len(req.Topics)-1]
		rt.Partitions = append(rt.Partitions, rp)
	}
	if !full {
		f.forget(n, req, now)
	}
	f.asked++
	n.inFlight, n.asked = true, f.asked
	f.reserved += maxBytes
	k.send(send, func(resp kmsg.Response, err error) {
		n.inFlight = false
		f.reserved -= maxBytes
		r, err := respondError(resp, err, func(r *kmsg.FetchResponse) error { return errorOf(r.ErrorCode, nil) })
		if err != nil {
			f.failed(node, n, err)
			return
		}
		n.retry = retryTimer{}
		f.take(node, n, r, full)
	})
}

// forget names what is in the session and not wanted now.
func (f *coreFetch) forget(n *fetchNode, req *kmsg.FetchRequest, now map[TopicPartition]struct{}) {
	var gone []TopicPartition
	for tp := range n.parts {
		if _, ok := now[tp]; !ok {
			gone = append(gone, tp)
		}
	}
	slices.SortFunc(gone, compareTP)
	for _, tp := range gone {
		if i := len(req.ForgottenTopics); i == 0 || req.ForgottenTopics[i-1].Topic != tp.Topic {
			req.ForgottenTopics = append(req.ForgottenTopics, kmsg.FetchRequestForgottenTopic{Topic: tp.Topic, TopicID: n.parts[tp].topic})
		}
		ft := &req.ForgottenTopics[len(req.ForgottenTopics)-1]
		ft.Partitions = append(ft.Partitions, tp.Partition)
		delete(n.parts, tp)
	}
}

// failed deals with a fetch that failed as a whole.
func (f *coreFetch) failed(node int32, n *fetchNode, err error) {
	n.epoch = 0 // the next one begins a session, and ends this one where it is still known
	code, known := Code(err)
	switch {
	case known && code == fetchSessionIDNotFound:
		n.id = 0
		return
	case known && code == invalidFetchSessionEpoch:
		return
	case known && (code == fetchSessionTopicIDError || code == inconsistentTopicID || code == unknownTopicID):
		n.id = 0
		f.k.meta.refresh()
	case !Retriable(err):
		f.k.fail(fmt.Errorf("fetch from broker %d: %w", node, err))
	}
	n.retry.again(f.k)
	f.k.log.Debug("fetch is tried again", "broker", node, "err", err)
	if needsRefresh(err) {
		f.k.meta.refresh()
	}
	for _, p := range f.k.parts {
		if p.replica == node {
			p.replica = -1
		}
	}
}

const (
	fetchSessionIDNotFound   = 70
	invalidFetchSessionEpoch = 71
	unknownTopicID           = 100
	inconsistentTopicID      = 103
	fetchSessionTopicIDError = 106
)

// take takes an answer.
func (f *coreFetch) take(node int32, n *fetchNode, r *kmsg.FetchResponse, full bool) {
	switch {
	case r.SessionID == 0:
		n.id, n.epoch = 0, 0 // the broker has no room for a session
	case full:
		n.id, n.epoch = r.SessionID, 1
	default:
		n.epoch = max(1, n.epoch+1)
	}
	var brokers []Broker
	for _, b := range r.Brokers {
		brokers = append(brokers, Broker{ID: b.NodeID, Host: b.Host, Port: b.Port})
	}
	for i := range r.Topics {
		t := &r.Topics[i]
		name := t.Topic
		if r.Version >= 13 {
			name = n.names[t.TopicID]
		}
		for j := range t.Partitions {
			a := &t.Partitions[j]
			tp := TopicPartition{name, a.Partition}
			asked, ok := n.parts[tp]
			p := f.k.parts[tp]
			if !ok || p == nil || p.gen != asked.gen || p.offset != asked.offset || p.state != positionReady {
				continue // an answer to what isn't wanted any more
			}
			f.takePart(node, n, p, a, brokers)
		}
	}
}

// takePart takes the answer for one partition.
func (f *coreFetch) takePart(node int32, n *fetchNode, p *part, a *kmsg.FetchResponseTopicPartition, brokers []Broker) {
	k := f.k
	err := errorOf(a.ErrorCode, nil)
	if err != nil {
		// The broker doesn't remember what it has answered with an error.
		delete(n.parts, p.tp)
	}
	switch {
	case err == nil:
		p.failures = 0
		f.records(node, p, a)
	case errors.Is(err, OffsetOutOfRange):
		switch {
		case p.replica == node:
			p.replica = -1 // the leader knows better
		case p.chunks > 0:
			p.retryAt = k.now.Add(k.o.backoffLow) // what was fetched before is good
		default:
			k.outOfRange(p, fmt.Errorf("partition %v at offset %d: %w", p.tp, p.offset, err))
		}
	case a.CurrentLeader.LeaderID >= 0 && k.meta.hint(p.tp, a.CurrentLeader.LeaderID, a.CurrentLeader.LeaderEpoch):
		p.replica = -1
		k.emit(effectHint{p.tp, a.CurrentLeader.LeaderID, a.CurrentLeader.LeaderEpoch, brokers})
	default:
		if p.replica == node {
			p.replica = -1
		}
		if code, _ := Code(err); code == UnknownServerError.Code || code == topicAuthorizationFailed {
			// Neither lasts for ever: a broker may have been stumbling, and a rule may be added.
			if code == topicAuthorizationFailed {
				k.fail(fmt.Errorf("partition %v: %w", p.tp, err))
			}
			p.retryAt = k.now.Add(k.backoff(p.failures))
			p.failures++
			k.log.Warn("partition can't be read for now", "partition", p.tp.String(), "err", err)
			return
		}
		k.retry(p, err)
	}
}

// records hands records over and moves on behind them.
func (f *coreFetch) records(node int32, p *part, a *kmsg.FetchResponseTopicPartition) {
	k := f.k
	if a.PreferredReadReplica >= 0 && a.PreferredReadReplica != node && p.replica < 0 {
		p.replica, p.replicaUntil = a.PreferredReadReplica, k.now.Add(k.o.metadataMaxAge)
		k.log.Debug("partition is read from a nearer replica", "partition", p.tp.String(), "broker", p.replica)
	}
	end := a.HighWatermark
	if k.o.ReadCommitted {
		end = a.LastStableOffset
	}
	whole, next, epoch, err := scan(a.RecordBatches, p.offset)
	if err == nil && whole == 0 && len(a.RecordBatches) > 0 {
		err = fmt.Errorf("%d bytes are not a whole batch: %w", len(a.RecordBatches), record.ErrTruncated)
	}
	if err != nil {
		p.state = positionFailed
		k.fail(fmt.Errorf("partition %v at offset %d: %w", p.tp, p.offset, err))
		return
	}
	p.more = next < end
	if whole == 0 {
		k.emit(effectLag{p.tp, p.gen, end})
		return
	}
	slices.SortFunc(a.AbortedTransactions, func(x, y kmsg.FetchResponseTopicPartitionAbortedTransaction) int {
		return cmp.Compare(x.FirstOffset, y.FirstOffset)
	})
	d := &fetched{
		tp: p.tp, gen: p.gen, bytes: a.RecordBatches[:whole], size: whole, from: p.offset, end: end,
		aborted: a.AbortedTransactions, committed: k.o.ReadCommitted,
	}
	p.offset, p.chunks = next, p.chunks+1
	if epoch >= 0 {
		p.epoch = max(p.epoch, epoch)
	}
	f.buffered += whole
	k.emit(effectData{p.gen, d})
}

// scan finds how many bytes are whole batches, the offset behind them and the last one's leader epoch. The last batch of an
// answer may be cut.
func scan(b []byte, from int64) (whole int, next int64, epoch int32, err error) {
	next, epoch = from, -1
	rest := b
	for {
		e, r, err := record.NextEntry(rest)
		if e == nil && err == nil || errors.Is(err, record.ErrTruncated) {
			return whole, next, epoch, nil
		}
		if err != nil {
			if whole > 0 {
				return whole, next, epoch, nil // it comes up again with the next fetch
			}
			return 0, from, -1, err
		}
		rest = r
		whole += len(e)
		next = max(next, e.LastOffset()+1)
		epoch = max(epoch, e.PartitionLeaderEpoch())
	}
}

func (f *coreFetch) close() { f.nodes = map[int32]*fetchNode{} }
