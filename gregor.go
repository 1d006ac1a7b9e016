package gregor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"gregor/internal/config"
	"gregor/internal/node"
)

// Config says what a Node is like. The zero value is a broker of its own on a free port of localhost, with its data in a
// temporary directory.
type Config struct {
	// Dir keeps the data; it is made and formatted when it is empty. "" is a temporary directory, which Close removes.
	Dir string
	// Addr is the address to listen on, host:port. "" is localhost:0: a free port on the loopback addresses.
	Addr string
	// Advertise is the address that clients are told to connect to. "" is the one listened on.
	Advertise string
	// Properties are settings by their names in Kafka's server.properties, such as "auto.create.topics.enable". They win over
	// the fields above.
	Properties map[string]string
	// Logger gets the node's log; nil discards it.
	Logger *slog.Logger
}

// Node is a running node. Its methods are safe for concurrent use.
type Node struct {
	n    *node.Node
	temp string // to remove at the end

	close    sync.Once
	closeErr error
}

// closeTimeout is how long Close waits for requests in flight before it cuts them off.
const closeTimeout = 30 * time.Second

// Start starts a node and returns when it serves clients, or with what prevented that. When ctx ends before, the start is given
// up; afterwards ctx has no meaning.
func Start(ctx context.Context, c Config) (*Node, error) {
	dir, temp := c.Dir, ""
	if dir == "" {
		var err error
		if temp, err = os.MkdirTemp("", "gregor-"); err != nil {
			return nil, fmt.Errorf("gregor: %w", err)
		}
		dir = temp
	}
	n, err := start(ctx, c, dir)
	if err != nil {
		if temp != "" {
			err = errors.Join(err, os.RemoveAll(temp))
		}
		return nil, fmt.Errorf("gregor: %w", err)
	}
	return &Node{n: n, temp: temp}, nil
}

func start(ctx context.Context, c Config, dir string) (*node.Node, error) {
	cfg, err := config.Load(c.properties(dir))
	if err != nil {
		return nil, err
	}
	if _, err := node.FormatNew(cfg); err != nil {
		return nil, err
	}
	return node.Start(ctx, node.Options{Config: cfg, Logger: c.Logger})
}

// properties are the node's server.properties.
func (c Config) properties(dir string) *config.Properties {
	addr := c.Addr
	if addr == "" {
		addr = "localhost:0"
	}
	m := map[string]string{
		"process.roles":                       "broker,controller",
		"node.id":                             "1",
		"log.dirs":                            dir,
		"listeners":                           "PLAINTEXT://" + addr + ",CONTROLLER://localhost:0",
		"controller.listener.names":           "CONTROLLER",
		"controller.quorum.bootstrap.servers": "localhost:0",
		"listener.security.protocol.map":      "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"offsets.topic.replication.factor":    "1",
		// Programs start and stop members all the time; nobody wants to wait for a group to gather.
		"group.initial.rebalance.delay.ms": "0",
	}
	if c.Advertise != "" {
		m["advertised.listeners"] = "PLAINTEXT://" + c.Advertise
	}
	p := config.NewProperties(m)
	for _, k := range slices.Sorted(maps.Keys(c.Properties)) {
		p.Set(k, c.Properties[k], "Config.Properties")
	}
	return p
}

// Addr is the address that clients connect to, host:port.
func (n *Node) Addr() string {
	addr := n.n.BrokerAddr()
	// The loopback address of one family is told by name, because the listener is on both.
	if port, ok := strings.CutPrefix(addr, "127.0.0.1:"); ok {
		return "localhost:" + port
	}
	return addr
}

// ClusterID is the id of the node's cluster.
func (n *Node) ClusterID() string { return n.n.ClusterID() }

// Failed delivers what the node can't go on after, such as a disk that fails, if that happens. Close it then.
func (n *Node) Failed() <-chan error { return n.n.Failed() }

// Close stops the node cleanly and waits until it has stopped. Requests in flight are answered, for up to half a minute. It may
// be called again.
func (n *Node) Close() error {
	n.close.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		n.closeErr = n.n.Shutdown(ctx)
		if n.temp != "" {
			n.closeErr = errors.Join(n.closeErr, os.RemoveAll(n.temp))
		}
	})
	return n.closeErr
}
