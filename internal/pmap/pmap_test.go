package pmap

import (
	"fmt"
	"maps"
	"testing"

	"pgregory.net/rapid"
)

// TestAgainstGoMap drives maps and builders with random operations beside plain Go maps, keeps every version that it has seen,
// and checks at the end that none of them changed. The hash is bad on purpose: four bits of it are all there is, so that
// branches collide at every level down to the lists at the end.
func TestAgainstGoMap(t *testing.T) {
	hashes := map[string]func(int) uint64{
		"good":      func(k int) uint64 { return Mix(uint64(k)) },
		"few bits":  func(k int) uint64 { return uint64(k & 3) },
		"high bits": func(k int) uint64 { return uint64(k&7) << 60 },
	}
	for name, hash := range hashes {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				type version struct {
					m    Map[int, int]
					want map[int]int
				}
				versions := []version{{New[int, int](hash), map[int]int{}}}
				key := rapid.IntRange(0, 40)
				for range rapid.IntRange(1, 12).Draw(t, "rounds") {
					v := versions[rapid.IntRange(0, len(versions)-1).Draw(t, "from")]
					want := maps.Clone(v.want)
					m, b := v.m, v.m.Builder()
					useBuilder := rapid.Bool().Draw(t, "builder")
					for range rapid.IntRange(1, 20).Draw(t, "changes") {
						k := key.Draw(t, "key")
						if rapid.Bool().Draw(t, "set") {
							val := rapid.Int().Draw(t, "value")
							want[k] = val
							if useBuilder {
								b.Set(k, val)
							} else {
								m = m.Set(k, val)
							}
						} else {
							delete(want, k)
							if useBuilder {
								b.Delete(k)
							} else {
								m = m.Delete(k)
							}
						}
						if useBuilder && rapid.IntRange(0, 9).Draw(t, "cut") == 0 {
							versions = append(versions, version{b.Map(), maps.Clone(want)})
						}
					}
					if useBuilder {
						m = b.Map()
					}
					versions = append(versions, version{m, want})
				}
				for i, v := range versions {
					if err := equal(v.m, v.want); err != nil {
						t.Fatalf("version %d: %v", i, err)
					}
				}
			})
		})
	}
}

func equal(m Map[int, int], want map[int]int) error {
	if m.Len() != len(want) {
		return fmt.Errorf("Len = %d, want %d", m.Len(), len(want))
	}
	for k, v := range want {
		if got, ok := m.Get(k); !ok || got != v {
			return fmt.Errorf("Get(%d) = %d, %v, want %d", k, got, ok, v)
		}
	}
	for k := -1; k < 42; k++ {
		if _, ok := m.Get(k); ok != has(want, k) {
			return fmt.Errorf("Get(%d) found: %v", k, ok)
		}
	}
	got := map[int]int{}
	for k, v := range m.All() {
		if has(got, k) {
			return fmt.Errorf("key %d comes twice", k)
		}
		got[k] = v
	}
	if !maps.Equal(got, want) {
		return fmt.Errorf("All gave %v, want %v", got, want)
	}
	return nil
}

func has(m map[int]int, k int) bool {
	_, ok := m[k]
	return ok
}

// TestOrderDependsOnContent checks that two ways to the same content give the same iteration.
func TestOrderDependsOnContent(t *testing.T) {
	a, b := New[string, int](HashString), New[string, int](HashString)
	for i := range 1000 {
		a = a.Set(fmt.Sprint("k", i), i)
		b = b.Set(fmt.Sprint("k", 999-i), 999-i)
		b = b.Set(fmt.Sprint("x", i), i)
	}
	for i := range 1000 {
		b = b.Delete(fmt.Sprint("x", i))
	}
	var ka, kb []string
	for k := range a.All() {
		ka = append(ka, k)
	}
	for k := range b.All() {
		kb = append(kb, k)
	}
	if fmt.Sprint(ka) != fmt.Sprint(kb) {
		t.Error("the order depends on history")
	}
	for range a.All() {
		break // stopping early is allowed
	}
}

func BenchmarkSetAmongMillion(b *testing.B) {
	bl := New[int, int](func(k int) uint64 { return Mix(uint64(k)) }).Builder()
	for i := range 1_000_000 {
		bl.Set(i, i)
	}
	m := bl.Map()
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		m.Set(i%1_000_000, i)
		i += 7919
	}
}

func BenchmarkBuild100k(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		bl := New[int, int](func(k int) uint64 { return Mix(uint64(k)) }).Builder()
		for i := range 100_000 {
			bl.Set(i, i)
		}
	}
}
