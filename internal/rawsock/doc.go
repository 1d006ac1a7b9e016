// Package rawsock moves bytes through sockets that don't block, without telling Go's scheduler.
//
// The scheduler takes every system call of package syscall for one that may block: it notes its beginning and end, and wakes a
// thread of its own (sysmon) that looks every 20 us whether the call is still under way. A call on a socket that doesn't block is
// over sooner than that. On a node that is woken for each small request, that thread was a fifth of all the CPU.
//
// # Concurrency
//
// Everything is safe for concurrent use as far as the socket is.
package rawsock
