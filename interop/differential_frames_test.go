package interop

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/interop/wire"
)

// diffFrames sends frames that are no requests: cut, with bytes too many, without a body, of versions and of APIs that there are
// not. What counts is whether there is an answer, and whether the connection lives on.
func diffFrames(t *testing.T, p *pair) {
	outcome := func(s *side, frame []byte) string {
		c, err := wire.Dial(s.addr, "probe")
		if err != nil {
			return err.Error()
		}
		defer c.Close()
		c.Timeout = 10 * time.Second
		// The honest request behind it tells whether the connection lives.
		const probe = 77
		frame = append(slices.Clone(frame), append(binary.BigEndian.AppendUint32(nil, 10), 0, 18, 0, 0, 0, 0, 0, probe, 0xff, 0xff)...)
		if _, err := c.Write(frame); err != nil {
			return "closed"
		}
		text := ""
		for {
			switch b, err := c.ReadFrame(); {
			case errors.Is(err, wire.ErrSilent):
				return text + "silent"
			case err != nil:
				return text + "closed"
			case len(b) >= 4 && binary.BigEndian.Uint32(b) == probe:
				return text + "alive"
			default:
				text += "answered, "
			}
		}
	}
	compare := func(name string, frame []byte) {
		t.Helper()
		p.steps++
		var mu sync.Mutex
		got := map[*side]string{}
		p.both(func(s *side) {
			o := outcome(s, frame)
			mu.Lock()
			defer mu.Unlock()
			got[s] = o
		})
		if got[p.gregor] != got[p.kafka] {
			t.Errorf("%s: gregor %s, kafka %s", name, got[p.gregor], got[p.kafka])
		}
	}
	frameOf := func(key, version int16, flexible bool, body []byte) []byte { // a flexible header ends with its tags
		if flexible {
			body = append([]byte{0}, body...)
		}
		return framed(key, version, body)
	}
	var keys []int16
	for key := range p.versions {
		if p.served[key] {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		for _, v := range slices.Compact([]int16{p.versions[key][0], p.versions[key][1]}) {
			req := kmsg.RequestForKey(key)
			req.SetVersion(v)
			if r, ok := req.(*kmsg.ProduceRequest); ok {
				r.Acks = -1
			}
			if r, ok := req.(*kmsg.FetchRequest); ok {
				r.MaxWaitMillis = 0
			}
			if r, ok := req.(*kmsg.DescribeACLsRequest); ok {
				r.ResourceType, r.ResourcePatternType, r.Operation, r.PermissionType = 1, 1, 1, 1 // any; 0 is unknown
			}
			body := req.AppendTo(nil)
			name := fmt.Sprintf("request %d v%d, ", key, v)
			if len(body) > 1 {
				compare(name+"cut", frameOf(key, v, req.IsFlexible(), body[:len(body)-1]))
				compare(name+"without a body", frameOf(key, v, req.IsFlexible(), nil))
			}
			compare(name+"with three bytes too many", frameOf(key, v, req.IsFlexible(), append(slices.Clone(body), 1, 2, 3)))
		}
		compare(fmt.Sprintf("request %d of a version to come", key), framed(key, p.versions[key][1]+1, make([]byte, 20)))
		compare(fmt.Sprintf("request %d of a negative version", key), framed(key, -1, make([]byte, 20)))
	}
	for _, key := range []int16{-1, 4, 5, 6, 7, 52, 62, 200, 32767} {
		compare(fmt.Sprintf("request %d", key), framed(key, 0, make([]byte, 20)))
	}
	for _, n := range []int{0, 1, 4, 7, 8, 9} {
		compare(fmt.Sprintf("%d bytes", n), append(binary.BigEndian.AppendUint32(nil, uint32(n)), make([]byte, n)...))
	}
	compare("a client id that is too long", append(binary.BigEndian.AppendUint32(nil, 10), 0, 18, 0, 0, 0, 0, 0, 1, 0x7f, 0xff))
	compare("a negative length", []byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0})
	compare("a length beyond the bound", []byte{0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0})
}
