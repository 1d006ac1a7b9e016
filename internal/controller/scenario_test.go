package controller

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/uuid"
)

var rewrite = flag.Bool("rewrite", false, "write what scenarios give into their files; read the diff")

// TestScenarios runs the scripts in testdata/scenarios. Each line is a command; the lines behind it that begin with "> " are
// what came of it: the answer, and the records that were written. A command is a word, arguments, and options as key=value:
//
//	world mv=33 elr=1                      a new cluster; mv is metadata.version (first command of a file)
//	register 1 rack=a dirs=1,2 prev=EPOCH  broker 1 registers with directories 1 and 2 of its own; life=N is its incarnation
//	up 1 2 3                               registers and unfences
//	beat 1 fence shutdown offline=2        a heartbeat that has read the whole log; behind: has read nothing
//	create t partitions=3 factor=2         or assign=1,2/2,3 ; config=key:value ; validate
//	grow t 6 , delete t , show t           show prints the partitions
//	isr t-0 1,2 leader=1 recovering        the leader's AlterPartition; le=, pe= overrule its epochs
//	elect preferred|unclean t-0            or all
//	reassign t-0 1,2,3 | t-0 cancel , reassignments
//	config topic:t key=value key- key+value
//	feature name=level up|down|unsafe validate
//	dirs 1 2 t-0                           broker 1 has t-0 in its directory 2
//	unregister 1 , ids 1 , lost 1 , pass 9s , balance , unclean , lose , lead
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/scenarios/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scenarios", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s := &script{t: t}
			var out strings.Builder
			for sc := bufio.NewScanner(strings.NewReader(string(raw))); sc.Scan(); {
				line := sc.Text()
				if strings.HasPrefix(line, "> ") {
					continue
				}
				fmt.Fprintln(&out, line)
				if line == "" || strings.HasPrefix(line, "#") {
					continue
				}
				for _, l := range s.run(strings.Fields(line)) {
					fmt.Fprintln(&out, "> "+l)
				}
			}
			if s.w != nil {
				if got, want := s.w.core.Dump(), s.w.replayed(s.w.log.batches).Dump(); got != want {
					t.Errorf("replayed state differs:\n%s", diff(got, want))
				}
			}
			if out.String() == string(raw) {
				return
			}
			if *rewrite {
				if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			t.Errorf("differs from the file:\n%s", diff(string(raw), out.String()))
		})
	}
}

type script struct {
	t     *testing.T
	w     *world
	lives map[int32]byte
}

// args are the words of a command.
type args struct {
	words []string
	opts  map[string]string
	flags map[string]bool
}

func parse(words []string) args {
	a := args{opts: map[string]string{}, flags: map[string]bool{}}
	for _, w := range words {
		if k, v, ok := strings.Cut(w, "="); ok {
			a.opts[k] = v
		} else {
			a.words = append(a.words, w)
			a.flags[w] = true
		}
	}
	return a
}

func num[T int | int16 | int32 | int64](s string, def T) T {
	if s == "" {
		return def
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		panic(err)
	}
	return T(n)
}

func nums(s string) []int32 {
	out := []int32{}
	for _, p := range strings.Split(s, ",") {
		if p != "" {
			out = append(out, num[int32](p, 0))
		}
	}
	return out
}

func split(tp string) (string, int32) {
	i := strings.LastIndexByte(tp, '-')
	return tp[:i], num[int32](tp[i+1:], 0)
}

// outcome is an error code as text.
func outcome(code int16, text *string) string {
	if code == 0 {
		return "ok"
	}
	s := api.ErrorFor(code).Name
	if text != nil && *text != api.ErrorFor(code).Message {
		s += ": " + *text
	}
	return s
}

// run runs a command and says what came of it.
func (s *script) run(words []string) []string {
	a := parse(words[1:])
	if words[0] == "world" {
		s.w = newWorld(s.t, func(o *Options) {
			o.Bootstrap = bootstrap(num[int16](a.opts["mv"], 33), num[int16](a.opts["elr"], 1))
			o.IdleInterval = -1
		})
		s.lives = map[int32]byte{}
		s.w.lead()
		return nil
	}
	before := len(s.w.log.batches)
	lines := s.do(words[0], a)
	if before > len(s.w.log.batches) {
		before = len(s.w.log.batches)
	}
	for _, b := range s.w.log.batches[before:] {
		for i, v := range b.records {
			prefix := " "
			if i == 0 {
				prefix = "+"
			}
			lines = append(lines, prefix+" "+s.record(v))
		}
	}
	return lines
}

var boring = regexp.MustCompile(`,"(endPoints|features|incarnationId|isMigratingZkBroker|topicId)":(\[[^\]]*\]|"[^"]*"|false)`)

// record writes a record with names for ids.
func (s *script) record(v message.Versioned) string {
	text := string(v.Message.AppendJSON(nil, v.Version))
	for id := range int32(10) {
		for n := range 5 {
			text = strings.ReplaceAll(text, dirOf(id, n).String(), fmt.Sprintf("dir%d.%d", id, n))
		}
	}
	name := ""
	switch r := v.Message.(type) {
	case *message.PartitionRecord:
		name = s.topicName(r.TopicID)
	case *message.PartitionChangeRecord:
		name = s.topicName(r.TopicID)
	case *message.RemoveTopicRecord:
		return fmt.Sprintf("RemoveTopicRecord v%d", v.Version)
	}
	text = boring.ReplaceAllString(text, "")
	if name != "" {
		name += " "
	}
	return fmt.Sprintf("%s v%d %s%s", v.Message.MessageName(), v.Version, name, text)
}

func (s *script) topicName(id uuid.UUID) string {
	if t, ok := s.w.core.topics.byID.Get(id); ok {
		return t.name
	}
	return id.String()
}

func (s *script) epoch(id int32) int64 {
	if b, ok := s.w.core.cluster.brokers.Get(id); ok {
		return b.epoch
	}
	return -1
}

func (s *script) register(id int32, a args) string {
	req := brokerRequest(id, a.opts["rack"])
	if v := a.opts["life"]; v != "" {
		s.lives[id] = byte(num[int](v, 0))
	}
	req.IncarnationID[1] = s.lives[id]
	switch v := a.opts["dirs"]; v {
	case "":
	case "none":
		req.LogDirs = nil
	case "reserved":
		req.LogDirs = [][16]byte{uuid.Lost}
	default:
		req.LogDirs = nil
		for _, n := range nums(v) {
			req.LogDirs = append(req.LogDirs, dirOf(id, int(n)))
		}
	}
	switch v := a.opts["prev"]; v {
	case "":
	case "EPOCH":
		req.PreviousBrokerEpoch = s.epoch(id)
	default:
		req.PreviousBrokerEpoch = num[int64](v, -1)
	}
	if v := a.opts["cluster"]; v != "" {
		req.ClusterID = v
	}
	resp := ask[*kmsg.BrokerRegistrationResponse](s.w, req)
	return outcome(resp.ErrorCode, nil)
}

func (s *script) beat(id int32, a args) string {
	req := kmsg.NewPtrBrokerHeartbeatRequest()
	req.BrokerID, req.BrokerEpoch, req.CurrentMetadataOffset = id, s.epoch(id), s.w.log.end-1
	req.WantFence, req.WantShutdown = a.flags["fence"], a.flags["shutdown"]
	if a.flags["behind"] {
		req.CurrentMetadataOffset = 0
	}
	req.BrokerEpoch = num(a.opts["epoch"], req.BrokerEpoch)
	for _, n := range nums(a.opts["offline"]) {
		req.OfflineLogDirs = append(req.OfflineLogDirs, dirOf(id, int(n)))
	}
	if v, ok := a.opts["cordoned"]; ok {
		req.CordonedLogDirs = [][16]byte{}
		for _, n := range nums(v) {
			req.CordonedLogDirs = append(req.CordonedLogDirs, dirOf(id, int(n)))
		}
	}
	resp := ask[*kmsg.BrokerHeartbeatResponse](s.w, req)
	if resp.ErrorCode != 0 {
		return outcome(resp.ErrorCode, nil)
	}
	return fmt.Sprintf("caught up %v, fenced %v, shut down %v", resp.IsCaughtUp, resp.IsFenced, resp.ShouldShutdown)
}

func (s *script) do(command string, a args) (lines []string) {
	w := s.w
	say := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	switch command {
	case "register":
		say("%s", s.register(num[int32](a.words[0], 0), a))
	case "up":
		for _, id := range a.words {
			if got := s.register(num[int32](id, 0), a); got != "ok" {
				say("%s: %s", id, got)
			}
			s.beat(num[int32](id, 0), a)
		}
	case "beat":
		say("%s", s.beat(num[int32](a.words[0], 0), a))
	case "create":
		req := createRequest(a.words[0], num[int32](a.opts["partitions"], 1), num[int16](a.opts["factor"], 1))
		if v := a.opts["assign"]; v != "" {
			req.Topics[0].NumPartitions, req.Topics[0].ReplicationFactor = -1, -1
			for i, r := range strings.Split(v, "/") {
				req.Topics[0].ReplicaAssignment = append(req.Topics[0].ReplicaAssignment,
					kmsg.CreateTopicsRequestTopicReplicaAssignment{Partition: int32(i), Replicas: nums(r)})
			}
		}
		if k, v, ok := strings.Cut(a.opts["config"], ":"); ok {
			req.Topics[0].Configs = topicConfig(k, v)
		}
		req.ValidateOnly = a.flags["validate"]
		resp := ask[*kmsg.CreateTopicsResponse](w, req)
		say("%s", outcome(resp.Topics[0].ErrorCode, resp.Topics[0].ErrorMessage))
	case "grow":
		req := kmsg.NewPtrCreatePartitionsRequest()
		req.Topics = []kmsg.CreatePartitionsRequestTopic{{Topic: a.words[0], Count: num[int32](a.words[1], 0)}}
		resp := ask[*kmsg.CreatePartitionsResponse](w, req)
		say("%s", outcome(resp.Topics[0].ErrorCode, resp.Topics[0].ErrorMessage))
	case "delete":
		req := kmsg.NewPtrDeleteTopicsRequest()
		req.Topics = []kmsg.DeleteTopicsRequestTopic{{Topic: &a.words[0]}}
		resp := ask[*kmsg.DeleteTopicsResponse](w, req)
		say("%s", outcome(resp.Topics[0].ErrorCode, resp.Topics[0].ErrorMessage))
	case "show":
		t, ok := w.core.topics.byName.Get(a.words[0])
		if !ok {
			say("no such topic")
			break
		}
		for i, p := range t.partitions.All() {
			more := ""
			for _, x := range []struct {
				name string
				ids  []int32
			}{{"removing", p.removing}, {"adding", p.adding}, {"elr", p.elr}, {"last known", p.lastKnownELR}} {
				if len(x.ids) > 0 {
					more += fmt.Sprintf(" %s %v", x.name, x.ids)
				}
			}
			if p.recovery == recovering {
				more += " recovering"
			}
			say("%d: leader %d of %v, isr %v, epochs %d %d%s", i, p.leader, p.replicas, p.isr, p.leaderEpoch, p.partitionEpoch, more)
		}
	case "isr":
		name, index := split(a.words[0])
		t, _ := w.core.topics.byName.Get(name)
		p, _ := t.partitions.Get(index)
		req := kmsg.NewPtrAlterPartitionRequest()
		req.BrokerID = num(a.opts["leader"], p.leader)
		req.BrokerEpoch = s.epoch(req.BrokerID)
		part := kmsg.NewAlterPartitionRequestTopicPartition()
		part.Partition, part.LeaderEpoch, part.PartitionEpoch = index, num(a.opts["le"], p.leaderEpoch), num(a.opts["pe"], p.partitionEpoch)
		if a.flags["recovering"] {
			part.LeaderRecoveryState = recovering
		}
		for _, id := range nums(a.words[1]) {
			part.NewEpochISR = append(part.NewEpochISR, kmsg.AlterPartitionRequestTopicPartitionNewEpochISR{BrokerID: id, BrokerEpoch: num(a.opts["be"], s.epoch(id))})
		}
		req.Topics = []kmsg.AlterPartitionRequestTopic{{TopicID: t.id, Partitions: []kmsg.AlterPartitionRequestTopicPartition{part}}}
		resp := ask[*kmsg.AlterPartitionResponse](w, req)
		if resp.ErrorCode != 0 {
			say("%s", outcome(resp.ErrorCode, nil))
			break
		}
		r := resp.Topics[0].Partitions[0]
		if r.ErrorCode != 0 {
			say("%s", outcome(r.ErrorCode, nil))
			break
		}
		say("leader %d, isr %v, epochs %d %d", r.LeaderID, r.ISR, r.LeaderEpoch, r.PartitionEpoch)
	case "elect":
		req := kmsg.NewPtrElectLeadersRequest()
		if a.words[0] == "unclean" {
			req.ElectionType = 1
		}
		if a.words[1] != "all" {
			name, index := split(a.words[1])
			req.Topics = []kmsg.ElectLeadersRequestTopic{{Topic: name, Partitions: []int32{index}}}
		}
		resp := ask[*kmsg.ElectLeadersResponse](w, req)
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				say("%s-%d %s", t.Topic, p.Partition, outcome(p.ErrorCode, p.ErrorMessage))
			}
		}
	case "reassign":
		req := kmsg.NewPtrAlterPartitionAssignmentsRequest()
		name, index := split(a.words[0])
		p := kmsg.AlterPartitionAssignmentsRequestTopicPartition{Partition: index}
		if a.words[1] != "cancel" {
			p.Replicas = nums(a.words[1])
		}
		req.AllowReplicationFactorChange = !a.flags["keep-factor"]
		req.Topics = []kmsg.AlterPartitionAssignmentsRequestTopic{{Topic: name, Partitions: []kmsg.AlterPartitionAssignmentsRequestTopicPartition{p}}}
		resp := ask[*kmsg.AlterPartitionAssignmentsResponse](w, req)
		r := resp.Topics[0].Partitions[0]
		say("%s", outcome(r.ErrorCode, r.ErrorMessage))
	case "reassignments":
		resp := ask[*kmsg.ListPartitionReassignmentsResponse](w, kmsg.NewPtrListPartitionReassignmentsRequest())
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				say("%s-%d replicas %v adding %v removing %v", t.Topic, p.Partition, p.Replicas, p.AddingReplicas, p.RemovingReplicas)
			}
		}
	case "config":
		req := kmsg.NewPtrIncrementalAlterConfigsRequest()
		kind, name, _ := strings.Cut(a.words[0], ":")
		r := kmsg.IncrementalAlterConfigsRequestResource{ResourceType: kmsg.ConfigResourceType(map[string]int8{"topic": kindTopic, "broker": kindBroker, "group": kindGroup}[kind]), ResourceName: name}
		for _, k := range sortedKeys(a.opts) {
			v := a.opts[k]
			r.Configs = append(r.Configs, kmsg.IncrementalAlterConfigsRequestResourceConfig{Name: k, Value: &v})
		}
		for _, o := range a.words[1:] {
			if k, ok := strings.CutSuffix(o, "-"); ok {
				r.Configs = append(r.Configs, kmsg.IncrementalAlterConfigsRequestResourceConfig{Name: k, Op: 1})
			} else if k, v, ok := strings.Cut(o, "+"); ok {
				r.Configs = append(r.Configs, kmsg.IncrementalAlterConfigsRequestResourceConfig{Name: k, Op: 2, Value: &v})
			}
		}
		req.Resources = append(req.Resources, r)
		resp := ask[*kmsg.IncrementalAlterConfigsResponse](w, req)
		say("%s", outcome(resp.Resources[0].ErrorCode, resp.Resources[0].ErrorMessage))
	case "feature":
		req := kmsg.NewPtrUpdateFeaturesRequest()
		kind := upgrade
		if a.flags["down"] {
			kind = safeDowngrade
		} else if a.flags["unsafe"] {
			kind = unsafeDowngrade
		}
		for _, k := range sortedKeys(a.opts) {
			req.FeatureUpdates = append(req.FeatureUpdates, kmsg.UpdateFeaturesRequestFeatureUpdate{Feature: k, MaxVersionLevel: num[int16](a.opts[k], 0), UpgradeType: kind})
		}
		req.ValidateOnly = a.flags["validate"]
		resp := ask[*kmsg.UpdateFeaturesResponse](w, req)
		say("%s", outcome(resp.ErrorCode, resp.ErrorMessage))
	case "dirs":
		id := num[int32](a.words[0], 0)
		name, index := split(a.words[2])
		t, _ := w.core.topics.byName.Get(name)
		req := kmsg.NewPtrAssignReplicasToDirsRequest()
		req.BrokerID, req.BrokerEpoch = id, s.epoch(id)
		req.Directories = []kmsg.AssignReplicasToDirsRequestDirectory{{ID: dirOf(id, num[int](a.words[1], 0)), Topics: []kmsg.AssignReplicasToDirsRequestDirectoryTopic{
			{TopicID: t.id, Partitions: []kmsg.AssignReplicasToDirsRequestDirectoryTopicPartition{{Partition: index}}}}}}
		resp := ask[*kmsg.AssignReplicasToDirsResponse](w, req)
		say("%s", outcome(resp.Directories[0].Topics[0].Partitions[0].ErrorCode, nil))
	case "unregister":
		req := kmsg.NewPtrUnregisterBrokerRequest()
		req.BrokerID = num[int32](a.words[0], 0)
		resp := ask[*kmsg.UnregisterBrokerResponse](w, req)
		say("%s", outcome(resp.ErrorCode, resp.ErrorMessage))
	case "ids":
		req := kmsg.NewPtrAllocateProducerIDsRequest()
		req.BrokerID = num[int32](a.words[0], 0)
		req.BrokerEpoch = num(a.opts["epoch"], s.epoch(req.BrokerID))
		resp := ask[*kmsg.AllocateProducerIDsResponse](w, req)
		say("%s from %d, %d", outcome(resp.ErrorCode, nil), resp.ProducerIDStart, resp.ProducerIDLen)
	case "lost":
		id := num[int32](a.words[0], 0)
		w.core.Lost(w.now, id, s.epoch(id))
		w.core.Tick(w.now)
		w.settle()
	case "pass":
		d, err := time.ParseDuration(a.words[0])
		if err != nil {
			s.t.Fatal(err)
		}
		w.pass(d)
	case "balance", "unclean":
		f := w.core.topics.balance
		if command == "unclean" {
			f = w.core.topics.electUncleanly
		}
		if result, _ := f(); len(result.Records) > 0 {
			if _, err := w.core.write(result); err != nil {
				say("%v", err)
			}
			w.settle()
		}
	case "lose":
		w.lose()
	case "lead":
		w.lead()
	default:
		s.t.Fatalf("unknown command %s", command)
	}
	return slices.Clone(lines)
}
