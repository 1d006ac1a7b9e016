package raft

import (
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/record"
	"gregor/internal/uuid"
)

var rewrite = flag.Bool("rewrite", false, "write what the traces in testdata really give")

// TestTraces runs the scripts in testdata. A script feeds one core with events; after each command come a line of dashes and
// what the core wants done, and what it has become. Run with -rewrite, then read the diff.
//
//	start id=1 [voters=1,2,3] [static] [log=0..10@1] [epochs=1:0,2:5] [snapshot=5@1] [state=epoch,leader,voted] [join]
//	tick 100ms                       time passes
//	vote|prevote from=2 epoch=3 last=10@1 [to=1] [dir=wrong]
//	begin from=2 epoch=3             BeginQuorumEpoch
//	end from=2 epoch=3 next=1,3      EndQuorumEpoch
//	fetch from=2 at=10@1 epoch=3 [hw=8] [wait=0] [version=18]
//	fetchsnapshot from=2 snapshot=5@1 epoch=3 position=0
//	describe
//	add|remove voter=4               AddRaftVoter, RemoveRaftVoter
//	update voter=2 epoch=1 port=9999 UpdateRaftVoter
//	upgrade to=1 epoch=1
//	answer vote granted=yes [epoch= leader=]     the answers to the last request of that kind to a node:
//	answer vote node=3 granted=no ...
//	answer fetch batches=10..14@2[,...] [voters=1,2 [replaced=2]] hw=8 | diverging=5@1 | snapshot=20@2 [leader= epoch= error=]
//	answer fetchsnapshot snapshot=20@2 position=0 size=10 bytes=10
//	answer begin|end|versions|update|... error=NAME
//	refused node=2                   the last request to the node was refused
//	written 12                       the leader's batches up to the offset are in the log
//	synced 12
//	resign 3 | shutdown | lost 2
func TestTraces(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no traces: %v", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			got := runTrace(t, string(data))
			if *rewrite {
				if err := os.WriteFile(f, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(data) {
				t.Errorf("trace differs; run with -rewrite and look at the diff.\n%s", firstDifference(string(data), got))
			}
		})
	}
}

func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range min(len(w), len(g)) {
		if w[i] != g[i] {
			return fmt.Sprintf("line %d:\n got %s\nwant %s", i+1, g[i], w[i])
		}
	}
	return fmt.Sprintf("lengths: got %d lines, want %d", len(g), len(w))
}

// runTrace copies comments and commands, and puts the real output below each command.
func runTrace(t *testing.T, script string) string {
	var out strings.Builder
	tr := &tracer{t: t}
	lines := strings.Split(script, "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		if line == "" || strings.HasPrefix(line, "#") {
			if line != "" || i < len(lines)-1 {
				out.WriteString(line + "\n")
			}
			continue
		}
		out.WriteString(line + "\n----\n")
		if i+1 < len(lines) && lines[i+1] == "----" {
			for i++; i+1 < len(lines) && lines[i+1] != ""; i++ {
			}
		}
		out.WriteString(tr.command(line))
	}
	return out.String()
}

type tracer struct {
	t      *testing.T
	core   *Core
	now    time.Time
	out    strings.Builder
	sent   map[string]Send // by kind and node, the last one
	nextID uint64
	acc    *accumulator // offsets of what a leader appends
	size   int64        // of the download
}

func traceDir(id int32) uuid.UUID { return uuid.UUID{8: 1, 15: byte(id)} }

func traceEndpoints(id int32) []Endpoint {
	return []Endpoint{{"CONTROLLER", "n" + strconv.Itoa(int(id)), uint16(9000 + id)}}
}

func (tr *tracer) command(line string) string {
	tr.out.Reset()
	words := strings.Fields(line)
	args := map[string]string{}
	var plain []string
	for _, w := range words[1:] {
		if k, v, ok := strings.Cut(w, "="); ok {
			args[k] = v
		} else {
			plain = append(plain, w)
			args[w] = "yes"
		}
	}
	a := traceArgs{tr.t, line, args, plain}
	if words[0] == "start" {
		tr.start(a)
	} else {
		tr.event(words[0], a)
	}
	tr.state()
	return tr.out.String()
}

type traceArgs struct {
	t     *testing.T
	line  string
	m     map[string]string
	plain []string
}

func (a traceArgs) int(k string, def int64) int64 {
	s, ok := a.m[k]
	if !ok {
		return def
	}
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		a.t.Fatalf("%s: %v", a.line, err)
	}
	return v
}

func (a traceArgs) point(k string) OffsetAndEpoch {
	var p OffsetAndEpoch
	if s, ok := a.m[k]; ok {
		if _, err := fmt.Sscanf(s, "%d@%d", &p.Offset, &p.Epoch); err != nil {
			a.t.Fatalf("%s: %s: %v", a.line, k, err)
		}
	}
	return p
}

func (a traceArgs) ids(k string) []int32 {
	var ids []int32
	for _, s := range strings.Split(a.m[k], ",") {
		if s == "" {
			continue
		}
		v, err := strconv.Atoi(s)
		if err != nil {
			a.t.Fatalf("%s: %v", a.line, err)
		}
		ids = append(ids, int32(v))
	}
	return ids
}

func (tr *tracer) start(a traceArgs) {
	id := int32(a.int("id", 1))
	tr.now = time.UnixMilli(1_000_000)
	tr.sent = map[string]Send{}
	static := a.m["static"] != ""
	var voters VoterSet
	for _, v := range a.ids("voters") {
		vv := Voter{ReplicaKey: ReplicaKey{v, traceDir(v)}, Endpoints: traceEndpoints(v), KRaftVersions: KRaftVersions}
		if static {
			vv.DirectoryID = uuid.Zero
		}
		voters = append(voters, vv)
	}
	cfg := CoreConfig{
		NodeID: id, ReplicaKey: ReplicaKey{id, traceDir(id)}, ClusterID: "c", CanVote: a.m["observer"] == "", Listener: "CONTROLLER",
		Endpoints: traceEndpoints(id), KRaftVersions: KRaftVersions,
		ElectionTimeout: time.Second, ElectionBackoffMax: time.Second, FetchTimeout: 2 * time.Second, RequestTimeout: 2 * time.Second,
		RetryBackoff: 20 * time.Millisecond, FetchMaxWait: 500 * time.Millisecond, FetchMaxBytes: MaxBatchBytes,
		FetchSnapshotMaxBytes: 1 << 20, AutoJoin: a.m["join"] != "",
	}
	if s := a.m["bootstrap"]; s != "" {
		for i, v := range a.ids("bootstrap") {
			e := traceEndpoints(v)[0]
			cfg.Bootstrap = append(cfg.Bootstrap, Peer{ID: int32(-2 - i), Host: e.Host, Port: e.Port})
		}
	}
	sum := LogSummary{}
	if s := a.m["log"]; s != "" {
		var epoch int32
		if _, err := fmt.Sscanf(s, "%d..%d@%d", &sum.Start, &sum.End, &epoch); err != nil {
			tr.t.Fatalf("%s: %v", a.line, err)
		}
		if sum.End > sum.Start {
			sum.Epochs = []EpochStart{{epoch, sum.Start}}
		}
	}
	if s := a.m["epochs"]; s != "" {
		sum.Epochs = nil
		for _, e := range strings.Split(s, ",") {
			var es EpochStart
			fmt.Sscanf(e, "%d:%d", &es.Epoch, &es.Start)
			sum.Epochs = append(sum.Epochs, es)
		}
	}
	if _, ok := a.m["snapshot"]; ok {
		sum.Snapshots = append(sum.Snapshots, a.point("snapshot"))
	}
	if static {
		cfg.StaticVoters = voters
	} else {
		sum.Voters = []VotersAt{{-1, voters}}
		sum.Versions = []VersionAt{{-1, 1}}
	}
	var el *ElectionState
	if s := a.m["state"]; s != "" {
		e := ElectionState{Voted: NoVote}
		var voted int32
		if _, err := fmt.Sscanf(s, "%d,%d,%d", &e.Epoch, &e.LeaderID, &voted); err != nil {
			tr.t.Fatalf("%s: %v", a.line, err)
		}
		if voted >= 0 {
			e.Voted = ReplicaKey{voted, traceDir(voted)}
		}
		el = &e
	}
	tr.core = NewCore(cfg, rand.New(rand.NewPCG(1, 2)), slog.New(slog.DiscardHandler))
	tr.acc = newAccumulator(func() {})
	tr.step(Started{Log: sum, Election: el})
}

func (tr *tracer) step(ev Event) {
	for _, e := range append([]Effect(nil), tr.core.Step(tr.now, ev)...) {
		tr.effect(e)
	}
}

// effect prints an effect, and does what must be done for the script to go on.
func (tr *tracer) effect(e Effect) {
	p := func(format string, args ...any) { fmt.Fprintf(&tr.out, format+"\n", args...) }
	name := func(k ReplicaKey) string {
		if k.ID < 0 {
			return "-"
		}
		return strconv.Itoa(int(k.ID))
	}
	switch e := e.(type) {
	case PersistElection:
		p("persist epoch=%d leader=%d voted=%s", e.State.Epoch, e.State.LeaderID, name(e.State.Voted))
	case Send:
		kind, what := describeRequest(e.Request)
		tr.sent[fmt.Sprintf("%s %d", kind, e.To.ID)] = e
		tr.sent[kind] = e
		p("send to=%d %s", e.To.ID, what)
	case Reply:
		p("reply %s", describeResponse(e.Response))
	case ReplyRecords:
		p("reply %s records from %d", describeResponse(e.Response), e.Offset)
	case ReplySnapshot:
		p("reply piece of %s at %d", e.Snapshot, e.Position)
	case BecomeLeader:
		p("lead epoch=%d with %s", e.Epoch, describeControl(e.Control))
		tr.acc.open(e.Epoch, tr.core.view.end)
		if _, err := tr.acc.control(0, e.Control); err != nil {
			tr.t.Fatal(err)
		}
	case StopLeading:
		p("stop leading epoch=%d", e.Epoch)
		tr.acc.close()
	case AppendControl:
		p("append %s", describeControl(e.Control))
		last, err := tr.acc.control(0, e.Control)
		if err != nil {
			tr.t.Fatal(err)
		}
		if e.Done != nil {
			e.Done(last, err)
		}
	case AppendFetched:
		b := record.Batch(e.Batches)
		p("store from %d (%d bytes, sync %v)", b.BaseOffset(), len(e.Batches), e.Sync)
		tr.step(Stored{})
	case Truncate:
		p("truncate to %d", e.Offset)
	case OpenDownload:
		p("download %s", e.ID)
		tr.size = 0
	case StoreChunk:
		tr.size += int64(len(e.Bytes))
		p("store piece (%d bytes)", len(e.Bytes))
		tr.step(ChunkStored{tr.core.follow.download.id, tr.size})
	case DropDownload:
		p("drop download")
	case InstallSnapshot:
		p("install %s", e.ID)
		tr.step(SnapshotStored{ID: e.ID, KRaftVersion: tr.core.view.lastVersion(), Voters: tr.core.view.lastVoters()})
	case Committed:
		p("committed %d", e.Offset)
	case LeaderChanged:
		p("tell leader=%d epoch=%d", e.LeaderID, e.Epoch)
	default:
		tr.t.Fatalf("effect %T", e)
	}
}

func (tr *tracer) state() {
	c := tr.core
	fmt.Fprintf(&tr.out, "= %s epoch=%d leader=%d log=%d..%d@%d hw=%d", c.role, c.epoch, c.leader, c.view.start, c.view.end, c.view.lastEpoch(), c.hw)
	if ids := c.view.lastVoters().IDs(); len(ids) > 0 {
		fmt.Fprintf(&tr.out, " voters=%v", ids)
	}
	if d := c.Deadline(); !d.IsZero() {
		fmt.Fprintf(&tr.out, " next=%s", d.Sub(tr.now).Round(time.Millisecond))
	}
	tr.out.WriteString("\n")
}

func (tr *tracer) request(r kmsg.Request) {
	tr.nextID++
	tr.step(Requested{ID: tr.nextID, Listener: "CONTROLLER", Request: r})
}

func (tr *tracer) event(what string, a traceArgs) {
	from := int32(a.int("from", -1))
	epoch := int32(a.int("epoch", int64(tr.core.epoch)))
	id := int32(a.int("voter", -1))
	dir := traceDir(id)
	if a.m["dir"] == "wrong" {
		dir[0] = 0xff
	}
	cluster := "c"
	if s, ok := a.m["cluster"]; ok {
		cluster = s
	}
	switch what {
	case "tick":
		d, err := time.ParseDuration(a.plain[0])
		if err != nil {
			tr.t.Fatal(err)
		}
		// Time passes in the steps that the core asks for.
		end := tr.now.Add(d)
		for {
			next := tr.core.Deadline()
			if next.IsZero() || next.After(end) {
				break
			}
			if next.After(tr.now) {
				tr.now = next
			} else {
				tr.now = tr.now.Add(time.Millisecond)
			}
			tr.step(Ticked{})
		}
		tr.now = end
	case "vote", "prevote":
		last := a.point("last")
		r := kmsg.NewPtrVoteRequest()
		r.Version = int16(a.int("version", 2))
		r.ClusterID = &cluster
		r.VoterID = int32(a.int("to", -1))
		p := kmsg.VoteRequestTopicPartition{CandidateEpoch: epoch, CandidateID: from, CandidateDirectoryID: traceDir(from),
			LastOffset: last.Offset, LastOffsetEpoch: last.Epoch, PreVote: what == "prevote"}
		if a.m["dir"] == "wrong" {
			p.VoterDirectoryID = uuid.UUID{1}
		}
		r.Topics = []kmsg.VoteRequestTopic{{Topic: TopicName, Partitions: []kmsg.VoteRequestTopicPartition{p}}}
		if a.m["topic"] != "" {
			r.Topics[0].Topic = a.m["topic"]
		}
		tr.request(r)
	case "begin":
		r := kmsg.NewPtrBeginQuorumEpochRequest()
		r.Version = 1
		r.ClusterID = &cluster
		r.VoterID = int32(a.int("to", -1))
		p := kmsg.BeginQuorumEpochRequestTopicPartition{LeaderID: from, LeaderEpoch: epoch}
		if a.m["dir"] == "wrong" {
			p.VoterDirectoryID = uuid.UUID{1}
		}
		r.Topics = []kmsg.BeginQuorumEpochRequestTopic{{Topic: TopicName, Partitions: []kmsg.BeginQuorumEpochRequestTopicPartition{p}}}
		for _, e := range traceEndpoints(from) {
			r.LeaderEndpoints = append(r.LeaderEndpoints, kmsg.BeginQuorumEpochRequestLeaderEndpoint{Name: e.Name, Host: e.Host, Port: e.Port})
		}
		tr.request(r)
	case "end":
		r := kmsg.NewPtrEndQuorumEpochRequest()
		r.Version = 1
		r.ClusterID = &cluster
		p := kmsg.EndQuorumEpochRequestTopicPartition{LeaderID: from, LeaderEpoch: epoch}
		for _, s := range a.ids("next") {
			p.PreferredCandidates = append(p.PreferredCandidates, kmsg.EndQuorumEpochRequestTopicPartitionPreferredCandidate{CandidateID: s, CandidateDirectoryID: traceDir(s)})
		}
		r.Topics = []kmsg.EndQuorumEpochRequestTopic{{Topic: TopicName, Partitions: []kmsg.EndQuorumEpochRequestTopicPartition{p}}}
		for _, e := range traceEndpoints(from) {
			r.LeaderEndpoints = append(r.LeaderEndpoints, kmsg.EndQuorumEpochRequestLeaderEndpoint{Name: e.Name, Host: e.Host, Port: e.Port})
		}
		tr.request(r)
	case "fetch":
		at := a.point("at")
		r := kmsg.NewPtrFetchRequest()
		r.Version = int16(a.int("version", 18))
		r.ClusterID = &cluster
		r.ReplicaID, r.ReplicaState.ID = from, from
		r.MaxWaitMillis = int32(a.int("wait", 500))
		r.MaxBytes = 1 << 20
		p := kmsg.NewFetchRequestTopicPartition()
		p.CurrentLeaderEpoch, p.FetchOffset, p.LastFetchedEpoch = epoch, at.Offset, at.Epoch
		p.ReplicaDirectoryID = traceDir(from)
		p.HighWatermark = a.int("hw", 1<<62)
		r.Topics = []kmsg.FetchRequestTopic{{Topic: TopicName, TopicID: uuid.MetadataTopic, Partitions: []kmsg.FetchRequestTopicPartition{p}}}
		tr.request(r)
	case "fetchsnapshot":
		s := a.point("snapshot")
		r := kmsg.NewPtrFetchSnapshotRequest()
		r.Version = 1
		r.ClusterID = &cluster
		r.ReplicaID = from
		r.MaxBytes = 1 << 20
		p := kmsg.FetchSnapshotRequestTopicPartition{CurrentLeaderEpoch: epoch, Position: a.int("position", 0), ReplicaDirectoryID: traceDir(from)}
		p.SnapshotID.EndOffset, p.SnapshotID.Epoch = s.Offset, s.Epoch
		r.Topics = []kmsg.FetchSnapshotRequestTopic{{Topic: TopicName, Partitions: []kmsg.FetchSnapshotRequestTopicPartition{p}}}
		tr.request(r)
	case "describe":
		r := kmsg.NewPtrDescribeQuorumRequest()
		r.Version = int16(a.int("version", 2))
		r.Topics = []kmsg.DescribeQuorumRequestTopic{{Topic: TopicName, Partitions: []kmsg.DescribeQuorumRequestTopicPartition{{}}}}
		tr.request(r)
	case "add":
		r := kmsg.NewPtrAddRaftVoterRequest()
		r.Version = 1
		r.AckWhenCommitted = a.m["early"] == ""
		r.ClusterID = &cluster
		r.VoterID, r.VoterDirectoryID = id, dir
		for _, e := range traceEndpoints(id) {
			r.Listeners = append(r.Listeners, kmsg.AddRaftVoterRequestListener{Name: e.Name, Host: e.Host, Port: e.Port})
		}
		if a.m["listener"] != "" {
			r.Listeners[0].Name = a.m["listener"]
		}
		tr.request(r)
	case "remove":
		r := kmsg.NewPtrRemoveRaftVoterRequest()
		r.ClusterID = &cluster
		r.VoterID, r.VoterDirectoryID = id, dir
		tr.request(r)
	case "update":
		r := kmsg.NewPtrUpdateRaftVoterRequest()
		r.ClusterID = &cluster
		r.CurrentLeaderEpoch = epoch
		r.VoterID, r.VoterDirectoryID = id, dir
		for _, e := range traceEndpoints(id) {
			r.Listeners = append(r.Listeners, kmsg.UpdateRaftVoterRequestListener{Name: e.Name, Host: e.Host, Port: uint16(a.int("port", int64(e.Port)))})
		}
		r.KRaftVersionFeature.MaxSupportedVersion = int16(a.int("max", 1))
		tr.request(r)
	case "upgrade":
		tr.step(UpgradeAsked{Epoch: epoch, Version: int16(a.int("to", 1)), ValidateOnly: a.m["validate"] != "", Done: func(last int64, err error) {
			fmt.Fprintf(&tr.out, "upgrade: last=%d err=%v\n", last, err)
		}})
	case "answer":
		tr.answer(a)
	case "refused", "timeout":
		node := a.int("node", -1)
		var last Send
		for _, s := range tr.sent {
			if int64(s.To.ID) == node && s.Correlation > last.Correlation {
				last = s
			}
		}
		tr.step(Responded{Correlation: last.Correlation, Err: ErrRefused, Refused: what == "refused"})
	case "append":
		n, _ := strconv.Atoi(a.plain[0])
		last, err := tr.acc.prepare(tr.core.epoch, 0, noRecords(n))
		fmt.Fprintf(&tr.out, "append: last=%d err=%v\n", last, err)
		tr.acc.schedule()
	case "written":
		ev := Written{}
		for _, b := range tr.acc.drain() {
			ev.Batches = append(ev.Batches, WrittenBatch{b.data.BaseOffset(), b.data.LastOffset(), b.data.PartitionLeaderEpoch(), b.control})
		}
		tr.step(ev)
	case "synced":
		at := tr.core.view.end
		if len(a.plain) > 0 {
			at, _ = strconv.ParseInt(a.plain[0], 10, 64)
		}
		tr.step(Synced{at})
	case "resign":
		tr.step(ResignAsked{epoch})
	case "shutdown":
		tr.step(ShutdownAsked{})
	case "lost":
		tr.step(PeerLost{int32(a.int("node", -1))})
	case "snapshotted":
		tr.step(SnapshotTaken{a.point("snapshot")})
	case "trimmed":
		at, _ := strconv.ParseInt(a.plain[0], 10, 64)
		tr.step(LogTrimmed{at})
	default:
		tr.t.Fatalf("unknown command %q", a.line)
	}
}

// answer answers the last request of a kind, to a node if one is given.
func (tr *tracer) answer(a traceArgs) {
	kind := a.plain[0]
	key := kind
	if n, ok := a.m["node"]; ok {
		key = kind + " " + n
	}
	s, ok := tr.sent[key]
	if !ok {
		tr.t.Fatalf("%s: no such request", a.line)
	}
	c := tr.core
	leader, epoch := int32(a.int("leader", int64(c.leader))), int32(a.int("epoch", int64(c.epoch)))
	var code int16
	if e, ok := a.m["error"]; ok {
		for i := int16(-1); i < 140; i++ {
			if x := api.ErrorFor(i); x != nil && x.Name == e {
				code = i
			}
		}
		if code == 0 {
			tr.t.Fatalf("%s: no such error", a.line)
		}
	}
	var resp kmsg.Response
	switch kind {
	case "vote", "prevote":
		r := kmsg.NewPtrVoteResponse()
		r.Topics = []kmsg.VoteResponseTopic{{Topic: TopicName, Partitions: []kmsg.VoteResponseTopicPartition{{
			ErrorCode: code, LeaderID: leader, LeaderEpoch: epoch, VoteGranted: a.m["granted"] == "yes"}}}}
		if a.m["top"] != "" {
			r.ErrorCode, r.Topics = code, nil
		}
		resp = r
	case "begin":
		r := kmsg.NewPtrBeginQuorumEpochResponse()
		r.Topics = []kmsg.BeginQuorumEpochResponseTopic{{Topic: TopicName, Partitions: []kmsg.BeginQuorumEpochResponseTopicPartition{{
			ErrorCode: code, LeaderID: leader, LeaderEpoch: epoch}}}}
		resp = r
	case "end":
		r := kmsg.NewPtrEndQuorumEpochResponse()
		r.Topics = []kmsg.EndQuorumEpochResponseTopic{{Topic: TopicName, Partitions: []kmsg.EndQuorumEpochResponseTopicPartition{{
			ErrorCode: code, LeaderID: leader, LeaderEpoch: epoch}}}}
		resp = r
	case "fetch":
		r := kmsg.NewPtrFetchResponse()
		p := kmsg.NewFetchResponseTopicPartition()
		p.ErrorCode = code
		p.CurrentLeader.LeaderID, p.CurrentLeader.LeaderEpoch = leader, epoch
		p.HighWatermark = a.int("hw", -1)
		if d, ok := a.m["diverging"]; ok {
			_ = d
			x := a.point("diverging")
			p.DivergingEpoch.EndOffset, p.DivergingEpoch.Epoch = x.Offset, x.Epoch
		}
		if _, ok := a.m["snapshot"]; ok {
			x := a.point("snapshot")
			p.SnapshotID.EndOffset, p.SnapshotID.Epoch = x.Offset, x.Epoch
		}
		if s, ok := a.m["batches"]; ok {
			for _, one := range strings.Split(s, ",") {
				p.RecordBatches = append(p.RecordBatches, traceBatch(tr.t, one, a.m["voters"], a)...)
			}
		}
		if leader >= 0 {
			e := traceEndpoints(leader)[0]
			r.Brokers = []kmsg.FetchResponseBroker{{NodeID: leader, Host: e.Host, Port: int32(e.Port)}}
		}
		r.Topics = []kmsg.FetchResponseTopic{{TopicID: uuid.MetadataTopic, Partitions: []kmsg.FetchResponseTopicPartition{p}}}
		resp = r
	case "fetchsnapshot":
		r := kmsg.NewPtrFetchSnapshotResponse()
		p := kmsg.NewFetchSnapshotResponseTopicPartition()
		p.ErrorCode = code
		p.CurrentLeader.LeaderID, p.CurrentLeader.LeaderEpoch = leader, epoch
		x := a.point("snapshot")
		p.SnapshotID.EndOffset, p.SnapshotID.Epoch = x.Offset, x.Epoch
		p.Size, p.Position = a.int("size", 0), a.int("position", 0)
		p.Bytes = make([]byte, a.int("bytes", 0))
		r.Topics = []kmsg.FetchSnapshotResponseTopic{{Topic: TopicName, Partitions: []kmsg.FetchSnapshotResponseTopicPartition{p}}}
		resp = r
	case "versions":
		r := kmsg.NewPtrApiVersionsResponse()
		r.ErrorCode = code
		r.SupportedFeatures = []kmsg.ApiVersionsResponseSupportedFeature{{Name: kraftVersionFeature, MaxVersion: int16(a.int("max", 1))}}
		resp = r
	case "update":
		r := kmsg.NewPtrUpdateRaftVoterResponse()
		r.ErrorCode = code
		r.CurrentLeader.LeaderID, r.CurrentLeader.LeaderEpoch = leader, epoch
		resp = r
	case "add":
		r := kmsg.NewPtrAddRaftVoterResponse()
		r.ErrorCode = code
		resp = r
	case "remove":
		r := kmsg.NewPtrRemoveRaftVoterResponse()
		r.ErrorCode = code
		resp = r
	default:
		tr.t.Fatalf("%s: unknown kind", a.line)
	}
	tr.step(Responded{Correlation: s.Correlation, Response: resp})
}

// traceBatch makes a batch from "10..14@2": records 10 to 13 of epoch 2. With voters it is a control batch with a voter set.
func traceBatch(t *testing.T, s, voters string, a traceArgs) []byte {
	var base, end int64
	var epoch int32
	if _, err := fmt.Sscanf(s, "%d..%d@%d", &base, &end, &epoch); err != nil {
		t.Fatalf("%s: %v", s, err)
	}
	if voters != "" {
		var set VoterSet
		for _, v := range a.ids("voters") {
			dir := traceDir(v)
			if int64(v) == a.int("replaced", -1) {
				dir[0] = 0xff
			}
			set = append(set, Voter{ReplicaKey: ReplicaKey{v, dir}, Endpoints: traceEndpoints(v), KRaftVersions: KRaftVersions})
		}
		b, err := controlBatch(base, epoch, 0, []message.Message{votersRecord(set)})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	b, err := dataBatch(record.NewBuilder(record.BuilderOptions{}.NoProducer()), base, epoch, 0, noRecords(int(end-base)))
	if err != nil {
		t.Fatal(err)
	}
	data := append([]byte(nil), b...)
	if a.m["damaged"] != "" {
		data[len(data)-1] ^= 1
	}
	return data
}

func describeControl(msgs []message.Message) string {
	var parts []string
	for _, m := range msgs {
		switch m := m.(type) {
		case *message.LeaderChangeMessage:
			var v, g []int32
			for _, x := range m.Voters {
				v = append(v, x.VoterID)
			}
			for _, x := range m.GrantingVoters {
				g = append(g, x.VoterID)
			}
			parts = append(parts, fmt.Sprintf("LeaderChange(%d voters%v granting%v)", m.LeaderID, v, g))
		case *message.KRaftVersionRecord:
			parts = append(parts, fmt.Sprintf("KRaftVersion(%d)", m.KRaftVersion))
		case *message.VotersRecord:
			var v []string
			for _, x := range votersFromRecord(m) {
				s := strconv.Itoa(int(x.ID))
				if x.DirectoryID == uuid.Zero {
					s += "?"
				}
				if len(x.Endpoints) > 0 && x.Endpoints[0] != traceEndpoints(x.ID)[0] {
					s += fmt.Sprintf(":%d", x.Endpoints[0].Port)
				}
				v = append(v, s)
			}
			parts = append(parts, fmt.Sprintf("KRaftVoters%v", v))
		}
	}
	return strings.Join(parts, " ")
}

func describeRequest(r kmsg.Request) (kind, what string) {
	switch r := r.(type) {
	case *kmsg.VoteRequest:
		p := r.Topics[0].Partitions[0]
		kind = "vote"
		if p.PreVote {
			kind = "prevote"
		}
		return kind, fmt.Sprintf("%s epoch=%d last=%d@%d", kind, p.CandidateEpoch, p.LastOffset, p.LastOffsetEpoch)
	case *kmsg.BeginQuorumEpochRequest:
		return "begin", fmt.Sprintf("begin epoch=%d", r.Topics[0].Partitions[0].LeaderEpoch)
	case *kmsg.EndQuorumEpochRequest:
		p := r.Topics[0].Partitions[0]
		return "end", fmt.Sprintf("end epoch=%d next=%v", p.LeaderEpoch, p.PreferredSuccessors)
	case *kmsg.FetchRequest:
		p := r.Topics[0].Partitions[0]
		return "fetch", fmt.Sprintf("fetch epoch=%d at=%d@%d hw=%d", p.CurrentLeaderEpoch, p.FetchOffset, p.LastFetchedEpoch, p.HighWatermark)
	case *kmsg.FetchSnapshotRequest:
		p := r.Topics[0].Partitions[0]
		return "fetchsnapshot", fmt.Sprintf("fetchsnapshot %d@%d position=%d", p.SnapshotID.EndOffset, p.SnapshotID.Epoch, p.Position)
	case *kmsg.ApiVersionsRequest:
		return "versions", "versions"
	case *kmsg.UpdateRaftVoterRequest:
		return "update", fmt.Sprintf("update epoch=%d", r.CurrentLeaderEpoch)
	case *kmsg.AddRaftVoterRequest:
		return "add", fmt.Sprintf("add voter=%d", r.VoterID)
	case *kmsg.RemoveRaftVoterRequest:
		return "remove", fmt.Sprintf("remove voter=%d", r.VoterID)
	}
	return "?", "?"
}

func errorName(code int16) string {
	if code == 0 {
		return "ok"
	}
	return api.ErrorFor(code).Name
}

func describeResponse(resp kmsg.Response) string {
	switch r := resp.(type) {
	case *kmsg.VoteResponse:
		if len(r.Topics) == 0 {
			return "vote " + errorName(r.ErrorCode)
		}
		p := r.Topics[0].Partitions[0]
		return fmt.Sprintf("vote %s granted=%v epoch=%d leader=%d endpoints=%d", errorName(p.ErrorCode), p.VoteGranted, p.LeaderEpoch, p.LeaderID, len(r.NodeEndpoints))
	case *kmsg.BeginQuorumEpochResponse:
		if len(r.Topics) == 0 {
			return "begin " + errorName(r.ErrorCode)
		}
		p := r.Topics[0].Partitions[0]
		return fmt.Sprintf("begin %s epoch=%d leader=%d", errorName(p.ErrorCode), p.LeaderEpoch, p.LeaderID)
	case *kmsg.EndQuorumEpochResponse:
		if len(r.Topics) == 0 {
			return "end " + errorName(r.ErrorCode)
		}
		p := r.Topics[0].Partitions[0]
		return fmt.Sprintf("end %s epoch=%d leader=%d", errorName(p.ErrorCode), p.LeaderEpoch, p.LeaderID)
	case *kmsg.FetchResponse:
		if len(r.Topics) == 0 {
			return "fetch " + errorName(r.ErrorCode)
		}
		p := r.Topics[0].Partitions[0]
		s := fmt.Sprintf("fetch %s epoch=%d leader=%d hw=%d", errorName(p.ErrorCode), p.CurrentLeader.LeaderEpoch, p.CurrentLeader.LeaderID, p.HighWatermark)
		if p.DivergingEpoch.Epoch >= 0 {
			s += fmt.Sprintf(" diverging=%d@%d", p.DivergingEpoch.EndOffset, p.DivergingEpoch.Epoch)
		}
		if p.SnapshotID.Epoch >= 0 {
			s += fmt.Sprintf(" snapshot=%d@%d", p.SnapshotID.EndOffset, p.SnapshotID.Epoch)
		}
		return s
	case *kmsg.FetchSnapshotResponse:
		if len(r.Topics) == 0 {
			return "fetchsnapshot " + errorName(r.ErrorCode)
		}
		p := r.Topics[0].Partitions[0]
		return fmt.Sprintf("fetchsnapshot %s epoch=%d leader=%d", errorName(p.ErrorCode), p.CurrentLeader.LeaderEpoch, p.CurrentLeader.LeaderID)
	case *kmsg.DescribeQuorumResponse:
		p := r.Topics[0].Partitions[0]
		s := fmt.Sprintf("describe %s leader=%d epoch=%d hw=%d", errorName(p.ErrorCode), p.LeaderID, p.LeaderEpoch, p.HighWatermark)
		for _, v := range p.CurrentVoters {
			s += fmt.Sprintf("\n  voter %d end=%d fetched=%d caughtup=%d", v.ReplicaID, v.LogEndOffset, v.LastFetchTimestamp, v.LastCaughtUpTimestamp)
		}
		for _, v := range p.Observers {
			s += fmt.Sprintf("\n  observer %d end=%d fetched=%d caughtup=%d", v.ReplicaID, v.LogEndOffset, v.LastFetchTimestamp, v.LastCaughtUpTimestamp)
		}
		for _, n := range r.Nodes {
			s += fmt.Sprintf("\n  node %d %v", n.NodeID, n.Listeners)
		}
		return s
	case *kmsg.AddRaftVoterResponse:
		return fmt.Sprintf("add %s %q", errorName(r.ErrorCode), *r.ErrorMessage)
	case *kmsg.RemoveRaftVoterResponse:
		return fmt.Sprintf("remove %s %q", errorName(r.ErrorCode), *r.ErrorMessage)
	case *kmsg.UpdateRaftVoterResponse:
		return fmt.Sprintf("update %s epoch=%d leader=%d", errorName(r.ErrorCode), r.CurrentLeader.LeaderEpoch, r.CurrentLeader.LeaderID)
	}
	return "?"
}
