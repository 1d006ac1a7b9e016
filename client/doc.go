// Package client is a Kafka client in pure Go: admin calls, a producer and a consumer. It works with any Kafka that still
// speaks the protocol's current versions (2.1 and later) and needs nothing but this module.
//
//	c, err := client.New(client.Options{Seeds: []string{"localhost:9092"}})
//	defer c.Close()
//	p := c.NewProducer(client.ProducerOptions{})
//	err = p.ProduceSync(ctx, &client.Record{Topic: "orders", Partition: -1, Value: []byte("hello")})
//	u, err := c.NewConsumer(client.ConsumerOptions{Group: "billing", Topics: []string{"orders"}})
//	records, err := u.Poll(ctx)
//
// # How it is built
//
//	errors.go          *Error with Kafka's code, and whether a retry may help
//	conn.go            one connection: pipelined, versions negotiated (KIP-511)
//	hooks.go           what metrics and traces are made of
//	sasl.go, tls.go    PLAIN, SCRAM, OAUTHBEARER; TLS
//	pool.go            connections by broker and purpose, dialled on demand with backoff
//	request.go         send to any broker, to one, or to a coordinator; retries
//	metadata.go        what is known of brokers, topics and leaders
//	controllers.go     the same when the seeds are controllers (KIP-919)
//	admin_*.go         admin calls, one file a subject
//	restart.go         whether a node can be restarted now
//	producer.go        records into batches by partition; producer_send.go sends them, idempotent by default (KIP-98)
//	transaction.go     transactions (KIP-98, KIP-890)
//	partitioner.go     Java's key hash
//	consumer.go        the consumer as its user sees it
//	consumer_take.go   decoding, read_committed
//	consumer_run.go    the consumer's one goroutine: feeds the core and does what it says
//	core.go            what a consumer decides, as a pure state machine; core_*.go are its managers:
//	core_metadata.go   topics and leaders, core_coordinator.go the coordinator
//	core_member.go     membership with KIP-848, core_classic.go with the classic protocol
//	core_commit.go     commits, core_offsets.go where to begin, core_fetch.go fetch sessions (KIP-227)
//	assignor.go        range, round-robin, sticky, cooperative-sticky (KIP-429)
//
// # Rules
//
// Every call takes a context; without a deadline, Options.Timeout bounds it. Retriable errors are retried inside with backoff
// until then; what comes out is final, wraps *Error where a broker said it, and says what was being done to what.
//
// A connection's requests are answered in order, so requests that wait on the broker (fetches, joins) have connections of their
// own. A connection with a request overdue is given up, and everything on it with it.
//
// Client, Producer and Consumer are safe for concurrent use.
package client
