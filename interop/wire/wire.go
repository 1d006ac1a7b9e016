package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Conn is a connection to a node. It is not safe for concurrent use.
type Conn struct {
	net.Conn
	// Timeout is how long to wait for an answer.
	Timeout     time.Duration
	correlation int32
	formatter   *kmsg.RequestFormatter
}

// Dial connects to addr as the client with the given id.
func Dial(addr, clientID string) (*Conn, error) { return DialFrom("", addr, clientID) }

// DialFrom is Dial from a local address, "" for whichever the system takes. Every 127.x.y.z is this machine.
func DialFrom(local, addr, clientID string) (*Conn, error) {
	d := net.Dialer{Timeout: 10 * time.Second}
	if local != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(local)}
	}
	c, err := d.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &Conn{Conn: c, Timeout: 30 * time.Second, formatter: kmsg.NewRequestFormatter(kmsg.FormatterClientID(clientID))}, nil
}

// Frame is the request as it goes over the wire, length included, with the next correlation id.
func (c *Conn) Frame(req kmsg.Request) []byte {
	c.correlation++
	return c.formatter.AppendRequest(nil, req, c.correlation)
}

// ErrClosed is returned when the node closed the connection instead of answering.
var ErrClosed = errors.New("connection closed")

// ErrSilent is returned when the node did not answer in time and kept the connection.
var ErrSilent = errors.New("no answer")

// ReadFrame reads one answer, without its length.
func (c *Conn) ReadFrame() ([]byte, error) {
	c.SetReadDeadline(time.Now().Add(c.Timeout))
	var size [4]byte
	if _, err := io.ReadFull(c.Conn, size[:]); err != nil {
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			return nil, ErrSilent
		}
		return nil, ErrClosed
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > 256<<20 {
		return nil, fmt.Errorf("an answer of %d bytes", n)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(c.Conn, b)
	return b, err
}

// Do sends a request and reads its answer.
func (c *Conn) Do(req kmsg.Request) (kmsg.Response, error) {
	if _, err := c.Write(c.Frame(req)); err != nil {
		return nil, ErrClosed
	}
	b, err := c.ReadFrame()
	if err != nil {
		return nil, err
	}
	return Parse(req, b, c.correlation)
}

// Parse reads the answer to req from a frame.
func Parse(req kmsg.Request, frame []byte, correlation int32) (kmsg.Response, error) {
	if len(frame) < 4 {
		return nil, fmt.Errorf("an answer of %d bytes", len(frame))
	}
	if got := int32(binary.BigEndian.Uint32(frame)); got != correlation {
		return nil, fmt.Errorf("an answer to request %d when %d is due", got, correlation)
	}
	frame = frame[4:]
	resp := req.ResponseKind()
	// An ApiVersions response always has the oldest header, so that any client can read it.
	if resp.IsFlexible() && resp.Key() != 18 {
		if len(frame) == 0 || frame[0] != 0 {
			return nil, fmt.Errorf("tags in the header of the answer: %x", frame)
		}
		frame = frame[1:]
	}
	if err := resp.ReadFrom(frame); err != nil {
		return nil, fmt.Errorf("read an answer of %d bytes: %w", len(frame), err)
	}
	return resp, nil
}

// Record is a record of a Batch; a nil Key or Value is null.
type Record struct {
	Key, Value []byte
	Timestamp  int64
}

// Batch makes an uncompressed record batch; edit changes its header before the checksum is made, and may be nil.
func Batch(edit func(*kmsg.RecordBatch), records ...Record) []byte {
	b := kmsg.NewRecordBatch()
	b.PartitionLeaderEpoch = -1
	b.Magic = 2
	b.LastOffsetDelta = int32(len(records)) - 1
	b.ProducerID, b.ProducerEpoch, b.FirstSequence = -1, -1, -1
	b.NumRecords = int32(len(records))
	if len(records) > 0 {
		b.FirstTimestamp = records[0].Timestamp
	}
	for i, r := range records {
		b.MaxTimestamp = max(b.MaxTimestamp, r.Timestamp)
		b.Records = AppendRecord(b.Records, int64(i), r.Timestamp-b.FirstTimestamp, r.Key, r.Value)
	}
	if edit != nil {
		edit(&b)
	}
	return Seal(b)
}

// AppendRecord appends one record without headers.
func AppendRecord(dst []byte, offsetDelta, timestampDelta int64, key, value []byte) []byte {
	body := []byte{0}
	body = binary.AppendVarint(body, timestampDelta)
	body = binary.AppendVarint(body, offsetDelta)
	for _, b := range [][]byte{key, value} {
		if b == nil {
			body = binary.AppendVarint(body, -1)
			continue
		}
		body = append(binary.AppendVarint(body, int64(len(b))), b...)
	}
	body = binary.AppendVarint(body, 0)
	return append(binary.AppendVarint(dst, int64(len(body))), body...)
}

// Seal sets length and checksum and returns the batch's bytes.
func Seal(b kmsg.RecordBatch) []byte {
	raw := b.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[8:], uint32(len(raw)-12))
	binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)))
	return raw
}
