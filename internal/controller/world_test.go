package controller

import (
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/config"
	"gregor/internal/message"
	"gregor/internal/uuid"
)

// fakeLog is a metadata log that commits when it is told to.
type fakeLog struct {
	batches   []fakeBatch
	committed int // how many of batches
	end       int64
	epoch     int32 // that in which appends are taken, -1 for none
	resigned  []int32
	kraft     int16
}

type fakeBatch struct {
	base    int64
	epoch   int32
	records []message.Versioned
}

func (l *fakeLog) PrepareAppend(epoch int32, records []message.Versioned) (int64, error) {
	if epoch != l.epoch {
		return 0, api.ErrNotLeaderOrFollower
	}
	// What is read back later is what was written, whatever happens to the slice.
	var kept []message.Versioned
	for _, v := range records {
		b, err := message.AppendMetadataRecord(nil, v.Message, v.Version)
		if err != nil {
			return 0, fmt.Errorf("encode %s v%d: %w", v.Message.MessageName(), v.Version, err)
		}
		back, err := message.ReadMetadataRecord(b)
		if err != nil {
			return 0, err
		}
		kept = append(kept, back)
	}
	l.batches = append(l.batches, fakeBatch{l.end, epoch, kept})
	l.end += int64(len(records))
	return l.end - 1, nil
}

func (l *fakeLog) SchedulePreparedAppend() {}
func (l *fakeLog) LogEndOffset() int64     { return l.end }
func (l *fakeLog) Resign(epoch int32)      { l.resigned = append(l.resigned, epoch); l.epoch = -1 }
func (l *fakeLog) KRaftVersion() int16     { return l.kraft }
func (l *fakeLog) UpgradeKRaftVersion(epoch int32, version int16, validateOnly bool) (int64, error) {
	if !validateOnly {
		l.kraft = version
	}
	return -1, nil
}

// control appends a control batch of n records, as a new leader and a change of voters do.
func (l *fakeLog) control(n int64) {
	l.batches = append(l.batches, fakeBatch{l.end, l.epoch, nil})
	l.end += n
}

// cut takes back what isn't committed.
func (l *fakeLog) cut() {
	if l.committed < len(l.batches) {
		l.end = l.batches[l.committed].base
		l.batches = l.batches[:l.committed]
	}
}

// world is one core on one log.
type world struct {
	t     testing.TB
	now   time.Time
	log   *fakeLog
	core  *Core
	opts  Options
	epoch int32
	// hold keeps the log from committing what is appended.
	hold bool
}

// bootstrap is what formatting leaves for a metadata.version, with ELR or without.
func bootstrap(mv int16, elr int16) []message.Versioned {
	var out []message.Versioned
	add := func(name string, level int16) {
		r := message.NewFeatureLevelRecord()
		r.Name, r.FeatureLevel = name, level
		out = append(out, message.Versioned{Message: r})
	}
	add("metadata.version", mv)
	if elr > 0 {
		add("eligible.leader.replicas.version", elr)
	}
	return out
}

func testConfig(t testing.TB) *config.Broker {
	b, err := config.Load(config.NewProperties(map[string]string{
		"process.roles": "broker,controller", "node.id": "1", "controller.listener.names": "CONTROLLER",
		"controller.quorum.voters": "1@localhost:9093", "listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
		"advertised.listeners": "PLAINTEXT://localhost:9092",
	}))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func newWorld(t testing.TB, change func(*Options)) *world {
	w := &world{t: t, now: time.UnixMilli(1_700_000_000_000), log: &fakeLog{epoch: -1, kraft: 1}}
	w.opts = Options{
		NodeID: 1, ClusterID: "cluster", Logger: slog.New(slog.DiscardHandler), Rand: rand.New(rand.NewPCG(1, 2)),
		IDs: &seededBytes{rand.New(rand.NewPCG(3, 4))}, Configs: NewConfigSchema(testConfig(t)), Bootstrap: bootstrap(33, 1),
		Fatal: func(err error) { t.Fatalf("fatal: %v", err) },
	}
	if change != nil {
		change(&w.opts)
	}
	w.core = NewCore(w.opts, w.log)
	return w
}

type seededBytes struct{ r *rand.Rand }

func (s *seededBytes) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(s.r.Uint32())
	}
	return len(p), nil
}

var _ io.Reader = (*seededBytes)(nil)

// lead makes the core the active controller of the next epoch.
func (w *world) lead() {
	w.epoch++
	w.log.epoch = w.epoch
	w.log.control(1)
	w.core.HandleLeaderChange(w.now, w.opts.NodeID, w.epoch)
	w.settle()
}

// lose makes another node the leader; what isn't committed is cut off.
func (w *world) lose() {
	w.epoch++
	w.log.epoch = -1
	w.core.HandleLeaderChange(w.now, 99, w.epoch)
	w.log.cut()
}

// commit commits everything that was appended.
func (w *world) commit() {
	for w.log.committed < len(w.log.batches) {
		b := w.log.batches[w.log.committed]
		w.log.committed++
		last := b.base + int64(len(b.records)) - 1
		if len(b.records) == 0 {
			last = b.base
		}
		w.core.HandleCommit(w.now, b.base, last, b.records)
	}
}

func (w *world) settle() {
	if !w.hold {
		w.commit()
	}
}

// pass lets time go by, ticking as a driver would.
func (w *world) pass(d time.Duration) {
	end := w.now.Add(d)
	for {
		at := w.core.Deadline()
		if at.IsZero() || at.After(end) {
			break
		}
		w.now = at
		w.core.Tick(w.now)
		w.settle()
	}
	w.now = end
}

// ask sends a request and returns the answer; it must come at once unless the log is held.
func ask[R kmsg.Response](w *world, req kmsg.Request) R {
	w.t.Helper()
	var got kmsg.Response
	w.send(req, func(resp kmsg.Response, _ error) { got = resp })
	if got == nil {
		w.t.Fatalf("no answer to %T", req)
	}
	return got.(R)
}

func (w *world) send(req kmsg.Request, reply Reply) {
	if req.GetVersion() == 0 {
		req.SetVersion(req.MaxVersion())
	}
	if hb, ok := req.(*kmsg.BrokerHeartbeatRequest); ok {
		w.core.Tracker().Heard(hb.BrokerID, hb.BrokerEpoch, w.now, Link(hb.BrokerID))
	}
	w.core.Submit(w.now, &RequestContext{Principal: "User:test"}, req, reply)
	w.settle()
}

// broker makes a registration request.
func brokerRequest(id int32, rack string, dirs ...uuid.UUID) *kmsg.BrokerRegistrationRequest {
	req := kmsg.NewPtrBrokerRegistrationRequest()
	req.BrokerID, req.ClusterID, req.PreviousBrokerEpoch = id, "cluster", -1
	req.IncarnationID = uuid.UUID{0: 1, 14: byte(id), 15: 1}
	if len(dirs) == 0 {
		dirs = []uuid.UUID{dirOf(id, 1)}
	}
	for _, d := range dirs {
		req.LogDirs = append(req.LogDirs, d)
	}
	if rack != "" {
		req.Rack = &rack
	}
	for _, f := range SupportedFeatures() {
		x := kmsg.NewBrokerRegistrationRequestFeature()
		x.Name, x.MinSupportedVersion, x.MaxSupportedVersion = f.Name, f.Min, f.Max
		req.Features = append(req.Features, x)
	}
	l := kmsg.NewBrokerRegistrationRequestListener()
	l.Name, l.Host, l.Port = "PLAINTEXT", fmt.Sprintf("b%d", id), 9092
	req.Listeners = append(req.Listeners, l)
	return req
}

// dirOf is the n-th directory of a broker.
func dirOf(id int32, n int) uuid.UUID { return uuid.UUID{0: 0xd1, 13: byte(id), 15: byte(n)} }

// up registers a broker and unfences it.
func (w *world) up(ids ...int32) {
	w.t.Helper()
	for _, id := range ids {
		resp := ask[*kmsg.BrokerRegistrationResponse](w, brokerRequest(id, ""))
		if resp.ErrorCode != 0 {
			w.t.Fatalf("register %d: %d", id, resp.ErrorCode)
		}
		hb := w.heartbeat(id, false, false)
		if hb.ErrorCode != 0 || hb.IsFenced {
			w.t.Fatalf("broker %d: %+v", id, hb)
		}
	}
}

func (w *world) heartbeat(id int32, fence, shutdown bool) *kmsg.BrokerHeartbeatResponse {
	w.t.Helper()
	req := kmsg.NewPtrBrokerHeartbeatRequest()
	req.BrokerID, req.CurrentMetadataOffset, req.WantFence, req.WantShutdown = id, w.log.end-1, fence, shutdown
	if b, ok := w.core.cluster.brokers.Get(id); ok {
		req.BrokerEpoch = b.epoch
	}
	return ask[*kmsg.BrokerHeartbeatResponse](w, req)
}

func createRequest(name string, partitions int32, factor int16) *kmsg.CreateTopicsRequest {
	req := kmsg.NewPtrCreateTopicsRequest()
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = name, partitions, factor
	req.Topics = append(req.Topics, t)
	return req
}

func (w *world) create(name string, partitions int32, factor int16) {
	w.t.Helper()
	resp := ask[*kmsg.CreateTopicsResponse](w, createRequest(name, partitions, factor))
	if resp.Topics[0].ErrorCode != 0 {
		w.t.Fatalf("create %s: %d %v", name, resp.Topics[0].ErrorCode, orNull(resp.Topics[0].ErrorMessage))
	}
}

func (w *world) partition(name string, i int32) *partition {
	w.t.Helper()
	t, ok := w.core.topics.byName.Get(name)
	if !ok {
		w.t.Fatalf("no topic %s", name)
	}
	p, ok := t.partitions.Get(i)
	if !ok {
		w.t.Fatalf("no partition %s-%d", name, i)
	}
	return p
}

// replayed is a standby that has read the batches given.
func (w *world) replayed(batches []fakeBatch) *Core {
	c := NewCore(w.opts, &fakeLog{epoch: -1})
	for _, b := range batches {
		c.HandleCommit(w.now, b.base, b.base+int64(len(b.records))-1, b.records)
	}
	return c
}

// diff shows the lines that two dumps don't share.
func diff(a, b string) string {
	as, bs := strings.Split(a, "\n"), strings.Split(b, "\n")
	var out []string
	for _, l := range as {
		if !slices.Contains(bs, l) {
			out = append(out, "- "+l)
		}
	}
	for _, l := range bs {
		if !slices.Contains(as, l) {
			out = append(out, "+ "+l)
		}
	}
	return strings.Join(out, "\n")
}
