package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"gregor"
	"gregor/client"
)

// cluster is a node for an example. Against a cluster that runs, its address is all that is needed.
func cluster() (addr string, stop func()) {
	n, err := gregor.Start(context.Background(), gregor.Config{})
	if err != nil {
		log.Fatal(err)
	}
	return n.Addr(), func() { n.Close() }
}

// A producer, a consumer in a group, and nothing else.
func Example() {
	addr, stop := cluster()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	c, err := client.New(client.Options{Seeds: []string{addr}})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	if _, err := c.CreateTopics(ctx, []client.TopicSpec{{Name: "orders", Partitions: 1}}, false); err != nil {
		log.Fatal(err)
	}

	p := c.NewProducer(client.ProducerOptions{})
	for i := range 3 {
		r := &client.Record{Topic: "orders", Partition: -1, Key: []byte("customer-7"), Value: fmt.Appendf(nil, "order %d", i)}
		if err := p.Produce(ctx, r, nil); err != nil {
			log.Fatal(err)
		}
	}
	if err := p.Close(ctx); err != nil {
		log.Fatal(err)
	}

	u, err := c.NewConsumer(client.ConsumerOptions{Group: "billing", Topics: []string{"orders"}, Reset: client.ResetEarliest})
	if err != nil {
		log.Fatal(err)
	}
	defer u.Close(ctx)
	n := 0
	for r, err := range u.Records(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %s\n", r.Key, r.Value)
		if n++; n == 3 {
			break
		}
	}
	// Output:
	// customer-7: order 0
	// customer-7: order 1
	// customer-7: order 2
}

// Callbacks tell what became of each record; an error says whether trying again makes sense.
func ExampleProducer_Produce() {
	addr, stop := cluster()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.New(client.Options{Seeds: []string{addr}})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	if _, err := c.CreateTopics(ctx, []client.TopicSpec{{Name: "small", Partitions: 1, Configs: map[string]string{"max.message.bytes": "1000"}}}, false); err != nil {
		log.Fatal(err)
	}
	p := c.NewProducer(client.ProducerOptions{})
	defer p.Close(ctx)
	for _, size := range []int{10, 10_000} {
		err := p.Produce(ctx, &client.Record{Topic: "small", Value: make([]byte, size)}, func(r *client.Record, err error) {
			if errors.Is(err, client.MessageTooLarge) {
				fmt.Println("too large; trying again makes sense:", client.Retriable(err))
				return
			}
			fmt.Println("offset", r.Offset)
		})
		if err != nil {
			log.Fatal(err)
		}
		if err := p.Flush(ctx); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// offset 0
	// too large; trying again makes sense: false
}

// Without a group: these partitions from these offsets, with commits by hand nowhere.
func ExampleConsumer_Poll() {
	addr, stop := cluster()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.New(client.Options{Seeds: []string{addr}})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	if _, err := c.CreateTopics(ctx, []client.TopicSpec{{Name: "log", Partitions: 1}}, false); err != nil {
		log.Fatal(err)
	}
	p := c.NewProducer(client.ProducerOptions{})
	defer p.Close(ctx)
	for _, v := range []string{"a", "b", "c"} {
		if err := p.ProduceSync(ctx, &client.Record{Topic: "log", Value: []byte(v)}); err != nil {
			log.Fatal(err)
		}
	}
	u, err := c.NewConsumer(client.ConsumerOptions{Partitions: map[client.TopicPartition]int64{{Topic: "log", Partition: 0}: 1}})
	if err != nil {
		log.Fatal(err)
	}
	defer u.Close(ctx)
	for n := 0; n < 2; {
		records, err := u.Poll(ctx)
		if err != nil {
			log.Fatal(err)
		}
		for _, r := range records {
			fmt.Println(r.Offset, string(r.Value))
			n++
		}
	}
	// Output:
	// 1 b
	// 2 c
}
