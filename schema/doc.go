// Package schema holds gregor's notation for versioned records and the generator that turns it into Go.
//
// The files in this directory, NAME.schema, describe every record that Kafka 4.4 keeps in a log or a file: what the metadata
// log, the coordinators' topics, control batches, producer snapshots and quorum-state are made of. Each becomes
// internal/message/NAME_gen.go. They are the source of truth: change them, then run go generate ./schema.
//
// # Notation
//
// One item a line, words split by blanks. Indentation and blank lines mean nothing; a line that begins with # is a comment.
//
//	msg NAME kind=K key=N v=A-B flex=C+
//	    a message. K says where it lives, N is its record type ("-" when it has none), v its versions (A or A-B) and
//	    flex the flexible ones (C+ or none).
//	field NAME TYPE v=R [null=R] [tag=N/R] [def=X] [ign] [key] [flex=none]
//	    a field of the msg or struct above it, in wire order. R is a version range: A, A-B or A+.
//	    null: versions in which it may be null (of an array: the array itself, never its elements).
//	    tag: its number and the versions in which it is a tagged field. A field is tagged in all of its versions or in none.
//	    def: its default; absent means 0, false, "", an empty array or bytes, a zero id, a struct of defaults.
//	    ign: left out in silence when written in a version that lacks it; without it a value that is not the default is
//	    then an error.
//	    key: part of the key of the set that its array is. It has no effect on the wire.
//	    flex=none: a string that keeps its int16 length in flexible versions.
//	struct NAME v=R
//	    the fields that follow belong to this struct of the same message.
//	doc TEXT
//	    about the item above it; several lines make a paragraph. Of a msg it says what the message does or is, beginning with
//	    the verb; of a struct or field what it is, without "is". It becomes the Go comment, with versions and nullability.
//
// TYPE is bool, int8, int16, uint16, int32, uint32, int64, float64, uuid, string, bytes, a struct's name, or []TYPE.
//
// # Coding
//
// Big endian; bool is one byte, uuid 16 bytes, float64 IEEE 754. In a flexible version a string, bytes and an array begin
// with uvarint(n+1), 0 for null, and every message and struct ends with its tagged fields: uvarint count, then for each, in
// rising order of tags, uvarint tag, uvarint size, bytes. A tagged field that equals its default is left out and unknown tags
// are kept. In other versions a string begins with an int16 length, the others with int32, -1 for null, and there are no
// tags. A struct that may be null has int8 -1 or 1 before it, or, as a tagged field, uvarint 0 or 1.
//
// Entry points: Parse reads the notation, Generate writes Go, cmd/schemagen does it for the tree. The package imports nothing
// of the house, and neither reads a clock nor keeps state.
package schema

//go:generate go run ./cmd/schemagen -out ../internal/message
