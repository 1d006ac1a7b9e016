package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Error is an error that a broker answered with.
type Error struct {
	// Code is Kafka's number, Name Kafka's name ("UNKNOWN_TOPIC_OR_PARTITION").
	Code int16
	Name string
	// Message is what the broker said beyond that, "" if nothing.
	Message string
	// Retriable says that the same request may succeed later. The client's own retries are over by the time one sees it.
	Retriable bool
	// Refresh says that metadata or the coordinator has to be looked up again before a retry.
	Refresh bool
}

func (e *Error) Error() string {
	if e.Message == "" {
		return e.Name
	}
	return e.Name + ": " + e.Message
}

// Is compares codes, so that errors.Is(err, client.UnknownTopicOrPartition) holds whatever the broker's message.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// Errors that callers often ask for.
var (
	UnknownServerError      = errorFor(-1)
	OffsetOutOfRange        = errorFor(1)
	UnknownTopicOrPartition = errorFor(3)
	NotLeaderOrFollower     = errorFor(6)
	RequestTimedOut         = errorFor(7)
	MessageTooLarge         = errorFor(10)
	NotCoordinator          = errorFor(16)
	IllegalGeneration       = errorFor(22)
	UnknownMemberID         = errorFor(25)
	RebalanceInProgress     = errorFor(27)
	UnsupportedVersion      = errorFor(35)
	TopicAlreadyExists      = errorFor(36)
	DuplicateSequenceNumber = errorFor(46)
	FencedInstanceID        = errorFor(82)
	MemberIDRequired        = errorFor(79)
	GroupIDNotFound         = errorFor(69)
	NonEmptyGroup           = errorFor(68)
	ReplicaNotAvailable     = errorFor(9)
	ElectionNotNeeded       = errorFor(84)
	rebootstrapRequired     = errorFor(129)
)

// ErrClosed is returned by everything after Close.
var ErrClosed = errors.New("client is closed")

// errConn marks errors of connections (dialling, resets, timeouts): the request may be tried again elsewhere.
type errConn struct {
	op   string
	addr string
	err  error
}

func (e *errConn) Error() string { return fmt.Sprintf("%s %s: %v", e.op, e.addr, e.err) }
func (e *errConn) Unwrap() error { return e.err }

func errorFor(code int16) *Error {
	e := &Error{Code: code, Name: fmt.Sprintf("ERROR_%d", code)}
	if i := int(code) + 1; i >= 0 && i < len(errorNames) {
		fields := strings.Fields(errorNames[i])
		e.Name = fields[0]
		for _, f := range fields[1:] {
			e.Retriable = e.Retriable || f == "r"
			e.Refresh = e.Refresh || f == "m"
		}
	}
	return e
}

// errorOf is nil for code 0.
func errorOf(code int16, message *string) error {
	if code == 0 {
		return nil
	}
	e := errorFor(code)
	if message != nil {
		e.Message = *message
	}
	return e
}

// ErrorOf is the error of a code in the answer to a Raw request; nil for 0.
func ErrorOf(code int16) error { return errorOf(code, nil) }

// Code is the Kafka error code in err: 0 for nil, and ok is false if a broker didn't say it.
func Code(err error) (code int16, ok bool) {
	if err == nil {
		return 0, true
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code, true
	}
	return 0, false
}

// Retriable says whether trying again may help: for broker errors by Kafka's table, for lost connections always.
func Retriable(err error) bool {
	var e *Error
	if errors.As(err, &e) {
		return e.Retriable
	}
	var c *errConn
	return errors.As(err, &c)
}

func needsRefresh(err error) bool {
	var e *Error
	if errors.As(err, &e) {
		return e.Refresh || e.Code == notController // another controller may be active now
	}
	var c *errConn
	return errors.As(err, &c)
}

// ctxErr prefers the reason of a cancelled context over what it caused.
func ctxErr(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		if err == nil || errors.Is(err, c) {
			return c
		}
		return fmt.Errorf("%w (last error: %w)", c, err)
	}
	return err
}
