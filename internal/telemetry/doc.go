// Package telemetry is how people watch a node: its log, its metrics, and how far its start is.
//
// NewLogger makes the process's slog.Logger, for people or as JSON. Phases tracks the start: every phase has a name and, where
// it is long (recovery), a progress; /readyz, a gauge and the log show the same state. Registry collects metrics under the names
// that users of Kafka's JMX exporter know (kafka_server_brokertopicmetrics_bytesin_total and so on).
//
// Metrics cost nothing between two scrapes: components count in plain atomics of their own, or in a Histogram, and register a
// function that reads them. Only a scrape calls the function and builds Prometheus's own objects, which are garbage afterwards.
// An idle node that nobody scrapes thus keeps no copy of its metrics.
//
// Everything here is safe for concurrent use. The package imports nothing of the house.
package telemetry
