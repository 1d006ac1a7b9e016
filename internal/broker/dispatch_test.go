package broker

import (
	"log/slog"
	"testing"

	"gregor/internal/api"
	"gregor/internal/coordinator"
	"gregor/internal/log"
	"gregor/internal/network"
)

// A panic in a handler ends there, but one that left a log in the middle of a change goes on and stops the process.
func TestPanicsOfHandlers(t *testing.T) {
	for _, c := range []struct {
		value any
		stops bool
	}{{"a bad request", false}, {&log.Broken{Value: "half an append"}, true}, {&coordinator.Broken{Value: "half a rebalance"}, true}} {
		b := &Broker{logger: slog.New(slog.DiscardHandler), handlers: map[api.Key]handler{
			api.Metadata: func(*Broker, *network.Request) { panic(c.value) }}}
		stopped := func() (stopped bool) {
			defer func() { stopped = recover() != nil }()
			b.Handle(&network.Request{Header: api.Header{Key: api.Metadata}, Conn: &network.Conn{}})
			return false
		}()
		if stopped != c.stops {
			t.Errorf("%v: goes on %v, want %v", c.value, stopped, c.stops)
		}
	}
}
