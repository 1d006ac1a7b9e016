package group

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/timeline"
)

var rewrite = flag.Bool("rewrite", false, "write what scenarios print into their files")

// TestScenarios runs the scripts of testdata: a command line, "----", and what it prints, up to an empty line. Commands
// are in script.run. Time stands still but for "advance".
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scenarios", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			got := runScript(t, string(text))
			if *rewrite {
				if err := os.WriteFile(f, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(text) {
				t.Errorf("%s has changed; run with -rewrite and read the difference:\n%s", f, firstDifference(string(text), got))
			}
		})
	}
}

func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range g {
		if i >= len(w) || w[i] != g[i] {
			from := max(0, i-4)
			return fmt.Sprintf("line %d\n got: %s\nwant: %s", i+1,
				strings.Join(g[from:min(i+4, len(g))], "\n      "), strings.Join(w[min(from, len(w)):min(i+4, len(w))], "\n      "))
		}
	}
	return "the end is missing"
}

func runScript(t *testing.T, text string) string {
	s := &script{machine: newMachine(), t: t}
	var out strings.Builder
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		out.WriteString(line)
		if i < len(lines)-1 {
			out.WriteString("\n")
		}
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		s.trace = nil
		s.run(line)
		out.WriteString("----\n")
		for _, l := range s.trace {
			out.WriteString(l + "\n")
		}
		if i+1 < len(lines) && lines[i+1] == "----" {
			for i++; i+1 < len(lines) && lines[i+1] != ""; i++ {
			}
		}
	}
	return out.String()
}

// script interprets the commands of a scenario over a machine.
type script struct {
	*machine
	t *testing.T
}

// args are the words of a command: plain ones, and those with a name.
type args struct {
	plain []string
	named map[string]string
}

func parse(line string) (command string, a args) {
	words := strings.Fields(line)
	a.named = map[string]string{}
	for _, w := range words[1:] {
		if k, v, ok := strings.Cut(w, "="); ok {
			a.named[k] = v
		} else {
			a.plain = append(a.plain, w)
		}
	}
	return words[0], a
}

func (a args) text(name, def string) string {
	if v, ok := a.named[name]; ok {
		return v
	}
	return def
}

func (a args) optional(name string) *string {
	if v, ok := a.named[name]; ok {
		return &v
	}
	return nil
}

func (a args) number(name string, def int) int {
	if v, ok := a.named[name]; ok {
		n, err := strconv.Atoi(v)
		if err != nil {
			panic(err)
		}
		return n
	}
	return def
}

// partitions reads words like "orders-0" or "orders-0:17".
func (a args) partitions() (topics []string, byTopic map[string][][2]int64) {
	byTopic = map[string][][2]int64{}
	for _, w := range a.plain {
		name, off, _ := strings.Cut(w, ":")
		dash := strings.LastIndexByte(name, '-')
		p, err := strconv.Atoi(name[dash+1:])
		if err != nil {
			panic(err)
		}
		o, _ := strconv.Atoi(off)
		topic := name[:dash]
		if byTopic[topic] == nil {
			topics = append(topics, topic)
		}
		byTopic[topic] = append(byTopic[topic], [2]int64{int64(p), int64(o)})
	}
	return topics, byTopic
}

func codeName(code int16) string {
	if code == 0 {
		return "ok"
	}
	return api.ErrorFor(code).Name
}

func (s *script) run(line string) {
	command, a := parse(line)
	group := a.text("group", "g")
	version := int16(a.number("v", 9))
	if s.runConsumer(command, group, version, a) {
		return
	}
	switch command {
	case "join":
		// join NAME [member= instance= session= rebalance= type= protocols=name:metadata,...]
		r := kmsg.NewPtrJoinGroupRequest()
		name := a.plain[0]
		r.Group, r.MemberID, r.InstanceID = group, a.text("member", ""), a.optional("instance")
		r.SessionTimeoutMillis = int32(a.number("session", 10_000))
		r.RebalanceTimeoutMillis = int32(a.number("rebalance", 60_000))
		r.ProtocolType = a.text("type", "consumer")
		for p := range strings.SplitSeq(a.text("protocols", "range:orders"), ",") {
			n, m, _ := strings.Cut(p, ":")
			metadata := subscription(m)
			if owns := a.text("owns", ""); owns != "" {
				metadata = subscriptionOwning(m, owns)
			}
			r.Protocols = append(r.Protocols, kmsg.JoinGroupRequestProtocol{Name: n, Metadata: metadata})
		}
		s.join(version, name, r)
	case "sync":
		// sync NAME member= gen= [instance= type= protocol= assign=member:text,...], where the text is an assignment of the
		// consumer protocol if it names partitions
		r := kmsg.NewPtrSyncGroupRequest()
		r.Group, r.MemberID, r.InstanceID = group, a.text("member", ""), a.optional("instance")
		r.Generation = int32(a.number("gen", -1))
		r.ProtocolType, r.Protocol = a.optional("type"), a.optional("protocol")
		if as := a.text("assign", ""); as != "" {
			for p := range strings.SplitSeq(as, ",") {
				n, m, _ := strings.Cut(p, ":")
				r.GroupAssignment = append(r.GroupAssignment, kmsg.SyncGroupRequestGroupAssignment{MemberID: n, MemberAssignment: assignmentBytes(m)})
			}
		}
		s.sync(a.plain[0], r)
	case "heartbeat":
		r := kmsg.NewPtrHeartbeatRequest()
		r.Group, r.MemberID, r.InstanceID = group, a.text("member", ""), a.optional("instance")
		r.Generation = int32(a.number("gen", -1))
		s.heartbeat(r)
	case "leave":
		// leave MEMBER[/INSTANCE]...
		r := kmsg.NewPtrLeaveGroupRequest()
		r.Group = group
		for _, w := range a.plain {
			m := kmsg.NewLeaveGroupRequestMember()
			id, instance, ok := strings.Cut(w, "/")
			m.MemberID = id
			if ok {
				m.InstanceID = &instance
			}
			r.Members = append(r.Members, m)
		}
		s.leave(r)
	case "commit", "txn-commit":
		// commit [member= gen= instance= metadata= retention=] TOPIC-PARTITION:OFFSET...
		r := &commitRequest{
			group: group, retention: int64(a.number("retention", -1)),
			check: commitCheck{
				memberID: a.text("member", ""), instanceID: a.optional("instance"), generation: int32(a.number("gen", -1)),
				version: version, transactional: command == "txn-commit",
			},
		}
		topics, by := a.partitions()
		for _, topic := range topics {
			t := kmsg.NewOffsetCommitRequestTopic()
			t.Topic = topic
			if id, ok := a.named["id"]; ok {
				copy(t.TopicID[:], id)
				if id == "known" {
					t.TopicID = s.world.last[topic]
				}
			}
			for _, p := range by[topic] {
				cp := kmsg.NewOffsetCommitRequestTopicPartition()
				cp.Partition, cp.Offset, cp.Metadata = int32(p[0]), p[1], a.optional("metadata")
				t.Partitions = append(t.Partitions, cp)
			}
			r.topics = append(r.topics, t)
		}
		s.commit(int64(a.number("producer", -1)), r)
	case "end-txn":
		s.endTransaction(int64(a.number("producer", -1)), a.plain[0] == "commit")
	case "fetch":
		// fetch [stable=1 member= epoch=] [TOPIC-PARTITION...]: all without partitions
		r := kmsg.NewOffsetFetchRequestGroup()
		r.Group, r.MemberID, r.MemberEpoch = group, a.optional("member"), int32(a.number("epoch", -1))
		topics, by := a.partitions()
		for _, topic := range topics {
			t := kmsg.NewOffsetFetchRequestGroupTopic()
			t.Topic = topic
			if id, ok := a.named["id"]; ok {
				copy(t.TopicID[:], id)
				if id == "known" {
					t.TopicID = s.world.last[topic]
				}
			}
			for _, p := range by[topic] {
				t.Partitions = append(t.Partitions, int32(p[0]))
			}
			r.Topics = append(r.Topics, t)
		}
		resp, err := s.core.fetchOffsets(&r, len(topics) == 0, a.number("stable", 0) == 1, timeline.Latest)
		if err != nil {
			s.print("fetch: %v", err)
			return
		}
		var lines []string
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				lines = append(lines, fmt.Sprintf("%s-%d: %d %q %s", t.Topic, p.Partition, p.Offset, *p.Metadata, codeName(p.ErrorCode)))
			}
		}
		sort.Strings(lines)
		for _, l := range lines {
			s.print("%s", l)
		}
	case "delete-offsets":
		r := kmsg.NewPtrOffsetDeleteRequest()
		r.Group = group
		topics, by := a.partitions()
		for _, topic := range topics {
			t := kmsg.NewOffsetDeleteRequestTopic()
			t.Topic = topic
			for _, p := range by[topic] {
				t.Partitions = append(t.Partitions, kmsg.OffsetDeleteRequestTopicPartition{Partition: int32(p[0])})
			}
			r.Topics = append(r.Topics, t)
		}
		res, resp, err := s.core.deleteOffsets(r)
		if err != nil {
			s.print("delete-offsets: %v", err)
			return
		}
		s.apply(res, -1)
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				s.print("%s-%d: %s", t.Topic, p.Partition, codeName(p.ErrorCode))
			}
		}
	case "delete-groups":
		res, answers := s.core.deleteGroups(a.plain)
		s.apply(res, -1)
		for _, d := range answers {
			var text string
			if d.ErrorMessage != nil {
				text = " " + *d.ErrorMessage
			}
			s.print("%s: %s%s", d.Group, codeName(d.ErrorCode), text)
		}
	case "delete-topics":
		deleted := map[string]bool{}
		for _, t := range a.plain {
			deleted[t] = true
		}
		s.apply(s.core.topicsDeleted(deleted), -1)
	case "list":
		var states, kinds []string
		if v := a.text("states", ""); v != "" {
			states = strings.Split(v, ",")
		}
		if v := a.text("types", ""); v != "" {
			kinds = strings.Split(v, ",")
		}
		for _, g := range s.core.list(states, kinds, timeline.Latest) {
			s.print("%s %s %s %q", g.Group, g.GroupType, g.GroupState, g.ProtocolType)
		}
	case "describe":
		for _, id := range a.plain {
			d := s.core.describe(version, id, timeline.Latest)
			var text string
			if d.ErrorMessage != nil {
				text = " " + *d.ErrorMessage
			}
			s.print("%s: %s state=%s type=%q protocol=%q%s", d.Group, codeName(d.ErrorCode), d.State, d.ProtocolType, d.Protocol, text)
			for _, m := range d.Members {
				s.print("  %s client=%s host=%s assignment=%q", m.MemberID, m.ClientID, m.ClientHost, m.MemberAssignment)
			}
		}
	case "record":
		// record KIND ...: a record of a modern group, as a log may hold it
		s.foreignRecord(a)
	case "advance":
		d, err := time.ParseDuration(a.plain[0])
		if err != nil {
			s.t.Fatal(err)
		}
		s.advance(d)
	case "fail":
		// the next append fails with this error
		for code := int16(1); code < 140; code++ {
			if e := api.ErrorFor(code); e.Name == a.plain[0] {
				s.failNext = e
				return
			}
		}
		s.t.Fatalf("no error %s", a.plain[0])
	case "set":
		s.setConsumer(a)
		if v := a.number("max-size", 0); v > 0 {
			s.cfg.MaxSize = v
		}
		if v, ok := a.named["initial-delay"]; ok {
			s.cfg.InitialRebalanceDelay, _ = time.ParseDuration(v)
		}
		if v, ok := a.named["retention"]; ok {
			s.cfg.OffsetsRetention, _ = time.ParseDuration(v)
		}
		if v, ok := a.named["metadata-size"]; ok {
			s.cfg.OffsetMetadataMaxSize, _ = strconv.Atoi(v)
		}
	case "reload":
		s.reload()
	case "unload":
		s.core.Unloaded(s.now)
	default:
		s.t.Fatalf("unknown command %q", command)
	}
}

// foreignRecord replays a record that another coordinator may have written.
func (s *script) foreignRecord(a args) {
	group, member := a.text("group", "g"), a.text("member", "")
	tombstone := a.text("value", "") == "null"
	epoch := int32(a.number("epoch", 1))
	var r Record
	switch a.plain[0] {
	case "consumer-group":
		r = Record{Key: &message.ConsumerGroupMetadataKey{GroupID: group}, Value: &message.ConsumerGroupMetadataValue{Epoch: epoch}}
	case "consumer-member":
		r = Record{
			Key:   &message.ConsumerGroupMemberMetadataKey{GroupID: group, MemberID: member},
			Value: &message.ConsumerGroupMemberMetadataValue{SubscribedTopicNames: strings.Split(a.text("topics", "orders"), ",")},
		}
	case "consumer-target":
		r = Record{
			Key:   &message.ConsumerGroupTargetAssignmentMetadataKey{GroupID: group},
			Value: &message.ConsumerGroupTargetAssignmentMetadataValue{AssignmentEpoch: epoch},
		}
	case "consumer-current":
		r = Record{
			Key:   &message.ConsumerGroupCurrentMemberAssignmentKey{GroupID: group, MemberID: member},
			Value: &message.ConsumerGroupCurrentMemberAssignmentValue{MemberEpoch: epoch},
		}
	case "share-group":
		r = Record{Key: &message.ShareGroupMetadataKey{GroupID: group}, Value: &message.ShareGroupMetadataValue{Epoch: epoch}}
	case "share-member":
		r = Record{
			Key:   &message.ShareGroupMemberMetadataKey{GroupID: group, MemberID: member},
			Value: &message.ShareGroupMemberMetadataValue{SubscribedTopicNames: []string{"orders"}},
		}
	case "streams-group":
		r = Record{Key: &message.StreamsGroupMetadataKey{GroupID: group}, Value: &message.StreamsGroupMetadataValue{Epoch: epoch}}
	default:
		s.t.Fatalf("unknown record %v", a.plain)
	}
	if tombstone {
		r.Value = nil
	}
	s.apply(result{Records: []Record{r}}, -1)
}
