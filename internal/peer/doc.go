// Package peer sends requests to other nodes: to the voters of the metadata quorum, to the active controller, to other brokers.
//
// Peers holds one connection an address, made when it is first needed. Requests on it are pipelined and answers are matched by
// correlation id. Before anything else the other end is asked for the versions that it serves; a request goes out in the
// highest version that both ends know and that isn't above the one it was made in.
//
// # Failures
//
// Whoever sends wants to know what a failure says about the other end:
//
//   - ErrGone: the connection was refused or reset, or closed while an answer was owed. Its process is gone, or was.
//   - ErrTimeout: silence. The connection is given up, since what is behind the silence would be late as well.
//   - api.ErrUnsupportedVersion: the other end has no version of the request that this end could send. Nothing was sent.
//
// After a failed attempt to connect the next one waits, longer each time up to a bound, with some jitter. Requests made
// meanwhile wait for that attempt, within their own time.
//
// # Invariants
//
//   - Every request is answered exactly once, by a response or an error, no later than its timeout.
//   - What the other end announces never makes this end take more memory than Options.MaxResponseBytes.
//   - After Close no goroutine of Peers is left.
//
// # Concurrency
//
// All methods are safe for concurrent use. Callbacks come from any goroutine, also from within Send and Forget;
// while one runs, its connection brings no further answer.
package peer
