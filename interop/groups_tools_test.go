package interop

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/interop/kafka"
)

// groupScript are options of kafka-consumer-groups: each line is run against both nodes, which must print the same. There are a group
// of each protocol with a static member (modern, old), one that nobody is in any more (done), and offsets that somebody has committed
// without a group (alone). In front of a line:
//
//	~  lines may come in any order
const groupScript = `
~--list
~--list --state
~--list --state Stable
~--list --state Nonsense
~--list --type
~--list --type consumer
~--list --type classic --state
~--list --type nonsense
--describe --group modern
--describe --group modern --offsets --verbose
--describe --group modern --members
--describe --group modern --members --verbose
--describe --group modern --state --verbose
--describe --group old
--describe --group old --members --verbose
--describe --group old --state --verbose
--describe --group done
--describe --group done --members
--describe --group done --state
--describe --group alone
--describe --group alone --state
--describe --group nobody
--describe --group nobody --members
--describe --group done --group alone --state
--describe --group done --members --state
--describe
~--describe --all-groups
~--describe --all-groups --members --verbose
~--describe --all-groups --state
--delete-offsets --group modern --topic one
--delete-offsets --group modern --topic two
--delete-offsets --group done --topic one:0
--delete-offsets --group done --topic one:7
--delete-offsets --group done --topic none
--delete-offsets --group nobody --topic one
--delete-offsets --group done
--describe --group done
~--reset-offsets --group done --topic one --to-earliest
~--reset-offsets --group done --topic one --to-earliest --execute
--describe --group done
~--reset-offsets --group done --topic one --to-latest --execute
~--reset-offsets --group done --topic one:0 --to-offset 2 --execute
~--reset-offsets --group done --topic one:0,1 --to-offset 100 --execute
~--reset-offsets --group done --topic one --shift-by -1 --execute
~--reset-offsets --group done --topic one --to-current --execute
~--reset-offsets --group done --topic one --to-datetime 2020-01-01T00:00:00.000 --execute
~--reset-offsets --group done --topic one --to-datetime 2099-01-01T00:00:00.000 --execute
~--reset-offsets --group done --topic one --to-datetime nonsense --execute
~--reset-offsets --group done --topic one --by-duration PT1H --execute
~--reset-offsets --group done --all-topics --to-earliest --execute
~--reset-offsets --group done --topic one --to-earliest --dry-run --export
~--reset-offsets --group done --from-file DIR/offsets.csv --dry-run
~--reset-offsets --group done --from-file DIR/offsets.csv --execute
--describe --group done
~--reset-offsets --group done --from-file DIR/nonsense.csv --execute
~--reset-offsets --group done --group alone --from-file DIR/groups.csv --execute
~--reset-offsets --group done --topic none --to-earliest --execute
~--reset-offsets --group done --to-earliest --execute
~--reset-offsets --group done --topic one --execute
~--reset-offsets --group done --topic one --to-earliest --to-latest --execute
~--reset-offsets --group modern --topic one --to-earliest --execute
~--reset-offsets --group fresh --topic one --to-earliest --execute
~--reset-offsets --all-groups --topic two --to-earliest --dry-run
--validate-regex t.*
--validate-regex [
--delete --group modern
--delete --group nobody
--delete --group fresh --group alone
--nonsense
~--list
~--delete --all-groups
~--list
`

// groupFiles are the files that the script uses.
var groupFiles = map[string]string{
	"offsets.csv":  "\"one\",0,1\n\"one\",1,0\n",
	"nonsense.csv": "one;0;1\n",
	"groups.csv":   "\"done\",\"one\",0,2\n\"alone\",\"one\",1,1\n",
}

// TestGroupTool runs kafka-consumer-groups with every option against gregor and Kafka.
func TestGroupTool(t *testing.T) {
	p := startPair(t, lively...)
	p.createTopics(t, 2, nil, "one", "two")
	dir := t.TempDir()
	for name, text := range groupFiles {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	boxes := map[*side]*kafka.Toolbox{p.gregor: kafka.NewToolbox(t), p.kafka: kafka.NewToolbox(t)}
	p.both(func(s *side) { s.population(t) })
	if t.Failed() {
		return
	}
	n := 0
	for line := range strings.Lines(strings.TrimSpace(groupScript)) {
		line, sorted := strings.CutPrefix(strings.TrimSpace(line), "~")
		texts := map[*side]string{}
		var mu sync.Mutex
		p.both(func(s *side) {
			args := []string{"--bootstrap-server", s.addr}
			for _, w := range strings.Fields(line) {
				args = append(args, strings.ReplaceAll(w, "DIR", dir))
			}
			code, stdout, stderr, err := boxes[s].Run("", "consumer-groups", args...)
			if err != nil {
				t.Errorf("%s: %s: %v", s.name, line, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			texts[s] = fmt.Sprintf("exit code %d\n%s\n%s\n", code, inOrder(s.tidy(stdout, sorted, false)), inOrder(s.tidy(stderr, sorted, false)))
		})
		if len(texts) < 2 {
			return
		}
		n++
		if texts[p.gregor] != texts[p.kafka] {
			t.Errorf("%s\n%s", line, diff(texts[p.gregor], texts[p.kafka]))
		}
	}
	t.Logf("%d commands", n)
}

// inOrder sorts what the tool lists out of hash sets of its own: states and options.
func inOrder(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.Contains(line, "Valid states are:") || strings.Contains(line, "Option ") {
			words := strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" ,[]\n", r) })
			slices.Sort(words)
			line = strings.Join(words, " ") + "\n"
		}
		b.WriteString(line)
	}
	return b.String()
}

// population makes the groups of the script.
func (s *side) population(tb testing.TB) {
	ctx, cancel := context.WithTimeout(tb.Context(), toolPatience)
	defer cancel()
	w := franz(tb, s.addr, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for i := range 8 {
		if err := w.ProduceSync(ctx, &kgo.Record{Topic: "one", Partition: int32(i % 2), Value: []byte("x")}).FirstErr(); err != nil {
			tb.Errorf("%s: %v", s.name, err)
			return
		}
	}
	for group, opts := range map[string][]kgo.Opt{
		"modern": {kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer())},
		"old":    {kgo.Balancers(kgo.RangeBalancer())},
		"done":   {kgo.Balancers(kgo.RangeBalancer())},
	} {
		if group != "done" {
			opts = append(opts, kgo.InstanceID("i-"+group))
		}
		c := franz(tb, s.addr, append(opts, kgo.ClientID("member-"+group), kgo.ConsumerGroup(group), kgo.ConsumeTopics("one"),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit())...)
		for seen := 0; seen < 8; {
			f := c.PollFetches(ctx)
			if err := f.Err(); err != nil {
				tb.Errorf("%s: group %s: %v", s.name, group, err)
				return
			}
			seen += f.NumRecords()
		}
		if err := c.CommitUncommittedOffsets(ctx); err != nil {
			tb.Errorf("%s: group %s: %v", s.name, group, err)
		}
		if group == "done" {
			c.Close()
		}
	}
	alone := commit("alone", "", -1, "one", 1, 3)
	alone.Version = 9
	s.must(tb, alone)
	// Until the members have acknowledged what they have.
	for {
		q := kmsg.NewPtrListGroupsRequest()
		q.Version, q.StatesFilter = 5, []string{"Stable"}
		if len(s.must(tb, q).(*kmsg.ListGroupsResponse).Groups) == 2 {
			return
		}
		if ctx.Err() != nil {
			tb.Errorf("%s: the groups don't become stable", s.name)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}
