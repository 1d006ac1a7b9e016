// Package gregor runs a Kafka node inside a Go program.
//
//	n, err := gregor.Start(ctx, gregor.Config{})
//	if err != nil { ... }
//	defer n.Close()
//	// any Kafka client can use n.Addr()
//
// The node is a real one: it speaks the whole protocol on TCP, and keeps its data in Kafka's own format, in the directory that
// was given or in a temporary one that Close removes. Several nodes, each a cluster of its own, can run in one process.
package gregor
