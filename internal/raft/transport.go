package raft

import (
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// ErrRefused is wrapped by a Transport's error when the peer reset or refused the connection: its process is gone, or was when
// it happened. Silence is not that.
var ErrRefused = errors.New("connection refused or reset")

// Transport sends requests to the other nodes of the quorum. Requests carry the highest version that gregor knows; the
// transport lowers it to what the peer supports (with UNSUPPORTED_VERSION as the response's error code when that can't be
// done, as for a pre-vote to a peer that has only Vote version 1).
type Transport interface {
	// Send sends a request and calls done once, from any goroutine, with the response or an error. It doesn't block.
	Send(to Peer, req kmsg.Request, timeout time.Duration, done func(kmsg.Response, error))
}

var errNoTransport = errors.New("raft: this node has no transport")
