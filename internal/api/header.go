package api

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// Header is a request header, v1 or v2: which of the two follows from key and version.
type Header struct {
	Key           Key
	Version       int16
	CorrelationID int32
	ClientID      string
	// NullClientID tells a client id that is null from one that is empty.
	NullClientID bool
}

// ErrShort says that a message ends before its last field.
var ErrShort = errors.New("message is cut short")

// minHeader is key, version and correlation id, the part of a header that all versions share.
const minHeader = 8

// ParseHeader reads the header at the start of frame and returns what follows it. The header's ClientID is prev when the bytes
// are the same, so that a connection need not make the string anew for each request.
//
// As Kafka does, it takes any negative client id length as null, and skips the tagged fields of a v2 header, known to no
// version, without looking into them. It does not check that the key exists; only whether the header has tagged fields hangs
// on that, and those of an unknown key or version are left in the body. The version is checked by whoever serves the request:
// an ApiVersions request has to be answered even when its version is unknown.
func ParseHeader(frame []byte, prev string) (h Header, body []byte, err error) {
	if len(frame) < minHeader {
		return h, nil, fmt.Errorf("request header of %d bytes: %w", len(frame), ErrShort)
	}
	h.Key = Key(binary.BigEndian.Uint16(frame))
	h.Version = int16(binary.BigEndian.Uint16(frame[2:]))
	h.CorrelationID = int32(binary.BigEndian.Uint32(frame[4:]))
	body = frame[minHeader:]
	if len(body) < 2 {
		return h, nil, fmt.Errorf("client id: %w", ErrShort)
	}
	n := int(int16(binary.BigEndian.Uint16(body)))
	body = body[2:]
	switch {
	case n < 0:
		h.NullClientID = true
	case n > len(body):
		return h, nil, fmt.Errorf("client id of %d bytes in %d: %w", n, len(body), ErrShort)
	default:
		if string(body[:n]) == prev {
			h.ClientID = prev
		} else {
			h.ClientID = string(body[:n])
		}
		body = body[n:]
	}
	if RequestHeaderVersion(h.Key, h.Version) >= 2 {
		if body, err = skipTags(body); err != nil {
			return h, nil, fmt.Errorf("tagged fields of the request header: %w", err)
		}
	}
	return h, body, nil
}

// AppendHeader writes a request header of the version that key and version ask for, without tagged fields.
func AppendHeader(dst []byte, h Header) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(h.Key))
	dst = binary.BigEndian.AppendUint16(dst, uint16(h.Version))
	dst = binary.BigEndian.AppendUint32(dst, uint32(h.CorrelationID))
	if h.NullClientID {
		dst = binary.BigEndian.AppendUint16(dst, math.MaxUint16)
	} else {
		dst = binary.BigEndian.AppendUint16(dst, uint16(len(h.ClientID)))
		dst = append(dst, h.ClientID...)
	}
	if RequestHeaderVersion(h.Key, h.Version) >= 2 {
		dst = append(dst, 0)
	}
	return dst
}

// AppendResponseHeader writes the header of the response to such a request, without tagged fields.
func AppendResponseHeader(dst []byte, k Key, version int16, correlationID int32) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(correlationID))
	if ResponseHeaderVersion(k, version) >= 1 {
		dst = append(dst, 0)
	}
	return dst
}

// SkipResponseHeader returns the body of the response to such a request, given what follows the correlation id of its header.
func SkipResponseHeader(k Key, version int16, frame []byte) ([]byte, error) {
	if ResponseHeaderVersion(k, version) == 0 {
		return frame, nil
	}
	body, err := skipTags(frame)
	if err != nil {
		return nil, fmt.Errorf("tagged fields of the response header: %w", err)
	}
	return body, nil
}
