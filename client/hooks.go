package client

import "time"

// Hooks hear of every request, for metrics and traces. Its methods are called on the way of the request, from many goroutines: they
// must be quick, and not call the client.
type Hooks interface {
	// RequestSent is called when a request is about to be written.
	RequestSent(*RequestTrace)
	// RequestAnswered is called once for each RequestSent, after it: when the answer is there, or when there will be none.
	RequestAnswered(*RequestTrace)
}

// RequestTrace is one request, from being written to being answered. Retries are requests of their own.
type RequestTrace struct {
	// Node is the broker's id, below zero for an address of Options.Seeds whose id isn't known yet; Addr is where it is.
	Node int32
	Addr string
	// API is Kafka's name of the request, Version the protocol's.
	API     string
	Version int16
	// Sent is when it began to be written, RequestBytes how large it is.
	Sent         time.Time
	RequestBytes int
	// Duration, ResponseBytes and Err are set for RequestAnswered. Err is that of the connection: what a broker says about the request is
	// inside its answer. A request that is never answered (acks=0) ends when it is written.
	Duration      time.Duration
	ResponseBytes int
	Err           error
	// Value is for RequestSent to keep something for RequestAnswered, as a span.
	Value any
}

// answered ends a trace; nil is none.
func (h hooks) answered(t *RequestTrace, bytes int, err error) {
	if t == nil {
		return
	}
	t.Duration, t.ResponseBytes, t.Err = time.Since(t.Sent), bytes, err
	h.RequestAnswered(t)
}

// hooks are Hooks that may be missing.
type hooks struct{ Hooks }
