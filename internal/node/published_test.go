package node

import (
	"slices"
	"testing"

	"gregor/internal/metadata"
)

func TestRepliesWaitForTheImage(t *testing.T) {
	var p published
	var out []int
	say := func(n int) func() { return func() { out = append(out, n) } }
	at := func(offset int64) {
		d := metadata.NewDelta(metadata.EmptyImage())
		p.Publish(d, d.Apply(metadata.Provenance{Offset: offset}), metadata.Manifest{})
	}
	expect := func(want ...int) {
		t.Helper()
		if !slices.Equal(out, want) {
			t.Errorf("replies %v, want %v", out, want)
		}
	}
	p.after(100, say(1)) // nothing has been published: there are no handlers to wait for
	expect(1)
	at(10)
	p.after(10, say(2))
	p.after(12, say(3))
	p.after(14, say(4))
	expect(1, 2)
	at(11)
	expect(1, 2)
	at(13)
	expect(1, 2, 3)
	p.close()
	expect(1, 2, 3, 4)
	at(14)
	p.after(99, say(5))
	expect(1, 2, 3, 4, 5)
}
