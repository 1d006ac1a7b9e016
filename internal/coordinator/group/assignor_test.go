package group

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"gregor/internal/uuid"
)

func testTopic(i int) uuid.UUID { return uuid.UUID{15: byte(i + 1)} }

// someTask draws members, what they read and what they had, which may be from another time.
func someTask(t *rapid.T, alike bool) *assignment {
	sizes := rapid.SliceOfN(rapid.IntRange(0, 9), 1, 5).Draw(t, "sizes")
	a := &assignment{alike: alike, size: func(id uuid.UUID) int {
		if i := int(id[15]) - 1; i < len(sizes) {
			return sizes[i]
		}
		return 0
	}}
	some := func() []uuid.UUID {
		var topics []uuid.UUID
		for i := range sizes {
			if rapid.IntRange(0, 2).Draw(t, "reads") > 0 {
				topics = append(topics, testTopic(i))
			}
		}
		return topics
	}
	all := some()
	owners := map[partitionID]int{}
	n := rapid.IntRange(1, 7).Draw(t, "members")
	for i := range sizes {
		for p := range sizes[i] + 1 { // one too many: the topic may have been another
			if o := rapid.IntRange(-1, n).Draw(t, "had"); o >= 0 {
				owners[partitionID{testTopic(i), int32(p)}] = o
			}
		}
	}
	for i := range n {
		m := assignee{id: fmt.Sprintf("m%d", i), topics: all}
		if !alike {
			m.topics = some()
		}
		if rapid.Bool().Draw(t, "static") {
			s := fmt.Sprintf("i%d", n-i)
			m.instance = &s
		}
		var had []partitionID
		for id, o := range owners {
			if o == i {
				had = append(had, id)
			}
		}
		m.now = collect(had)
		a.members = append(a.members, m)
	}
	return a
}

// checkComplete checks that every partition that somebody reads has one owner, who reads it.
func checkComplete(t *rapid.T, a *assignment, targets []partitions) {
	owned := map[partitionID]bool{}
	want := map[partitionID]bool{}
	for i, m := range a.members {
		for _, topic := range m.topics {
			for p := range a.size(topic) {
				want[partitionID{topic, int32(p)}] = true
			}
		}
		for j, tp := range targets[i] {
			if j > 0 && targets[i][j-1].topic.Compare(tp.topic) >= 0 || len(tp.partitions) == 0 || !slices.IsSorted(tp.partitions) || tp.epochs != nil {
				t.Fatalf("%s: the set %v isn't in order", m.id, targets[i])
			}
			for _, p := range tp.partitions {
				id := partitionID{tp.topic, p}
				switch {
				case owned[id]:
					t.Fatalf("%v has two owners: %v", id, targets)
				case !slices.Contains(m.topics, tp.topic):
					t.Fatalf("%s got %v and doesn't read it", m.id, id)
				}
				owned[id] = true
			}
		}
	}
	if len(owned) != len(want) {
		t.Fatalf("%d of %d partitions have owners: %v", len(owned), len(want), targets)
	}
}

// checkEven checks that no partition could move to make its readers' loads more even.
func checkEven(t *rapid.T, a *assignment, targets []partitions) {
	for i := range targets {
		for _, tp := range targets[i] {
			for j := range targets {
				if slices.Contains(a.members[j].topics, tp.topic) && targets[i].count()-targets[j].count() > 1 {
					t.Fatalf("%s has %d and %s has %d, but reads %v too", a.members[i].id, targets[i].count(), a.members[j].id, targets[j].count(), tp.topic)
				}
			}
		}
	}
}

func TestUniform(t *testing.T) {
	for _, alike := range []bool{true, false} {
		t.Run(fmt.Sprint("alike=", alike), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				a := someTask(t, alike)
				targets := uniform(a)
				checkComplete(t, a, targets)
				checkEven(t, a, targets)
				// Nothing moves if nothing changes.
				for i := range a.members {
					a.members[i].now = targets[i]
				}
				for i, again := range uniform(a) {
					if !again.equal(targets[i]) {
						t.Fatalf("the second time %s gets %v instead of %v", a.members[i].id, again, targets[i])
					}
				}
				// When a member leaves, the others lose nothing.
				gone := rapid.IntRange(0, len(a.members)-1).Draw(t, "gone")
				a.members = slices.Delete(a.members, gone, gone+1)
				if len(a.members) == 0 || !alike {
					return
				}
				fewer := uniform(a)
				checkComplete(t, a, fewer)
				for i := range a.members {
					if _, lost := a.members[i].now.split(fewer[i].has); len(lost) > 0 {
						t.Fatalf("%s lost %v because another left", a.members[i].id, lost)
					}
				}
				// When one comes, nobody gets anything but it.
				a.members = append(a.members, assignee{id: "z", topics: a.members[0].topics})
				for i := range fewer {
					a.members[i].now = fewer[i]
				}
				more := uniform(a)
				checkComplete(t, a, more)
				checkEven(t, a, more)
				for i := range fewer {
					if _, gained := more[i].split(fewer[i].has); len(gained) > 0 {
						t.Fatalf("%s gained %v because another came", a.members[i].id, gained)
					}
				}
			})
		})
	}
}

func TestRange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := someTask(t, rapid.Bool().Draw(t, "alike"))
		targets := ranges(a)
		checkComplete(t, a, targets)
		for i := range targets {
			for _, tp := range targets[i] {
				if int(tp.partitions[len(tp.partitions)-1]-tp.partitions[0]) != len(tp.partitions)-1 {
					t.Fatalf("%s got %v, which is no range", a.members[i].id, tp)
				}
			}
		}
	})
}

// The examples of Kafka's documentation: who reads topics of the same size gets the same partitions of them, and static members come first.
func TestRangeCopartitions(t *testing.T) {
	instance := "first"
	a := &assignment{alike: true, size: func(uuid.UUID) int { return 3 }, members: []assignee{
		{id: "a", topics: []uuid.UUID{testTopic(0), testTopic(1)}},
		{id: "b", topics: []uuid.UUID{testTopic(0), testTopic(1)}, instance: &instance},
	}}
	got := ranges(a)
	if want := fmt.Sprint([]partitions{
		{{topic: testTopic(0), partitions: []int32{2}}, {topic: testTopic(1), partitions: []int32{2}}},
		{{topic: testTopic(0), partitions: []int32{0, 1}}, {topic: testTopic(1), partitions: []int32{0, 1}}},
	}); fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

func TestParseAssignors(t *testing.T) {
	got, err := ParseAssignors([]string{"org.apache.kafka.coordinator.group.assignor.RangeAssignor", "uniform", "range"})
	if err != nil || !slices.Equal(got, []string{"range", "uniform"}) {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range [][]string{nil, {"best"}} {
		if got, err := ParseAssignors(bad); err == nil {
			t.Errorf("%q gives %q", bad, got)
		}
	}
}

// Sets of partitions behave like sets.
func TestPartitions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(epoch int32) (partitions, map[partitionID]int32) {
			m := map[partitionID]int32{}
			var tps []topicPartitions
			for range rapid.IntRange(0, 6).Draw(t, "topics") {
				tp := topicPartitions{topic: testTopic(rapid.IntRange(0, 3).Draw(t, "topic"))}
				for range rapid.IntRange(0, 4).Draw(t, "partitions") {
					p := rapid.Int32Range(0, 5).Draw(t, "partition")
					if slices.Contains(tp.partitions, p) {
						continue
					}
					tp.partitions, tp.epochs = append(tp.partitions, p), append(tp.epochs, epoch)
					m[partitionID{tp.topic, p}] = epoch
				}
				tps = append(tps, tp)
			}
			return normalize(tps), m
		}
		same := func(ps partitions, m map[partitionID]int32) {
			for id, e := range m {
				if got, ok := ps.epoch(id.topic, id.partition); !ok || got != e {
					t.Fatalf("%v has epoch %d, %v, want %d: %v", id, got, ok, e, ps)
				}
			}
			if ps.count() != len(m) {
				t.Fatalf("%v has %d partitions, want %v", ps, ps.count(), m)
			}
		}
		a, ma := draw(1)
		b, mb := draw(2)
		same(a, ma)
		same(b, mb)
		union := map[partitionID]int32{}
		for id, e := range ma {
			union[id] = e
		}
		for id, e := range mb {
			union[id] = e
		}
		same(a.union(b), union)
		in, out := a.split(b.has)
		for id, e := range ma {
			half := out
			if _, both := mb[id]; both {
				half = in
			}
			if got, ok := half.epoch(id.topic, id.partition); !ok || got != e {
				t.Fatalf("%v is not where it belongs: %v | %v", id, in, out)
			}
		}
		if in.count()+out.count() != a.count() || !in.union(out).equal(a) {
			t.Fatalf("%v split by %v is %v and %v", a, b, in, out)
		}
	})
}
