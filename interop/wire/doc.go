// Package wire sends single requests to a node, exactly as told, and reads its answers. It has no retries, no version
// negotiation and no opinions, so that a test can also send what no client would.
package wire
