// Package node builds gregor's binary and runs it as a process of its own, as a user would: started with a server.properties,
// stopped with SIGTERM or killed, its output kept for when a test fails.
package node
