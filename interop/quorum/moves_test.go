package quorum

import (
	"encoding/json"
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

	"gregor/interop/kafka"
)

// movesScript are commands of Kafka's tools, and what happens between them, in a cluster of a controller, 1, and the brokers 2, 3
// and 4 with two log directories each.
//
//	~ in front: lines may come in any order
//	# in front: numbers may differ
//	?{text} in front: what is printed has the text sooner or later, or with ! before it no longer
//	. in front: what is printed isn't compared
//
// BROKER is the address of a broker that runs, DIR the directory of the files below.
const movesScript = `
topics --create --topic r1 --replica-assignment 2:3:4,3:4:2,4:2:3 --config min.insync.replicas=2
topics --create --topic r2 --replica-assignment 2:3,3:4
topics --create --topic r3 --replica-assignment 4,3,2
topics --create --topic big --replica-assignment 2
!produce r1 3 10
topics --create --topic big2 --replica-assignment 2
!produce big 3000 1000
!produce big2 3000 1000
.reassign-partitions --execute --reassignment-json-file DIR/place.json
~?{!in progress}reassign-partitions --verify --reassignment-json-file DIR/place.json
!prefer
?{!Offline: 2}~topics --describe
?{r1}~topics --describe --topics-with-overrides
?{}topics --describe --under-replicated-partitions
?{}topics --describe --unavailable-partitions
?{}topics --describe --under-min-isr-partitions
?{r3}~topics --describe --at-min-isr-partitions
?{}log-dirs --describe --topic-list r1,r2,r3
?{}log-dirs --describe --broker-list 3,4 --topic-list r1
log-dirs --describe --broker-list 9
log-dirs --describe --broker-list 2 --topic-list none

reassign-partitions --list
reassign-partitions --generate --topics-to-move-json-file DIR/topics.json --broker-list 3
reassign-partitions --generate --topics-to-move-json-file DIR/topics.json --broker-list 3 --disable-rack-aware
reassign-partitions --generate --topics-to-move-json-file DIR/topics.json --broker-list 3,9
reassign-partitions --execute --reassignment-json-file DIR/r3.json
?{!in progress}reassign-partitions --verify --reassignment-json-file DIR/r3.json
?{Replicas: 3 }topics --describe --topic r3
reassign-partitions --execute --reassignment-json-file DIR/unknown-broker.json
reassign-partitions --execute --reassignment-json-file DIR/unknown-topic.json
reassign-partitions --execute --reassignment-json-file DIR/unknown-dir.json
reassign-partitions --execute --reassignment-json-file DIR/twice.json
reassign-partitions --verify --reassignment-json-file DIR/unknown-topic.json

reassign-partitions --execute --reassignment-json-file DIR/dirs.json
?{!is being moved}~reassign-partitions --verify --reassignment-json-file DIR/dirs.json
?{}log-dirs --describe --topic-list r1,r2
reassign-partitions --execute --reassignment-json-file DIR/elsewhere.json
?{!in progress}~reassign-partitions --verify --reassignment-json-file DIR/elsewhere.json
?{}log-dirs --describe --topic-list r2,r3

reassign-partitions --execute --reassignment-json-file DIR/slow-dirs.json --replica-alter-log-dirs-throttle 1000
?{still in progress}reassign-partitions --verify --reassignment-json-file DIR/slow-dirs.json
#?{"isFuture":true}log-dirs --describe --topic-list big
?{1000}~configs --describe --entity-type brokers --entity-name 2
reassign-partitions --cancel --reassignment-json-file DIR/slow-dirs.json
reassign-partitions --execute --reassignment-json-file DIR/slow-dirs.json --replica-alter-log-dirs-throttle 100000000 --additional
?{!in progress}reassign-partitions --verify --reassignment-json-file DIR/slow-dirs.json
?{}#log-dirs --describe --topic-list big
?{}~configs --describe --entity-type brokers --entity-name 2
configs --alter --entity-type brokers --entity-name 2 --add-config cordoned.log.dirs=DIR2/data
?{}~configs --describe --entity-type brokers --entity-name 2
reassign-partitions --execute --reassignment-json-file DIR/cordoned.json
?{}reassign-partitions --verify --reassignment-json-file DIR/cordoned.json
configs --alter --entity-type brokers --entity-name 2 --delete-config cordoned.log.dirs

reassign-partitions --execute --reassignment-json-file DIR/slow.json --throttle 1000
?{in progress}reassign-partitions --verify --reassignment-json-file DIR/slow.json
reassign-partitions --list
?{Adding}topics --describe --topic big
?{}topics --describe --under-replicated-partitions
?{1000}~configs --describe --entity-type brokers
?{throttled}configs --describe --entity-type topics --entity-name big
reassign-partitions --execute --reassignment-json-file DIR/r3.json
reassign-partitions --execute --reassignment-json-file DIR/slow2.json --additional --throttle 2000
?{in progress}~reassign-partitions --verify --reassignment-json-file DIR/both.json
?{}~configs --describe --entity-type brokers
reassign-partitions --list
reassign-partitions --cancel --reassignment-json-file DIR/slow.json --preserve-throttles
reassign-partitions --cancel --reassignment-json-file DIR/slow2.json
reassign-partitions --list
?{!Adding}topics --describe --topic big
reassign-partitions --execute --reassignment-json-file DIR/slow.json --throttle 1000
reassign-partitions --cancel --reassignment-json-file DIR/slow.json
?{}~configs --describe --entity-type brokers
?{}configs --describe --entity-type topics --entity-name big
reassign-partitions --execute --reassignment-json-file DIR/slow.json --throttle 1000
.reassign-partitions --execute --reassignment-json-file DIR/slow.json --throttle 100000000 --additional
?{!in progress}reassign-partitions --verify --reassignment-json-file DIR/slow.json
?{}~configs --describe --entity-type brokers
?{Replicas: 3,4}topics --describe --topic big
reassign-partitions --cancel --reassignment-json-file DIR/slow.json

!prefer
!stop 2
?{Leader: 3 }topics --describe --topic r1
?{r1}~topics --describe --under-replicated-partitions
?{r1}~topics --describe --at-min-isr-partitions
?{}~topics --describe --unavailable-partitions
leader-election --election-type preferred --topic r1 --partition 0
log-dirs --describe --broker-list 2
!start 2
?{!Isr: 3,4 }~topics --describe --topic r1
?{}leader-election --election-type preferred --topic r1 --partition 0
leader-election --election-type preferred --topic r1 --partition 0
leader-election --election-type preferred --all-topic-partitions
leader-election --election-type preferred --path-to-json-file DIR/election.json
leader-election --election-type unclean --path-to-json-file DIR/election.json
leader-election --election-type unclean --all-topic-partitions
leader-election --election-type preferred --topic r1 --partition 7
!prefer
?{Leader: 2 }~topics --describe --topic r1

topics --create --topic e1 --replica-assignment 3:4 --config min.insync.replicas=2
topics --create --topic e2 --replica-assignment 3:4
topics --create --topic e3 --replica-assignment 3:4 --config unclean.leader.election.enable=true
!produce e1 1 10
!produce e2 1 10
!produce e3 1 10
?{Isr: 3,4}topics --describe --topic e1
!stop 4
?{!Isr: 3,4}topics --describe --topic e1
?{}topics --describe --topic e2
?{e1}~topics --describe --under-min-isr-partitions
!kill 3
?{Leader: none}topics --describe --topic e1
?{Leader: none}topics --describe --topic e2
?{Leader: none}topics --describe --topic e3
?{e1}~topics --describe --unavailable-partitions
?{e1}~topics --describe --under-min-isr-partitions
?{e1}~topics --describe --under-replicated-partitions
leader-election --election-type preferred --topic e1 --partition 0
leader-election --election-type unclean --topic e1 --partition 0
!start 4
?{Leader: 4}topics --describe --topic e1
?{}topics --describe --topic e2
?{Leader: 4}topics --describe --topic e3
leader-election --election-type preferred --topic e2 --partition 0
leader-election --election-type unclean --topic e2 --partition 0
?{Leader: 4}topics --describe --topic e2
!start 3
?{Isr: 4,3|Isr: 3,4}topics --describe --topic e1
?{Isr: 4,3|Isr: 3,4}topics --describe --topic e2
?{Isr: 4,3|Isr: 3,4}topics --describe --topic e3
leader-election --election-type preferred --all-topic-partitions
`

// movesFiles are written for each cluster, with DIR2 to DIR4 for the directories of the brokers.
var movesFiles = map[string]string{
	"place.json": `{"version":1,"partitions":[
		{"topic":"r1","partition":0,"replicas":[2,3,4],"log_dirs":["DIR2/data","DIR3/data","DIR4/data"]},
		{"topic":"r1","partition":1,"replicas":[3,4,2],"log_dirs":["DIR3/data","DIR4/data","DIR2/data"]},
		{"topic":"r1","partition":2,"replicas":[4,2,3],"log_dirs":["DIR4/data","DIR2/data","DIR3/data"]},
		{"topic":"r2","partition":0,"replicas":[2,3],"log_dirs":["DIR2/data","DIR3/data"]},
		{"topic":"r2","partition":1,"replicas":[3,4],"log_dirs":["DIR3/data","DIR4/data"]},
		{"topic":"r3","partition":0,"replicas":[4],"log_dirs":["DIR4/more"]},
		{"topic":"r3","partition":1,"replicas":[3],"log_dirs":["DIR3/more"]},
		{"topic":"r3","partition":2,"replicas":[2],"log_dirs":["DIR2/more"]},
		{"topic":"big","partition":0,"replicas":[2],"log_dirs":["DIR2/data"]},
		{"topic":"big2","partition":0,"replicas":[2],"log_dirs":["DIR2/more"]}]}`,
	"topics.json":         `{"version":1,"topics":[{"topic":"r3"}]}`,
	"r3.json":             `{"version":1,"partitions":[{"topic":"r3","partition":0,"replicas":[3],"log_dirs":["any"]}]}`,
	"slow2.json":          `{"version":1,"partitions":[{"topic":"big2","partition":0,"replicas":[4]}]}`,
	"cordoned.json":       `{"version":1,"partitions":[{"topic":"big","partition":0,"replicas":[2],"log_dirs":["DIR2/data"]}]}`,
	"both.json":           `{"version":1,"partitions":[{"topic":"big2","partition":0,"replicas":[4]},{"topic":"big","partition":0,"replicas":[3,4]}]}`,
	"unknown-broker.json": `{"version":1,"partitions":[{"topic":"r3","partition":0,"replicas":[9]}]}`,
	"unknown-topic.json":  `{"version":1,"partitions":[{"topic":"none","partition":0,"replicas":[2]}]}`,
	"unknown-dir.json":    `{"version":1,"partitions":[{"topic":"r2","partition":0,"replicas":[2,3],"log_dirs":["/nowhere","any"]}]}`,
	"twice.json":          `{"version":1,"partitions":[{"topic":"r3","partition":0,"replicas":[2,2]}]}`,
	"dirs.json": `{"version":1,"partitions":[
		{"topic":"r1","partition":0,"replicas":[2,3,4],"log_dirs":["DIR2/more","any","DIR4/more"]},
		{"topic":"r2","partition":1,"replicas":[3,4],"log_dirs":["any","DIR4/more"]}]}`,
	"elsewhere.json": `{"version":1,"partitions":[{"topic":"r3","partition":1,"replicas":[4],"log_dirs":["DIR4/more"]}]}`,
	"slow-dirs.json": `{"version":1,"partitions":[{"topic":"big","partition":0,"replicas":[2],"log_dirs":["DIR2/more"]}]}`,
	"slow.json":      `{"version":1,"partitions":[{"topic":"big","partition":0,"replicas":[3,4]}]}`,
	"election.json":  `{"partitions":[{"topic":"r1","partition":1},{"topic":"r2","partition":0},{"topic":"none","partition":0}]}`,
}

// movesRecorded is what the tools printed for Kafka 4.4.0 alone: each command behind a dollar sign, and what it printed.
const movesRecorded = "testdata/moves.txt"

var recordMoves = flag.Bool("record-moves", false, "run the script of TestMovesAndElections on Kafka first, and record anew what is printed")

// TestMovesAndElections: Kafka's tools that move replicas and leaders, and describe where they are, print for three gregor brokers
// and a gregor controller what they print for Kafka's in the same situations. What that is was recorded.
func TestMovesAndElections(t *testing.T) {
	if *recordMoves {
		var text strings.Builder
		printed := runMoves(t, kafkaKind, nil)
		for i, line := range movesCommands() {
			fmt.Fprintf(&text, "$ %s\n%s\n", line, printed[i])
		}
		if err := os.WriteFile(movesRecorded, []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var want []string
	commands := movesCommands()
	for i, entry := range strings.Split("\n"+readFile(t, movesRecorded), "\n$ ")[1:] {
		line, text, _ := strings.Cut(entry, "\n")
		if i >= len(commands) || line != commands[i] {
			t.Fatalf("%s has %q and the script another command; record it anew with -record-moves", movesRecorded, line)
		}
		want = append(want, text)
	}
	if len(want) != len(commands) {
		t.Fatalf("%s has %d commands and the script %d; record it anew with -record-moves", movesRecorded, len(want), len(commands))
	}
	want[len(want)-1] = strings.TrimSuffix(want[len(want)-1], "\n")
	runMoves(t, gregorKind, want)
}

// movesCommands are the commands of the script.
func movesCommands() (list []string) {
	for line := range strings.Lines(movesScript) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '!' {
			list = append(list, line)
		}
	}
	return list
}

var movesHint = regexp.MustCompile(`^\?\{([^}]*)\}`)

// runMoves runs the script in a cluster of a kind, and compares with what it printed elsewhere.
func runMoves(t *testing.T, k kind, want []string) (printed []string) {
	c := newCluster(t, false, nil, "default.replication.factor=1", "auto.leader.rebalance.enable=false", "replica.lag.time.max.ms=5000",
		"replica.fetch.wait.max.ms=200", "replication.quota.window.num=100", "alter.log.dirs.replication.quota.window.num=100",
		"log.initial.task.delay.ms=600000", "broker.session.timeout.ms=9000", "controlled.shutdown.max.retries=1")
	ctl := c.add(k, controllerOnly)
	for range 3 {
		m := c.add(k, brokerOnly)
		m.extra = append(m.extra, fmt.Sprintf("log.dirs=%s,%s", m.data(), filepath.Join(m.dir, "more")))
	}
	c.configure([]*member{ctl})
	ctl.format(c.formatFlags([]*member{ctl})...)
	for _, m := range c.members[1:] {
		m.format()
	}
	dir := t.TempDir()
	var places []string
	for _, m := range c.members {
		places = append(places, fmt.Sprintf("DIR%d", m.id), m.dir)
	}
	for name, text := range movesFiles {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.NewReplacer(places...).Replace(text)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c.run(c.members...)
	c.brokersServe(3)
	began := time.Now()
	for line := range strings.Lines(strings.TrimSpace(movesScript)) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if act, ok := strings.CutPrefix(line, "!"); ok {
			c.act(strings.Fields(act))
			continue
		}
		var sorted, numbers, describes, ignored bool
		hint, command := "", line
		for {
			if m := movesHint.FindStringSubmatch(command); m != nil {
				hint, command, describes = m[1], command[len(m[0]):], true
			} else if command[0] == '~' {
				sorted, command = true, command[1:]
			} else if command[0] == '#' {
				numbers, command = true, command[1:]
			} else if command[0] == '.' {
				ignored, command = true, command[1:]
			} else {
				break
			}
		}
		words := strings.Fields(command)
		words = slices.Insert(words, 1, "--bootstrap-server", c.serving().addr)
		for i := range words {
			words[i] = strings.NewReplacer(append(slices.Clone(places), "DIR", dir)...).Replace(words[i])
		}
		run := func() string {
			code, stdout, stderr, err := c.box.Run("", words[0], words[1:]...)
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			if ignored {
				return ""
			}
			return c.tidyMoves(fmt.Sprintf("exit code %d\n%s\n%s", code, stdout, stderr), sorted, numbers)
		}
		got := run()
		right := func() bool {
			if want != nil {
				return got == want[len(printed)]
			}
			if absent, not := strings.CutPrefix(hint, "!"); not {
				return !strings.Contains(got, absent)
			}
			return slices.ContainsFunc(strings.Split(hint, "|"), func(h string) bool { return strings.Contains(got, h) })
		}
		limit := patience
		if want != nil && t.Failed() {
			limit = 5 * time.Second // it is lost already, and the rest is of interest
		}
		for until := time.Now().Add(limit); describes && time.Now().Before(until); {
			if right() {
				time.Sleep(100 * time.Millisecond)
				last := got
				if got = run(); want != nil && right() || want == nil && got == last {
					break
				}
				continue
			}
			time.Sleep(100 * time.Millisecond)
			got = run()
		}
		if want == nil && describes && !right() {
			t.Fatalf("%s\nprints, of Kafka:\n%s", line, got)
		}
		if want != nil && got != want[len(printed)] {
			t.Errorf("%s\ngot:\n%s\nwant, as from Kafka alone:\n%s", line, got, want[len(printed)])
		}
		printed = append(printed, got)
	}
	c.logf("%d commands in %v", len(printed), time.Since(began))
	for _, m := range c.running() {
		m.kill()
	}
	return printed
}

// brokersServe waits until all brokers that run say that there are n.
func (c *cluster) brokersServe(n int) {
	c.tb.Helper()
	c.await(fmt.Sprintf("%d brokers to serve", n), func() (string, bool) {
		for _, m := range c.running() {
			if m.addr == "" {
				continue
			}
			q := kmsg.NewPtrMetadataRequest()
			q.Version, q.Topics = 12, []kmsg.MetadataRequestTopic{}
			resp, err := ask[*kmsg.MetadataResponse](m.addr, q, 10*time.Second)
			if err != nil || len(resp.Brokers) != n {
				return fmt.Sprintf("%s: %+v, %v", m, resp, err), false
			}
		}
		return "", true
	})
}

// serving is a broker that runs.
func (c *cluster) serving() *member {
	for _, m := range c.members {
		if m.addr != "" && m.answers() {
			return m
		}
	}
	c.tb.Fatal("no broker runs")
	return nil
}

// act does what a script says that happens.
func (c *cluster) act(words []string) {
	c.tb.Helper()
	switch words[0] {
	case "prefer":
		// A machine that is too slow for the heartbeats of its brokers makes leaders change.
		c.preferred()
		return
	case "produce":
		n, _ := strconv.Atoi(words[2])
		size, _ := strconv.Atoi(words[3])
		c.box.MustInput(c.tb, strings.Repeat(strings.Repeat("x", size)+"\n", n), "console-producer", "--bootstrap-server", c.serving().addr, "--topic", words[1],
			"--compression-codec", "none")
		return
	}
	id, _ := strconv.Atoi(words[1])
	m := c.member(int32(id))
	switch words[0] {
	case "stop":
		m.stop()
	case "kill":
		m.kill()
	case "start":
		c.run(m)
		n := 0
		for _, m := range c.running() {
			if m.addr != "" {
				n++
			}
		}
		c.brokersServe(n)
	default:
		c.tb.Fatalf("no such act: %q", words)
	}
}

var (
	tidyThrottle = regexp.MustCompile(`(?m)^SLF4J.*\n|^.*WARN.*\n`)
	tidySize     = regexp.MustCompile(`"(size|totalBytes|usableBytes)":-?\d+`)
	tidyElected  = regexp.MustCompile(`for partitions (.*)`)
)

// tidyMoves replaces what differs between two clusters.
func (c *cluster) tidyMoves(text string, sorted, numbers bool) string {
	for _, m := range c.members {
		for name, addr := range map[string]string{"BROKER": m.addr, "CONTROLLER": m.controller} {
			if addr != "" {
				text = strings.ReplaceAll(text, fmt.Sprint(port(addr)), fmt.Sprintf("%s%c", name, 'A'+m.id))
			}
		}
		text = strings.ReplaceAll(text, m.dir, fmt.Sprintf("PLACE%c", 'A'+m.id))
	}
	text = strings.ReplaceAll(tidyThrottle.ReplaceAllString(text, ""), "\t", " ")
	text = tidySize.ReplaceAllString(text, `"$1":0`)
	text = tidyElected.ReplaceAllStringFunc(text, func(list string) string {
		elected := strings.Split(strings.TrimPrefix(list, "for partitions "), ", ")
		slices.Sort(elected)
		return "for partitions " + strings.Join(elected, ", ")
	})
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, tidyJSON(strings.TrimRight(line, "\n")))
	}
	text = strings.Join(lines, "\n") + "\n"
	return kafka.Tidy(text, sorted, numbers)
}

// brokerDirs is what log-dirs describes of a broker.
type brokerDirs struct {
	Broker  int            `json:"broker"`
	LogDirs []describedDir `json:"logDirs"`
}

type describedDir struct {
	Partitions []json.RawMessage `json:"partitions"`
	Error      *string           `json:"error"`
	LogDir     string            `json:"logDir"`
}

// tidyJSON puts what a line of log-dirs lists in order: its order is that of a hash table of paths.
func tidyJSON(line string) string {
	const begin = `{"brokers":`
	if !strings.HasPrefix(line, begin) {
		return line
	}
	var described struct {
		Brokers []brokerDirs `json:"brokers"`
		Version int          `json:"version"`
	}
	if err := json.Unmarshal([]byte(line), &described); err != nil {
		return line + " (" + err.Error() + ")"
	}
	for _, b := range described.Brokers {
		for _, d := range b.LogDirs {
			slices.SortFunc(d.Partitions, func(a, b json.RawMessage) int { return strings.Compare(string(a), string(b)) })
		}
		slices.SortFunc(b.LogDirs, func(a, b describedDir) int { return strings.Compare(a.LogDir, b.LogDir) })
	}
	slices.SortFunc(described.Brokers, func(a, b brokerDirs) int { return a.Broker - b.Broker })
	text, err := json.Marshal(described)
	if err != nil {
		return line
	}
	return string(text)
}
