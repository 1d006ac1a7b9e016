// Package uuid is Kafka's Uuid: 16 bytes that are printed as 22 characters of URL-safe base64 without padding.
//
// Topic ids, directory ids and incarnation ids are UUIDs. The type converts to and from [16]byte, which is what the wire
// codecs use. The ids 0 to 99 are reserved; the ones with a meaning are named here.
package uuid
