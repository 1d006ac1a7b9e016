package timeline

// Value is one variable on a timeline.
type Value[T any] struct {
	r       *Registry
	current T
	tiers   []valueTier[T] // oldest first
}

type valueTier[T any] struct {
	at  *snapshot
	old T
}

// NewValue returns a variable that holds initial, at every snapshot taken so far too.
func NewValue[T any](r *Registry, initial T) *Value[T] {
	return &Value[T]{r: r, current: initial}
}

// Get returns the current value.
func (v *Value[T]) Get() T { return v.current }

// At returns the value as of the snapshot at offset, or the current one for [Latest].
func (v *Value[T]) At(offset int64) T {
	v.r.check(offset)
	for i := range v.tiers {
		if v.tiers[i].at.offset >= offset {
			return v.tiers[i].old
		}
	}
	return v.current
}

// Set changes the value.
func (v *Value[T]) Set(value T) {
	if s := v.r.newest; s != nil && (len(v.tiers) == 0 || v.tiers[len(v.tiers)-1].at != s) {
		v.tiers = append(v.tiers, valueTier[T]{at: s, old: v.current})
		s.touched = append(s.touched, v)
	}
	v.current = value
}

func (v *Value[T]) revert() {
	v.current = v.tiers[len(v.tiers)-1].old
	v.tiers = pop(v.tiers)
}

func (v *Value[T]) forget() { v.tiers = shift(v.tiers) }

// Counter is a number on a timeline.
type Counter struct{ Value[int64] }

// NewCounter returns a counter that holds initial.
func NewCounter(r *Registry, initial int64) *Counter {
	return &Counter{Value[int64]{r: r, current: initial}}
}

// Add changes the counter by n and returns its new value.
func (c *Counter) Add(n int64) int64 {
	c.Set(c.current + n)
	return c.current
}
