package log

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"syscall"

	"gregor/internal/api"
	"gregor/internal/record"
)

// errClosed is returned by a log that was closed or deleted.
var errClosed = errors.New("log is closed")

// errDamaged is wrapped by what finds that a file doesn't hold what it should. Batches have errors of their own, see damaged.
var errDamaged = errors.New("damaged file")

// ErrNoSuchReplica is wrapped when a Manager doesn't hold the partition.
var ErrNoSuchReplica = errors.New("no such replica")

// corruptFileError is a small file that doesn't parse. Kafka takes the log dir offline for it.
type corruptFileError struct {
	name string
	err  error
}

func (e *corruptFileError) Error() string { return fmt.Sprintf("%s: %v", e.name, e.err) }
func (e *corruptFileError) Unwrap() error { return e.err }

// UnexpectedOffsetError refuses a follower's append that begins below the log end offset.
type UnexpectedOffsetError struct {
	FirstOffset, LastOffset int64
	LogEndOffset            int64
}

func (e *UnexpectedOffsetError) Error() string {
	return fmt.Sprintf("first offset %d is below the log end offset %d", e.FirstOffset, e.LogEndOffset)
}

// OutOfOrderError refuses a follower's append whose batches do not ascend.
type OutOfOrderError struct {
	Previous, Offset int64
}

func (e *OutOfOrderError) Error() string {
	return fmt.Sprintf("batch ends at offset %d behind one that ends at %d", e.Offset, e.Previous)
}

// storageError hides an I/O error behind KAFKA_STORAGE_ERROR and keeps it in the chain.
type storageError struct{ err error }

func (e *storageError) Error() string   { return e.err.Error() }
func (e *storageError) Unwrap() []error { return []error{api.ErrKafkaStorageError, e.err} }

// isFull says whether an I/O error only means that there is no room at the moment.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// isOutOfFiles says whether an I/O error only means that the process or the system has no descriptor left at the moment.
func isOutOfFiles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// passing says whether an I/O error says nothing about the health of the disk: it's full, the process is out of descriptors,
// or the log was closed meanwhile.
func passing(err error) bool {
	return isFull(err) || isOutOfFiles(err) || errors.Is(err, errClosed) || errors.Is(err, fs.ErrClosed)
}

// Passing says whether an I/O error says nothing about the health of the disk: what has failed may work a moment later.
func Passing(err error) bool { return passing(err) }

// damaged says whether an error tells of what a file holds, and not of the disk: a batch or an index entry that cannot be, or
// a file that ends too early. It fails whoever needs those bytes, and nobody else.
func damaged(err error) bool {
	if errors.Is(err, errDamaged) || errors.Is(err, record.ErrTruncated) || errors.Is(err, record.ErrCorrupt) || errors.Is(err, io.ErrUnexpectedEOF) {
		return true
	}
	_, ok := errors.AsType[*record.Error](err)
	return ok
}

// diskFailed says whether an error is the disk's. Who works on files that may be taken away meanwhile asks: a file that is
// missing is no failure to him.
func diskFailed(err error) bool {
	_, ok := errors.AsType[syscall.Errno](err)
	return ok && !passing(err) && !errors.Is(err, fs.ErrNotExist)
}

// ignoreDamage is nil for errors that only say that a file doesn't hold what it should.
func ignoreDamage(err error) error {
	if err == io.EOF || errors.Is(err, record.ErrTruncated) || errors.Is(err, record.ErrCorrupt) {
		return nil
	}
	return err
}

// recordError gives an error of package record its protocol code and text.
func recordError(err error) error {
	var re *record.Error
	if !errors.As(err, &re) {
		return err
	}
	code := api.ErrorFor(re.KafkaCode())
	if code == nil {
		code = api.ErrUnknownServerError
	}
	var out error = code
	if re.Message != "" {
		out = api.WithMessage(code, "%s", re.Message)
	}
	if len(re.Records) == 0 {
		return out
	}
	records := make([]RecordError, len(re.Records))
	for i, r := range re.Records {
		records[i] = RecordError{BatchIndex: r.Index, Message: r.Message}
	}
	return &InvalidRecordError{Err: out, Records: records}
}
