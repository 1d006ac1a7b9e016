package raft

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/message"
	"gregor/internal/record"
)

// observeRequest sees every vote that is asked for, and with it the own vote of a candidate.
func (w *world) observeRequest(n *simNode, r kmsg.Request) {
	v, ok := r.(*kmsg.VoteRequest)
	if !ok || v.Topics[0].Partitions[0].PreVote {
		return
	}
	w.vote(n.key, v.Topics[0].Partitions[0].CandidateEpoch, n.key)
}

func (w *world) vote(voter ReplicaKey, epoch int32, candidate ReplicaKey) {
	k := voteKey{voter, epoch}
	if old, ok := w.votes[k]; ok && old != candidate {
		w.fail("node %s votes for %s and for %s in epoch %d", voter, old, candidate, epoch)
	}
	w.votes[k] = candidate
}

// check looks at a node after each of its steps.
func (w *world) check(n *simNode) {
	c := n.r.core
	if v := c.voted; v.ID >= 0 {
		w.vote(n.key, c.epoch, ReplicaKey{v.ID, w.nodes[v.ID-1].key.DirectoryID})
	}
	if c.role == Leader {
		if old, ok := w.leaders[c.epoch]; ok && old != n.key.ID {
			w.fail("nodes %d and %d both lead epoch %d", old, n.key.ID, c.epoch)
		} else if !ok {
			w.leaders[c.epoch] = n.key.ID
			w.elections++
			w.checkCompleteness(n)
		}
	}
	if got, want := c.view.end, n.rlog.EndOffset(); got != want {
		w.fail("node %d: core thinks the log ends at %d, it ends at %d", n.key.ID, got, want)
	}
	if c.hw > c.view.end {
		w.fail("node %d: high watermark %d beyond the log's end %d", n.key.ID, c.hw, c.view.end)
	}
	w.checkLog(n)
}

// checkLog remembers every batch of the log with its predecessor: two logs that have the same batch have the same before it.
func (w *world) checkLog(n *simNode) {
	if n.mem == nil || n.mem.checked > len(n.mem.batches) {
		if n.mem != nil {
			n.mem.checked = 0
		}
		if n.mem == nil {
			return
		}
	}
	for i := n.mem.checked; i < len(n.mem.batches); i++ {
		b := n.mem.batches[i]
		id := batchID{b.BaseOffset(), b.PartitionLeaderEpoch()}
		fact := batchFact{hash: hashOf(b), last: b.LastOffset(), prev: batchID{-1, -1}}
		if i > 0 {
			fact.prev = batchID{n.mem.batches[i-1].BaseOffset(), n.mem.batches[i-1].PartitionLeaderEpoch()}
		}
		old, ok := w.batches[id]
		if ok && (old.hash != fact.hash || old.last != fact.last || old.prev.base >= 0 && fact.prev.base >= 0 && old.prev != fact.prev) {
			w.fail("node %d: batch %v differs between logs: %v and %v", n.key.ID, id, old, fact)
		}
		if !ok || old.prev.base < 0 {
			w.batches[id] = fact
		}
	}
	n.mem.checked = len(n.mem.batches)
}

// commit notes a batch as committed for good.
func (w *world) commit(n *simNode, b record.Batch) {
	id := batchID{b.BaseOffset(), b.PartitionLeaderEpoch()}
	i, found := slices.BinarySearchFunc(w.committed, id, func(a, b batchID) int { return int(a.base - b.base) })
	if found {
		if w.committed[i] != id {
			w.fail("node %d: committed batch %v, before it was %v", n.key.ID, id, w.committed[i])
		}
		return
	}
	if i != len(w.committed) {
		w.fail("node %d: committed batch %v lies between others: %v", n.key.ID, id, w.committed[i])
	}
	w.committed = append(w.committed, id)
	w.committedIn = append(w.committedIn, n.r.core.epoch)
	w.maxHW = b.NextOffset()
}

// checkState compares state machines at equal offsets.
func (w *world) checkState(n *simNode) {
	if old, ok := w.states[n.applied]; ok && old != n.state {
		w.fail("node %d: state at %d differs: %x and %x", n.key.ID, n.applied, old, n.state)
	}
	w.states[n.applied] = n.state
}

// checkCompleteness: a new leader has every committed batch, in its log or under its snapshot.
func (w *world) checkCompleteness(n *simNode) {
	if end := n.rlog.EndOffset(); end < w.maxHW {
		w.fail("node %d leads epoch %d with a log to %d, committed is %d", n.key.ID, n.r.core.epoch, end, w.maxHW)
	}
	if n.mem == nil {
		return
	}
	have := map[batchID]bool{}
	for _, b := range n.mem.batches {
		have[batchID{b.BaseOffset(), b.PartitionLeaderEpoch()}] = true
	}
	for _, id := range w.committed {
		if id.base >= n.mem.firstBase() && !have[id] {
			w.fail("node %d leads epoch %d without committed batch %v", n.key.ID, n.r.core.epoch, id)
		}
	}
}

// committedEndIn is how far this node's log agrees with what was committed up to the node's epoch. It may lose a record that a
// leader of a later epoch committed: it was not asked, and doesn't count.
func (w *world) committedEndIn(n *simNode) int64 {
	if n.mem == nil {
		return n.hw
	}
	have := map[batchID]int64{}
	for _, b := range n.mem.batches {
		have[batchID{b.BaseOffset(), b.PartitionLeaderEpoch()}] = b.NextOffset()
	}
	end := n.mem.firstBase()
	for i, id := range w.committed {
		if next, ok := have[id]; ok && id.base == end && w.committedIn[i] <= n.r.core.epoch {
			end = next
		}
	}
	return end
}

// checkAcked: what a client was told is committed is in the logs, with the value that the client wrote.
func (w *world) checkAcked() {
	n := w.leaderNode()
	if n == nil || n.mem == nil {
		return
	}
	for _, b := range n.mem.batches {
		v, ok := w.acked[b.LastOffset()]
		if !ok {
			continue
		}
		records, err := dataRecords(b, nil)
		must(err)
		if got := records[0].Message.(*message.FeatureLevelRecord).Name; got != fmt.Sprintf("v%d", v) {
			w.fail("offset %d holds %s, a client was told that it is v%d", b.LastOffset(), got, v)
		}
	}
}

// Mutations are rules broken on purpose, each with a seed that caught it once. Each must be caught, else a checker is blind or
// the simulation doesn't get there.
var mutations = map[string]uint64{
	"vote is forgotten at a restart":                           99,
	"leader leads its epoch again after a restart":             9,
	"commits before the epoch's first record is on a majority": 386,
	"votes for a log that is behind":                           1,
	"votes again in the same epoch":                            5,
	"truncates whatever the leader says":                       5,
	"leader counts itself before it synced":                    53,
	"follower fetches before it synced":                        88,
	"a minority commits":                                       3,
	"a removed voter counts":                                   19,
	"voters change while a change is under way":                174,
}

// mutate breaks a rule by changing what the core knows before it steps.
func (n *simNode) mutate(ev Event) {
	c := n.r.core
	switch n.w.mutation {
	case "commits before the epoch's first record is on a majority":
		if c.lead != nil {
			c.lead.epochStart = -1
		}
	case "votes for a log that is behind":
		if r, ok := ev.(Requested); ok {
			if v, ok := r.Request.(*kmsg.VoteRequest); ok {
				p := &v.Topics[0].Partitions[0]
				p.LastOffset, p.LastOffsetEpoch = 1<<40, p.CandidateEpoch
				if !p.PreVote {
					p.LastOffsetEpoch--
				}
			}
		}
	case "votes again in the same epoch":
		if r, ok := ev.(Requested); ok {
			if _, ok := r.Request.(*kmsg.VoteRequest); ok && c.role == Unattached {
				c.voted = NoVote
			}
		}
	case "truncates whatever the leader says":
		if r, ok := ev.(Responded); ok {
			if f, ok := r.Response.(*kmsg.FetchResponse); ok && len(f.Topics) == 1 && f.Topics[0].Partitions[0].DivergingEpoch.Epoch >= 0 {
				c.committed = 0
				f.Topics[0].Partitions[0].DivergingEpoch.EndOffset = max(0, f.Topics[0].Partitions[0].DivergingEpoch.EndOffset-20)
			}
		}
	case "leader counts itself before it synced":
		if c.lead != nil {
			c.view.synced = c.view.end
			c.replicaState(n.key).end = c.view.end
		}
	case "a minority commits":
		if c.lead != nil && len(c.lead.voters) > 1 {
			for _, id := range sortedKeys(c.lead.voters) {
				if id != n.key.ID {
					c.lead.voters[id].end = c.view.end
					break
				}
			}
		}
	case "a removed voter counts":
		if c.lead != nil {
			for k, o := range c.lead.observers {
				if c.lead.voters[k.ID] == nil && o.end >= 0 {
					c.lead.voters[k.ID] = o
				}
			}
		}
	case "voters change while a change is under way":
		if c.lead != nil {
			c.lead.add, c.lead.remove, c.lead.changing = nil, nil, false
			if _, ok := ev.(Requested); ok && len(c.view.voters) > 0 {
				c.view.voters[len(c.view.voters)-1].Offset = min(c.view.voters[len(c.view.voters)-1].Offset, c.hw-1)
			}
		}
	}
}

// mutateStart breaks a rule by changing what the disk holds.
func (n *simNode) mutateStart(st *store) {
	switch n.w.mutation {
	case "vote is forgotten at a restart":
		_ = st.fs.Remove(st.dir + "/" + quorumStateFile)
	case "leader leads its epoch again after a restart":
		e, err := st.readElection()
		if err == nil && e != nil && e.LeaderID == n.key.ID {
			must(st.writeElection(PersistElection{State: ElectionState{Epoch: e.Epoch, LeaderID: NoLeader, Voted: n.key}, Version: 1}))
		}
	}
}

func TestMutationsAreCaught(t *testing.T) {
	t.Parallel()
	for m, pinned := range mutations {
		t.Run(m, func(t *testing.T) {
			t.Parallel()
			caught := func(seed uint64) bool {
				err := newWorld(seed, m).run()
				if err == nil || strings.Contains(err.Error(), "after healing") {
					return false
				}
				t.Logf("seed %d: %v", seed, err)
				return true
			}
			if caught(pinned) {
				return
			}
			// The code has changed, and the seed means another run now.
			for seed := uint64(1); seed <= 5000; seed++ {
				if caught(seed) {
					return
				}
			}
			t.Error("not caught in 5000 runs")
		})
	}
}
