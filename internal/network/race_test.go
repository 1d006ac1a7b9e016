//go:build race

package network

// The race detector makes sync.Pool drop things at random.
func init() { raceEnabled = true }
