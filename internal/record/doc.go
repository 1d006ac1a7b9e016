// Package record reads, checks and builds record batches.
package record
