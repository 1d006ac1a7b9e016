package raft

import (
	"fmt"
	"slices"
	"sort"

	"gregor/internal/message"
)

// logView is what the core knows of its log: where it begins and ends, which epoch begins where, which snapshots there are,
// and which voters and kraft.version came into force where. It holds no records.
type logView struct {
	start, end int64
	synced     int64 // everything before it is on disk
	epochs     []EpochStart
	snapshots  []OffsetAndEpoch
	voters     []VotersAt
	versions   []VersionAt
	static     VoterSet // in force until a record says otherwise
}

func newLogView(s LogSummary, static VoterSet) logView {
	return logView{
		start: s.Start, end: s.End, synced: s.End,
		epochs:    slices.Clone(s.Epochs),
		snapshots: slices.Clone(s.Snapshots),
		voters:    slices.Clone(s.Voters),
		versions:  slices.Clone(s.Versions),
		static:    static,
	}
}

// lastEpoch is the epoch of the last record: in the log, or else in the snapshot at whose end the empty log begins.
func (v *logView) lastEpoch() int32 {
	if n := len(v.epochs); n > 0 {
		return v.epochs[n-1].Epoch
	}
	if s, ok := v.latestSnapshot(); ok && s.Offset == v.end {
		return s.Epoch
	}
	return 0
}

// endPoint is the log end offset with the last epoch.
func (v *logView) endPoint() OffsetAndEpoch { return OffsetAndEpoch{v.end, v.lastEpoch()} }

func (v *logView) latestSnapshot() (OffsetAndEpoch, bool) {
	if n := len(v.snapshots); n > 0 {
		return v.snapshots[n-1], true
	}
	return OffsetAndEpoch{}, false
}

func (v *logView) earliestSnapshot() (OffsetAndEpoch, bool) {
	if len(v.snapshots) > 0 {
		return v.snapshots[0], true
	}
	return OffsetAndEpoch{}, false
}

func (v *logView) hasSnapshot(id OffsetAndEpoch) bool { return slices.Contains(v.snapshots, id) }

func (v *logView) addSnapshot(id OffsetAndEpoch) {
	i, found := slices.BinarySearchFunc(v.snapshots, id, OffsetAndEpoch.Compare)
	if !found {
		v.snapshots = slices.Insert(v.snapshots, i, id)
	}
}

// lastVoters is the voter set in force, committed or not.
func (v *logView) lastVoters() VoterSet {
	if n := len(v.voters); n > 0 {
		return v.voters[n-1].Set
	}
	return v.static
}

// lastVotersOffset is the offset of the record that made lastVoters, or ok=false when they are static.
func (v *logView) lastVotersOffset() (int64, bool) {
	if n := len(v.voters); n > 0 {
		return v.voters[n-1].Offset, true
	}
	return 0, false
}

func (v *logView) lastVersion() int16 {
	if n := len(v.versions); n > 0 {
		return v.versions[n-1].Version
	}
	return 0
}

// votersAt is the voter set as of the record at offset.
func (v *logView) votersAt(offset int64) VoterSet {
	i := sort.Search(len(v.voters), func(i int) bool { return v.voters[i].Offset > offset })
	if i == 0 {
		return v.static
	}
	return v.voters[i-1].Set
}

// versionAt is kraft.version as of the record at offset.
func (v *logView) versionAt(offset int64) int16 {
	i := sort.Search(len(v.versions), func(i int) bool { return v.versions[i].Offset > offset })
	if i == 0 {
		return 0
	}
	return v.versions[i-1].Version
}

// appended notes a batch that went into the log.
func (v *logView) appended(base, last int64, epoch int32) {
	if base != v.end {
		panic(fmt.Sprintf("raft: appended at %d to a log that ends at %d", base, v.end))
	}
	if epoch < v.lastEpoch() {
		panic(fmt.Sprintf("raft: appended epoch %d after epoch %d", epoch, v.lastEpoch()))
	}
	if n := len(v.epochs); n == 0 || v.epochs[n-1].Epoch < epoch {
		v.epochs = append(v.epochs, EpochStart{epoch, base})
	}
	v.end = last + 1
}

// control notes a control record in the log.
func (v *logView) control(offset int64, m message.Message) {
	switch m := m.(type) {
	case *message.VotersRecord:
		v.voters = append(v.voters, VotersAt{offset, votersFromRecord(m)})
	case *message.KRaftVersionRecord:
		v.versions = append(v.versions, VersionAt{offset, m.KRaftVersion})
	}
}

// truncate forgets everything at and after offset.
func (v *logView) truncate(offset int64) {
	v.end = min(v.end, offset)
	v.synced = min(v.synced, v.end)
	v.epochs = v.epochs[:sort.Search(len(v.epochs), func(i int) bool { return v.epochs[i].Start >= offset })]
	v.voters = v.voters[:sort.Search(len(v.voters), func(i int) bool { return v.voters[i].Offset >= offset })]
	v.versions = v.versions[:sort.Search(len(v.versions), func(i int) bool { return v.versions[i].Offset >= offset })]
}

// trim notes that the log begins at start: older epochs, snapshots and voters are gone, except what was in force there.
func (v *logView) trim(start int64) {
	if start <= v.start {
		return
	}
	v.start = start
	i := sort.Search(len(v.epochs), func(i int) bool { return v.epochs[i].Start > start }) - 1
	if i >= 0 {
		v.epochs = slices.Clone(v.epochs[i:])
		v.epochs[0].Start = max(v.epochs[0].Start, start)
		if start == v.end {
			v.epochs = nil // the log is empty, the snapshot at its start tells the epoch
		}
	}
	v.snapshots = slices.DeleteFunc(v.snapshots, func(s OffsetAndEpoch) bool { return s.Offset < start })
	v.forgetControlBefore(start)
}

// forgetControlBefore drops voters and versions that were replaced before offset.
func (v *logView) forgetControlBefore(offset int64) {
	if i := sort.Search(len(v.voters), func(i int) bool { return v.voters[i].Offset >= offset }) - 1; i > 0 {
		v.voters = slices.Clone(v.voters[i:])
	}
	if i := sort.Search(len(v.versions), func(i int) bool { return v.versions[i].Offset >= offset }) - 1; i > 0 {
		v.versions = slices.Clone(v.versions[i:])
	}
}

// reset notes that the log was restarted, empty, at the end of a snapshot.
func (v *logView) reset(id OffsetAndEpoch, version int16, voters VoterSet) {
	v.start, v.end, v.synced = id.Offset, id.Offset, id.Offset
	v.epochs, v.voters, v.versions = nil, nil, nil
	v.snapshots = slices.DeleteFunc(v.snapshots, func(s OffsetAndEpoch) bool { return s.Offset < id.Offset })
	v.addSnapshot(id)
	if voters != nil {
		v.voters = append(v.voters, VotersAt{id.Offset - 1, voters})
	}
	if version > 0 {
		v.versions = append(v.versions, VersionAt{id.Offset - 1, version})
	}
}

// endForEpoch finds the largest epoch in the log that is not above epoch, and where it ends. For an epoch below all that the
// log still has, it is the earliest snapshot's.
func (v *logView) endForEpoch(epoch int32) OffsetAndEpoch {
	if epoch == v.lastEpoch() {
		return v.endPoint()
	}
	i := sort.Search(len(v.epochs), func(i int) bool { return v.epochs[i].Epoch > epoch })
	switch {
	case i == len(v.epochs): // above all: what the log ends with
		return v.endPoint()
	case i == 0: // below all: the log's first epoch begins where the earlier ones end
		if s, ok := v.earliestSnapshot(); ok && s.Offset == v.epochs[0].Start {
			return s
		}
		return OffsetAndEpoch{v.epochs[0].Start, epoch}
	}
	return OffsetAndEpoch{v.epochs[i].Start, v.epochs[i-1].Epoch}
}

// Kinds of a follower's fetch position against the leader's log.
type positionKind uint8

const (
	positionValid     positionKind = iota // the log has this record; go on from here
	positionDiverging                     // truncate to the point and try again
	positionSnapshot                      // too far back: fetch this snapshot
)

// validate compares a replica's end with the log (KIP-595): does the log hold the very record before offset, which had epoch?
// An offset alone would not show it: after two quick elections the same offset may hold another record.
func (v *logView) validate(offset int64, epoch int32) (positionKind, OffsetAndEpoch) {
	if v.start == 0 && offset == 0 {
		return positionValid, OffsetAndEpoch{}
	}
	if first, ok := v.earliestSnapshot(); ok &&
		(offset < v.start || offset == v.start && epoch != first.Epoch || epoch < first.Epoch) {
		last, _ := v.latestSnapshot()
		return positionSnapshot, last
	}
	end := v.endForEpoch(epoch)
	if end.Epoch != epoch || end.Offset < offset {
		return positionDiverging, end
	}
	return positionValid, OffsetAndEpoch{offset, epoch}
}

// truncationPoint is where a replica must cut its log when the leader says that its own epoch point.Epoch, the largest not
// above the replica's, ends at point.Offset.
func (v *logView) truncationPoint(point OffsetAndEpoch) int64 {
	if point.Epoch == 0 {
		return min(point.Offset, v.end)
	}
	own := v.endForEpoch(point.Epoch)
	if own.Epoch == point.Epoch {
		return min(own.Offset, point.Offset)
	}
	return own.Offset
}

// votersFromRecord and votersRecord convert between a VoterSet and the record in the log.
func votersFromRecord(m *message.VotersRecord) VoterSet {
	set := make(VoterSet, 0, len(m.Voters))
	for _, r := range m.Voters {
		v := Voter{
			ReplicaKey:    ReplicaKey{r.VoterID, r.VoterDirectoryID},
			KRaftVersions: VersionRange{r.KRaftVersionFeature.MinSupportedVersion, r.KRaftVersionFeature.MaxSupportedVersion},
		}
		for _, e := range r.Endpoints {
			v.Endpoints = append(v.Endpoints, Endpoint{e.Name, e.Host, e.Port})
		}
		set = append(set, v)
	}
	slices.SortFunc(set, func(a, b Voter) int { return int(a.ID) - int(b.ID) })
	return set
}

func votersRecord(set VoterSet) *message.VotersRecord {
	m := message.NewVotersRecord()
	for _, v := range set {
		r := message.VotersRecordVoter{
			VoterID:          v.ID,
			VoterDirectoryID: v.DirectoryID,
			KRaftVersionFeature: message.VotersRecordKRaftVersionFeature{
				MinSupportedVersion: v.KRaftVersions.Min, MaxSupportedVersion: v.KRaftVersions.Max,
			},
		}
		for _, e := range v.Endpoints {
			r.Endpoints = append(r.Endpoints, message.VotersRecordEndpoint{Name: e.Name, Host: e.Host, Port: e.Port})
		}
		m.Voters = append(m.Voters, r)
	}
	return m
}

func kraftVersionRecord(version int16) *message.KRaftVersionRecord {
	m := message.NewKRaftVersionRecord()
	m.KRaftVersion = version
	return m
}
