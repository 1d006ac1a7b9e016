package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"gregor/internal/config"
	"gregor/internal/node"
	"gregor/internal/telemetry"
)

func newServer() *cobra.Command {
	var overrides []string
	c := &cobra.Command{
		Use:   "server [server.properties]",
		Short: "Run a node: broker, controller or both",
		Long: `Run a node in the foreground until it gets SIGINT or SIGTERM, which stop it cleanly; a second one stops it at once.

With a server.properties, Kafka's own, the node is what that says; its directories must have been formatted
(gregor storage format). Without one, a node of a new cluster of its own is made in ./data, if there is none,
and serves on localhost:9092.`,
		Example: `  gregor server
  gregor server --override log.dirs=/var/lib/gregor --override gregor.metrics.address=localhost:9100
  gregor server /etc/kafka/server.properties`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file := ""
			if len(args) > 0 {
				file = args[0]
			}
			return runServer(cmd.Context(), file, overrides, cmd.ErrOrStderr())
		},
	}
	c.Flags().StringArrayVar(&overrides, "override", nil, "set `key=value` over what the file says; may be given several times")
	return c
}

// defaultProperties are the settings of a server without a file: one node, both roles, everything on localhost, and internal
// topics that one broker can hold.
const defaultProperties = `process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=data
offsets.topic.replication.factor=1
`

// loadConfig reads a server.properties, or the built-in one, with settings laid over it.
func loadConfig(file string, overrides []string) (*config.Broker, error) {
	text, name := []byte(defaultProperties), "built-in configuration"
	if file != "" {
		var err error
		if text, err = os.ReadFile(file); err != nil {
			return nil, err
		}
		name = file
	}
	p, err := config.ParseProperties(name, text)
	if err != nil {
		return nil, err
	}
	for _, o := range overrides {
		k, v, ok := strings.Cut(o, "=")
		if !ok {
			return nil, fmt.Errorf("--override %q: want key=value", o)
		}
		p.Set(strings.TrimSpace(k), v, "--override")
	}
	c, err := config.Load(p)
	if err != nil {
		return nil, fmt.Errorf("the configuration is not usable:\n%w", err)
	}
	return c, nil
}

// shutdownTimeout is how long a stop may take before it gets impatient. Kafka has no bound; supervisors do, and 30 s to 90 s is
// what they allow.
const shutdownTimeout = 60 * time.Second

func runServer(ctx context.Context, file string, overrides []string, stderr io.Writer) error {
	c, err := loadConfig(file, overrides)
	if err != nil {
		return err
	}
	level, err := telemetry.ParseLevel(c.LogLevel)
	if err != nil {
		return err
	}
	logger := telemetry.NewLogger(stderr, c.LogFormat, level)
	tuneMemory()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stopping := onSignals(cancel, logger)
	if file == "" {
		if err := formatNew(c, logger); err != nil {
			return err
		}
	}
	metrics, phases := telemetry.NewRegistry(), &telemetry.Phases{}
	if c.MetricsAddress != "" {
		stop, err := serveMetrics(c, metrics, phases, logger)
		if err != nil {
			return err
		}
		defer stop()
	}
	n, err := node.Start(ctx, node.Options{Config: c, Logger: logger, Metrics: metrics, Phases: phases})
	if err != nil {
		if errors.Is(err, errSignalled) {
			return nil
		}
		return err
	}
	settled := time.AfterFunc(settleTime, debug.FreeOSMemory)
	defer settled.Stop()
	var failed error
	select {
	case <-stopping:
	case failed = <-n.Failed():
	}
	bound, done := context.WithTimeout(context.Background(), shutdownTimeout)
	defer done()
	return errors.Join(failed, n.Shutdown(bound))
}

var errSignalled = errors.New("stopped by a signal")

// sameSignal is how soon after the first signal a second one counts as the same.
const sameSignal = time.Second

// onSignals cancels at the first signal and leaves the process at the second.
func onSignals(cancel context.CancelCauseFunc, logger *slog.Logger) <-chan struct{} {
	stopping := make(chan struct{})
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		s := <-signals
		logger.Info("stopping", "signal", s.String())
		cancel(errSignalled)
		close(stopping)
		for first := time.Now(); ; {
			// Supervisors that signal the process and its group are heard twice; that is no impatience.
			if s = <-signals; time.Since(first) > sameSignal {
				break
			}
		}
		logger.Warn("leaving at once: the next start will have to recover", "signal", s.String())
		os.Exit(130)
	}()
	return stopping
}

// formatNew formats the directories of a server that was started without a file, if none of them is.
func formatNew(c *config.Broker, logger *slog.Logger) error {
	id, err := node.FormatNew(c)
	if id != "" && err == nil {
		for _, d := range node.Directories(c) {
			abs, err := filepath.Abs(d)
			if err != nil {
				return err
			}
			logger.Info("made a new cluster", "cluster", id, "dir", abs)
		}
	}
	return err
}

// serveMetrics starts the HTTP server with /metrics, /healthz and /readyz.
func serveMetrics(c *config.Broker, r *telemetry.Registry, p *telemetry.Phases, logger *slog.Logger) (stop func(), err error) {
	l, err := net.Listen("tcp", c.MetricsAddress)
	if err != nil {
		return nil, fmt.Errorf("gregor.metrics.address: %w", err)
	}
	logger.Info("serving metrics", "addr", l.Addr().String())
	s := &http.Server{Handler: telemetry.Handler(r, p, c.Pprof), ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			logger.Error("the metrics server has ended", "err", err)
		}
	}()
	return func() {
		s.Close()
		<-done
	}, nil
}

// settleTime is after how long a started server gives memory back that only the start needed.
const settleTime = 3 * time.Second

// memoryLimit is what the garbage collector tries to stay under before it works harder, unless GOMEMLIMIT says otherwise. The
// buffers of requests are bounded apart from it; what is left of a loaded node's memory is small objects.
const memoryLimit = 256 << 20

func tuneMemory() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
}
