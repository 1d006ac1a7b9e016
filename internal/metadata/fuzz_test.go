package metadata

import (
	"testing"

	"gregor/internal/message"
)

// FuzzReplay replays arbitrary metadata records, each with its length in one byte before it, and writes what comes of them as a
// snapshot. Nothing may panic, and what a delta refuses must not hurt what follows.
func FuzzReplay(f *testing.F) {
	for _, d := range readMetadataDirs(f, "single-clean") {
		var seed []byte
		for _, b := range d.batches {
			for _, r := range b.Records {
				v, err := message.AppendMetadataRecord(nil, r.Message, r.Version)
				if err != nil {
					f.Fatal(err)
				}
				if len(v) < 256 {
					seed = append(append(seed, byte(len(v))), v...)
				}
			}
			if len(seed) > 2000 {
				f.Add(seed)
				seed = nil
			}
		}
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		img := EmptyImage()
		d := NewDelta(img)
		for n := 0; len(src) > 0; n++ {
			size := min(int(src[0]), len(src)-1)
			value := src[1 : 1+size]
			src = src[1+size:]
			r, err := message.ReadMetadataRecord(value)
			if err != nil {
				continue
			}
			_ = d.Replay(r.Message)
			if n%5 == 4 {
				img = d.Apply(Provenance{})
				if d.Topics != nil {
					d.Topics.LocalChanges(1)
				}
				d = NewDelta(img)
			}
		}
		img = d.Apply(Provenance{})
		again := NewDelta(EmptyImage())
		err := img.Write(func(r message.Versioned) error {
			if _, err := message.AppendMetadataRecord(nil, r.Message, r.Version); err != nil {
				t.Fatal(err)
			}
			return again.Replay(r.Message)
		}, WriteOptions{MetadataVersion: LatestTesting})
		if err != nil {
			t.Fatal(err)
		}
		img.Features = again.Apply(Provenance{}).Features // metadata.version is that of the options
		if diff := Diff(img, again.Apply(Provenance{})); diff != "" {
			t.Fatalf("the snapshot is another image:\n%s", diff)
		}
	})
}
