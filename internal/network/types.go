package network

import (
	"time"

	"gregor/internal/api"
)

// Handler serves requests.
type Handler interface {
	// Handle serves one request on its connection's goroutine: it must not block. It, or whoever it passes the request to,
	// ends it by exactly one call of Reply, NoReply or Close.
	Handle(r *Request)
}

// HandlerFunc is a function as a Handler.
type HandlerFunc func(r *Request)

// Handle calls f.
func (f HandlerFunc) Handle(r *Request) { f(r) }

// Response is the body of a reply, which is written after the response header. Messages of kmsg are responses: the network
// sets the request's version in them and leaves out the tagged fields that it does not have.
type Response interface {
	// AppendTo appends the body to dst and returns the longer slice. It is called once, after Reply, maybe on another
	// goroutine, while the request's body is still valid.
	AppendTo(dst []byte) []byte
}

// PartsResponse is the body of a reply with ranges of files in it, as that of a fetch has.
type PartsResponse interface {
	// AppendParts appends the bytes of the body to dst and, to parts, the file ranges that stand between them. The network
	// releases each range once, whether it could be sent or not, and calls AppendParts even when the connection is gone by
	// then, to learn what to release. As with AppendTo there is one call.
	AppendParts(dst []byte, parts []Part) ([]byte, []Part)
}

// Part is a range of a file within a response: At is the length of dst at the point where it stands.
type Part = api.FilePart

// Observer is told what happens on the connections. Calls come from many goroutines and must be quick. The network keeps no
// metrics of its own.
type Observer interface {
	// ConnOpened and ConnClosed bracket the life of a connection.
	ConnOpened(c *Conn)
	ConnClosed(c *Conn, reason error)
	// ConnRefused tells of a connection that was closed at once because of a limit.
	ConnRefused(listener string, reason error)
	// Served tells of a request whose reply has been written or that needed none.
	Served(s Sample)
	// Failed tells of bytes that were no request, or a request that the handler answered by closing.
	Failed(c *Conn, reason error)
}

// Sample is what one request cost.
type Sample struct {
	Listener      string
	Key           api.Key
	Version       int16
	RequestBytes  int // header and body, without the length prefix
	ResponseBytes int // with the length prefix; 0 when there was no reply
	// Handle is the time in the handler, Park from there to Reply (0 when it replied before it returned), Send from Reply
	// until the bytes were in the socket, which includes waiting for earlier replies.
	Handle, Park, Send time.Duration
}
