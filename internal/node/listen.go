package node

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"time"

	"gregor/internal/config"
	"gregor/internal/network"
)

// listen binds all listeners. They are served once the node runs; until then clients wait in the system's queue.
func (n *Node) listen(ctx context.Context) error {
	c := n.cfg
	o := network.Options{
		Logger: n.logger, Clock: n.o.Clock, Observer: n.stats,
		MaxRequestBytes: int(c.SocketRequestMaxBytes), MemoryLimit: requestMemory(c), MaxIdle: idle(c.ConnectionsMaxIdle),
		SendBufferBytes: buffer(c, "socket.send.buffer.bytes"), ReceiveBufferBytes: buffer(c, "socket.receive.buffer.bytes"),
	}
	for _, l := range c.Listeners {
		x := network.Listener{Name: l.Name, Addr: l.Address(), SecurityProtocol: l.Protocol.String(), Listen: n.o.Listen}
		if c.IsController(l.Name) {
			x.Table = n.controllerTable
			x.Handler = network.HandlerFunc(func(r *network.Request) { n.controlled.Load().Handle(r) })
		} else {
			x.Table = n.brokerTable
			x.Handler = network.HandlerFunc(func(r *network.Request) { n.broker.Load().Handle(r) })
		}
		o.Listeners = append(o.Listeners, x)
	}
	var err error
	if n.server, err = network.New(o); err != nil {
		return err
	}
	n.server.SetLimits(n.limits(c))
	n.live.OnChange(func(_, now *config.Broker) { n.server.SetLimits(n.limits(now)) })
	return n.server.Listen(ctx)
}

// limits are the bounds on connections.
func (n *Node) limits(c *config.Broker) network.Limits {
	l := network.Limits{MaxConnections: int(c.MaxConnections), MaxConnectionsPerIP: perIP(c.MaxConnectionsPerIP),
		MaxConnectionsPerIPOverrides: n.perIPOverrides(c), MaxConnectionRate: rate(c.MaxConnectionRate), PerListener: map[string]int{}}
	for _, x := range c.Listeners {
		if v := c.ListenerValue(x.Name, "max.connections"); v.Int32() < c.MaxConnections {
			l.PerListener[x.Name] = int(v.Int32())
		}
	}
	return l
}

// requestMemory is the bound on the bytes of requests in memory: the smaller of Kafka's (-1: none) and ours.
func requestMemory(c *config.Broker) int64 {
	if q := c.QueuedMaxRequestBytes; q > 0 && q < c.RequestMemoryBytes {
		return q
	}
	return c.RequestMemoryBytes
}

func idle(d time.Duration) time.Duration {
	if d == 0 {
		return time.Nanosecond // 0 is "at once" for Kafka and "default" for the network
	}
	return d
}

// perIP is a bound on the connections of an address; Kafka's 0 lets in only addresses that have a bound of their own.
func perIP(n int32) int {
	if n == 0 {
		return -1
	}
	return int(n)
}

// rate is a bound on new connections a second; the largest number means none.
func rate(perSecond int32) float64 {
	if perSecond == 1<<31-1 {
		return 0
	}
	return float64(perSecond)
}

// buffer is the size of a socket buffer. Kafka's default of 100 KiB is older than buffers that tune themselves, and smaller
// than what they grow to; so it counts only when somebody has set it.
//
// Differs from Kafka: there the default applies.
func buffer(c *config.Broker, key string) int {
	if _, set := c.Raw(key); !set {
		return 0
	}
	return int(c.Value(key).Int32())
}

// perIPOverrides resolves the host names of max.connections.per.ip.overrides.
func (n *Node) perIPOverrides(c *config.Broker) map[string]int {
	out := map[string]int{}
	for host, max := range c.MaxConnectionsOverride {
		if _, err := netip.ParseAddr(host); err == nil {
			out[host] = int(max)
			continue
		}
		addrs, err := net.DefaultResolver.LookupHost(n.bgCtx, host)
		if err != nil {
			n.logger.Warn("a host of max.connections.per.ip.overrides can't be resolved", "host", host, "err", err)
		}
		for _, a := range addrs {
			out[a] = int(max)
		}
	}
	return out
}

// boundPort is the port of an advertised listener: that of the bound one where the configuration leaves it to the system.
func (n *Node) boundPort(l config.Listener) int {
	if l.Port != 0 {
		return l.Port
	}
	if a := n.server.Addr(l.Name); a != nil {
		if _, port, err := net.SplitHostPort(a.String()); err == nil {
			if p, err := strconv.Atoi(port); err == nil {
				return p
			}
		}
	}
	return 0
}

// advertised are the broker listeners that clients are told of.
func (n *Node) advertised() []config.Listener {
	var out []config.Listener
	for _, l := range n.cfg.AdvertisedListeners {
		l.Port = n.boundPort(l)
		if l.Host == "" {
			l.Host = n.hostname()
		}
		out = append(out, l)
	}
	return out
}

// probeTimeout is how long an advertised address may take to answer before it counts as unreachable.
const probeTimeout = 2 * time.Second

// checkAdvertised warns when clients that follow an advertised address won't get here. It doesn't hold up the start.
func (n *Node) checkAdvertised() {
	for _, l := range n.advertised() {
		if l.Wildcard() {
			n.logger.Warn("an advertised address is a wildcard: clients can't connect to it; set advertised.listeners", "listener", l.Name, "addr", l.Address())
			continue
		}
		if n.o.Listen != nil {
			continue // not the machine's network
		}
		n.bg.Go(func() {
			d := net.Dialer{Timeout: probeTimeout}
			c, err := d.DialContext(n.bgCtx, "tcp", l.Address())
			if err != nil {
				if n.bgCtx.Err() == nil {
					n.logger.Warn("an advertised address can't be reached from here: clients that use it won't get here either; check advertised.listeners",
						"listener", l.Name, "addr", l.Address(), "err", err)
				}
				return
			}
			c.Close()
		})
	}
}
