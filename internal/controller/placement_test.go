package controller

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"gregor/internal/api"
)

// TestPlacementSpreads checks on random clusters what a placement owes: distinct brokers, a leader in service, fenced
// brokers only where a rack has no others left, and as many racks as there can be.
func TestPlacementSpreads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "brokers")
		rackNames := rapid.SampledFrom([][]string{{""}, {"a", "b"}, {"a", "b", "c"}}).Draw(t, "racks")
		brokers := make([]usableBroker, n)
		unfenced := 0
		racks := map[string]bool{}
		for i := range brokers {
			brokers[i] = usableBroker{id: int32(i), rack: rapid.SampledFrom(rackNames).Draw(t, "rack"), fenced: rapid.IntRange(0, 3).Draw(t, "fenced") == 0}
			racks[brokers[i].rack] = true
			if !brokers[i].fenced {
				unfenced++
			}
		}
		factor := rapid.IntRange(1, n).Draw(t, "factor")
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		placed, err := placeReplicas(rnd, brokers, rapid.IntRange(1, 40).Draw(t, "partitions"), factor)
		if unfenced == 0 {
			if api.CodeOf(err) != api.ErrInvalidReplicationFactor.Code {
				t.Fatalf("no broker in service: %v", err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, replicas := range placed {
			if len(replicas) != factor || hasDuplicates(replicas) {
				t.Fatalf("replicas %v of factor %d", replicas, factor)
			}
			if brokers[replicas[0]].fenced {
				t.Fatalf("leader of %v is fenced", replicas)
			}
			used := map[string]bool{}
			for _, id := range replicas {
				used[brokers[id].rack] = true
			}
			if want := min(factor, len(racks)); len(used) != want {
				t.Fatalf("replicas %v lie in %d racks, want %d: %v", replicas, len(used), want, brokers)
			}
			for _, id := range replicas {
				if !brokers[id].fenced {
					continue
				}
				for _, b := range brokers {
					if b.rack == brokers[id].rack && !b.fenced && !slices.Contains(replicas, b.id) {
						t.Fatalf("replicas %v have the fenced %d, while %d of its rack is in service", replicas, id, b.id)
					}
				}
			}
		}
	})
}

// TestPlacementIsEven: brokers of equal racks lead equally many partitions, and so do equal racks of
// several brokers (within a rack Kafka's placer, and so this one, is even only over many rounds).
func TestPlacementIsEven(t *testing.T) {
	for _, racks := range []string{"aaaa", "aabb", "abcd", "aabbcc"} {
		brokers := make([]usableBroker, len(racks))
		unit := make([]string, len(racks)) // what a broker's leaderships count for
		for i := range racks {
			brokers[i] = usableBroker{id: int32(i), rack: racks[i : i+1]}
			unit[i] = racks[i : i+1]
			if racks == "aaaa" {
				unit[i] = strconv.Itoa(i)
			}
		}
		placed, err := placeReplicas(rand.New(rand.NewPCG(1, 1)), brokers, len(racks), 2)
		if err != nil {
			t.Fatal(err)
		}
		leads := make(map[string]int)
		for _, u := range unit {
			leads[u] = 0
		}
		for _, r := range placed {
			leads[unit[r[0]]]++
		}
		counts := slices.Collect(maps.Values(leads))
		if slices.Max(counts)-slices.Min(counts) > 1 {
			t.Errorf("racks %s: leaders %v", racks, leads)
		}
	}
}

func TestPlacementRefuses(t *testing.T) {
	f := func(brokers []usableBroker, factor int, want string) {
		t.Helper()
		_, err := placeReplicas(rand.New(rand.NewPCG(1, 1)), brokers, 1, factor)
		if got := api.MessageOf(err); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	one := []usableBroker{{id: 1}}
	f(one, 0, "Invalid replication factor 0: the replication factor must be positive.")
	f(one, 2, "The target replication factor of 2 cannot be reached because only 1 broker(s) are registered or some brokers have all their log directories cordoned.")
	f(nil, 1, "All brokers are currently fenced, or have all their log directories cordoned.")
	f([]usableBroker{{id: 1, fenced: true}}, 1, "All brokers are currently fenced, or have all their log directories cordoned.")
}
