package quorum

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gregor/interop/kafka"
)

// script are commands of Kafka's tools, with BROKER and CONTROLLER for the addresses of broker 2 and controller 1.
//
//	~ in front: lines may come in any order
//	# in front: numbers may differ
//	? in front: describes; it may have to wait for a broker that has not heard of a change yet
const script = `
topics --bootstrap-server BROKER --create --topic t1 --partitions 3 --replication-factor 1
topics --bootstrap-server BROKER --create --topic t1
topics --bootstrap-server BROKER --create --topic t2 --replication-factor 2
topics --bootstrap-server BROKER --create --topic t3 --config cleanup.policy=compact --config retention.ms=1000
topics --bootstrap-server BROKER --create --topic t4 --replica-assignment 2,2
topics --bootstrap-server BROKER --create --topic t5 --replica-assignment 1
topics --bootstrap-server BROKER --create --topic t5 --config no.such=1
?topics --bootstrap-server BROKER --describe --topic t1
?~topics --bootstrap-server BROKER --describe
topics --bootstrap-server BROKER --alter --topic t1 --partitions 5
topics --bootstrap-server BROKER --alter --topic t1 --partitions 2
?topics --bootstrap-server BROKER --describe --topic t1
topics --bootstrap-server BROKER --delete --topic t4
topics --bootstrap-server BROKER --delete --topic none
?~topics --bootstrap-server BROKER --list
configs --bootstrap-server BROKER --entity-type topics --entity-name t3 --alter --add-config segment.ms=5000,retention.ms=2000
configs --bootstrap-server BROKER --entity-type topics --entity-name t3 --alter --delete-config segment.ms
configs --bootstrap-server BROKER --entity-type topics --entity-name t3 --alter --add-config retention.ms=long
?configs --bootstrap-server BROKER --entity-type topics --entity-name t3 --describe
?configs --bootstrap-server BROKER --entity-type topics --entity-name t3 --describe --all
configs --bootstrap-server BROKER --entity-type brokers --entity-name 2 --alter --add-config log.cleaner.threads=2
configs --bootstrap-server BROKER --entity-type brokers --entity-default --alter --add-config log.retention.ms=100000000
configs --bootstrap-server BROKER --entity-type brokers --entity-name 2 --alter --add-config node.id=7
?configs --bootstrap-server BROKER --entity-type brokers --entity-name 2 --describe
?configs --bootstrap-server BROKER --entity-type brokers --entity-default --describe
configs --bootstrap-controller CONTROLLER --entity-type brokers --entity-name 1 --alter --add-config max.connections=1000
?configs --bootstrap-controller CONTROLLER --entity-type brokers --entity-name 1 --describe
configs --bootstrap-server BROKER --entity-type users --entity-name alice --alter --add-config producer_byte_rate=1024,consumer_byte_rate=2048
configs --bootstrap-server BROKER --entity-type users --entity-default --entity-type clients --entity-name c1 --alter --add-config request_percentage=50
configs --bootstrap-server BROKER --entity-type users --entity-name alice --alter --delete-config producer_byte_rate
configs --bootstrap-server BROKER --entity-type users --entity-name alice --alter --add-config no_such_rate=1
configs --bootstrap-server BROKER --entity-type ips --entity-name 127.0.0.1 --alter --add-config connection_creation_rate=1000
?~configs --bootstrap-server BROKER --entity-type users --describe
?configs --bootstrap-server BROKER --entity-type ips --describe
configs --bootstrap-server BROKER --entity-type users --entity-name bob --alter --add-config SCRAM-SHA-256=[iterations=8192,password=secret],SCRAM-SHA-512=[password=secret]
configs --bootstrap-server BROKER --entity-type users --entity-name bob --alter --add-config SCRAM-SHA-256=[iterations=10,password=secret]
?configs --bootstrap-server BROKER --entity-type users --entity-name bob --describe
configs --bootstrap-server BROKER --entity-type users --entity-name bob --alter --delete-config SCRAM-SHA-512
configs --bootstrap-server BROKER --entity-type users --entity-name carol --alter --delete-config SCRAM-SHA-512
?configs --bootstrap-server BROKER --entity-type users --entity-name bob --describe
configs --bootstrap-server BROKER --entity-type client-metrics --entity-name cm --alter --add-config interval.ms=60000
?configs --bootstrap-server BROKER --entity-type client-metrics --describe
configs --bootstrap-server BROKER --entity-type groups --entity-name g1 --alter --add-config consumer.session.timeout.ms=50000
?configs --bootstrap-server BROKER --entity-type groups --entity-name g1 --describe
acls --bootstrap-server BROKER --add --allow-principal User:alice --operation Read --topic t1
acls --bootstrap-server BROKER --list
?#features --bootstrap-server BROKER describe
?#features --bootstrap-controller CONTROLLER describe
features --bootstrap-server BROKER upgrade --feature group.version=9
features --bootstrap-server BROKER upgrade --release-version 4.4 --dry-run
features --bootstrap-server BROKER downgrade --feature group.version=0
features --bootstrap-server BROKER upgrade --feature group.version=1
features --bootstrap-server BROKER downgrade --metadata 4.0 --dry-run
features --bootstrap-server BROKER downgrade --metadata 4.3-IV0
features --bootstrap-server BROKER upgrade --metadata 4.4-IV2
features --bootstrap-server BROKER disable --feature no.such
?#metadata-quorum --bootstrap-server BROKER describe --status
?#metadata-quorum --bootstrap-controller CONTROLLER describe --status
?#metadata-quorum --bootstrap-server BROKER describe --replication
metadata-quorum --bootstrap-server BROKER remove-controller --controller-id 1 --controller-directory-id AAAAAAAAAAAAAAAAAAAAAQ
metadata-quorum --bootstrap-controller CONTROLLER remove-controller --controller-id 9 --controller-directory-id AAAAAAAAAAAAAAAAAAAAAQ
reassign-partitions --bootstrap-server BROKER --list
reassign-partitions --bootstrap-server BROKER --execute --reassignment-json-file DIR/move.json
reassign-partitions --bootstrap-server BROKER --verify --reassignment-json-file DIR/move.json
reassign-partitions --bootstrap-server BROKER --execute --reassignment-json-file DIR/bad.json
reassign-partitions --bootstrap-server BROKER --cancel --reassignment-json-file DIR/move.json
leader-election --bootstrap-server BROKER --election-type preferred --all-topic-partitions
leader-election --bootstrap-server BROKER --election-type preferred --topic t1 --partition 0
leader-election --bootstrap-server BROKER --election-type unclean --topic t1 --partition 0
leader-election --bootstrap-server BROKER --election-type preferred --topic none --partition 0
cluster cluster-id --bootstrap-server BROKER
cluster cluster-id --bootstrap-controller CONTROLLER
cluster list-endpoints --bootstrap-server BROKER
cluster list-endpoints --bootstrap-controller CONTROLLER
cluster unregister --bootstrap-server BROKER --id 9
`

var scriptFiles = map[string]string{
	"move.json": `{"version":1,"partitions":[{"topic":"t1","partition":0,"replicas":[2],"log_dirs":["any"]}]}`,
	"bad.json":  `{"version":1,"partitions":[{"topic":"t1","partition":0,"replicas":[9]}]}`,
}

// TestToolsAcrossKinds: Kafka's tools print for a Kafka broker under a gregor controller, and for a gregor broker under a Kafka
// controller, what they print for a cluster of Kafka alone.
func TestToolsAcrossKinds(t *testing.T) {
	dir := t.TempDir()
	for name, text := range scriptFiles {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := runScript(t, dir, script, kafkaKind, kafkaKind, nil)
	t.Run("gregor controls Kafka", func(t *testing.T) { runScript(t, dir, script, gregorKind, kafkaKind, want) })
	t.Run("Kafka controls gregor", func(t *testing.T) { runScript(t, dir, script, kafkaKind, gregorKind, want) })
}

// runScript runs a script in a cluster of a controller and a broker, and compares with what it printed elsewhere.
func runScript(t *testing.T, dir, script string, controller, broker kind, want []string, settings ...string) (printed []string) {
	c := newCluster(t, false, nil, settings...)
	ctl := c.add(controller, controllerOnly)
	b := c.add(broker, brokerOnly)
	c.configure([]*member{ctl})
	ctl.format(c.formatFlags([]*member{ctl})...)
	b.format()
	c.run(ctl, b)
	c.await("the broker to serve", func() (string, bool) {
		code, text, err := createTopic(b.addr, "first", nil)
		return fmt.Sprint(code, text, err), err == nil && (code == noError || code == topicAlreadyExists)
	})
	for i, line := range strings.Split(strings.TrimSpace(script), "\n") {
		command, describes := strings.CutPrefix(line, "?")
		command, sorted := strings.CutPrefix(command, "~")
		command, numbers := strings.CutPrefix(command, "#")
		words := strings.Fields(strings.NewReplacer("BROKER", b.addr, "CONTROLLER", ctl.controller, "DIR", dir).Replace(command))
		run := func() string {
			code, stdout, stderr, err := c.box.Run("", words[0], words[1:]...)
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			text := fmt.Sprintf("exit code %d\n%s\n%s", code, stdout, stderr)
			for _, m := range c.members {
				for name, addr := range map[string]string{"BROKER": m.addr, "CONTROLLER": m.controller} {
					if addr != "" {
						text = strings.ReplaceAll(text, fmt.Sprint(port(addr)), name)
					}
				}
				text = strings.ReplaceAll(text, m.dir, "DIR")
			}
			return kafka.Tidy(text, sorted, numbers)
		}
		got := run()
		if want == nil {
			// Twice the same is taken for what it will be.
			for describes {
				time.Sleep(100 * time.Millisecond)
				again := run()
				if again == got {
					break
				}
				got = again
			}
		} else {
			for until := time.Now().Add(patience); describes && got != want[i] && time.Now().Before(until); {
				time.Sleep(100 * time.Millisecond)
				got = run()
			}
			if got != want[i] {
				t.Errorf("%s\ngot:\n%s\nwant, as from Kafka alone:\n%s", line, got, want[i])
			}
		}
		printed = append(printed, got)
	}
	c.logf("%d commands", len(printed))
	c.compareAll()
	return printed
}

// compareAll waits until each member has a snapshot with all that there is now, and compares the directories.
func (c *cluster) compareAll() {
	c.tb.Helper()
	now, _, ok := c.quorum()
	if !ok {
		c.tb.Fatal("no leader")
	}
	n := 0
	for _, m := range c.members {
		c.await(fmt.Sprintf("a snapshot of %s beyond %d", m, now.HighWatermark), func() (string, bool) {
			n++
			createTopic(c.bootstrap(), fmt.Sprintf("filler%d", n), nil)
			_, newest := c.snapshots(m)
			return fmt.Sprintf("the newest is %d", newest), newest > now.HighWatermark
		})
	}
	end, _, ok := c.quorum()
	if !ok {
		c.tb.Fatal("no leader")
	}
	c.caughtUp(c.members...)
	for _, m := range c.members {
		m.kill()
	}
	c.compareDirectories(end.HighWatermark)
}
