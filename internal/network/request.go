package network

import (
	"fmt"
	"sync/atomic"
	"time"

	"gregor/internal/api"
)

// Request is one request of a connection, from when its last byte has arrived until its reply has been written.
type Request struct {
	api.Header
	// Conn is the connection that it came by.
	Conn *Conn
	// Body is what follows the header. It is valid until Reply's response has been encoded, or until NoReply, Close or
	// DropBody is called. The handler may write to it.
	Body []byte
	// Received is when the last byte had arrived.
	Received time.Time

	buf     *buffer
	claim   claim
	decoded claim // for what the handler makes of it
	bytes   int   // header and body

	ended atomic.Bool // Reply, NoReply or Close has been called
	done  bool        // may leave the queue; guarded by Conn.mu
	resp  any         // Response, PartsResponse, or nil for no reply; guarded by Conn.mu until done
	next  *Request    // guarded by Conn.mu

	parked Parked // guarded by Conn.mu

	replyBytes       int       // with the length prefix
	handled, replied time.Time // for the observer; guarded by Conn.mu
}

// Reply ends the request with a response. It may be called from any goroutine and does not block: the response is written
// when all earlier requests of the connection have ended, by the connection's own goroutine or another. The body stays valid
// until then, since responses often point into it. A response that is a PartsResponse too is written as one.
func (r *Request) Reply(resp Response) {
	r.end("Reply")
	r.Conn.finish(r, resp)
}

// ReplyParts is Reply with a response that always has ranges of files in it.
func (r *Request) ReplyParts(resp PartsResponse) {
	r.end("ReplyParts")
	r.Conn.finish(r, resp)
}

// NoReply ends the request without a response, as for a produce request with acks=0.
func (r *Request) NoReply() {
	r.end("NoReply")
	r.Conn.finish(r, nil)
}

// Close ends the request by closing its connection, as Kafka does when it cannot make sense of a request. Replies that are
// still to be written are lost.
func (r *Request) Close(err error) {
	r.end("Close")
	r.Conn.fail(fmt.Errorf("%s v%d, correlation id %d: %w", r.Key, r.Version, r.CorrelationID, err))
	r.Conn.finish(r, nil)
}

// Parked is what a request waits for.
type Parked interface {
	// Expire ends the wait, now or soon, as if its time were over.
	Expire()
}

// Park says what the request waits for: if the client hangs up before the request has ended, the wait is expired, so that nothing
// is kept for a client that has gone. A client that has only sent its last request gets the answer that there is then.
func (r *Request) Park(p Parked) {
	c := r.Conn
	c.mu.Lock()
	gone := c.ended != nil && !r.done
	if !gone && !r.done {
		r.parked = p
	}
	c.mu.Unlock()
	if gone {
		p.Expire()
	}
}

// DropBody gives the body's memory back before the request ends. A handler that parks a request for long, and needs the body
// no more, calls it from Handle.
func (r *Request) DropBody() {
	if r.ended.Load() {
		panic("network: DropBody after the request has ended")
	}
	r.Body = nil
	r.release()
}

func (r *Request) end(how string) {
	if r.ended.Swap(true) {
		panic(fmt.Sprintf("network: %s on a request that has ended already: %s v%d", how, r.Key, r.Version))
	}
}

// release gives the memory back. It may be called again.
func (r *Request) release() {
	if r.buf != nil {
		r.buf.release()
		r.buf = nil
	}
	r.Conn.srv.budget.give(&r.claim)
	r.Conn.srv.decoding.give(&r.decoded)
}
