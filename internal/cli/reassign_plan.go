package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"gregor/client"
	"gregor/internal/api"
	"gregor/internal/controller"
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

// assignmentJSON is the file that says so, in one line, with the directories that are known.
func assignmentJSON(a assignment, dirs map[client.Replica]string) string {
	out := struct {
		Version    int                 `json:"version"`
		Partitions []assignedPartition `json:"partitions"`
	}{1, []assignedPartition{}}
	for _, tp := range sortedPartitions(a) {
		p := assignedPartition{tp.Topic, tp.Partition, a[tp], []string{}}
		if p.Replicas == nil {
			p.Replicas = []int32{}
		}
		for _, id := range p.Replicas {
			p.LogDirs = append(p.LogDirs, cmp.Or(dirs[client.Replica{TopicPartition: tp, Broker: id}], anyDir))
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

// proposeAssignment places the partitions of each topic anew on brokers, given with their racks, as the controller would if they
// were new. Each partition gets as many replicas as the topic's first one has.
func proposeAssignment(rnd *rand.Rand, current assignment, racks map[int32]string) (assignment, error) {
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
		placed, err := controller.PlaceReplicas(rnd, racks, len(ids), factor)
		if err != nil {
			return nil, fmt.Errorf("topic %s: %s", topic, api.MessageOf(err))
		}
		for i, id := range ids {
			out[client.TopicPartition{Topic: topic, Partition: id}] = placed[i]
		}
	}
	return out, nil
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
