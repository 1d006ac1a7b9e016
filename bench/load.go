package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"time"

	"gregor/internal/record"
)

// The workloads of one warm node, in their order.
var (
	plainLoads = []struct {
		name string
		load produceLoad
	}{
		{"produce-64k", produceLoad{bytes: 1 << 30, batch: 64 << 10, perRequest: 12}},
		{"produce-16k", produceLoad{bytes: 1 << 30, batch: 16 << 10, perRequest: 12}},
		{"produce-1m", produceLoad{bytes: 1 << 30, batch: 1_000_000, perRequest: 1}}, // the largest batch that is accepted by default
	}
	packedLoads = []struct {
		name string
		load produceLoad
	}{
		{"produce-lz4", produceLoad{bytes: 1 << 30, batch: 256 << 10, perRequest: 4, codec: record.LZ4}},
		{"produce-zstd", produceLoad{bytes: 1 << 30, batch: 256 << 10, perRequest: 4, codec: record.Zstd}},
	}
	fetchLoads = []clientLoad{{"fetch-1", 1}, {"fetch-4", 4}}
	tinyLoads  = []clientLoad{{"tiny-1", 1}, {"tiny-16", 16}}
)

// clientLoad is a workload that differs from another in the number of its clients.
type clientLoad struct {
	name    string
	clients int
}

// load runs everything that one node does under load, on a server that has been warmed up.
func (b *bench) load(k kind) error {
	names := []string{"tiny-1", "tiny-16", "e2e", "fetch-1", "fetch-4"}
	for _, l := range plainLoads {
		names = append(names, l.name)
	}
	for _, l := range packedLoads {
		names = append(names, l.name, l.name+"-header")
	}
	if !b.wants(names...) {
		return nil
	}
	s, err := b.create(k)
	if err != nil {
		return err
	}
	if err := s.start(); err != nil {
		return err
	}
	if b.admin, err = s.firstAnswer(startLimit); err != nil {
		return err
	}
	defer b.admin.close()
	if err := b.warmUp(s); err != nil {
		return fmt.Errorf("warm up: %w", err)
	}
	for _, l := range plainLoads {
		if !b.wants(l.name) && !(l.name == "produce-1m" && b.wants("fetch-1", "fetch-4")) {
			continue
		}
		l.load.bytes = b.scaled(l.load.bytes)
		t, sum, err := b.produceWorkload(s, l.name, l.load)
		if err != nil {
			return err
		}
		if l.name == "produce-1m" {
			for _, l := range fetchLoads {
				if b.wants(l.name) {
					if err := b.fetchWorkload(s, l.name, t, sum, l.clients); err != nil {
						return err
					}
				}
			}
		}
	}
	for _, validation := range []string{"strict", "header"} {
		suffix := ""
		if validation == "header" {
			if k.name != "gregor" {
				break
			}
			suffix = "-header"
			if err := b.admin.setBrokerConfig("gregor.produce.validation", validation); err != nil {
				return err
			}
		}
		for _, l := range packedLoads {
			if b.wants(l.name + suffix) {
				l.load.bytes = b.scaled(l.load.bytes)
				if _, _, err := b.produceWorkload(s, l.name+suffix, l.load); err != nil {
					return err
				}
			}
		}
	}
	for _, l := range tinyLoads {
		if b.wants(l.name) {
			if err := b.tinyWorkload(s, l.name, l.clients, b.tinyTime); err != nil {
				return err
			}
		}
	}
	if b.wants("e2e") {
		if err := b.e2eWorkload(s, "e2e", b.e2eWarm, b.e2eTime); err != nil {
			return err
		}
	}
	peak, err := memory(s.pid(), "VmHWM")
	if err != nil {
		return err
	}
	b.note(s, "loads", "peak_rss", float64(peak)/(1<<20), "MiB")
	return s.discard()
}

// warmUp runs every kind of workload for a while, so that a virtual machine has compiled its code and buffers have grown to
// their size. What it measures is thrown away.
func (b *bench) warmUp(s *server) error {
	notes, only, profiles := b.figures, b.only, b.profiles
	b.silent, b.profiles, b.only = true, "", regexp.MustCompile("")
	defer func() { b.silent, b.figures, b.only, b.profiles = false, notes, only, profiles }()
	rounds := b.warmRounds
	if s.kind.name == "gregor" {
		rounds = min(1, rounds) // it is compiled; only buffers have to grow
	}
	for range rounds {
		t, sum, err := b.produceWorkload(s, "warm", produceLoad{bytes: b.scaled(1 << 29), batch: 64 << 10, perRequest: 12})
		if err != nil {
			return err
		}
		if err := b.fetchWorkload(s, "warm", t, sum, 1); err != nil {
			return err
		}
		for _, l := range packedLoads {
			l.load.bytes = b.scaled(1 << 28)
			if _, _, err := b.produceWorkload(s, "warm", l.load); err != nil {
				return err
			}
		}
		if err := b.tinyWorkload(s, "warm", 8, b.tinyTime*4/5); err != nil {
			return err
		}
	}
	if b.warmRounds == 0 {
		return nil
	}
	return b.e2eWorkload(s, "warm", 100*time.Millisecond, b.e2eWarm)
}

// freshTopic deletes the topic of the workload before, waits until its files are gone, and makes a new one. Who unlinks gigabytes
// in the page cache pays for every page of them, and that must not be charged to what is measured next.
func (b *bench) freshTopic(s *server, partitions int) (topic, error) {
	if b.last != nil && b.lastOf == s {
		if err := b.admin.deleteTopic(*b.last); err != nil {
			return topic{}, err
		}
		for end := time.Now().Add(deleteLimit); ; time.Sleep(20 * time.Millisecond) {
			left, err := filepath.Glob(filepath.Join(s.dir, "data", b.last.name+"-*"))
			if err != nil {
				return topic{}, err
			}
			if len(left) == 0 {
				break
			}
			if time.Now().After(end) {
				return topic{}, fmt.Errorf("topic %s is deleted and yet there is %s", b.last.name, left[0])
			}
		}
	}
	b.topics++
	t, err := b.admin.newTopic(fmt.Sprintf("load-%d", b.topics), partitions)
	b.last, b.lastOf = &t, s
	return t, err
}

// deleteLimit is how long a deleted topic's files may stay. It is a second by the configuration, but Kafka deletes nothing in the
// first 30 s of its life.
const deleteLimit = time.Minute
