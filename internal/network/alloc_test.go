//go:build !race

package network

import "testing"

// The race detector makes sync.Pool drop things at random, so this holds without it only.
func TestNoAllocationPerRequestButTheRequest(t *testing.T) {
	_, addr := startServer(t, Options{}, &produceHandler{})
	c := dialTCP(t, addr)
	f := produceFrame(1, 100)
	buf := make([]byte, 4096)
	round := func() {
		if _, err := c.Write(f); err != nil {
			t.Fatal(err)
		}
		if _, err := readFrame(c, buf); err != nil {
			t.Fatal(err)
		}
	}
	round()
	if n := testing.AllocsPerRun(500, round); n > 1.5 {
		t.Errorf("%v allocations a request", n)
	}
}
