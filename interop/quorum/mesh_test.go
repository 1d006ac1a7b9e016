package quorum

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// mesh is the network between the nodes of a cluster, and between clients and them: everybody is told the addresses of doors,
// which stand before the nodes. What goes through a door can be cut for one sender, in one direction.
type mesh struct {
	tb   testing.TB
	busy sync.WaitGroup

	mu      sync.Mutex // guards all below
	cuts    map[lane]fault
	changed chan struct{} // closed when cuts change
	pipes   map[*pipe]bool
	shut    bool
}

// clients is the sender of whatever no node sends.
const clients int32 = 0

// lane is what one node says to another on a kind of listener, whoever has opened the connection.
type lane struct {
	from, to int32
	listener string
}

// fault is what happens to what goes along a lane.
type fault int

const (
	refuse  fault = iota + 1 // connections are reset, and new ones as soon as they are made
	hold                     // nothing arrives, and all of it when the cut is over
	swallow                  // nothing arrives; the connections are reset when the cut is over
)

func (f fault) String() string { return [...]string{"nothing", "refuse", "hold", "swallow"}[f] }

func newMesh(tb testing.TB) *mesh {
	m := &mesh{tb: tb, cuts: map[lane]fault{}, changed: make(chan struct{}), pipes: map[*pipe]bool{}}
	tb.Cleanup(m.close)
	return m
}

// close ends all that goes on; doors are closed by those who have them.
func (m *mesh) close() {
	m.mu.Lock()
	m.shut = true
	m.wakeLocked()
	for w := range m.pipes {
		w.reset()
	}
	m.mu.Unlock()
	m.busy.Wait()
}

func (m *mesh) wakeLocked() {
	close(m.changed)
	m.changed = make(chan struct{})
}

// cut makes faults of lanes, in place of those that there are.
func (m *mesh) cut(cuts map[lane]fault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cuts = cuts
	for w := range m.pipes {
		if m.cuts[w.there()] == refuse || m.cuts[w.back()] == refuse || w.poisoned.Load() && m.cuts[w.there()] != swallow && m.cuts[w.back()] != swallow {
			w.reset()
		}
	}
	m.wakeLocked()
}

// pass waits until something may go along a lane and says what becomes of it.
func (m *mesh) pass(l func() lane) (f fault, ok bool) {
	for {
		m.mu.Lock()
		f, changed, shut := m.cuts[l()], m.changed, m.shut
		m.mu.Unlock()
		switch {
		case shut:
			return f, false
		case f != hold:
			return f, true
		}
		<-changed
	}
}

// door is where others find a listener of a node. It is open while the node lives: who is dead refuses connections.
type door struct {
	mesh         *mesh
	node         int32
	listener     string
	addr, behind string
	open         net.Listener // nil while closed
}

func (d *door) unlock() {
	d.mesh.tb.Helper()
	l, err := net.Listen("tcp", d.addr)
	if err != nil {
		d.mesh.tb.Fatal(err)
	}
	d.open = l
	d.mesh.busy.Go(func() {
		for {
			c, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				d.mesh.busy.Go(func() { d.serve(c.(*net.TCPConn)) })
			}
		}
	})
}

func (d *door) lock() {
	if d.open != nil {
		d.open.Close()
		d.open = nil
	}
}

// pipe is a connection through a door.
type pipe struct {
	d        *door
	from     int32
	outer    *net.TCPConn // of whoever connects
	inner    *net.TCPConn // to the node, nil as long as nobody has got so far
	poisoned atomic.Bool  // something was swallowed
}

func (w *pipe) there() lane { return lane{w.from, w.d.node, w.d.listener} }
func (w *pipe) back() lane  { return lane{w.d.node, w.from, w.d.listener} }

// reset ends the connection at both ends, as a router does that knows nothing of it.
func (w *pipe) reset() {
	for _, c := range []*net.TCPConn{w.outer, w.inner} {
		if c != nil {
			c.SetLinger(0)
			c.Close()
		}
	}
}

var number = regexp.MustCompile(`\d+`)

// sender finds out who has sent a request, from its client id. Nodes of both kinds have their own id in it; no other client here
// has a number there.
func sender(frame []byte) int32 {
	if len(frame) < 14 {
		return clients
	}
	n := int(int16(binary.BigEndian.Uint16(frame[12:])))
	if n < 0 || 14+n > len(frame) {
		return clients
	}
	id, err := strconv.Atoi(number.FindString(string(frame[14 : 14+n])))
	if err != nil {
		return clients
	}
	return int32(id)
}

func (d *door) serve(outer *net.TCPConn) {
	w := &pipe{d: d, from: clients, outer: outer}
	d.mesh.mu.Lock()
	d.mesh.pipes[w] = true
	shut := d.mesh.shut
	d.mesh.mu.Unlock()
	defer func() {
		w.reset()
		d.mesh.mu.Lock()
		delete(d.mesh.pipes, w)
		d.mesh.mu.Unlock()
	}()
	if shut {
		return
	}
	// The first frame tells who it is. Who says nothing isn't let through.
	first := make([]byte, 4<<10)
	n, err := io.ReadAtLeast(outer, first, 14)
	if err != nil {
		return
	}
	first = first[:n]
	d.mesh.mu.Lock()
	w.from = sender(first)
	d.mesh.mu.Unlock()
	// Making a connection takes both directions.
	for _, l := range []func() lane{w.there, w.back} {
		f, ok := d.mesh.pass(l)
		if !ok || f == refuse {
			return
		}
		if f == swallow {
			w.poisoned.Store(true)
			io.Copy(io.Discard, outer) // until the cut ends or the other gives up
			return
		}
	}
	c, err := net.DialTimeout("tcp", d.behind, 10*time.Second)
	if err != nil {
		return
	}
	d.mesh.mu.Lock()
	w.inner = c.(*net.TCPConn)
	shut = d.mesh.shut
	d.mesh.mu.Unlock()
	if shut {
		return
	}
	var back sync.WaitGroup
	back.Go(func() { w.pump(outer, w.inner, w.back, nil) })
	w.pump(w.inner, outer, w.there, first)
	back.Wait()
}

// pump carries bytes from src to dst, and the end of them.
func (w *pipe) pump(dst, src *net.TCPConn, l func() lane, first []byte) {
	buffer := make([]byte, 64<<10)
	chunk, err := first, error(nil)
	for {
		if len(chunk) > 0 || err != nil {
			f, ok := w.d.mesh.pass(l)
			switch {
			case !ok || f == refuse:
				w.reset()
				return
			case f == swallow:
				w.poisoned.Store(true)
				if err != nil {
					return // nobody hears of it before the cut is over
				}
			case err == io.EOF:
				dst.CloseWrite()
				return
			case err != nil:
				w.reset()
				return
			case w.poisoned.Load():
				w.reset() // a stream with a hole in it
				return
			default:
				if _, err := dst.Write(chunk); err != nil {
					w.reset()
					return
				}
			}
		}
		var n int
		n, err = src.Read(buffer)
		chunk = buffer[:n]
	}
}

// doors puts doors before the listeners of a member with the roles given, and returns the settings that this takes. Brokers talk to
// each other on a listener of their own, so that it can be cut apart from the one for clients.
func (m *mesh) doors(member *member, roles string) []string {
	var names, listeners, advertised []string
	if roles != controllerOnly {
		names = append(names, "PLAINTEXT", "INTERNAL")
	}
	if roles != brokerOnly {
		names = append(names, "CONTROLLER")
	}
	ports := freePorts(m.tb, 2*len(names))
	for i, name := range names {
		d := &door{mesh: m, node: member.id, listener: name, addr: fmt.Sprintf("127.0.0.1:%d", ports[2*i]), behind: fmt.Sprintf("127.0.0.1:%d", ports[2*i+1])}
		member.doors = append(member.doors, d)
		listeners, advertised = append(listeners, name+"://"+d.behind), append(advertised, name+"://"+d.addr)
		switch name {
		case "PLAINTEXT":
			member.addr = d.addr
		case "CONTROLLER":
			member.controller = d.addr
		}
		if i == 0 {
			member.behind = d.behind
		}
	}
	m.tb.Cleanup(func() {
		for _, d := range member.doors {
			d.lock()
		}
	})
	settings := []string{"listeners=" + strings.Join(listeners, ","), "advertised.listeners=" + strings.Join(advertised, ","),
		"listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT"}
	if roles != controllerOnly {
		settings = append(settings, "inter.broker.listener.name=INTERNAL")
	}
	return settings
}
