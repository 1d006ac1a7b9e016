package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// clusterID is any: both servers are formatted with the same.
const clusterID = "MkU3OEVBNTcwNTJENDM2Qk"

// kind is one of the two programs that are measured.
type kind struct {
	name   string
	format func(properties string, options ...string) *exec.Cmd
	serve  func(properties string) *exec.Cmd
}

// gregorKind builds gregor from this checkout as make does.
func gregorKind(root, dir string) (kind, error) {
	bin := filepath.Join(dir, "gregor-bin")
	build := exec.Command("go", "build", "-trimpath", "-o", bin, "./cmd/gregor")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return kind{}, fmt.Errorf("build gregor: %w\n%s", err, out)
	}
	return kind{
		name: "gregor",
		format: func(p string, options ...string) *exec.Cmd {
			return exec.Command(bin, append([]string{"storage", "format", "--cluster-id", clusterID, "--config", p}, options...)...)
		},
		serve: func(p string) *exec.Cmd { return exec.Command(bin, "server", p) },
	}, nil
}

// kafkaKind fetches Kafka's jars with Maven when they are not in the checkout's cache, where the interop tests keep them too.
func kafkaKind(root string) (kind, error) {
	home := filepath.Join(root, ".cache", "kafka-4.4.0")
	libs := filepath.Join(home, "libs")
	if jars, _ := filepath.Glob(filepath.Join(libs, "kafka_2.13-4.4.0.jar")); len(jars) == 0 {
		if err := os.MkdirAll(home, 0o755); err != nil {
			return kind{}, err
		}
		part := libs + ".part" // renamed when whole
		mvn := exec.Command("mvn", "-q", "-B", "-f", filepath.Join(root, "interop", "kafka", "pom.xml"), "dependency:copy-dependencies", "-DoutputDirectory="+part)
		if out, err := mvn.CombinedOutput(); err != nil {
			return kind{}, fmt.Errorf("fetch Kafka's jars with Maven (a JDK 17 and mvn must be installed): %w\n%s", err, out)
		}
		if err := os.Rename(part, libs); err != nil {
			return kind{}, err
		}
	}
	java := func(options []string, class string, args ...string) *exec.Cmd {
		all := append(options, "-Dlog4j2.level=WARN", "-Dlog4j2.configurationFile="+filepath.Join(root, "interop", "kafka", "log4j2.xml"), "-cp", filepath.Join(libs, "*"), class)
		return exec.Command("java", append(all, args...)...)
	}
	return kind{
		name: "kafka",
		format: func(p string, options ...string) *exec.Cmd {
			return java([]string{"-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"}, "kafka.tools.StorageTool",
				append([]string{"format", "-t", clusterID, "-c", p}, options...)...)
		},
		serve: func(p string) *exec.Cmd {
			// The heap and the collector that kafka-server-start.sh and kafka-run-class.sh choose.
			return java([]string{"-Xmx1g", "-Xms1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
				"-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true"}, "kafka.Kafka", p)
		},
	}, nil
}

// server is one server's directory and, while it runs, its process.
type server struct {
	kind  kind
	dir   string
	port  int
	pprof int // port of gregor's profiler, 0 without

	cmd     *exec.Cmd
	started time.Time
	log     *os.File
	ended   chan struct{} // closed when the process is gone
}

func (s *server) properties() string { return filepath.Join(s.dir, "server.properties") }

// create makes a node that is a cluster by itself.
func create(k kind, dir string, port, pprof int) (*server, error) {
	return createNode(k, dir, port, pprof, []string{
		"node.id=1",
		fmt.Sprintf("controller.quorum.bootstrap.servers=127.0.0.1:%d", port+1),
		"offsets.topic.replication.factor=1",
		"transaction.state.log.replication.factor=1",
		"transaction.state.log.min.isr=1",
		"share.coordinator.state.topic.replication.factor=1",
		"share.coordinator.state.topic.min.isr=1",
	}, "--standalone")
}

// createNode writes a configuration, the same for both servers, and formats an empty directory. All is left at its default but what
// the cluster's size needs, and that deleted files go soon: the disk has to hold many rounds.
func createNode(k kind, dir string, port, pprof int, cluster []string, options ...string) (*server, error) {
	s := &server{kind: k, dir: dir, port: port}
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	lines := append([]string{
		"process.roles=broker,controller",
		fmt.Sprintf("listeners=PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d", port, port+1),
		fmt.Sprintf("advertised.listeners=PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d", port, port+1),
		"controller.listener.names=CONTROLLER",
		"listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
		"log.dirs=" + filepath.Join(dir, "data"),
		"log.segment.delete.delay.ms=1000",
	}, cluster...)
	if k.name == "gregor" && pprof > 0 {
		s.pprof = pprof
		lines = append(lines, fmt.Sprintf("gregor.metrics.address=127.0.0.1:%d", pprof), "gregor.pprof.enable=true")
	}
	if err := os.WriteFile(s.properties(), []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		return nil, err
	}
	if out, err := k.format(s.properties(), options...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("format %s: %w\n%s", k.name, err, out)
	}
	return s, nil
}

// start runs the server; started is the moment before exec.
func (s *server) start() error {
	var err error
	if s.log, err = os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
		return err
	}
	s.cmd = s.kind.serve(s.properties())
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	s.ended = make(chan struct{})
	s.started = time.Now()
	if err := s.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", s.kind.name, err)
	}
	running.Store(s.cmd.Process, nil)
	go func(cmd *exec.Cmd, ended chan struct{}) {
		_ = cmd.Wait() // how it ended is in its log; a signal is no fault here
		running.Delete(cmd.Process)
		close(ended)
	}(s.cmd, s.ended)
	return nil
}

func (s *server) pid() int { return s.cmd.Process.Pid }

// end sends a signal and waits until the process is gone.
func (s *server) end(sig syscall.Signal) error {
	if err := s.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	select {
	case <-s.ended:
	case <-ctx.Done():
		_ = s.cmd.Process.Kill() // already gone is fine
		<-s.ended
		return fmt.Errorf("%s did not stop on %v in two minutes", s.kind.name, sig)
	}
	return s.log.Close()
}

// discard kills the server and deletes its files.
func (s *server) discard() error {
	return errors.Join(s.end(syscall.SIGKILL), os.RemoveAll(s.dir))
}

// lastLog is the end of what the server printed.
func (s *server) lastLog() string {
	b, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-4096):])
}
