package main

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"time"

	"gregor/internal/record"
)

// values makes event-like JSON of exactly size bytes. Batches of 1 KiB ones are about halved by lz4 and cut to about a third by zstd, as with
// real events: field names repeat, ids and numbers do not.
type values struct {
	rnd *rand.Rand
	seq int
}

func newValues(seed uint64) *values { return &values{rnd: rand.New(rand.NewPCG(seed, 1))} }

var (
	eventKinds = []string{"page_view", "add_to_cart", "checkout", "search", "login", "logout", "impression"}
	countries  = []string{"DE", "FR", "US", "JP", "BR", "IN", "ZA", "NO"}
	agents     = []string{
		"Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
		"Mozilla/5.0 (iPhone; CPU iPhone OS 18_1 like Mac OS X) AppleWebKit/605.1.15 Mobile/15E148 Safari/604.1",
		"Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 Chrome/131.0.0.0 Safari/537.36",
	}
)

func (v *values) id(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(v.rnd.Uint32())
	}
	return hex.EncodeToString(b)
}

// token is n random bytes as events often carry them, denser than an id.
func (v *values) token(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(v.rnd.Uint32())
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

func (v *values) next(size int) []byte {
	v.seq++
	b := fmt.Appendf(nil, `{"event":%q,"seq":%d,"id":%q,"session":%q,"user":{"id":%d,"country":%q,"agent":%q},"items":[`,
		eventKinds[v.rnd.IntN(len(eventKinds))], v.seq, v.id(16), v.id(16), v.rnd.IntN(1e7), countries[v.rnd.IntN(len(countries))], agents[v.rnd.IntN(len(agents))])
	for {
		item := fmt.Sprintf(`{"sku":"SKU-%07d","quantity":%d,"price_cents":%d,"warehouse":"wh-%03d","trace":%q},`,
			v.rnd.IntN(1e7), 1+v.rnd.IntN(9), v.rnd.IntN(100000), v.rnd.IntN(200), v.token(21))
		if len(b)+len(item)+len(`],"note":""}`) > size {
			break
		}
		b = append(b, item...)
	}
	b = append(b, `],"note":"`...)
	for len(b)+2 < size {
		b = append(b, "0123456789abcdef"[v.rnd.IntN(16)])
	}
	if len(b)+2 > size { // a value too small for the event
		return b[:size]
	}
	return append(b, `"}`...)
}

// batch makes a batch of values of valueSize, of at most size bytes before compression, and tells how many those are. It has at
// least one record.
func (v *values) batch(size, valueSize int, codec record.Codec) (b record.Batch, raw int, err error) {
	o := record.BuilderOptions{LeaderEpoch: -1, Codec: codec}.NoProducer()
	builder := record.NewBuilder(o)
	ts := time.Now().UnixMilli()
	for builder.Count() == 0 || builder.SizeWith(ts, nil, make([]byte, valueSize), nil) <= size {
		builder.Append(ts, nil, v.next(valueSize), nil)
	}
	raw = builder.Len()
	b, err = builder.Build()
	return b, raw, err
}
