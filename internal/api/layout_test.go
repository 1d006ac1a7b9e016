package api

import (
	"testing"
)

func TestEveryServedVersionHasALayout(t *testing.T) {
	for k := range keys {
		min, max, ok := Key(k).Versions()
		if !ok {
			continue
		}
		if got := len(layouts()[k]); got != int(max)+1 {
			t.Errorf("%s: layouts up to v%d, want v%d", Key(k), got-1, max)
			continue
		}
		for v := min; v <= max; v++ {
			if layoutOf(Key(k), v) == nil {
				t.Errorf("%s v%d has no layout", Key(k), v)
			}
		}
	}
}
