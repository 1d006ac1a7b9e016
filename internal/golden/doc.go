// Package golden gives tests the data that Kafka 4.4.0 left in testdata/golden at the root of the repository: data directories
// in many conditions, what reading them must give, and the output of Kafka's tools on them.
//
// Files reads an archive into memory, and the test puts of it on a disk, real or not, what it needs; Expect reads what must come
// out. That comes from Kafka, never from gregor: a test that fails against it has found a difference. Tests alone import this.
package golden
