package kafka

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

//go:embed pom.xml log4j2.xml
var files embed.FS

// Root is the root of the repository.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}

// Home is where the jars lie, in libs below it.
func Home() string { return filepath.Join(Root(), ".cache", "kafka-4.4.0") }

var setup = sync.OnceValue(func() error {
	if err := os.MkdirAll(Home(), 0o755); err != nil {
		return err
	}
	for _, name := range []string{"pom.xml", "log4j2.xml"} {
		b, err := files.ReadFile(name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(Home(), name), b, 0o644); err != nil {
			return err
		}
	}
	// The jars may have been put there by scripts/setup-interop.
	libs := filepath.Join(Home(), "libs")
	if jars, _ := filepath.Glob(filepath.Join(libs, "kafka_2.13-4.4.0.jar")); len(jars) > 0 {
		return nil
	}
	// Copied aside and renamed, so that a run that is cut short leaves nothing that looks whole.
	tmp := libs + ".part"
	cmd := exec.Command("mvn", "-q", "-B", "-f", filepath.Join(Home(), "pom.xml"), "dependency:copy-dependencies",
		"-DoutputDirectory="+tmp)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("fetch Kafka's jars with Maven (a JDK 17 and mvn must be installed): %w\n%s", err, out)
	}
	return os.Rename(tmp, libs)
})

// Setup fetches Kafka when it is not here yet, and fails the test when that does not work.
func Setup(tb testing.TB) {
	tb.Helper()
	if err := setup(); err != nil {
		tb.Fatal(err)
	}
}

// Command is a Java program on Kafka's class path, with extra directories before it.
func Command(ctx context.Context, extraClassPath, heap, class string, args ...string) *exec.Cmd {
	cp := filepath.Join(Home(), "libs", "*")
	if extraClassPath != "" {
		cp = extraClassPath + ":" + cp
	}
	all := append([]string{"-Xmx" + heap, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dlog4j2.level=" + logLevel(),
		"-Dlog4j2.configurationFile=" + filepath.Join(Home(), "log4j2.xml"), "-cp", cp, class}, args...)
	return exec.CommandContext(ctx, "java", all...)
}

func logLevel() string {
	if l := os.Getenv("KAFKA_LOG"); l != "" {
		return l
	}
	return "WARN"
}

// Tools are the classes behind Kafka's scripts, by the script's name without "kafka-" and ".sh".
var Tools = map[string]string{
	"acls":                 "org.apache.kafka.tools.AclCommand",
	"broker-api-versions":  "org.apache.kafka.tools.BrokerApiVersionsCommand",
	"configs":              "org.apache.kafka.tools.ConfigCommand",
	"console-consumer":     "org.apache.kafka.tools.consumer.ConsoleConsumer",
	"console-producer":     "org.apache.kafka.tools.ConsoleProducer",
	"consumer-groups":      "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
	"delete-records":       "org.apache.kafka.tools.DeleteRecordsCommand",
	"dump-log":             "org.apache.kafka.tools.DumpLogSegments",
	"features":             "org.apache.kafka.tools.FeatureCommand",
	"get-offsets":          "org.apache.kafka.tools.GetOffsetShell",
	"groups":               "org.apache.kafka.tools.GroupsCommand",
	"leader-election":      "org.apache.kafka.tools.LeaderElectionCommand",
	"log-dirs":             "org.apache.kafka.tools.LogDirsCommand",
	"metadata-quorum":      "org.apache.kafka.tools.MetadataQuorumCommand",
	"reassign-partitions":  "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
	"storage":              "kafka.tools.StorageTool",
	"streams-groups":       "org.apache.kafka.tools.streams.StreamsGroupCommand",
	"topics":               "org.apache.kafka.tools.TopicCommand",
	"verifiable-consumer":  "org.apache.kafka.tools.VerifiableConsumer",
	"verifiable-producer":  "org.apache.kafka.tools.VerifiableProducer",
	"client-metrics":       "org.apache.kafka.tools.ClientMetricsCommand",
	"transactions":         "org.apache.kafka.tools.TransactionsCommand",
	"cluster":              "org.apache.kafka.tools.ClusterTool",
	"replica-verification": "org.apache.kafka.tools.ReplicaVerificationTool",
}

// Tool runs one of Tools with the given standard input and returns what it printed on both outputs and its exit code.
func Tool(tb testing.TB, stdin, name string, args ...string) (stdout, stderr string, code int) {
	tb.Helper()
	Setup(tb)
	class, ok := Tools[name]
	if !ok {
		tb.Fatalf("kafka: no tool %q", name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := Command(ctx, "", "256m", class, args...)
	var o, e bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &o, &e
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		tb.Fatalf("kafka %s %q: %v", name, args, err)
	}
	if ctx.Err() != nil {
		tb.Fatalf("kafka %s %q: no end after 3 minutes\n%s\n%s", name, args, o.String(), e.String())
	}
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}

// Must is Tool that fails the test unless the tool ends well, and returns its standard output.
func Must(tb testing.TB, stdin, name string, args ...string) string {
	tb.Helper()
	o, e, code := Tool(tb, stdin, name, args...)
	if code != 0 {
		tb.Fatalf("kafka %s %q: exit code %d\n%s\n%s", name, args, code, o, e)
	}
	return o
}

// FreePorts finds n free TCP ports on the loopback interface. They lie below those that the system gives to connections, so that
// none is taken while its node is down.
func FreePorts(tb testing.TB, n int) []int {
	tb.Helper()
	var ports []int
	for len(ports) < n {
		l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(10000+rand.IntN(22000)))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			tb.Fatal(err)
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports
}

// Node is a combined broker and controller, alone in its cluster, of the real Kafka.
type Node struct {
	Dir string
	// Addr is the address of its listener.
	Addr string
	cmd  *exec.Cmd
	log  *os.File
	from int64 // where the log of this start begins
	done chan error
}

// Properties is the server.properties of a single combined node with the given id, ports and data directory; later lines win.
func Properties(id, port, controllerPort int, data string, extra ...string) string {
	return strings.Join(append([]string{
		"process.roles=broker,controller",
		"node.id=" + strconv.Itoa(id),
		fmt.Sprintf("controller.quorum.bootstrap.servers=127.0.0.1:%d", controllerPort),
		fmt.Sprintf("listeners=PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d", port, controllerPort),
		fmt.Sprintf("advertised.listeners=PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d", port, controllerPort),
		"controller.listener.names=CONTROLLER",
		"listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
		"log.dirs=" + data,
		"offsets.topic.replication.factor=1",
		"transaction.state.log.replication.factor=1",
		"transaction.state.log.min.isr=1",
		"share.coordinator.state.topic.replication.factor=1",
		"share.coordinator.state.topic.min.isr=1",
	}, extra...), "\n") + "\n"
}

// Format writes dir/server.properties and formats the data directory for a new cluster of this node alone.
func Format(tb testing.TB, dir, properties string) {
	tb.Helper()
	WriteProperties(tb, dir, properties)
	Must(tb, "", "storage", "format", "--standalone", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c", filepath.Join(dir, "server.properties"))
}

// WriteProperties writes dir/server.properties.
func WriteProperties(tb testing.TB, dir, properties string) {
	tb.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "server.properties"), []byte(properties), 0o644); err != nil {
		tb.Fatal(err)
	}
}

// Start starts Kafka on dir/server.properties, which must name addr as a listener, and waits until it is up. The node is
// killed at the end of the test if it still runs.
func Start(tb testing.TB, dir, addr string) *Node {
	tb.Helper()
	n := Launch(tb, dir, addr, "512m")
	n.Await(tb)
	return n
}

// Launch is Start that does not wait: a node of a quorum is up only when others are. heap is the size of the JVM's.
func Launch(tb testing.TB, dir, addr, heap string) *Node {
	tb.Helper()
	Setup(tb)
	logFile, err := os.OpenFile(filepath.Join(dir, "kafka.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		tb.Fatal(err)
	}
	n := &Node{Dir: dir, Addr: addr, log: logFile, done: make(chan error, 1)}
	if n.from, err = logFile.Seek(0, 2); err != nil {
		tb.Fatal(err)
	}
	n.cmd = Command(context.Background(), "", heap, "kafka.Kafka", filepath.Join(dir, "server.properties"))
	n.cmd.Args = slices.Replace(n.cmd.Args, 4, 5, "-Dlog4j2.level=INFO")
	n.cmd.Stdout, n.cmd.Stderr = logFile, logFile
	if err := n.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	go func() { n.done <- n.cmd.Wait() }()
	tb.Cleanup(n.Kill)
	return n
}

// Await waits until a launched node is up.
func (n *Node) Await(tb testing.TB) {
	tb.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		text, err := os.ReadFile(n.log.Name())
		if err != nil {
			tb.Fatal(err)
		}
		if bytes.Contains(text[n.from:], []byte("Kafka Server started")) {
			return
		}
		select {
		case err := <-n.done:
			n.done <- err
			tb.Fatalf("kafka in %s ended while starting: %v\n%s", n.Dir, err, tail(text[n.from:]))
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			tb.Fatalf("kafka in %s is not up after two minutes\n%s", n.Dir, tail(text[n.from:]))
		}
	}
}

// Log is what the node has logged so far, over all its starts.
func (n *Node) Log(tb testing.TB) string {
	tb.Helper()
	b, err := os.ReadFile(n.log.Name())
	if err != nil {
		tb.Fatal(err)
	}
	return string(b)
}

// Freeze stops the process where it is, with its connections open; Thaw lets it go on.
func (n *Node) Freeze(tb testing.TB) {
	tb.Helper()
	if err := n.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		tb.Fatal(err)
	}
}

// Thaw lets a frozen process go on.
func (n *Node) Thaw(tb testing.TB) {
	tb.Helper()
	if err := n.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		tb.Fatal(err)
	}
}

// Stop ends the node as an operator would, and fails the test if it does not end.
func (n *Node) Stop(tb testing.TB) {
	tb.Helper()
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		tb.Fatal(err)
	}
	select {
	case err := <-n.done:
		n.done <- err
	case <-time.After(time.Minute):
		n.Kill()
		tb.Fatalf("kafka in %s does not stop", n.Dir)
	}
	n.log.Close()
}

// Kill ends the node with SIGKILL; it is no error when it has ended.
func (n *Node) Kill() {
	n.cmd.Process.Kill()
	err := <-n.done
	n.done <- err
	n.log.Close()
}

func tail(b []byte) []byte {
	if len(b) > 8<<10 {
		return b[len(b)-8<<10:]
	}
	return b
}
