package interop

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/interop/kafka"
)

// streamsPatience is how long anything may take; the machine may be slow.
const streamsPatience = 3 * time.Minute

// counter is a process with word count applications.
type counter struct {
	cmd   *exec.Cmd
	in    io.Writer
	lines *bufio.Scanner
	done  bool
}

func startCounter(tb testing.TB, addr string, protocols ...string) *counter {
	tb.Helper()
	cp := kafka.StreamsClassPath(tb)
	ctx, cancel := context.WithCancel(context.Background())
	cmd := kafka.Command(ctx, cp, "192m", "Streams", append([]string{addr, filepath.Join(tb.TempDir(), "state")}, protocols...)...)
	in, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	cmd.Stderr = tb.Output()
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	c := &counter{cmd: cmd, in: in, lines: bufio.NewScanner(out)}
	tb.Cleanup(func() {
		cancel()
		if !c.done {
			_ = cmd.Wait()
		}
	})
	c.expect(tb, "started")
	return c
}

// expect reads lines until one begins with a word, and returns the rest of that.
func (c *counter) expect(tb testing.TB, word string) string {
	tb.Helper()
	for c.lines.Scan() {
		line := c.lines.Text()
		if strings.HasPrefix(line, "FAIL") {
			tb.Fatal(line)
		}
		if rest, ok := strings.CutPrefix(line, word); ok {
			return strings.TrimSpace(rest)
		}
		tb.Log(line)
	}
	tb.Fatalf("the application ended and never said %q", word)
	return ""
}

// tasks are how many active and standby tasks the process has by protocol: "4+4"; "-" while it isn't running.
func (c *counter) tasks(tb testing.TB) map[string]string { return c.ask(tb, "tasks") }

// ask asks something about the applications and returns the answers by their protocols.
func (c *counter) ask(tb testing.TB, question string) map[string]string {
	tb.Helper()
	fmt.Fprintln(c.in, question)
	m := map[string]string{}
	for _, f := range strings.Fields(c.expect(tb, question)) {
		protocol, n, _ := strings.Cut(f, "=")
		m[protocol] = n
	}
	return m
}

// kill ends the process as a power failure would.
func (c *counter) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
	c.done = true
}

// counts follows what the applications write.
type counts struct {
	client *kgo.Client
	latest map[string]map[string]int64
}

// await reads on until the latest counts of all protocols are those.
func (c *counts) await(tb testing.TB, want map[string]int64) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), streamsPatience)
	defer cancel()
	missing := func() string {
		for protocol, latest := range c.latest {
			for word, n := range want {
				if latest[word] != n {
					return fmt.Sprintf("%s: %q was counted %d times instead of %d", protocol, word, latest[word], n)
				}
			}
		}
		return ""
	}
	for missing() != "" {
		fetches := c.client.PollFetches(ctx)
		if ctx.Err() != nil {
			tb.Fatal(missing())
		}
		fetches.EachRecord(func(r *kgo.Record) {
			protocol := strings.TrimPrefix(r.Topic, "counts-")
			n := int64(binary.BigEndian.Uint64(r.Value))
			if was := c.latest[protocol][string(r.Key)]; n <= was {
				tb.Errorf("%s: %q was counted %d times and now %d", protocol, r.Key, was, n)
			}
			c.latest[protocol][string(r.Key)] = n
		})
	}
}

// streamsEventually repeats a question until the answer is empty.
func streamsEventually(tb testing.TB, question func() string) {
	tb.Helper()
	for until := time.Now().Add(streamsPatience); ; time.Sleep(100 * time.Millisecond) {
		answer := question()
		if answer == "" {
			return
		}
		if time.Now().After(until) {
			tb.Fatal(answer)
		}
	}
}

// Kafka Streams counts words with both protocols, in two processes that share the tasks. One is killed, the other goes on with its
// tasks, and no word is counted twice or not at all.
func TestStreamsWordCount(t *testing.T) {
	protocols := []string{"classic", "streams"}
	const partitions = 4
	n, _ := startGregor(t, patient...)
	s := &side{name: "gregor", addr: n.Addr, clientID: "probe", ids: map[string]string{}, kept: map[string]any{}}
	create := kmsg.NewPtrCreateTopicsRequest()
	create.Version, create.TimeoutMillis = 7, 30000
	for _, name := range []string{"lines", "counts-classic", "counts-streams"} {
		topic := kmsg.NewCreateTopicsRequestTopic()
		topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, partitions, 1
		create.Topics = append(create.Topics, topic)
	}
	s.must(t, create)
	for _, topic := range create.Topics {
		s.awaitLeaders(t, topic.Topic)
	}
	s.must(t, func() kmsg.Request {
		r := kmsg.NewPtrIncrementalAlterConfigsRequest()
		res := kmsg.NewIncrementalAlterConfigsRequestResource()
		res.ResourceType, res.ResourceName = 32, "count-streams"
		res.Configs = []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: "streams.num.standby.replicas", Value: kmsg.StringPtr("1")}}
		r.Version, r.Resources = 1, append(r.Resources, res)
		return r
	}())

	a := startCounter(t, n.Addr, protocols...)
	b := startCounter(t, n.Addr, protocols...)
	// Two subtopologies of four tasks each; those that count have a copy in the other process.
	shared := map[string]string{"classic": "4+2", "streams": "4+2"}
	streamsEventually(t, func() string {
		if at, bt := a.tasks(t), b.tasks(t); !maps.Equal(at, shared) || !maps.Equal(bt, shared) {
			return fmt.Sprintf("the tasks are spread as %v and %v", at, bt)
		}
		return ""
	})

	writer := franz(t, n.Addr)
	out := &counts{client: franz(t, n.Addr, kgo.ConsumeTopics("counts-classic", "counts-streams"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())),
		latest: map[string]map[string]int64{"classic": {}, "streams": {}}}
	want := map[string]int64{}
	rng := rand.New(rand.NewPCG(1, 2))
	write := func(lines int) {
		t.Helper()
		for range lines {
			var words []string
			for range 1 + rng.IntN(8) {
				w := fmt.Sprintf("word%d", rng.IntN(60))
				words = append(words, w)
				want[w]++
			}
			writer.Produce(t.Context(), &kgo.Record{Topic: "lines", Key: fmt.Append(nil, rng.IntN(100)), Value: []byte(strings.Join(words, " "))}, nil)
		}
		if err := writer.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	write(500)
	out.await(t, want)
	// What was counted is committed, so that nothing is counted again.
	for _, protocol := range protocols {
		group := "count-" + protocol
		streamsEventually(t, func() string { return lag(t, s, group, "lines", group+"-words-repartition") })
	}
	gone := b.ask(t, "who")
	b.kill()
	// Sessions are long, so that a slow machine ends none; the test says in the dead process's place that it is gone.
	s.leaveClassic(t, "count-classic", gone["classic"])
	s.leaveStreams(t, "count-streams", gone["streams"])
	write(500)
	out.await(t, want)
	alone := map[string]string{"classic": "8+0", "streams": "8+0"}
	streamsEventually(t, func() string {
		if at := a.tasks(t); !maps.Equal(at, alone) {
			return fmt.Sprintf("the tasks of the one that is left are %v", at)
		}
		return ""
	})
	for _, protocol := range protocols {
		group := "count-" + protocol
		// What was read of a repartition topic is deleted, and both protocols make internal topics alike.
		streamsEventually(t, func() string {
			left := int64(0)
			for i := range int32(partitions) {
				left += s.offset(t, group+"-words-repartition", i, -1) - s.offset(t, group+"-words-repartition", i, -2)
			}
			if left > 0 {
				return fmt.Sprintf("%d records are left in the repartition topic of %s", left, group)
			}
			return ""
		})
	}
	for _, topic := range []string{"words-repartition", "counts-changelog"} {
		classic, streams := s.topicSettings(t, "count-classic-"+topic), s.topicSettings(t, "count-streams-"+topic)
		if classic != streams {
			t.Errorf("internal topics %s have\n  classic: %s\n  streams: %s", topic, classic, streams)
		}
		t.Logf("%s: %s", topic, streams)
	}
	tool := kafka.Must(t, "", "streams-groups", "--bootstrap-server", n.Addr, "--describe", "--group", "count-streams", "--members", "--verbose")
	if strings.Count(tool, "count-streams-") < 1 || !strings.Contains(tool, "0:[0,1,2,3]") {
		t.Errorf("the group is described as\n%s", tool)
	}
	fmt.Fprintln(a.in, "close")
	a.expect(t, "closed")
}

// leaveClassic takes the member with a client id out of a classic group.
func (s *side) leaveClassic(t *testing.T, group, clientID string) {
	t.Helper()
	d := kmsg.NewPtrDescribeGroupsRequest()
	d.Version, d.Groups = 5, []string{group}
	for _, m := range s.must(t, d).(*kmsg.DescribeGroupsResponse).Groups[0].Members {
		if m.ClientID == clientID {
			r := kmsg.NewPtrLeaveGroupRequest()
			r.Version, r.Group, r.Members = 5, group, []kmsg.LeaveGroupRequestMember{{MemberID: m.MemberID}}
			if resp := s.must(t, r).(*kmsg.LeaveGroupResponse); resp.ErrorCode != 0 || resp.Members[0].ErrorCode != 0 {
				t.Fatalf("leave: %+v", resp)
			}
			return
		}
	}
	t.Fatalf("%s is not in %s", clientID, group)
}

// leaveStreams takes the member with a client id out of a streams group.
func (s *side) leaveStreams(t *testing.T, group, clientID string) {
	t.Helper()
	d := kmsg.NewPtrStreamsGroupDescribeRequest()
	d.Version, d.Groups = 1, []string{group}
	for _, m := range s.must(t, d).(*kmsg.StreamsGroupDescribeResponse).Groups[0].Members {
		if m.ClientID == clientID {
			r := streamsBeat(group, m.MemberID, -1)
			r.Version = 1
			if resp := s.must(t, r).(*kmsg.StreamsGroupHeartbeatResponse); resp.ErrorCode != 0 {
				t.Fatalf("leave: %+v", resp)
			}
			return
		}
	}
	t.Fatalf("%s is not in %s", clientID, group)
}

// lag says where a group's committed offsets are behind the ends of topics; empty if nowhere.
func lag(t *testing.T, s *side, group string, topics ...string) string {
	t.Helper()
	r := kmsg.NewPtrOffsetFetchRequest()
	r.Version = 9
	rg := kmsg.NewOffsetFetchRequestGroup()
	rg.Group, rg.MemberEpoch, rg.Topics = group, -1, nil
	r.Groups = append(r.Groups, rg)
	committed := map[string]int64{}
	for _, topic := range s.must(t, r).(*kmsg.OffsetFetchResponse).Groups[0].Topics {
		for _, part := range topic.Partitions {
			committed[fmt.Sprintf("%s-%d", topic.Topic, part.Partition)] = part.Offset
		}
	}
	for _, topic := range topics {
		for i := range int32(4) {
			key := fmt.Sprintf("%s-%d", topic, i)
			if end := s.offset(t, topic, i, -1); committed[key] < end {
				return fmt.Sprintf("%s has committed %d of %d in %s", group, committed[key], end, key)
			}
		}
	}
	return ""
}

// offset asks for the end (-1) or the start (-2) of a partition.
func (s *side) offset(t *testing.T, topic string, partition int32, at int64) int64 {
	t.Helper()
	r := kmsg.NewPtrListOffsetsRequest()
	r.Version, r.ReplicaID = 7, -1
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic = topic
	rp := kmsg.NewListOffsetsRequestTopicPartition()
	rp.Partition, rp.Timestamp, rp.CurrentLeaderEpoch = partition, at, -1
	rt.Partitions = append(rt.Partitions, rp)
	r.Topics = append(r.Topics, rt)
	return s.must(t, r).(*kmsg.ListOffsetsResponse).Topics[0].Partitions[0].Offset
}

// topicSettings are what a topic has that isn't a default.
func (s *side) topicSettings(t *testing.T, topic string) string {
	t.Helper()
	r := kmsg.NewPtrDescribeConfigsRequest()
	r.Version = 4
	r.Resources = []kmsg.DescribeConfigsRequestResource{{ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: topic}}
	var list []string
	for _, c := range s.must(t, r).(*kmsg.DescribeConfigsResponse).Resources[0].Configs {
		if c.Source == kmsg.ConfigSourceDynamicTopicConfig {
			list = append(list, c.Name+"="+*c.Value)
		}
	}
	slices.Sort(list)
	return fmt.Sprintf("%d partitions, %s", s.partitionsOf(t, topic), strings.Join(list, " "))
}

// partitionsOf is how many partitions a topic has.
func (s *side) partitionsOf(t *testing.T, topic string) int {
	t.Helper()
	r := kmsg.NewPtrMetadataRequest()
	r.Version = 12
	r.Topics = []kmsg.MetadataRequestTopic{{Topic: &topic}}
	return len(s.must(t, r).(*kmsg.MetadataResponse).Topics[0].Partitions)
}
