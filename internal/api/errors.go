package api

import (
	"errors"
	"fmt"
)

// Error is one of Kafka's protocol errors. There is one value per code; compare with errors.Is or by code.
type Error struct {
	// Code is the number on the wire.
	Code int16
	// Name is Kafka's name, such as NOT_LEADER_OR_FOLLOWER.
	Name string
	// Message is a sentence for people.
	Message string
	// Retriable says that the same request may succeed later.
	Retriable bool
	// RefreshMetadata says that a client refreshes its metadata before it retries.
	RefreshMetadata bool
	// RefreshCoordinator says that a client looks its coordinator up again before it retries.
	RefreshCoordinator bool
}

// Error is the name and the sentence.
func (e *Error) Error() string { return e.Name + ": " + e.Message }

// CodeNone is the code of success, CodeUnknownServerError of everything that has no code of its own.
const (
	CodeNone               int16 = 0
	CodeUnknownServerError int16 = -1
)

// Codes run from minCode to maxCode without a gap.
const (
	minCode = -1
	maxCode = 136
)

type errorFlags uint8

const (
	retriable errorFlags = 1 << iota
	refreshMetadata
	refreshCoordinator
)

var byCode [maxCode - minCode + 1]*Error

func define(code int16, name string, flags errorFlags, message string) *Error {
	e := &Error{
		Code: code, Name: name, Message: message,
		Retriable:          flags&retriable != 0,
		RefreshMetadata:    flags&refreshMetadata != 0,
		RefreshCoordinator: flags&refreshCoordinator != 0,
	}
	byCode[code-minCode] = e
	return e
}

// ErrorFor is the error of a code: nil for 0, ErrUnknownServerError for codes that are not known, as in Kafka. Do not assign
// the result to an error variable without looking at it: a nil *Error is not a nil error. FromCode does that.
func ErrorFor(code int16) *Error {
	if code == CodeNone {
		return nil
	}
	if code < minCode || code > maxCode {
		return ErrUnknownServerError
	}
	return byCode[code-minCode]
}

// FromCode is ErrorFor as an error: nil for 0.
func FromCode(code int16) error {
	if e := ErrorFor(code); e != nil {
		return e
	}
	return nil
}

// CodeOf is the code that answers err: 0 for nil, that of the first *Error in its chain, else -1.
func CodeOf(err error) int16 {
	if err == nil {
		return CodeNone
	}
	if e, ok := err.(*Error); ok {
		return e.Code
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return CodeUnknownServerError
}

// messageError is a protocol error with a text for the client in place of the table's sentence.
type messageError struct {
	cause   *Error
	message string
}

func (e *messageError) Error() string { return e.cause.Name + ": " + e.message }
func (e *messageError) Unwrap() error { return e.cause }

// WithMessage is e with a text of its own for the client, which MessageOf finds. CodeOf still finds e.
func WithMessage(e *Error, format string, args ...any) error {
	return &messageError{cause: e, message: fmt.Sprintf(format, args...)}
}

// MessageOf is the text for the error message field of a response: that of WithMessage when there is one in the chain, else
// the table's sentence, "" for nil. It never shows what was wrapped around a protocol error or an error without a code:
// those may name files and addresses that are no client's business.
func MessageOf(err error) string {
	if err == nil {
		return ""
	}
	if m, ok := errors.AsType[*messageError](err); ok {
		return m.message
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Message
	}
	return ErrUnknownServerError.Message
}

// CodeAndMessage is an error as responses carry it: its code, and its text unless there is nothing to say beside the code.
func CodeAndMessage(err error) (code int16, message *string) {
	if err == nil {
		return CodeNone, nil
	}
	code = CodeOf(err)
	if s := MessageOf(err); s != "" && code != CodeUnknownServerError {
		message = &s
	}
	return code, message
}
