package network

import (
	"context"
	"log/slog"
	"net"
	"time"

	"gregor/internal/api"
	"gregor/internal/clock"
)

// Options are the settings of a Server. Only Handler and Listeners are required; Kafka's names of the settings are given with
// each.
type Options struct {
	Listeners []Listener
	// Logger gets one line for each listener, refused connection and malformed request. Nil: no logs.
	Logger *slog.Logger
	// Clock gives Request.Received and measures idleness. Nil: clock.System.
	Clock clock.Clock
	// Observer, when not nil, is told what happens.
	Observer Observer

	// MaxRequestBytes is the largest request, header and body. A length prefix above it closes the connection before anything
	// is allocated. Zero: 100 MiB. Config "socket.request.max.bytes".
	MaxRequestBytes int
	// MemoryLimit bounds the bytes of all requests that are held at a time, and, apart from them, what large requests become
	// when they are decoded. Zero or below: no bound. Config "queued.max.request.bytes".
	MemoryLimit int64
	// MaxInFlight is how many requests of a connection may wait for their reply before it stops reading. Zero: 128. Kafka
	// holds one; "max.in.flight.requests.per.connection" of its producers is 5, librdkafka's default is 1,000,000.
	MaxInFlight int
	// MaxInFlightBytes bounds the bytes of those requests; one request may always be in flight. Zero: 16 MiB.
	MaxInFlightBytes int

	// MaxIdle closes connections on which nothing has happened for that long, give or take a tenth. Zero: ten minutes; below
	// zero: never. Config "connections.max.idle.ms".
	MaxIdle time.Duration
	// MaxConnections bounds the connections of the server. At the bound listeners stop accepting until one closes. Zero: no
	// bound. Config "max.connections".
	MaxConnections int
	// MaxConnectionsPerIP closes new connections of an address that has as many. Zero: no bound; below zero: none at all, so
	// that only addresses with an override may connect. Config "max.connections.per.ip", where zero means that.
	MaxConnectionsPerIP int
	// MaxConnectionsPerIPOverrides replaces it for single addresses, in the text form of netip.Addr. Config
	// "max.connections.per.ip.overrides".
	MaxConnectionsPerIPOverrides map[string]int
	// MaxConnectionRate bounds the connections accepted a second over all listeners; more wait to be accepted. Zero: no bound.
	// Config "max.connection.creation.rate".
	MaxConnectionRate float64

	// SendBufferBytes and ReceiveBufferBytes set the socket buffers. Zero or below: the system's, which tunes them.
	// Config "socket.send.buffer.bytes" and "socket.receive.buffer.bytes".
	SendBufferBytes, ReceiveBufferBytes int
}

// Listener is one address that a Server listens on.
type Listener struct {
	// Name is the listener's name, such as PLAINTEXT or INTERNAL.
	Name string
	// Addr is host:port. An empty host is every address of the machine, localhost is its loopback addresses of both families.
	// Port 0 takes a free one, which Server.Addr tells.
	Addr string
	// SecurityProtocol is PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
	SecurityProtocol string
	// Table is what the listener serves: requests of other keys and versions close the connection, except ApiVersions of an
	// unknown version, which the server answers itself.
	Table *api.Table
	// Handler gets the requests.
	Handler Handler
	// Wrap, when not nil, turns an accepted connection into the one to speak on, as tls.Server does. It must not block.
	Wrap func(net.Conn) net.Conn
	// Listen opens the listener; nil is the machine's network. Tests and simulations put their own here.
	Listen func(ctx context.Context, network, addr string) (net.Listener, error)
	// MaxConnections bounds the connections of this listener; see Options.MaxConnections. Zero: no bound. Config
	// "listener.name.<name>.max.connections".
	MaxConnections int
}

const (
	defaultMaxRequestBytes  = 100 << 20
	defaultMaxInFlight      = 128
	defaultMaxInFlightBytes = 16 << 20
	defaultMaxIdle          = 10 * time.Minute
)

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = clock.System
	}
	if o.MaxRequestBytes == 0 {
		o.MaxRequestBytes = defaultMaxRequestBytes
	}
	if o.MaxInFlight == 0 {
		o.MaxInFlight = defaultMaxInFlight
	}
	if o.MaxInFlightBytes == 0 {
		o.MaxInFlightBytes = defaultMaxInFlightBytes
	}
	if o.MaxIdle == 0 {
		o.MaxIdle = defaultMaxIdle
	}
	return o
}
