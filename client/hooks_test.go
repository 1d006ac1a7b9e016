package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"gregor"
	"gregor/client"
	"gregor/internal/await"
)

// counter counts requests by API.
type counter struct {
	mu       sync.Mutex
	requests map[string]int
	failed   map[string]int
	open     int
	fetching int
	seconds  float64
	bad      []client.RequestTrace
}

func (c *counter) RequestSent(t *client.RequestTrace) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open++
	if t.API == "Fetch" {
		c.fetching++
	}
	t.Value = c
}

func (c *counter) RequestAnswered(t *client.RequestTrace) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open--
	if t.API == "Fetch" {
		c.fetching--
	}
	c.requests[t.API]++
	if t.Err != nil {
		c.failed[t.API]++
	}
	c.seconds += t.Duration.Seconds()
	if t.Value != c || t.Addr == "" || t.RequestBytes < 8 || t.Duration < 0 || t.Err == nil && t.ResponseBytes < 8 && t.API != "Produce" {
		c.bad = append(c.bad, *t)
	}
}

func ExampleHooks() {
	n, err := gregor.Start(context.Background(), gregor.Config{})
	if err != nil {
		panic(err)
	}
	defer n.Close()
	// counter is a type with a map and a lock; see RequestSent and RequestAnswered.
	counts := &counter{requests: map[string]int{}, failed: map[string]int{}}
	c, err := client.New(client.Options{Seeds: []string{n.Addr()}, Hooks: counts})
	if err != nil {
		panic(err)
	}
	defer c.Close()
	if _, err := c.CreateTopics(context.Background(), []client.TopicSpec{{Name: "orders"}}, false); err != nil {
		panic(err)
	}
	fmt.Println(counts.requests["CreateTopics"], "CreateTopics, open:", counts.open)
	// Output: 1 CreateTopics, open: 0
}

// Every request that is sent is heard of once more, whatever becomes of it.
func TestLiveHooks(t *testing.T) {
	n, err := gregor.Start(t.Context(), gregor.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	h := &counter{requests: map[string]int{}, failed: map[string]int{}}
	var mu sync.Mutex
	var conns []net.Conn
	c, err := client.New(client.Options{Seeds: []string{n.Addr()}, Hooks: h, Timeout: await.Patience, Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		nc, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err == nil {
			mu.Lock()
			conns = append(conns, nc)
			mu.Unlock()
		}
		return nc, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateTopics(ctx, []client.TopicSpec{{Name: "t", Partitions: 1}}, false); err != nil {
		t.Fatal(err)
	}
	for _, acks := range []client.Acks{client.AllAcks, client.NoAcks} {
		p := c.NewProducer(client.ProducerOptions{Acks: acks})
		if err := p.ProduceSync(ctx, &client.Record{Topic: "t", Value: []byte("v")}); err != nil {
			t.Fatal(err)
		}
		if err := p.Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
	// A fetch waits for records when its connection breaks.
	u, err := c.NewConsumer(client.ConsumerOptions{Partitions: map[client.TopicPartition]int64{{Topic: "t"}: client.Latest}, MaxWait: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	await.True(t, "a fetch is under way", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.fetching > 0
	})
	mu.Lock()
	for _, nc := range conns {
		nc.Close()
	}
	mu.Unlock()
	await.True(t, "the fetch has failed", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.failed["Fetch"] > 0
	})
	if err := u.Close(ctx); err != nil && !errors.Is(err, client.ErrClosed) {
		t.Error(err)
	}
	c.Close()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open != 0 || len(h.bad) > 0 || h.requests["Produce"] != 2 || h.requests["ApiVersions"] == 0 {
		t.Errorf("%d open, requests %v, bad %+v", h.open, h.requests, h.bad)
	}
}
