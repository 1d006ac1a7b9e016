// Package sim simulates what lies outside the program, so that tests can drive real code through it. It is a leaf: it imports
// nothing of the house.
//
// Net is a network in memory. Its connections behave like TCP's where that matters to a server: bytes are buffered in both
// directions up to a bound, a full buffer blocks the writer, closing one end lets the other read what is left and then io.EOF,
// writing to a closed end fails with a reset, deadlines work. All waiting is done on condition variables and timers, so a
// testing/synctest bubble sees when everything is blocked and time in it is fake.
//
// Delays are drawn per link from a generator of its own, seeded by the network's seed and the link's name, so that traffic on
// one link does not shift the delays of another.
//
// Loop is for pure cores: events in virtual time on one goroutine. Links between its nodes lose, delay, repeat and reorder.
package sim
