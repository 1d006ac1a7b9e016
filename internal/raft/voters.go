package raft

import (
	"fmt"
	"slices"
	"strings"

	"gregor/internal/uuid"
)

// VoterSet is the members of the quorum in the order of their ids. It is immutable: changes give a new set.
type VoterSet []Voter

// NewVoterSet orders voters by id. No two may have one id.
func NewVoterSet(voters []Voter) (VoterSet, error) {
	s := slices.Clone(voters)
	slices.SortFunc(s, func(a, b Voter) int { return int(a.ID) - int(b.ID) })
	for i := 1; i < len(s); i++ {
		if s[i].ID == s[i-1].ID {
			return nil, fmt.Errorf("raft: voter id %d is given twice", s[i].ID)
		}
	}
	return s, nil
}

// Get finds the voter with an id, whatever its directory.
func (s VoterSet) Get(id int32) (Voter, bool) {
	i, ok := slices.BinarySearchFunc(s, id, func(v Voter, id int32) int { return int(v.ID) - int(id) })
	if !ok {
		return Voter{}, false
	}
	return s[i], true
}

// Has says whether the replica is a voter: its id is there, and its directory id is the one in the set or the set doesn't
// know the voter's directory (static voters).
func (s VoterSet) Has(k ReplicaKey) bool {
	v, ok := s.Get(k.ID)
	return ok && (v.DirectoryID == uuid.Zero || v.DirectoryID == k.DirectoryID)
}

// IsOnly says whether the replica is the only voter.
func (s VoterSet) IsOnly(k ReplicaKey) bool { return len(s) == 1 && s.Has(k) }

// Majority is how many voters decide.
func (s VoterSet) Majority() int { return len(s)/2 + 1 }

// IDs lists the voters' ids in ascending order.
func (s VoterSet) IDs() []int32 {
	ids := make([]int32, len(s))
	for i, v := range s {
		ids[i] = v.ID
	}
	return ids
}

// With adds a voter; ok is false when its id is already there.
func (s VoterSet) With(v Voter) (VoterSet, bool) {
	if _, dup := s.Get(v.ID); dup {
		return s, false
	}
	n := append(slices.Clone(s), v)
	slices.SortFunc(n, func(a, b Voter) int { return int(a.ID) - int(b.ID) })
	return n, true
}

// Without removes the voter with exactly this id and directory; ok is false when there is none or it is the last one.
func (s VoterSet) Without(k ReplicaKey) (VoterSet, bool) {
	v, found := s.Get(k.ID)
	if !found || v.DirectoryID != k.DirectoryID || len(s) == 1 {
		return s, false
	}
	return slices.DeleteFunc(slices.Clone(s), func(v Voter) bool { return v.ID == k.ID }), true
}

// Updated replaces the endpoints and versions of a voter that is there with this id and directory.
func (s VoterSet) Updated(v Voter) (VoterSet, bool) {
	for i, old := range s {
		if old.ReplicaKey == v.ReplicaKey {
			n := slices.Clone(s)
			n[i] = v
			return n, true
		}
	}
	return s, false
}

// SupportsKRaftVersion says whether every voter supports the version.
func (s VoterSet) SupportsKRaftVersion(version int16) bool {
	for _, v := range s {
		if version < v.KRaftVersions.Min || version > v.KRaftVersions.Max {
			return false
		}
	}
	return true
}

// Equal compares voters, endpoints and versions.
func (s VoterSet) Equal(o VoterSet) bool { return slices.EqualFunc(s, o, Voter.equal) }

func (v Voter) equal(o Voter) bool {
	return v.ReplicaKey == o.ReplicaKey && v.KRaftVersions == o.KRaftVersions && sameEndpoints(v.Endpoints, o.Endpoints)
}

// sameEndpoints compares without regard to order.
func sameEndpoints(a, b []Endpoint) bool {
	if len(a) != len(b) {
		return false
	}
	for _, e := range a {
		if !slices.Contains(b, e) {
			return false
		}
	}
	return true
}

// endpoint finds the endpoint of a listener.
func endpoint(es []Endpoint, listener string) (Endpoint, bool) {
	for _, e := range es {
		if strings.EqualFold(e.Name, listener) {
			return e, true
		}
	}
	return Endpoint{}, false
}

func (s VoterSet) String() string {
	var b strings.Builder
	b.WriteByte('[')
	for i, v := range s {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(v.ReplicaKey.String())
	}
	b.WriteByte(']')
	return b.String()
}
