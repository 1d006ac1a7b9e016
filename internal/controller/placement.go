package controller

import (
	"cmp"
	"math/rand/v2"
	"slices"

	"gregor/internal/api"
)

// usableBroker is a broker that may be given replicas.
type usableBroker struct {
	id     int32
	rack   string // "" for none, which counts as a rack of its own
	fenced bool
}

// placeReplicas chooses the replicas of each of a number of new partitions.
//
// It is Kafka's StripedReplicaPlacer. Brokers are arranged by rack; racks, and the brokers of each rack, start at random
// points and are gone through in turn, one rack further for each partition, so that leaders and replicas spread evenly
// over racks and brokers. The first replica, the leader, is always on an unfenced broker; fenced ones are used last in
// their rack. After as many partitions as there are unfenced brokers everything is shuffled, so that the same brokers
// aren't always paired.
func placeReplicas(rnd *rand.Rand, brokers []usableBroker, partitions int, replicas int) ([][]int32, error) {
	racks := newRackList(rnd, brokers)
	switch {
	case replicas <= 0:
		return nil, api.WithMessage(api.ErrInvalidReplicationFactor,
			"Invalid replication factor %d: the replication factor must be positive.", replicas)
	case racks.unfenced == 0:
		return nil, api.WithMessage(api.ErrInvalidReplicationFactor, "All brokers are currently fenced, or have all their log directories cordoned.")
	case replicas > racks.total:
		return nil, api.WithMessage(api.ErrInvalidReplicationFactor,
			"The target replication factor of %d cannot be reached because only %d broker(s) are registered or some brokers have all their log directories cordoned.",
			replicas, racks.total)
	}
	placed := make([][]int32, partitions)
	all := make([]int32, partitions*replicas) // one allocation for all
	for i := range placed {
		placed[i] = all[i*replicas : i*replicas : (i+1)*replicas]
		placed[i] = racks.place(placed[i], replicas)
	}
	return placed, nil
}

// PlaceReplicas chooses replicas as the controller does for a new topic, for tools that propose a placement: on the brokers
// given, with their racks, none of them fenced.
func PlaceReplicas(rnd *rand.Rand, racks map[int32]string, partitions, replicas int) ([][]int32, error) {
	brokers := make([]usableBroker, 0, len(racks))
	for id, rack := range racks {
		brokers = append(brokers, usableBroker{id: id, rack: rack})
	}
	return placeReplicas(rnd, brokers, partitions, replicas)
}

// brokerList deals out brokers, each once a round.
type brokerList struct {
	ids    []int32
	index  int // how many were dealt this round
	offset int // where the round began
	round  int
}

func (l *brokerList) start(rnd *rand.Rand) {
	if len(l.ids) > 0 {
		slices.Sort(l.ids)
		l.offset = rnd.IntN(len(l.ids))
	}
}

// next deals the next broker of a round, or -1 when all were dealt.
func (l *brokerList) next(round int) int32 {
	if len(l.ids) == 0 {
		return -1
	}
	if l.round != round {
		l.round, l.index = round, 0
		l.offset = (l.offset + 1) % len(l.ids)
	}
	if l.index >= len(l.ids) {
		return -1
	}
	id := l.ids[(l.index+l.offset)%len(l.ids)]
	l.index++
	return id
}

type rack struct {
	name             string
	unfenced, fenced brokerList
}

func (r *rack) next(round int) int32 {
	if id := r.unfenced.next(round); id >= 0 {
		return id
	}
	return r.fenced.next(round)
}

type rackList struct {
	rnd             *rand.Rand
	racks           []*rack
	total, unfenced int
	offset          int
	// round never comes again. Kafka's begins anew with each shuffle, and a list that was last dealt from in the round of the
	// same number then seems to be used up, so that a fenced broker gets the replica.
	round        int
	sinceShuffle int
}

func newRackList(rnd *rand.Rand, brokers []usableBroker) *rackList {
	l := &rackList{rnd: rnd}
	for _, b := range brokers {
		i := slices.IndexFunc(l.racks, func(r *rack) bool { return r.name == b.rack })
		if i < 0 {
			i = len(l.racks)
			l.racks = append(l.racks, &rack{name: b.rack})
		}
		r := l.racks[i]
		if b.fenced {
			r.fenced.ids = append(r.fenced.ids, b.id)
		} else {
			r.unfenced.ids = append(r.unfenced.ids, b.id)
			l.unfenced++
		}
		l.total++
	}
	slices.SortFunc(l.racks, func(a, b *rack) int { return cmp.Compare(a.name, b.name) })
	for _, r := range l.racks {
		r.fenced.start(rnd)
		r.unfenced.start(rnd)
	}
	if len(l.racks) > 0 {
		l.offset = rnd.IntN(len(l.racks))
	}
	return l
}

func (l *rackList) place(to []int32, replicas int) []int32 {
	if l.sinceShuffle == l.unfenced && l.unfenced > 1 {
		l.shuffle()
		l.sinceShuffle = 0
	}
	if l.offset == len(l.racks) {
		l.offset = 0
	}
	first := l.offset
	for {
		if id := l.racks[first].unfenced.next(l.round); id >= 0 {
			to = append(to, id)
			break
		}
		first = (first + 1) % len(l.racks)
	}
	at := l.offset
	for range replicas - 1 {
		id := int32(-1)
		for id < 0 {
			if at == first {
				first = -1 // the leader's rack is passed over, once
			} else {
				id = l.racks[at].next(l.round)
			}
			at = (at + 1) % len(l.racks)
		}
		to = append(to, id)
	}
	l.round++
	l.sinceShuffle++
	l.offset++
	return to
}

func (l *rackList) shuffle() {
	l.rnd.Shuffle(len(l.racks), func(i, j int) { l.racks[i], l.racks[j] = l.racks[j], l.racks[i] })
	for _, r := range l.racks {
		for _, ids := range [][]int32{r.fenced.ids, r.unfenced.ids} {
			l.rnd.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
		}
	}
}
