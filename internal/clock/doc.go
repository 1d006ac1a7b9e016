// Package clock is the only door to time on paths that decide something.
//
// Pure cores are handed `now` with each event and never ask. Drivers and storage read it from a Clock, which production
// sets to System. Goroutine code that only waits uses package time: in tests it runs in a testing/synctest bubble, where
// that is simulated.
package clock
