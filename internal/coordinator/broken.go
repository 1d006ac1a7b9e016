package coordinator

import (
	"fmt"
	"runtime/debug"
)

// Broken is what a panic on a shard becomes. It left the state machine in the middle of a step, and nobody can tell what holds for
// its groups then; the shard stays as it is, nobody gets into it any more, and the process must stop: who recovers from panics
// raises it again. The log is whole, so that the next coordinator of the partition goes on from what is stored.
type Broken struct {
	Value any
	Stack []byte
}

func (b *Broken) Error() string {
	return fmt.Sprintf("panic in a coordinator: %v\n\n%s", b.Value, b.Stack)
}

// raise ends a run of the shard. It must be deferred as it is, or else it doesn't notice a panic. A panic that is Broken already
// comes from what was called (the replies of the run, which may lead into another shard) and is passed on.
func (s *shard[C, R]) raise() {
	switch v := recover().(type) {
	case nil:
	case *Broken:
		panic(v)
	case error:
		panic(&Broken{Value: fmt.Errorf("partition %d: %w", s.partition, v), Stack: debug.Stack()})
	default:
		panic(&Broken{Value: fmt.Sprintf("partition %d: %v", s.partition, v), Stack: debug.Stack()})
	}
}
