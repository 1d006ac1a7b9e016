package group

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/coordinator"
	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/timeline"
)

// newRand is a source of bytes that a seed decides.
func newRand(seed uint64) *rand.ChaCha8 {
	var key [32]byte
	key[0] = byte(seed)
	return rand.NewChaCha8(key)
}

// subscription is a consumer protocol subscription to topics, separated by "+".
func subscription(topics string) []byte {
	var names []string
	if topics != "" {
		names = strings.Split(topics, "+")
	}
	b := binary.BigEndian.AppendUint16(nil, 1)
	b = binary.BigEndian.AppendUint32(b, uint32(len(names)))
	for _, n := range names {
		b = binary.BigEndian.AppendUint16(b, uint16(len(n)))
		b = append(b, n...)
	}
	b = binary.BigEndian.AppendUint32(b, 0)    // no user data
	return binary.BigEndian.AppendUint32(b, 0) // nothing owned
}

// assignmentText is what an assignment says: partitions if it is one of the consumer protocol, else its bytes.
func assignmentText(b []byte) string {
	var a kmsg.ConsumerMemberAssignment
	if len(b) < 10 || a.ReadFrom(b) != nil {
		return fmt.Sprintf("%q", b)
	}
	var s []string
	for _, t := range a.Topics {
		s = append(s, strings.ReplaceAll(t.Topic+fmt.Sprint(t.Partitions), " ", ","))
	}
	return strings.Join(s, " ")
}

// assignmentBytes is an assignment of the consumer protocol if text names partitions, else the text.
func assignmentBytes(text string) []byte {
	if strings.Contains(text, "-") {
		return consumerAssignment(text)
	}
	return []byte(text)
}

// subscriptionOwning is a subscription that says which partitions the member has.
func subscriptionOwning(topics, owns string) []byte {
	md := kmsg.NewConsumerMemberMetadata()
	md.Version = 1
	if err := md.ReadFrom(subscription(topics)); err != nil {
		panic(err)
	}
	names, by := args{plain: strings.Split(owns, "+")}.partitions()
	for _, name := range names {
		t := kmsg.ConsumerMemberMetadataOwnedPartition{Topic: name}
		for _, p := range by[name] {
			t.Partitions = append(t.Partitions, int32(p[0]))
		}
		md.OwnedPartitions = append(md.OwnedPartitions, t)
	}
	return md.AppendTo(nil)
}

// consumerAssignment is an assignment of the consumer protocol: "orders-0+orders-1".
func consumerAssignment(text string) []byte {
	a := kmsg.NewConsumerMemberAssignment()
	topics, by := args{plain: strings.Split(text, "+")}.partitions()
	for _, name := range topics {
		t := kmsg.ConsumerMemberAssignmentTopic{Topic: name}
		for _, p := range by[name] {
			t.Partitions = append(t.Partitions, int32(p[0]))
		}
		a.Topics = append(a.Topics, t)
	}
	return a.AppendTo(nil)
}

// logged is a record in the machine's log.
type logged struct {
	key, value []byte // nil value for a tombstone
	producer   int64
	marker     int // 1 commit, -1 abort
}

// machine is a core with what it needs, without any concurrency: a log in memory whose records are committed at once, and
// a clock that stands still. It writes down what happens.
type machine struct {
	cfg      Config
	now      time.Time
	registry *timeline.Registry
	timers   *coordinator.Timers[Record]
	core     *core
	log      []logged
	ids      int
	failNext error
	trace    []string
	world    world
	jobs     []func() func(*core, time.Time) (result, error)
}

func newMachine() *machine {
	m := &machine{cfg: DefaultConfig(), now: time.UnixMilli(1_700_000_000_000), world: world{img: metadata.EmptyImage()}}
	m.restart()
	m.registry.Snapshot(0)
	m.core.Loaded(m.now)
	return m
}

func (m *machine) restart() {
	m.registry = timeline.NewRegistry()
	m.timers = &coordinator.Timers[Record]{}
	m.core = newCore(&m.cfg, coordinator.Env[Record]{
		Registry: m.registry,
		Timers:   m.timers,
		Logger:   slog.New(slog.DiscardHandler),
		Later:    func(f func()) { f() },
	}, func() string {
		m.ids++
		return fmt.Sprint(m.ids)
	}, &counters{})
	m.core.latest = func() *metadata.Image { return m.world.img }
	m.jobs = nil
	m.core.background = func(job func() func(*core, time.Time) (result, error)) { m.jobs = append(m.jobs, job) }
}

// reload replaces the core by one that has read the log.
func (m *machine) reload() {
	m.restart()
	for i, l := range m.log {
		if err := m.replayLogged(i, l); err != nil {
			panic(err)
		}
	}
	m.registry.Snapshot(int64(len(m.log)))
	m.core.Loaded(m.now)
}

func (m *machine) replayLogged(i int, l logged) error {
	if l.marker != 0 {
		return m.core.ReplayTransactionEnd(l.producer, 0, l.marker > 0)
	}
	r, ok, err := Codec{}.Decode(l.key, l.value)
	if err != nil || !ok {
		return fmt.Errorf("record %d: known %v, %w", i, ok, err)
	}
	return m.core.Replay(int64(i), l.producer, 0, r)
}

func (m *machine) print(format string, v ...any) {
	m.trace = append(m.trace, fmt.Sprintf(format, v...))
}

// apply does what the runtime does with a result, and returns the error that the operation gets.
func (m *machine) apply(res result, producer int64) error {
	base := len(m.log)
	for i, r := range res.Records {
		key, err := Codec{}.AppendKey(nil, r)
		if err != nil {
			panic(err)
		}
		value, tombstone, err := Codec{}.AppendValue(nil, r)
		if err != nil {
			panic(err)
		}
		if tombstone {
			value = nil
		}
		if !res.Applied {
			if err := m.core.Replay(int64(base+i), producer, 0, r); err != nil {
				panic(err)
			}
		}
		m.log = append(m.log, logged{key: key, value: value, producer: producer})
		m.print("%s", m.describeRecord(r, producer))
	}
	if len(res.Records) > 0 && m.failNext != nil {
		err := m.failNext
		m.failNext = nil
		m.log = m.log[:base]
		m.registry.Revert(int64(base))
		m.print("append failed: %v", err)
		if res.Committed != nil {
			res.Committed(m.now, err)
		}
		return err
	}
	m.registry.Snapshot(int64(len(m.log)))
	m.registry.DeleteUpTo(int64(len(m.log)))
	if res.Committed != nil {
		res.Committed(m.now, nil)
	}
	return nil
}

// advance lets time pass and timers fire.
func (m *machine) advance(d time.Duration) {
	end := m.now.Add(d)
	for {
		next, ok := m.timers.Next()
		if !ok || next.After(end) {
			break
		}
		m.now = next
		for t := m.timers.Expired(m.now); t != nil; t = m.timers.Expired(m.now) {
			res, err := t.Fire(m.now)
			if err != nil {
				m.print("timer: %v", err)
				continue
			}
			before := len(m.trace)
			_ = m.apply(res, -1)
			if len(m.trace) > before {
				m.print("  (at +%v)", m.now.Sub(end.Add(-d)))
			}
		}
	}
	m.now = end
}

func (m *machine) join(version int16, name string, r *kmsg.JoinGroupRequest) {
	host := "/10.0.0.1"
	answered := false
	_ = m.apply(m.core.join(&joinRequest{
		JoinGroupRequest: r,
		ctx:              &Context{ClientID: name, ClientHost: host, Version: version},
		reply: func(resp *kmsg.JoinGroupResponse) {
			if answered {
				return
			}
			answered = true
			if resp.ErrorCode != 0 {
				m.print("%s <- join %s member=%s", name, codeName(resp.ErrorCode), resp.MemberID)
				return
			}
			var members []string
			for _, o := range resp.Members {
				members = append(members, o.MemberID)
			}
			skip := ""
			if resp.SkipAssignment {
				skip = " skip-assignment"
			}
			m.print("%s <- join ok gen=%d protocol=%s member=%s leader=%s members=%v%s", name, resp.Generation, *resp.Protocol,
				resp.MemberID, resp.LeaderID, members, skip)
		},
	}, m.now), -1)
}

func (m *machine) sync(name string, r *kmsg.SyncGroupRequest) {
	_ = m.apply(m.core.sync(r, func(resp *kmsg.SyncGroupResponse) {
		if resp.ErrorCode != 0 {
			m.print("%s <- sync %s", name, codeName(resp.ErrorCode))
			return
		}
		protocol := ""
		if resp.Protocol != nil {
			protocol = *resp.Protocol
		}
		m.print("%s <- sync ok protocol=%s assignment=%s", name, protocol, assignmentText(resp.MemberAssignment))
	}, m.now), -1)
}

func (m *machine) heartbeat(r *kmsg.HeartbeatRequest) {
	err := m.core.heartbeat(r, m.now)
	m.print("heartbeat: %s", errName(err))
}

func (m *machine) leave(r *kmsg.LeaveGroupRequest) {
	res, resp := m.core.leave(r, m.now)
	err := m.apply(res, -1)
	if err != nil {
		m.print("leave: %v", err)
		return
	}
	if resp.ErrorCode != 0 {
		m.print("leave: %s", codeName(resp.ErrorCode))
	}
	for _, l := range resp.Members {
		m.print("leave %s: %s", l.MemberID, codeName(l.ErrorCode))
	}
}

func (m *machine) commit(producer int64, r *commitRequest) {
	res, codes, err := m.core.commit(r, m.now)
	if err == nil {
		err = m.apply(res, producer)
	}
	if err != nil {
		m.print("commit: %s", errName(err))
		return
	}
	for i, t := range r.topics {
		for j, p := range t.Partitions {
			m.print("commit %s-%d: %s", t.Topic, p.Partition, codeName(codes[i][j]))
		}
	}
}

func (m *machine) endTransaction(producer int64, commit bool) {
	if err := m.core.ReplayTransactionEnd(producer, 0, commit); err != nil {
		panic(err)
	}
	marker := -1
	if commit {
		marker = 1
	}
	m.log = append(m.log, logged{producer: producer, marker: marker})
	m.registry.Snapshot(int64(len(m.log)))
}

func errName(err error) string {
	if err == nil {
		return "ok"
	}
	return strings.SplitN(err.Error(), ":", 2)[0]
}

// describeRecord is one line about a record that was written.
func (m *machine) describeRecord(r Record, producer int64) string {
	var b strings.Builder
	b.WriteString("record ")
	if producer >= 0 {
		fmt.Fprintf(&b, "(producer %d) ", producer)
	}
	switch k := r.Key.(type) {
	case *message.OffsetCommitKey:
		fmt.Fprintf(&b, "offset %s %s-%d", k.Group, k.Topic, k.Partition)
		if v, ok := r.Value.(*message.OffsetCommitValue); ok {
			fmt.Fprintf(&b, " v%d: %d %q", r.Version, v.Offset, v.Metadata)
			if v.ExpireTimestamp != noTimestamp {
				fmt.Fprintf(&b, " expires +%dms", v.ExpireTimestamp-v.CommitTimestamp)
			}
		}
	case *message.GroupMetadataKey:
		fmt.Fprintf(&b, "group %s", k.Group)
		if v, ok := r.Value.(*message.GroupMetadataValue); ok {
			fmt.Fprintf(&b, " v%d: type=%q gen=%d", r.Version, v.ProtocolType, v.Generation)
			if v.Protocol != nil {
				fmt.Fprintf(&b, " protocol=%s", *v.Protocol)
			}
			if v.Leader != nil {
				fmt.Fprintf(&b, " leader=%s", *v.Leader)
			}
			for _, m := range v.Members {
				fmt.Fprintf(&b, " %s=%s", m.MemberID, assignmentText(m.Assignment))
			}
		}
	default:
		text := m.describeConsumerRecord(r)
		if text == "" {
			text = fmt.Sprintf("%T %s", r.Key, string(r.Key.AppendJSON(nil, 0)))
		}
		b.WriteString(text)
	}
	if r.Value == nil {
		b.WriteString(" removed")
	}
	return b.String()
}
