package record

import (
	"errors"
	"fmt"
)

// The kinds of fault. Errors of this package are *Error values that wrap one of them; use errors.Is. The edge answers with the
// Kafka error named beside each.
var (
	// ErrTruncated: fewer bytes than the next batch needs. At the end of a file or of a fetch it only means "no more".
	ErrTruncated = errors.New("truncated batch")
	// ErrCorrupt: an impossible size or magic, or a CRC that does not fit (CORRUPT_MESSAGE).
	ErrCorrupt = errors.New("corrupt batch")
	// ErrInvalid: well-formed outside but not a batch that may be there (INVALID_RECORD).
	ErrInvalid = errors.New("invalid record")
	// ErrTimestamp: a record's timestamp is out of the topic's bounds or of the wrong type (INVALID_TIMESTAMP).
	ErrTimestamp = errors.New("invalid timestamp")
	// ErrBatchTooLarge: more bytes than max.message.bytes (MESSAGE_TOO_LARGE).
	ErrBatchTooLarge = errors.New("batch too large")
	// ErrCodec: a compression type that does not exist (UNKNOWN_SERVER_ERROR, as Kafka answers).
	ErrCodec = errors.New("unknown compression type")
	// ErrDecompress: the compressed bytes are not what the codec expects (UNKNOWN_SERVER_ERROR, as Kafka answers).
	ErrDecompress = errors.New("decompression failed")
	// ErrBomb: decompressed output beyond the bound (INVALID_RECORD).
	// Differs from Kafka: it has no bound.
	ErrBomb = errors.New("decompressed size beyond limit")
)

// Error says what is wrong with a batch.
type Error struct {
	// Kind is one of the Err values above.
	Kind error
	// Message carries the numbers. For faults of single records it is what Kafka tells the client.
	Message string
	// Records lists the faulty records of a produced batch, if single records are at fault.
	Records []RecordError
	// Cause is the error underneath, or nil.
	Cause error
}

// RecordError is the fault of one record of a produced batch: its position in the batch and what Kafka tells the client.
type RecordError struct {
	Index   int32
	Message string
}

func (e *Error) Error() string {
	switch {
	case e.Message == "" && e.Cause == nil:
		return e.Kind.Error()
	case e.Cause == nil:
		return e.Kind.Error() + ": " + e.Message
	case e.Message == "":
		return fmt.Sprintf("%v: %v", e.Kind, e.Cause)
	}
	return fmt.Sprintf("%v: %s: %v", e.Kind, e.Message, e.Cause)
}

// Is makes errors.Is(err, ErrInvalid) hold.
func (e *Error) Is(target error) bool { return target == e.Kind }

func (e *Error) Unwrap() error { return e.Cause }

// KafkaCode is the protocol error code that a broker answers with.
func (e *Error) KafkaCode() int16 {
	switch e.Kind {
	case ErrCorrupt:
		return 2 // CORRUPT_MESSAGE
	case ErrBatchTooLarge:
		return 10 // MESSAGE_TOO_LARGE
	case ErrTimestamp:
		return 32 // INVALID_TIMESTAMP
	case ErrInvalid, ErrBomb, ErrTruncated:
		return 87 // INVALID_RECORD
	}
	return -1 // UNKNOWN_SERVER_ERROR
}

func errf(kind error, format string, args ...any) *Error {
	return &Error{Kind: kind, Message: fmt.Sprintf(format, args...)}
}
