package metadata

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"gregor/internal/message"
	"gregor/internal/uuid"
)

const (
	// NoLeader is the leader of a partition that has none.
	NoLeader int32 = -1
	// noLeaderChange is the value of PartitionChangeRecord.Leader that keeps leader and leader epoch.
	noLeaderChange int32 = -2
	// noRecoveryChange is the value of PartitionChangeRecord.LeaderRecoveryState that keeps the state.
	noRecoveryChange int8 = -1

	// RecoveryDone and Recovering are the leader recovery states: after an unclean election a leader is recovering until it
	// has said that it is through.
	RecoveryDone int8 = 0
	Recovering   int8 = 1
)

// Assignment is where a partition's replicas are. Partitions with equal assignments share one; it never changes.
type Assignment struct {
	// Replicas are the brokers of the replicas; the first is the preferred leader.
	Replicas []int32
	// Directories are the log directories of the replicas, one for each. uuid.Zero stands for "not known" (Kafka's
	// MIGRATING), and there are uuid.Unassigned and uuid.Lost.
	Directories []uuid.UUID
	// Removing and Adding are the replicas that a reassignment takes away and brings.
	Removing []int32
	Adding   []int32
}

// InSync is which replicas have all that is committed. Partitions with equal sets share one; it never changes.
type InSync struct {
	// ISR is the in-sync replicas.
	ISR []int32
	// ELR is the replicas that left the ISR while it was at its minimum, and so still have everything (KIP-966).
	ELR []int32
	// LastKnownELR is the replicas that were eligible before an unclean shutdown, the last of them first.
	LastKnownELR []int32
}

// Partition is the state of one partition. It is immutable.
type Partition struct {
	*Assignment
	*InSync
	// Leader is the leading broker, or NoLeader.
	Leader int32
	// LeaderEpoch rises by one with every change of the leader, including to itself.
	LeaderEpoch int32
	// PartitionEpoch rises by one with every change of the partition.
	PartitionEpoch int32
	// LeaderRecoveryState is RecoveryDone or Recovering.
	LeaderRecoveryState int8
}

// HasReplica says whether broker has a replica of the partition.
func (p *Partition) HasReplica(broker int32) bool { return slices.Contains(p.Replicas, broker) }

// Directory is the log directory of broker's replica; ok is false if it has none.
func (p *Partition) Directory(broker int32) (dir uuid.UUID, ok bool) {
	i := slices.Index(p.Replicas, broker)
	if i < 0 {
		return uuid.Zero, false
	}
	return p.Directories[i], true
}

// PreferredLeader is the first replica, or NoLeader.
func (p *Partition) PreferredLeader() int32 {
	if len(p.Replicas) == 0 {
		return NoLeader
	}
	return p.Replicas[0]
}

// Reassigning says whether a reassignment is going on.
func (p *Partition) Reassigning() bool { return len(p.Removing) > 0 || len(p.Adding) > 0 }

// Equal says whether two partitions are in the same state. Either may be nil.
func (p *Partition) Equal(o *Partition) bool {
	if p == nil || o == nil {
		return p == o
	}
	return p.Leader == o.Leader && p.LeaderEpoch == o.LeaderEpoch && p.PartitionEpoch == o.PartitionEpoch &&
		p.LeaderRecoveryState == o.LeaderRecoveryState && p.Assignment.equal(o.Assignment) && p.InSync.equal(o.InSync)
}

// SameAssignment says whether the replicas, their directories and the reassignment are the same.
func (p *Partition) SameAssignment(o *Partition) bool { return p.Assignment.equal(o.Assignment) }

func (a *Assignment) equal(o *Assignment) bool {
	return a == o || slices.Equal(a.Replicas, o.Replicas) && slices.Equal(a.Directories, o.Directories) &&
		slices.Equal(a.Removing, o.Removing) && slices.Equal(a.Adding, o.Adding)
}

func (s *InSync) equal(o *InSync) bool {
	return s == o || slices.Equal(s.ISR, o.ISR) && slices.Equal(s.ELR, o.ELR) && slices.Equal(s.LastKnownELR, o.LastKnownELR)
}

// String shows the state for logs and failing tests.
func (p *Partition) String() string {
	if p == nil {
		return "no partition"
	}
	return fmt.Sprintf("replicas %v dirs %v removing %v adding %v isr %v elr %v last known elr %v leader %d recovery %d leader epoch %d partition epoch %d",
		p.Replicas, p.Directories, p.Removing, p.Adding, p.ISR, p.ELR, p.LastKnownELR, p.Leader, p.LeaderRecoveryState,
		p.LeaderEpoch, p.PartitionEpoch)
}

// maxInterned bounds each table of an interner. A cluster that has more different assignments than that starts to hold
// some of them twice, which costs memory and nothing else.
const maxInterned = 1 << 14

// interner keeps one copy of equal assignments and in-sync sets. It is shared by all images of one line of descent, so it
// has a lock; deltas of one line are rarely made at the same time.
type interner struct {
	mu          sync.Mutex
	assignments map[string]*Assignment
	inSync      map[string]*InSync
	key         []byte
}

func newInterner() *interner {
	return &interner{assignments: map[string]*Assignment{}, inSync: map[string]*InSync{}}
}

func appendInts(b []byte, ints []int32) []byte {
	b = binary.AppendUvarint(b, uint64(len(ints)))
	for _, v := range ints {
		b = binary.BigEndian.AppendUint32(b, uint32(v))
	}
	return b
}

// assignment returns the shared copy of a, whose slices it doesn't keep.
func (in *interner) assignment(a Assignment) *Assignment {
	in.mu.Lock()
	defer in.mu.Unlock()
	key := appendInts(appendInts(appendInts(in.key[:0], a.Replicas), a.Removing), a.Adding)
	for i := range a.Directories {
		key = append(key, a.Directories[i][:]...)
	}
	in.key = key
	if got := in.assignments[string(key)]; got != nil {
		return got
	}
	if len(in.assignments) >= maxInterned {
		clear(in.assignments)
	}
	c := &Assignment{
		Replicas: slices.Clone(a.Replicas), Directories: slices.Clone(a.Directories),
		Removing: cloneOrNil(a.Removing), Adding: cloneOrNil(a.Adding),
	}
	in.assignments[string(key)] = c
	return c
}

// set returns the shared copy of s, whose slices it doesn't keep.
func (in *interner) set(s InSync) *InSync {
	in.mu.Lock()
	defer in.mu.Unlock()
	key := appendInts(appendInts(appendInts(in.key[:0], s.ISR), s.ELR), s.LastKnownELR)
	in.key = key
	if got := in.inSync[string(key)]; got != nil {
		return got
	}
	if len(in.inSync) >= maxInterned {
		clear(in.inSync)
	}
	c := &InSync{ISR: cloneOrNil(s.ISR), ELR: cloneOrNil(s.ELR), LastKnownELR: cloneOrNil(s.LastKnownELR)}
	in.inSync[string(key)] = c
	return c
}

func cloneOrNil(s []int32) []int32 { return append([]int32(nil), s...) }

// directories gives every one of n replicas its directory. Records from before KIP-858 have none, which means that none is
// known.
func directories(dirs []uuid.UUID, n int) ([]uuid.UUID, error) {
	known := false
	for i := range dirs {
		known = known || dirs[i] != uuid.Zero
	}
	if !known {
		return make([]uuid.UUID, n), nil
	}
	if len(dirs) != n {
		return nil, fmt.Errorf("%d directories for %d replicas", len(dirs), n)
	}
	return dirs, nil
}

func (in *interner) fromRecord(r *message.PartitionRecord) (Partition, error) {
	dirs, err := directories(r.Directories, len(r.Replicas))
	if err != nil {
		return Partition{}, err
	}
	if r.LeaderRecoveryState != RecoveryDone && r.LeaderRecoveryState != Recovering {
		return Partition{}, fmt.Errorf("unknown leader recovery state %d", r.LeaderRecoveryState)
	}
	return Partition{
		Assignment: in.assignment(Assignment{
			Replicas: r.Replicas, Directories: dirs, Removing: r.RemovingReplicas, Adding: r.AddingReplicas,
		}),
		InSync:         in.set(InSync{ISR: r.ISR, ELR: r.EligibleLeaderReplicas, LastKnownELR: r.LastKnownELR}),
		Leader:         r.Leader,
		LeaderEpoch:    r.LeaderEpoch,
		PartitionEpoch: r.PartitionEpoch, LeaderRecoveryState: r.LeaderRecoveryState,
	}, nil
}

// merge is the state of p after a change.
func (in *interner) merge(p *Partition, r *message.PartitionChangeRecord) (Partition, error) {
	n := *p
	n.PartitionEpoch++
	if r.Leader != noLeaderChange {
		n.Leader = r.Leader
		n.LeaderEpoch++
	}
	switch r.LeaderRecoveryState {
	case noRecoveryChange:
	case RecoveryDone, Recovering:
		n.LeaderRecoveryState = r.LeaderRecoveryState
	default:
		return n, fmt.Errorf("unknown leader recovery state %d", r.LeaderRecoveryState)
	}
	if r.Replicas != nil || r.Directories != nil || r.RemovingReplicas != nil || r.AddingReplicas != nil {
		a := *p.Assignment
		if r.Replicas != nil {
			a.Replicas = r.Replicas
		}
		if r.Directories != nil {
			a.Directories = r.Directories
		}
		if r.RemovingReplicas != nil {
			a.Removing = r.RemovingReplicas
		}
		if r.AddingReplicas != nil {
			a.Adding = r.AddingReplicas
		}
		var err error
		if a.Directories, err = directories(a.Directories, len(a.Replicas)); err != nil {
			return n, err
		}
		n.Assignment = in.assignment(a)
	}
	if r.ISR != nil || r.EligibleLeaderReplicas != nil || r.LastKnownELR != nil {
		s := *p.InSync
		if r.ISR != nil {
			s.ISR = r.ISR
		}
		if r.EligibleLeaderReplicas != nil {
			s.ELR = r.EligibleLeaderReplicas
		}
		if r.LastKnownELR != nil {
			s.LastKnownELR = r.LastKnownELR
		}
		n.InSync = in.set(s)
	}
	return n, nil
}

// MergePartition is the state of p after a change record: what every replay of it must arrive at, the controller's own
// included.
func MergePartition(p *Partition, r *message.PartitionChangeRecord) (*Partition, error) {
	n, err := newInterner().merge(p, r)
	if err != nil {
		return nil, fmt.Errorf("metadata: change partition %v:%d: %w", r.TopicID, r.PartitionID, err)
	}
	return &n, nil
}

// record is p as a snapshot's record.
func (p *Partition) record(topic uuid.UUID, id int32, o *WriteOptions) *message.PartitionRecord {
	r := &message.PartitionRecord{
		PartitionID: id, TopicID: topic, Replicas: p.Replicas, ISR: p.ISR, RemovingReplicas: p.Removing, AddingReplicas: p.Adding,
		Leader: p.Leader, LeaderRecoveryState: p.LeaderRecoveryState, LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch,
	}
	if o.MetadataVersion.ELRRecords() {
		if len(p.ELR) > 0 {
			r.EligibleLeaderReplicas = p.ELR
		}
		if len(p.LastKnownELR) > 0 {
			r.LastKnownELR = p.LastKnownELR
		}
	} else if len(p.ELR) > 0 || len(p.LastKnownELR) > 0 {
		o.lose("the eligible leader replicas of one or more partitions")
	}
	if o.MetadataVersion.Directories() {
		r.Directories = p.Directories
	} else if slices.ContainsFunc(p.Directories, func(d uuid.UUID) bool { return d != uuid.Zero }) {
		o.lose("the directory assignment of one or more replicas")
	}
	return r
}
