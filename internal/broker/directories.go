package broker

import (
	"bytes"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/clock"
	"gregor/internal/uuid"
)

// maxAssignments is how many replicas one AssignReplicasToDirs request names at most, as in Kafka.
const maxAssignments = 2000

// assignmentRetry is the pause after a request that failed.
const assignmentRetry = time.Second

// DirectoryAssigner tells the controller in which log directory each replica lies (KIP-858): the metadata names the directory,
// but this broker chooses it. It gathers what comes while a request is under way, and keeps at it until the controller has
// answered.
type DirectoryAssigner struct {
	nodeID     int32
	epoch      func() int64
	controller Controller
	clock      clock.Clock
	logger     *slog.Logger

	mu      sync.Mutex // guards all below
	pending map[replicaKey]*assignment
	busy    bool
	retry   *time.Timer
	closed  bool
}

type replicaKey struct {
	topic     uuid.UUID
	partition int32
}

// assignment is a directory that the controller is to be told of, and whom to tell then; done may be nil.
type assignment struct {
	dir  uuid.UUID
	done func()
}

// NewDirectoryAssigner makes an assigner for the broker whose epoch is as given.
func NewDirectoryAssigner(nodeID int32, epoch func() int64, c Controller, clk clock.Clock, logger *slog.Logger) *DirectoryAssigner {
	return &DirectoryAssigner{nodeID: nodeID, epoch: epoch, controller: c, clock: clk, logger: logger, pending: make(map[replicaKey]*assignment)}
}

// Assign notes that a replica lies in dir, or will. It does not block. done, unless nil, is called once the controller has
// answered, but not if the replica is assigned another directory before.
func (a *DirectoryAssigner) Assign(topicID uuid.UUID, partition int32, dir uuid.UUID, done func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pending[replicaKey{topicID, partition}] = &assignment{dir, done}
	a.startLocked(0)
}

// Close ends all attempts.
func (a *DirectoryAssigner) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	if a.retry != nil {
		a.retry.Stop()
	}
}

// startLocked sends what is pending after a pause, unless a request is under way. The pause of 0 still lets the caller, which
// may be in the middle of publishing many replicas, hand over all of them.
func (a *DirectoryAssigner) startLocked(pause time.Duration) {
	if a.busy || a.closed || len(a.pending) == 0 {
		return
	}
	a.busy = true
	a.retry = time.AfterFunc(pause, a.send)
}

func (a *DirectoryAssigner) send() {
	a.mu.Lock()
	sent := make(map[replicaKey]*assignment)
	for k, to := range a.pending {
		if len(sent) == maxAssignments {
			break
		}
		sent[k] = to
	}
	a.mu.Unlock()
	q := assignRequest(sent)
	q.BrokerID, q.BrokerEpoch = a.nodeID, a.epoch()
	a.controller.Forward(Client{}, q, a.clock.Now().Add(assignmentRetry), func(resp kmsg.Response, err error) {
		if err == nil {
			err = api.FromCode(resp.(*kmsg.AssignReplicasToDirsResponse).ErrorCode)
		}
		a.done(sent, err)
	})
}

// done settles a request: replicas that were answered, whether or not the controller knows them still, are through, unless
// they have moved again in the meantime.
func (a *DirectoryAssigner) done(sent map[replicaKey]*assignment, err error) {
	a.mu.Lock()
	a.busy = false
	if err != nil {
		a.logger.Warn("the controller could not be told of log directories", slog.Int("replicas", len(sent)), slog.Any("err", err))
		a.startLocked(assignmentRetry)
		a.mu.Unlock()
		return
	}
	var through []func()
	for k, to := range sent {
		if a.pending[k] != to {
			continue
		}
		delete(a.pending, k)
		if to.done != nil {
			through = append(through, to.done)
		}
	}
	a.startLocked(0)
	a.mu.Unlock()
	for _, f := range through {
		f()
	}
}

func assignRequest(replicas map[replicaKey]*assignment) *kmsg.AssignReplicasToDirsRequest {
	byDir := make(map[uuid.UUID]map[uuid.UUID][]int32)
	for k, to := range replicas {
		dir := to.dir
		if byDir[dir] == nil {
			byDir[dir] = make(map[uuid.UUID][]int32)
		}
		byDir[dir][k.topic] = append(byDir[dir][k.topic], k.partition)
	}
	q := kmsg.NewPtrAssignReplicasToDirsRequest()
	for dir, topics := range byDir {
		d := kmsg.NewAssignReplicasToDirsRequestDirectory()
		d.ID = dir
		for topic, parts := range topics {
			t := kmsg.NewAssignReplicasToDirsRequestDirectoryTopic()
			t.TopicID = topic
			slices.Sort(parts)
			for _, id := range parts {
				p := kmsg.NewAssignReplicasToDirsRequestDirectoryTopicPartition()
				p.Partition = id
				t.Partitions = append(t.Partitions, p)
			}
			d.Topics = append(d.Topics, t)
		}
		slices.SortFunc(d.Topics, func(a, b kmsg.AssignReplicasToDirsRequestDirectoryTopic) int {
			return bytes.Compare(a.TopicID[:], b.TopicID[:])
		})
		q.Directories = append(q.Directories, d)
	}
	slices.SortFunc(q.Directories, func(a, b kmsg.AssignReplicasToDirsRequestDirectory) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	return q
}
