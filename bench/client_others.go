package main

import (
	"context"
	"fmt"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
)

// franzLib is franz-go.
type franzLib struct{}

func (franzLib) produce(ctx context.Context, j *clientJob, values [][]byte, ready func()) error {
	codec := kgo.NoCompression()
	switch j.Codec {
	case "lz4":
		codec = kgo.Lz4Compression()
	case "zstd":
		codec = kgo.ZstdCompression()
	}
	c, err := kgo.NewClient(kgo.SeedBrokers(j.Addr), kgo.ProducerBatchCompression(codec), kgo.DefaultProduceTopic(j.Topic),
		kgo.MaxBufferedRecords(1<<30), kgo.MaxBufferedBytes(64<<20))
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Ping(ctx); err != nil {
		return err
	}
	ready()
	var failed error // set by the client's one goroutine for callbacks
	done := func(_ *kgo.Record, err error) {
		if err != nil {
			failed = err
		}
	}
	for i := range j.Records {
		c.Produce(ctx, &kgo.Record{Value: values[i%len(values)]}, done)
	}
	if err := c.Flush(ctx); err != nil {
		return err
	}
	return failed
}

func (franzLib) consume(ctx context.Context, j *clientJob, ready func(), each func([]byte) bool) error {
	c, err := kgo.NewClient(kgo.SeedBrokers(j.Addr))
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Ping(ctx); err != nil {
		return err
	}
	ready()
	from := map[int32]kgo.Offset{}
	for p := range j.Partitions {
		from[int32(p)] = kgo.NewOffset().AtStart()
	}
	c.AddConsumePartitions(map[string]map[int32]kgo.Offset{j.Topic: from})
	for more := true; more; {
		fs := c.PollFetches(ctx)
		if err := fs.Err(); err != nil {
			return err
		}
		fs.EachRecord(func(r *kgo.Record) { more = more && each(r.Value) })
	}
	return nil
}

// saramaLib is sarama.
type saramaLib struct{}

func saramaConfig(j *clientJob) *sarama.Config {
	c := sarama.NewConfig()
	c.Version = sarama.MaxVersion
	switch j.Codec {
	case "lz4":
		c.Producer.Compression = sarama.CompressionLZ4
	case "zstd":
		c.Producer.Compression = sarama.CompressionZSTD
	}
	return c
}

func (saramaLib) produce(_ context.Context, j *clientJob, values [][]byte, ready func()) error {
	c := saramaConfig(j)
	c.Producer.RequiredAcks, c.Producer.Idempotent, c.Net.MaxOpenRequests = sarama.WaitForAll, true, 1
	c.Producer.Return.Successes = false
	c.Producer.Flush.Bytes, c.Producer.Flush.Frequency = 900_000, 5_000_000
	p, err := sarama.NewAsyncProducer([]string{j.Addr}, c)
	if err != nil {
		return err
	}
	ready()
	failed := make(chan error, 1)
	go func() {
		var first error
		for e := range p.Errors() {
			if first == nil {
				first = e
			}
		}
		failed <- first
	}()
	for i := range j.Records {
		p.Input() <- &sarama.ProducerMessage{Topic: j.Topic, Value: sarama.ByteEncoder(values[i%len(values)])}
	}
	p.AsyncClose()
	return <-failed
}

func (saramaLib) consume(ctx context.Context, j *clientJob, ready func(), each func([]byte) bool) error {
	c, err := sarama.NewConsumer([]string{j.Addr}, saramaConfig(j))
	if err != nil {
		return err
	}
	defer c.Close()
	ready()
	all := make(chan *sarama.ConsumerMessage, 256)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for p := range j.Partitions {
		pc, err := c.ConsumePartition(j.Topic, int32(p), sarama.OffsetOldest)
		if err != nil {
			return err
		}
		defer pc.AsyncClose()
		go func() {
			for m := range pc.Messages() {
				select {
				case all <- m:
				case <-ctx.Done():
				}
			}
		}()
	}
	for {
		select {
		case m := <-all:
			if !each(m.Value) {
				return nil
			}
		case <-ctx.Done():
			return fmt.Errorf("consume: %w", ctx.Err())
		}
	}
}
