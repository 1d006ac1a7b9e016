// Package kafka runs the real Apache Kafka 4.4.0: its nodes, its tools and Java programs on its class path.
//
// The published jars are fetched once with Maven into .cache/kafka-4.4.0 at the root of the repository.
package kafka
