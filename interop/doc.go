// Package interop tests gregor against the real Apache Kafka 4.4.0 and against the public clients.
//
// It is a Go module of its own, so that gregor's go.mod lists what the product needs and no more. Package kafka starts and
// stops real nodes; java/ holds the small programs that drive Kafka's own Java clients. `make test` at the root of the
// repository installs what is missing and runs these tests; a test whose peer is not installed fails and says how to get it.
package interop
