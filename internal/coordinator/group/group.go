package group

import (
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/uuid"
)

// Kind is what protocol a group's members speak.
type Kind uint8

const (
	Classic  Kind = iota // JoinGroup and SyncGroup, or no members at all, only offsets
	Consumer             // KIP-848
	Share                // KIP-932
	Streams              // KIP-1071
)

var kindNames = [...]string{"Classic", "Consumer", "Share", "Streams"}

// String is Kafka's name.
func (k Kind) String() string { return kindNames[k] }

// listed is how ListGroups spells it.
func (k Kind) listed() string { return strings.ToLower(k.String()) }

// group is what all kinds of groups can be asked. An asOf is the offset to read timeline state at.
type group interface {
	groupID() string
	kind() Kind
	// stateAt is the state's name, as ListGroups shows it.
	stateAt(asOf int64) string
	// empty says that it has no members.
	empty() bool
	// subscribes says whether members read topic, or might.
	subscribes(topic string) bool

	// checkOffsetCommit refuses a commit, or says what must be true of each partition of it; nil is nothing more.
	checkOffsetCommit(c *commitCheck) (partitionCheck, error)
	checkOffsetFetch(memberID *string, memberEpoch int32, asOf int64) error
	checkOffsetDelete() error
	checkDelete() error

	// tombstones appends what removes the group, its offsets apart.
	tombstones(records []Record) []Record
	// expiry says from when on the retention of its offsets counts; ok false means that none expires now.
	expiry() (from func(*offset) int64, ok bool)
	// list is its entry in ListGroups.
	list(asOf int64) kmsg.ListGroupsResponseGroup
}

// partitionCheck says why an offset of a partition can't be committed.
type partitionCheck func(topic string, id uuid.UUID, partition int32) error

// commitCheck is who commits an offset.
type commitCheck struct {
	memberID      string
	instanceID    *string
	generation    int32 // or member epoch
	transactional bool
	version       int16
}
