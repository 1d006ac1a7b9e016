package api

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// FuzzDecodeRequest feeds a key, a version and a body to the decoders. None may panic, and where kmsg's and the hand-written
// ones both exist they must agree on what is a request and on what it says.
func FuzzDecodeRequest(f *testing.F) {
	for i, v := range vectors(f) {
		if v.kind == "req" && i%7 == 0 {
			f.Add(int16(v.key), v.version, v.bytes)
		}
	}
	f.Add(int16(Produce), int16(9), []byte{0, 0, 1, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Add(int16(Metadata), int16(0), []byte{0x7f, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, key, version int16, body []byte) {
		r, err := DecodeRequest(Key(key), version, body)
		var hand kmsg.Request
		var handErr error
		switch Key(key) {
		case Produce:
			var p ProduceRequest
			handErr = p.Decode(version, body)
			hand = p.kmsg()
		case Fetch:
			var q FetchRequest
			handErr = q.Decode(version, body)
			hand = q.kmsg()
		}
		if hand != nil && (err == nil) != (handErr == nil) {
			t.Fatalf("%s v%d: kmsg %v, by hand %v", Key(key), version, err, handErr)
		}
		if err != nil {
			return
		}
		if hand != nil {
			forgetUnknownTags(reflect.ValueOf(r))
			if g, w := hand.AppendTo(nil), r.AppendTo(nil); !bytes.Equal(g, w) {
				t.Fatalf("%s v%d:\nby hand %x\n   kmsg %x", Key(key), version, g, w)
			}
		}
		// What was read can be written and is then read as the same.
		again, err := DecodeRequest(Key(key), version, AppendRequest(nil, r))
		if err != nil {
			t.Fatalf("%s v%d: written and not readable: %v", Key(key), version, err)
		}
		if a, b := AppendRequest(nil, r), AppendRequest(nil, again); !bytes.Equal(a, b) {
			t.Fatalf("%s v%d:\n%x\n%x", Key(key), version, a, b)
		}
	})
}

func FuzzParseHeader(f *testing.F) {
	f.Add([]byte{0, 0, 0, 13, 0, 0, 0, 1, 0, 2, 'm', 'e', 0})
	f.Add([]byte{0, 18, 0, 99, 0, 0, 0, 1, 0xff, 0xff, 1, 5, 1, 0xff})
	f.Fuzz(func(t *testing.T, frame []byte) {
		h, body, err := ParseHeader(frame, "me")
		if err != nil {
			return
		}
		if len(body) > len(frame) {
			t.Fatal("body is longer than the frame")
		}
		again, rest, err := ParseHeader(append(AppendHeader(nil, h), body...), "")
		if err != nil || again != h || !bytes.Equal(rest, body) {
			t.Fatalf("%+v became %+v, %v", h, again, err)
		}
	})
}
