// Package api is the table of Kafka's APIs: which keys and versions exist, on which listener they are served and how their
// requests and responses are read and written, and the table of error codes.
//
// Messages are the structs of kmsg, with two exceptions: produce and fetch, whose codecs are written by hand (ProduceRequest,
// ProduceResponse, FetchRequest, FetchResponse) so that the data path allocates nothing per partition and leaves records where
// they are. What kmsg does not do, this package does:
//
//   - DecodeRequest refuses what Kafka refuses: versions outside the table, nulls where a field is not nullable, tags that
//     the version does not have. Bytes after the body are ignored, as in Kafka (KIP-482 leaves room for them).
//   - AppendResponse leaves out the tagged fields that the version does not have; Java clients fail on them.
//
// Ownership: a decoded request aliases the body where it holds bytes or records (strings are copied, except in the
// hand-written requests, where names are slices of the body too). Whoever keeps such bytes beyond the request copies them.
//
// A protocol error is a *Error from the table, wrapped with what was being done to what; the edge gets the code back with
// CodeOf and, where a client is to see more than the table's sentence, the text with MessageOf.
//
// Everything here is safe for concurrent use, except that one request or response value belongs to one goroutine at a time.
//
// KIPs: 482 (tagged fields), 511 (ApiVersions), 516 (topic ids), 951 (leader discovery in produce and fetch).
package api
