package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gregor/client"
)

// assignment says who has partitions, the preferred leader first.
type assignment map[client.TopicPartition][]int32

// anyDir leaves the choice of the directory to the broker.
const anyDir = "any"

// assignedPartition is a partition in the files of Kafka's tool.
type assignedPartition struct {
	Topic     string   `json:"topic"`
	Partition int32    `json:"partition"`
	Replicas  []int32  `json:"replicas"`
	LogDirs   []string `json:"log_dirs"`
}

// assignmentJSON is the file that says so, in one line.
func assignmentJSON(a assignment) string {
	out := struct {
		Version    int                 `json:"version"`
		Partitions []assignedPartition `json:"partitions"`
	}{1, []assignedPartition{}}
	for _, tp := range sortedPartitions(a) {
		p := assignedPartition{tp.Topic, tp.Partition, a[tp], []string{}}
		if p.Replicas == nil {
			p.Replicas = []int32{}
		}
		for range p.Replicas {
			p.LogDirs = append(p.LogDirs, anyDir)
		}
		out.Partitions = append(out.Partitions, p)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(out); err != nil {
		panic(err) // strings and numbers
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// reassignment is what a file asks for, in its order and as it stands there.
type reassignment struct {
	partitions []assignedPartition
	dirs       map[client.Replica]string // where a directory is named
}

func checkFileVersion(v *int) error {
	if v != nil && *v != 1 {
		return fmt.Errorf("not supported version field value %d", *v)
	}
	return nil
}

func parseReassignment(text []byte) (*reassignment, error) {
	var in struct {
		Version    *int `json:"version"`
		Partitions []struct {
			Topic     *string  `json:"topic"`
			Partition *int32   `json:"partition"`
			Replicas  *[]int32 `json:"replicas"`
			LogDirs   []string `json:"log_dirs"`
		} `json:"partitions"`
	}
	if err := json.Unmarshal(text, &in); err != nil {
		return nil, err
	}
	if err := checkFileVersion(in.Version); err != nil {
		return nil, err
	}
	r := &reassignment{dirs: map[client.Replica]string{}}
	for i, p := range in.Partitions {
		if p.Topic == nil || p.Partition == nil || p.Replicas == nil {
			return nil, fmt.Errorf("entry %d of partitions must have topic, partition and replicas", i)
		}
		tp := client.TopicPartition{Topic: *p.Topic, Partition: *p.Partition}
		if p.LogDirs != nil && len(p.LogDirs) != len(*p.Replicas) {
			return nil, fmt.Errorf("size of replicas list %v is different from size of log dirs list %v for partition %v", *p.Replicas, p.LogDirs, tp)
		}
		r.partitions = append(r.partitions, assignedPartition{Topic: tp.Topic, Partition: tp.Partition, Replicas: *p.Replicas, LogDirs: p.LogDirs})
		for j, dir := range p.LogDirs {
			if dir != anyDir {
				r.dirs[client.Replica{TopicPartition: tp, Broker: (*p.Replicas)[j]}] = dir
			}
		}
	}
	return r, nil
}

// check refuses what must not be executed.
func (r *reassignment) check() error {
	if len(r.partitions) == 0 {
		return errors.New("partition reassignment list cannot be empty")
	}
	var tps []client.TopicPartition
	var bad []string
	for _, p := range r.partitions {
		tp := client.TopicPartition{Topic: p.Topic, Partition: p.Partition}
		if len(p.Replicas) == 0 {
			return fmt.Errorf("partition replica list cannot be empty: %v", tp)
		}
		tps = append(tps, tp)
		if d := duplicates(p.Replicas); len(d) > 0 {
			bad = append(bad, fmt.Sprintf("%v contains multiple entries for %s", tp, joined(d, ",")))
		}
	}
	if d := duplicates(tps); len(d) > 0 {
		return fmt.Errorf("partition reassignment contains duplicate topic partitions: %s", joined(d, ","))
	}
	if len(bad) > 0 {
		return fmt.Errorf("partition replica lists may not contain duplicate entries: %s", strings.Join(bad, ". "))
	}
	return nil
}

// assignment is what the file asks for by partition; the last entry of one counts.
func (r *reassignment) assignment() assignment {
	a := assignment{}
	for _, p := range r.partitions {
		a[client.TopicPartition{Topic: p.Topic, Partition: p.Partition}] = p.Replicas
	}
	return a
}

func (a assignment) topics() []string {
	names := map[string]bool{}
	for tp := range a {
		names[tp.Topic] = true
	}
	return sorted(names)
}

func (a assignment) brokers() []int32 {
	ids := map[int32]bool{}
	for _, replicas := range a {
		for _, id := range replicas {
			ids[id] = true
		}
	}
	return sorted(ids)
}

func parseTopicsToMove(text []byte) ([]string, error) {
	var in struct {
		Version *int `json:"version"`
		Topics  []struct {
			Topic *string `json:"topic"`
		} `json:"topics"`
	}
	if err := json.Unmarshal(text, &in); err != nil {
		return nil, err
	}
	if err := checkFileVersion(in.Version); err != nil {
		return nil, err
	}
	var out []string
	for i, t := range in.Topics {
		if t.Topic == nil {
			return nil, fmt.Errorf("entry %d of topics must have topic", i)
		}
		out = append(out, *t.Topic)
	}
	return out, nil
}

// proposeAssignment places the partitions of each topic anew on brokers (ids with racks, all "" without), with as many replicas as its
// first partition has. It is Kafka's rule: partitions go round the brokers from a random one on, so that each leads as many as
// another; further replicas follow at a distance that grows with each round, so that the partitions of one leader don't all
// have the same followers. With racks, the brokers are taken in turn from one rack and the next, and a rack or broker that has
// a replica of the partition is passed over while there are others.
func proposeAssignment(random func(n int) int, current assignment, racks map[int32]string) (assignment, error) {
	out := assignment{}
	for _, topic := range current.topics() {
		var ids []int32
		for tp := range current {
			if tp.Topic == topic {
				ids = append(ids, tp.Partition)
			}
		}
		slices.Sort(ids)
		factor := len(current[client.TopicPartition{Topic: topic, Partition: ids[0]}])
		if factor > len(racks) {
			return nil, fmt.Errorf("topic %s: replication factor: %d larger than available brokers: %d", topic, factor, len(racks))
		}
		p := newPlacer(racks, random)
		for _, id := range ids {
			out[client.TopicPartition{Topic: topic, Partition: id}] = p.place(id, factor)
		}
	}
	return out, nil
}

type placer struct {
	brokers []int32 // racks in turn
	racks   map[int32]string
	nRacks  int
	start   int
	shift   int
}

func newPlacer(racks map[int32]string, random func(n int) int) *placer {
	p := &placer{racks: racks, nRacks: 1}
	byRack := map[string][]int32{}
	for _, id := range slices.Sorted(maps.Keys(racks)) {
		byRack[racks[id]] = append(byRack[racks[id]], id)
	}
	names := sorted(byRack)
	p.nRacks = len(names)
	for i := 0; len(p.brokers) < len(racks); i++ {
		for _, rack := range names {
			if i < len(byRack[rack]) {
				p.brokers = append(p.brokers, byRack[rack][i])
			}
		}
	}
	p.start, p.shift = random(len(p.brokers)), random(len(p.brokers))
	return p
}

func (p *placer) place(partition int32, factor int) []int32 {
	n := len(p.brokers)
	if partition > 0 && int(partition)%n == 0 {
		p.shift++
	}
	first := (int(partition) + p.start) % n
	replicas := []int32{p.brokers[first]}
	if p.nRacks == 1 {
		for j := range factor - 1 {
			replicas = append(replicas, p.brokers[(first+1+(p.shift+j)%(n-1))%n])
		}
		return replicas
	}
	used := map[string]int{p.racks[replicas[0]]: 1}
	for k := 0; len(replicas) < factor; k++ {
		b := p.brokers[(first+p.distance(k))%n]
		rack := p.racks[b]
		// A rack comes again only when all racks have a replica.
		if slices.Contains(replicas, b) || used[rack] > 0 && len(used) < p.nRacks {
			continue
		}
		replicas = append(replicas, b)
		used[rack]++
	}
	return replicas
}

// distance is how far from the first replica the k-th try for another is.
func (p *placer) distance(k int) int {
	n := len(p.brokers)
	return 1 + (p.shift*p.nRacks+k)%(n-1)
}

// move is who copies a partition from whom.
type move struct{ sources, destinations []int32 }

// movesOf are the moves under way and those that are to begin.
func movesOf(running []client.Reassignment, proposed, current assignment) map[client.TopicPartition]move {
	out := map[client.TopicPartition]move{}
	for _, r := range running {
		m := move{destinations: r.Adding}
		for _, id := range r.Replicas {
			if !slices.Contains(r.Adding, id) {
				m.sources = append(m.sources, id)
			}
		}
		out[r.TopicPartition] = m
	}
	for tp, replicas := range proposed {
		m := move{sources: current[tp]}
		if old, ok := out[tp]; ok {
			m.sources = old.sources
		}
		for _, id := range replicas {
			if !slices.Contains(m.sources, id) {
				m.destinations = append(m.destinations, id)
			}
		}
		out[tp] = m
	}
	return out
}

// throttles are the values of leader.replication.throttled.replicas and follower.replication.throttled.replicas by topic, and
// the brokers that take part.
func throttles(moves map[client.TopicPartition]move) (leaders, followers map[string]string, brokers []int32) {
	l, f, ids := map[string][]string{}, map[string][]string{}, map[int32]bool{}
	for tp, m := range moves {
		l[tp.Topic], f[tp.Topic] = append([]string{}, l[tp.Topic]...), append([]string{}, f[tp.Topic]...)
		for _, id := range m.sources {
			l[tp.Topic] = append(l[tp.Topic], fmt.Sprintf("%d:%d", tp.Partition, id))
			ids[id] = true
		}
		for _, id := range m.destinations {
			f[tp.Topic] = append(f[tp.Topic], fmt.Sprintf("%d:%d", tp.Partition, id))
			ids[id] = true
		}
	}
	lists := func(in map[string][]string) map[string]string {
		out := map[string]string{}
		for topic, parts := range in {
			slices.Sort(parts)
			out[topic] = strings.Join(parts, ",")
		}
		return out
	}
	return lists(l), lists(f), sorted(ids)
}
