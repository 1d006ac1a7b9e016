// Package await lets tests wait for conditions.
//
// A test never sleeps to let something happen: on a slow machine it has not happened yet, on a fast one the sleep is wasted.
// It waits until what it needs to see is there. Where nothing can be seen, time is faked (testing/synctest, package clock).
package await
