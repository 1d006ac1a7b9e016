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

	"gregor/interop/kafka"
)

// toolScript are commands as one types them, with BOOTSTRAP for the node's address and DIR for a directory of files. What comes
// before a "|" goes to the tool's standard input, where "\n" ends a line and "\t" is a tab.
//
// "until" has the next tool run until both nodes show something, or with "until no" don't: they apply a change to themselves
// after they have answered.
//
//	~ in front: lines may come in any order
//	# in front: numbers may differ
const toolScript = `
topics --bootstrap-server BOOTSTRAP --create --topic t1 --partitions 3 --replication-factor 1
topics --bootstrap-server BOOTSTRAP --create --topic t1
topics --bootstrap-server BOOTSTRAP --create --topic t1 --if-not-exists
topics --bootstrap-server BOOTSTRAP --create --topic bad/name
topics --bootstrap-server BOOTSTRAP --create --topic t_2
topics --bootstrap-server BOOTSTRAP --create --topic t.2
topics --bootstrap-server BOOTSTRAP --create --topic t3 --replica-assignment 1,1
topics --bootstrap-server BOOTSTRAP --create --topic t4 --replication-factor 3
topics --bootstrap-server BOOTSTRAP --create --topic t5 --config retention.ms=1000 --config cleanup.policy=compact
topics --bootstrap-server BOOTSTRAP --create --topic t6 --config no.such=1
topics --bootstrap-server BOOTSTRAP --create --topic t6 --config retention.ms=long
~topics --bootstrap-server BOOTSTRAP --list
~topics --bootstrap-server BOOTSTRAP --describe
topics --bootstrap-server BOOTSTRAP --describe --topic t1
topics --bootstrap-server BOOTSTRAP --describe --topic nope
~topics --bootstrap-server BOOTSTRAP --describe --topics-with-overrides
topics --bootstrap-server BOOTSTRAP --describe --under-replicated-partitions
topics --bootstrap-server BOOTSTRAP --describe --unavailable-partitions
~topics --bootstrap-server BOOTSTRAP --describe --at-min-isr-partitions
topics --bootstrap-server BOOTSTRAP --alter --topic t1 --partitions 4
topics --bootstrap-server BOOTSTRAP --alter --topic t1 --partitions 2
topics --bootstrap-server BOOTSTRAP --alter --topic nope --partitions 2
topics --bootstrap-server BOOTSTRAP --delete --topic t3
topics --bootstrap-server BOOTSTRAP --delete --topic nope
configs --bootstrap-server BOOTSTRAP --entity-type topics --entity-name t5 --describe
configs --bootstrap-server BOOTSTRAP --entity-type topics --entity-name t5 --describe --all
configs --bootstrap-server BOOTSTRAP --entity-type topics --entity-name t5 --alter --add-config retention.ms=2000,segment.ms=5000
configs --bootstrap-server BOOTSTRAP --entity-type topics --entity-name t5 --alter --delete-config segment.ms
configs --bootstrap-server BOOTSTRAP --entity-type topics --entity-name t5 --alter --delete-config no.such
configs --bootstrap-server BOOTSTRAP --entity-type topics --entity-name t5 --alter --add-config retention.ms=long
configs --bootstrap-server BOOTSTRAP --entity-type topics --entity-name nope --alter --add-config retention.ms=1
configs --bootstrap-server BOOTSTRAP --entity-type topics --entity-name t5 --describe
~configs --bootstrap-server BOOTSTRAP --entity-type topics --describe
configs --bootstrap-server BOOTSTRAP --entity-type brokers --entity-name 1 --alter --add-config log.cleaner.threads=2
until log.cleaner.threads=2
configs --bootstrap-server BOOTSTRAP --entity-type brokers --entity-name 1 --describe
configs --bootstrap-server BOOTSTRAP --entity-type brokers --entity-default --alter --add-config log.retention.ms=100000000
until log.retention.ms=100000000
configs --bootstrap-server BOOTSTRAP --entity-type brokers --entity-default --describe
configs --bootstrap-server BOOTSTRAP --entity-type brokers --entity-name 1 --describe
configs --bootstrap-server BOOTSTRAP --entity-type brokers --entity-name 1 --alter --add-config node.id=7
configs --bootstrap-server BOOTSTRAP --entity-type brokers --entity-default --alter --delete-config log.retention.ms
until no log.retention.ms=100000000
configs --bootstrap-server BOOTSTRAP --entity-type brokers --entity-name 1 --describe --all
configs --bootstrap-server BOOTSTRAP --entity-type users --entity-name alice --alter --add-config producer_byte_rate=1024,consumer_byte_rate=2048
configs --bootstrap-server BOOTSTRAP --entity-type users --entity-default --entity-type clients --entity-name c1 --alter --add-config request_percentage=50
~configs --bootstrap-server BOOTSTRAP --entity-type users --describe
configs --bootstrap-server BOOTSTRAP --entity-type users --entity-name alice --alter --delete-config producer_byte_rate
configs --bootstrap-server BOOTSTRAP --entity-type users --entity-name alice --describe
configs --bootstrap-server BOOTSTRAP --entity-type ips --entity-name 127.0.0.1 --alter --add-config connection_creation_rate=1000
configs --bootstrap-server BOOTSTRAP --entity-type ips --describe
configs --bootstrap-server BOOTSTRAP --entity-type groups --entity-name g1 --alter --add-config consumer.session.timeout.ms=50000
configs --bootstrap-server BOOTSTRAP --entity-type groups --entity-name g1 --describe
configs --bootstrap-server BOOTSTRAP --entity-type client-metrics --entity-name cm --alter --add-config interval.ms=60000
configs --bootstrap-server BOOTSTRAP --entity-type client-metrics --describe
client-metrics --bootstrap-server BOOTSTRAP --list
client-metrics --bootstrap-server BOOTSTRAP --describe --name cm
client-metrics --bootstrap-server BOOTSTRAP --delete --name cm
a:1\nb:2\na:3\nc:4\n | console-producer --bootstrap-server BOOTSTRAP --topic t1 --reader-property parse.key=true --reader-property key.separator=: --reader-property ignore.error=true --sync
h1:x,h2:y\tk1\tv1\nh1:z\tk2\tNULL\n | console-producer --bootstrap-server BOOTSTRAP --topic t_2 --reader-property parse.key=true --reader-property parse.headers=true --reader-property null.marker=NULL --compression-codec zstd --sync
one\ntwo\nthree\nfour\nfive\nsix\n | console-producer --bootstrap-server BOOTSTRAP --topic t_2 --command-property acks=all --sync
~console-consumer --bootstrap-server BOOTSTRAP --topic t1 --from-beginning --timeout-ms 10000 --max-messages 4 --formatter-property print.key=true
console-consumer --bootstrap-server BOOTSTRAP --topic t_2 --partition 0 --offset 0 --max-messages 8 --formatter-property print.key=true --formatter-property print.headers=true --formatter-property print.offset=true --formatter-property print.partition=true --formatter-property print.timestamp=true --formatter-property null.literal=NULL
console-consumer --bootstrap-server BOOTSTRAP --topic t_2 --group g1 --from-beginning --max-messages 5
console-consumer --bootstrap-server BOOTSTRAP --topic t_2 --group g1 --max-messages 2 --isolation-level read_committed
console-consumer --bootstrap-server BOOTSTRAP --topic nope2 --timeout-ms 2000
~get-offsets --bootstrap-server BOOTSTRAP --exclude-internal-topics
get-offsets --bootstrap-server BOOTSTRAP --topic t1
get-offsets --bootstrap-server BOOTSTRAP --topic t_2 --time earliest
get-offsets --bootstrap-server BOOTSTRAP --topic t_2 --time max-timestamp
get-offsets --bootstrap-server BOOTSTRAP --topic t_2 --time 0
get-offsets --bootstrap-server BOOTSTRAP --topic t_2 --time earliest-local
get-offsets --bootstrap-server BOOTSTRAP --topic t_2 --time latest-tiered
get-offsets --bootstrap-server BOOTSTRAP --topic-partitions t1:0-2,t_2:0
get-offsets --bootstrap-server BOOTSTRAP --topic nope
~consumer-groups --bootstrap-server BOOTSTRAP --list
~consumer-groups --bootstrap-server BOOTSTRAP --list --state
~consumer-groups --bootstrap-server BOOTSTRAP --list --type
consumer-groups --bootstrap-server BOOTSTRAP --describe --group g1
consumer-groups --bootstrap-server BOOTSTRAP --describe --group g1 --state
consumer-groups --bootstrap-server BOOTSTRAP --describe --group g1 --members --verbose
consumer-groups --bootstrap-server BOOTSTRAP --describe --group live
consumer-groups --bootstrap-server BOOTSTRAP --describe --group live --state
consumer-groups --bootstrap-server BOOTSTRAP --describe --group live --members --verbose
consumer-groups --bootstrap-server BOOTSTRAP --describe --group nope
consumer-groups --bootstrap-server BOOTSTRAP --describe --group nope --state
~consumer-groups --bootstrap-server BOOTSTRAP --describe --all-groups --state
consumer-groups --bootstrap-server BOOTSTRAP --reset-offsets --group g1 --topic t_2 --to-earliest --dry-run
consumer-groups --bootstrap-server BOOTSTRAP --reset-offsets --group g1 --topic t_2 --shift-by -2 --execute
consumer-groups --bootstrap-server BOOTSTRAP --reset-offsets --group g1 --topic t_2 --to-datetime 2020-01-01T00:00:00.000 --execute
consumer-groups --bootstrap-server BOOTSTRAP --reset-offsets --group g1 --topic t_2 --to-offset 100 --execute
consumer-groups --bootstrap-server BOOTSTRAP --reset-offsets --group g1 --all-topics --to-latest --dry-run --export
consumer-groups --bootstrap-server BOOTSTRAP --reset-offsets --group live --topic t1 --to-earliest --execute
~consumer-groups --bootstrap-server BOOTSTRAP --reset-offsets --group new --topic t1 --to-earliest --execute
consumer-groups --bootstrap-server BOOTSTRAP --delete-offsets --group g1 --topic t_2
consumer-groups --bootstrap-server BOOTSTRAP --delete-offsets --group g1 --topic nope
consumer-groups --bootstrap-server BOOTSTRAP --delete --group live
consumer-groups --bootstrap-server BOOTSTRAP --delete --group new
consumer-groups --bootstrap-server BOOTSTRAP --delete --group nope
~groups --bootstrap-server BOOTSTRAP --list
~groups --bootstrap-server BOOTSTRAP --list --group-type classic
~groups --bootstrap-server BOOTSTRAP --list --protocol consumer
groups --bootstrap-server BOOTSTRAP --list --share
~delete-records --bootstrap-server BOOTSTRAP --offset-json-file DIR/delete.json
~delete-records --bootstrap-server BOOTSTRAP --offset-json-file DIR/delete-bad.json
get-offsets --bootstrap-server BOOTSTRAP --topic t_2 --time -2
#log-dirs --bootstrap-server BOOTSTRAP --describe --topic-list t1
#log-dirs --bootstrap-server BOOTSTRAP --describe --topic-list t_2 --broker-list 1
log-dirs --bootstrap-server BOOTSTRAP --describe --broker-list 9
broker-api-versions --bootstrap-server BOOTSTRAP
#metadata-quorum --bootstrap-server BOOTSTRAP describe --status
#metadata-quorum --bootstrap-server BOOTSTRAP describe --replication
#features --bootstrap-server BOOTSTRAP describe
features --bootstrap-server BOOTSTRAP upgrade --release-version 4.4 --dry-run
features --bootstrap-server BOOTSTRAP upgrade --feature group.version=9
features --bootstrap-server BOOTSTRAP downgrade --feature group.version=0
features --bootstrap-server BOOTSTRAP upgrade --feature group.version=1
features --bootstrap-server BOOTSTRAP disable --feature no.such
features --bootstrap-server BOOTSTRAP downgrade --metadata 4.0 --dry-run
leader-election --bootstrap-server BOOTSTRAP --election-type preferred --all-topic-partitions
leader-election --bootstrap-server BOOTSTRAP --election-type preferred --topic t1 --partition 0
leader-election --bootstrap-server BOOTSTRAP --election-type unclean --topic t1 --partition 0
leader-election --bootstrap-server BOOTSTRAP --election-type unclean --topic nope --partition 0
reassign-partitions --bootstrap-server BOOTSTRAP --list
reassign-partitions --bootstrap-server BOOTSTRAP --generate --topics-to-move-json-file DIR/move.json --broker-list 1
reassign-partitions --bootstrap-server BOOTSTRAP --execute --reassignment-json-file DIR/reassign.json
reassign-partitions --bootstrap-server BOOTSTRAP --verify --reassignment-json-file DIR/reassign.json
reassign-partitions --bootstrap-server BOOTSTRAP --execute --reassignment-json-file DIR/reassign-bad.json
cluster cluster-id --bootstrap-server BOOTSTRAP
cluster list-endpoints --bootstrap-server BOOTSTRAP
cluster unregister --bootstrap-server BOOTSTRAP --id 9
topics --bootstrap-server BOOTSTRAP --delete --topic t1
~topics --bootstrap-server BOOTSTRAP --list --exclude-internal
`

// toolFiles are the files that the script uses.
var toolFiles = map[string]string{
	"delete.json":       `{"partitions":[{"topic":"t_2","partition":0,"offset":3},{"topic":"t1","partition":0,"offset":0}],"version":1}`,
	"delete-bad.json":   `{"partitions":[{"topic":"t_2","partition":0,"offset":1000},{"topic":"t1","partition":0,"offset":0}],"version":1}`,
	"move.json":         `{"topics":[{"topic":"t1"}],"version":1}`,
	"reassign.json":     `{"version":1,"partitions":[{"topic":"t1","partition":0,"replicas":[1],"log_dirs":["any"]}]}`,
	"reassign-bad.json": `{"version":1,"partitions":[{"topic":"t1","partition":0,"replicas":[9]}]}`,
}

// toolPatience is how long anything may take; the machine may be slow.
const toolPatience = 2 * time.Minute

// TestTools runs Kafka's command-line tools against gregor and against Kafka and compares what they print.
func TestTools(t *testing.T) {
	p := startPair(t)
	dir := t.TempDir()
	for name, text := range toolFiles {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	boxes := map[*side]*kafka.Toolbox{p.gregor: kafka.NewToolbox(t), p.kafka: kafka.NewToolbox(t)}
	n, until := 0, ""
	for line := range strings.Lines(strings.TrimSpace(toolScript)) {
		line = strings.TrimSpace(line)
		if condition, ok := strings.CutPrefix(line, "until "); ok {
			until = condition
			continue
		}
		if strings.Contains(line, "--group live") && !strings.HasPrefix(line, "#") && p.gregor.kept["live"] == nil {
			p.both(func(s *side) { s.live(t) })
		}
		sorted, numbers := false, false
		line, sorted = strings.CutPrefix(line, "~")
		line, numbers = strings.CutPrefix(line, "#")
		stdin, command, piped := strings.Cut(line, " | ")
		if !piped {
			stdin, command = "", line
		}
		stdin = strings.NewReplacer(`\n`, "\n", `\t`, "\t").Replace(stdin)
		words := strings.Fields(command)
		run := func() map[*side]string {
			texts := map[*side]string{}
			var mu sync.Mutex
			p.both(func(s *side) {
				args := slices.Clone(words[1:])
				for i := range args {
					args[i] = strings.ReplaceAll(strings.ReplaceAll(args[i], "BOOTSTRAP", s.addr), "DIR", dir)
				}
				code, stdout, stderr, err := boxes[s].Run(stdin, words[0], args...)
				if err != nil {
					t.Errorf("%s: %s: %v", s.name, line, err)
					return
				}
				text := fmt.Sprintf("exit code %d\n%s\n%s\n", code, s.tidy(stdout, sorted, numbers), s.tidy(stderr, sorted, numbers))
				mu.Lock()
				texts[s] = text
				mu.Unlock()
			})
			return texts
		}
		start := time.Now()
		texts := run()
		for until != "" && len(texts) == 2 && !settled(texts[p.gregor], texts[p.kafka], until) && time.Since(start) < toolPatience {
			time.Sleep(100 * time.Millisecond)
			texts = run()
		}
		if until != "" && !settled(texts[p.gregor], texts[p.kafka], until) {
			t.Errorf("%s: waited in vain for %s", line, until)
		}
		until = ""
		if t.Failed() && len(texts) < 2 {
			return
		}
		n++
		if took := time.Since(start); took > 5*time.Second {
			t.Logf("%v for %s", took, line)
		}
		if words[0] == "broker-api-versions" {
			dropUnserved(texts, p)
		}
		if texts[p.gregor] != texts[p.kafka] {
			t.Errorf("%s\n%s", line, diff(texts[p.gregor], texts[p.kafka]))
		}
	}
	t.Logf("%d commands", n)
}

// settled says whether both nodes print the same, with or without what an "until" line says.
func settled(a, b, until string) bool {
	what, without := strings.CutPrefix(until, "no ")
	return a == b && strings.Contains(a, what) != without
}

// dropUnserved leaves out what gregor does not serve yet.
func dropUnserved(texts map[*side]string, p *pair) {
	missing := map[string]bool{}
	for line := range strings.Lines(texts[p.gregor]) {
		if name, _, _ := strings.Cut(strings.TrimSpace(line), ":"); strings.Contains(line, "UNSUPPORTED") {
			missing[name] = true
		}
	}
	for s, text := range texts {
		var b strings.Builder
		for line := range strings.Lines(text) {
			if name, _, _ := strings.Cut(strings.TrimSpace(line), ":"); !missing[name] {
				// The last one has no comma.
				b.WriteString(strings.TrimRight(line, ",\n") + "\n")
			}
		}
		texts[s] = b.String()
	}
}

// tidy replaces what may differ between two nodes in what a tool printed.
func (s *side) tidy(text string, sorted, numbers bool) string {
	return kafka.Tidy(s.text(text), sorted, numbers)
}

// live joins a group with a member that stays.
func (s *side) live(tb testing.TB) {
	c := franz(tb, s.addr, kgo.ClientID("member"), kgo.ConsumerGroup("live"), kgo.ConsumeTopics("t1"), kgo.Balancers(kgo.RangeBalancer()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.InstanceID("i1"), kgo.DisableAutoCommit())
	ctx, cancel := context.WithTimeout(tb.Context(), toolPatience)
	defer cancel()
	for seen := 0; seen < 3; {
		f := c.PollFetches(ctx)
		if err := f.Err(); err != nil {
			tb.Errorf("%s: group live: %v", s.name, err)
			return
		}
		seen += f.NumRecords()
	}
	if err := c.CommitUncommittedOffsets(ctx); err != nil {
		tb.Errorf("%s: group live: %v", s.name, err)
	}
	s.kept["live"] = true
}
