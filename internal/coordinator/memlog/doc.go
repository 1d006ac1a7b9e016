// Package memlog is a log in memory for coordinators, for their tests and for simulations.
//
// A Log keeps batches by partition as they were appended, and answers as a leader's log does. The high watermark moves at once,
// or when the test says so; appends and reads fail on demand. There is neither disk nor replica in it.
//
// The zero Log is ready. It is safe for concurrent use, and calls Committed without locks held.
package memlog
