// Package message holds every record that Kafka 4.4 keeps in a log or a file, as Go types, with their bytes and their JSON.
//
// The *_gen.go files are generated from schema/*.schema; see package schema for the notation. Each message encodes in
// append style, decodes with counts checked against the bytes that are there, knows its size, and prints itself as Kafka's
// DumpLogSegments does. Nulls are legal exactly where Kafka's are; unknown tagged fields survive a round trip.
//
// The files written by hand add what stands around a message in a record:
//
//   - metadata log: uvarint frame version 1, uvarint type, uvarint version, body (ReadMetadataRecord, AppendMetadataRecord);
//   - coordinators' topics: int16 type and body as key, int16 version and body as value (Coordinator);
//   - control batches: int16 version and int16 type as key, the body as value (ReadControlValue, AppendControlValue);
//   - the consumer protocol inside of JoinGroup and SyncGroup (ReadSubscription, ReadAssignment).
//
// Messages are values without locks: one goroutine at a time may change one, any number may read it. Decoded messages hold
// no reference to the bytes they were read from.
//
// KIP-482 (tagged fields), KIP-631 (metadata records), KIP-746 (their versions), KIP-848 and KIP-932 (group records).
package message
