// Package content defines the records that every client in the interoperability tests writes and must read back: with null and
// empty keys, null values, and up to two headers, some of them with a null value. The Java and Python programs in this module
// make the same ones.
package content
