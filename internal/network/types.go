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

// Response is the body of a reply, which is written after the response header.
type Response interface {
	// AppendTo appends the body to dst and returns the longer slice. It is called once, by Reply or later on the goroutine
	// that writes, which may be another one.
	AppendTo(dst []byte) []byte
}

// PartsResponse is a Response with ranges of files in it. AppendParts is called instead of AppendTo.
type PartsResponse interface {
	Response
	// AppendParts appends the bytes of the body to dst and, to parts, the file ranges that stand between them. The network
	// releases each range once, whether it could be sent or not.
	AppendParts(dst []byte, parts []Part) ([]byte, []Part)
}

// Part is a range of a file within a response.
type Part = api.FilePart

// Request is one request of a connection, from when its last byte has arrived until its reply has been written.
type Request struct {
	api.Header
	// Conn is the connection that it came by.
	Conn *Conn
	// Body is what follows the header. It is valid until Reply, NoReply or Close is called.
	Body []byte
	// Received is when the last byte had arrived.
	Received time.Time
}

