package metadata

import "fmt"

// Version is a level of the feature metadata.version: what the records of the metadata log may contain, and which versions
// of their requests brokers send to each other. Zero means that it isn't known, which is so before the first record.
type Version int16

// The levels that Kafka 4.4 supports. Levels 1 to 6 were dropped in 4.0.
const (
	V3_3_IV3 Version = 7 + iota
	V3_4_IV0
	V3_5_IV0
	V3_5_IV1
	V3_5_IV2
	V3_6_IV0
	V3_6_IV1
	V3_6_IV2
	V3_7_IV0
	V3_7_IV1
	V3_7_IV2
	V3_7_IV3
	V3_7_IV4
	V3_8_IV0
	V3_9_IV0
	V4_0_IV0
	V4_0_IV1
	V4_0_IV2
	V4_0_IV3
	V4_1_IV0
	V4_1_IV1
	V4_2_IV0
	V4_2_IV1
	V4_3_IV0
	V4_4_IV0
	V4_4_IV1
	V4_4_IV2
	V4_5_IV0
)

const (
	// MinVersion is the lowest level that can be read, run with and written.
	MinVersion = V3_3_IV3
	// LatestProduction is the level of a new cluster.
	LatestProduction = V4_4_IV2
	// LatestTesting is the highest level known; it needs unstable.feature.versions.enable.
	LatestTesting = V4_5_IV0
)

type versionInfo struct {
	name    string
	records bool  // the level changes metadata records
	fetch   int16 // version of Fetch between brokers
	list    int16 // version of ListOffsets between brokers
}

var versions = [...]versionInfo{
	{"3.3-IV3", true, 13, 7},
	{"3.4-IV0", true, 13, 7},
	{"3.5-IV0", false, 14, 8},
	{"3.5-IV1", false, 15, 8},
	{"3.5-IV2", true, 15, 8},
	{"3.6-IV0", false, 15, 8},
	{"3.6-IV1", true, 15, 8},
	{"3.6-IV2", true, 15, 8},
	{"3.7-IV0", true, 15, 8},
	{"3.7-IV1", false, 15, 8},
	{"3.7-IV2", true, 15, 8},
	{"3.7-IV3", false, 15, 8},
	{"3.7-IV4", false, 16, 8},
	{"3.8-IV0", false, 16, 8},
	{"3.9-IV0", false, 17, 9},
	{"4.0-IV0", false, 17, 9},
	{"4.0-IV1", true, 17, 9},
	{"4.0-IV2", false, 17, 9},
	{"4.0-IV3", false, 17, 10},
	{"4.1-IV0", false, 17, 10},
	{"4.1-IV1", false, 18, 10},
	{"4.2-IV0", false, 18, 10},
	{"4.2-IV1", false, 18, 11},
	{"4.3-IV0", true, 18, 11},
	{"4.4-IV0", false, 18, 11},
	{"4.4-IV1", true, 18, 11},
	{"4.4-IV2", true, 18, 11},
	{"4.5-IV0", false, 18, 11},
}

// Known says whether v is a level that this code supports.
func (v Version) Known() bool { return v >= MinVersion && v <= LatestTesting }

func (v Version) info() versionInfo {
	if !v.Known() {
		return versionInfo{name: fmt.Sprintf("level %d", int16(v)), fetch: 13, list: 7}
	}
	return versions[v-MinVersion]
}

// String is Kafka's name, such as 4.4-IV2.
func (v Version) String() string { return v.info().name }

// Release is the release that the level belongs to, such as 4.4.
func (v Version) Release() string {
	s := v.String()
	for i := range s {
		if s[i] == '-' {
			return s[:i]
		}
	}
	return s
}

// ParseVersion finds a level by its name (4.4-IV2), by a release (4.4, which means its last level that is for production) or by
// a release with more numbers behind (4.4.0).
func ParseVersion(s string) (Version, error) {
	for v := LatestTesting; v >= MinVersion; v-- {
		if v.String() == s {
			return v, nil
		}
	}
	for v := LatestProduction; v >= MinVersion; v-- {
		if r := v.Release(); r == s || len(s) > len(r) && s[:len(r)+1] == r+"." {
			return v, nil
		}
	}
	return 0, fmt.Errorf("metadata: unknown metadata.version %q: supported are %v to %v", s, MinVersion, LatestProduction)
}

// CheckDowngrade says whether going from v to a lower level loses nothing: no level in between may change the records.
func (v Version) CheckDowngrade(to Version) (safe bool) {
	for l := v; l > to; l-- {
		if l.info().records {
			return false
		}
	}
	return true
}

// FetchVersion is the version of Fetch that followers send.
func (v Version) FetchVersion() int16 { return v.info().fetch }

// ListOffsetsVersion is the version of ListOffsets that brokers send to each other.
func (v Version) ListOffsetsVersion() int16 { return v.info().list }

// RegisterBrokerRecordVersion is the version to write of RegisterBrokerRecord.
func (v Version) RegisterBrokerRecordVersion() int16 {
	switch {
	case v >= V4_3_IV0:
		return 4
	case v >= V3_7_IV2:
		return 3
	case v >= V3_4_IV0:
		return 2
	}
	return 1
}

// BrokerRegistrationChangeRecordVersion is the version that holds what a change sets. Kafka writes the lowest that will do.
func BrokerRegistrationChangeRecordVersion(inControlledShutdown, logDirs, cordonedLogDirs bool) int16 {
	switch {
	case cordonedLogDirs:
		return 3
	case logDirs:
		return 2
	case inControlledShutdown:
		return 1
	}
	return 0
}

// PartitionRecordVersion is the version to write of PartitionRecord.
func (v Version) PartitionRecordVersion() int16 {
	switch {
	case v.ELRRecords():
		return 2
	case v.Directories():
		return 1
	}
	return 0
}

// PartitionChangeRecordVersion is the version to write of PartitionChangeRecord.
func (v Version) PartitionChangeRecordVersion() int16 { return v.PartitionRecordVersion() }

// SCRAM says whether SCRAM credentials may be in the log.
func (v Version) SCRAM() bool { return v >= V3_5_IV2 }

// SkipsEpochBumpOnShrink says that a leader epoch no longer rises when an ISR shrinks.
func (v Version) SkipsEpochBumpOnShrink() bool { return v >= V3_6_IV0 }

// Transactions says whether metadata transactions may be in the log.
func (v Version) Transactions() bool { return v >= V3_6_IV1 }

// DelegationTokens says whether delegation tokens may be in the log.
func (v Version) DelegationTokens() bool { return v >= V3_6_IV2 }

// ControllerRegistrations says whether controllers register themselves.
func (v Version) ControllerRegistrations() bool { return v >= V3_7_IV0 }

// Directories says whether replicas are assigned to log directories (KIP-858).
func (v Version) Directories() bool { return v >= V3_7_IV2 }

// ELRRecords says whether partitions have fields for eligible leader replicas (KIP-966).
func (v Version) ELRRecords() bool { return v >= V4_0_IV1 }

// CordonedLogDirs says whether log directories can be cordoned.
func (v Version) CordonedLogDirs() bool { return v >= V4_3_IV0 }

// CIDRHosts says whether the host of an ACL may be a range of addresses.
func (v Version) CIDRHosts() bool { return v >= V4_4_IV1 }

// ControllerUnregistration says whether a controller can be unregistered.
func (v Version) ControllerUnregistration() bool { return v >= V4_4_IV2 }
