package message

import (
	"encoding/base64"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"gregor/internal/uuid"
)

// The functions here print values as Jackson prints the trees that Kafka's JSON converters build.

// endJSON closes an object or array in whose elements each is followed by a comma.
func endJSON(dst []byte, closing byte) []byte {
	if dst[len(dst)-1] == ',' {
		dst[len(dst)-1] = closing
		return dst
	}
	return append(dst, closing)
}

func jsonBool(dst []byte, v bool) []byte     { return strconv.AppendBool(dst, v) }
func jsonInt8(dst []byte, v int8) []byte     { return strconv.AppendInt(dst, int64(v), 10) }
func jsonInt16(dst []byte, v int16) []byte   { return strconv.AppendInt(dst, int64(v), 10) }
func jsonUint16(dst []byte, v uint16) []byte { return strconv.AppendUint(dst, uint64(v), 10) }
func jsonInt32(dst []byte, v int32) []byte   { return strconv.AppendInt(dst, int64(v), 10) }
func jsonUint32(dst []byte, v uint32) []byte { return strconv.AppendUint(dst, uint64(v), 10) }
func jsonInt64(dst []byte, v int64) []byte   { return strconv.AppendInt(dst, v, 10) }
func jsonUuid(dst []byte, v uuid.UUID) []byte {
	return append(append(append(dst, '"'), v.String()...), '"')
}

// jsonFloat64 prints a double in Java's form: a fraction always, an exponent from 1e7 up and below 1e-3. The values that
// JSON has no number for are strings.
func jsonFloat64(dst []byte, v float64) []byte {
	switch {
	case math.IsNaN(v):
		return append(dst, `"NaN"`...)
	case math.IsInf(v, 1):
		return append(dst, `"Infinity"`...)
	case math.IsInf(v, -1):
		return append(dst, `"-Infinity"`...)
	}
	if a := math.Abs(v); a == 0 || a >= 1e-3 && a < 1e7 {
		s := strconv.FormatFloat(v, 'f', -1, 64)
		if !strings.Contains(s, ".") {
			s += ".0"
		}
		return append(dst, s...)
	}
	mantissa, exp, _ := strings.Cut(strconv.FormatFloat(v, 'E', -1, 64), "E")
	if !strings.Contains(mantissa, ".") {
		mantissa += ".0"
	}
	e, _ := strconv.Atoi(exp)
	return append(append(append(dst, mantissa...), 'E'), strconv.Itoa(e)...)
}

const hexDigits = "0123456789ABCDEF"

func jsonString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			// Java has replaced bytes that are not UTF-8 before Jackson sees them.
			r, n := utf8.DecodeRuneInString(s[i:])
			dst = utf8.AppendRune(dst, r)
			i += n
			continue
		}
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\t':
			dst = append(dst, '\\', 't')
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\f':
			dst = append(dst, '\\', 'f')
		case '\r':
			dst = append(dst, '\\', 'r')
		default:
			if c < ' ' {
				dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
			} else {
				dst = append(dst, c)
			}
		}
		i++
	}
	return append(dst, '"')
}

func jsonNullString(dst []byte, s *string) []byte {
	if s == nil {
		return append(dst, "null"...)
	}
	return jsonString(dst, *s)
}

func jsonBytes(dst, b []byte) []byte {
	dst = append(dst, '"')
	dst = base64.StdEncoding.AppendEncode(dst, b)
	return append(dst, '"')
}

func jsonNullBytes(dst, b []byte) []byte {
	if b == nil {
		return append(dst, "null"...)
	}
	return jsonBytes(dst, b)
}
