package raft

import (
	"bytes"
	"io"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/record"
	"gregor/internal/uuid"
	"gregor/internal/vfs"
)

func FuzzQuorumState(f *testing.F) {
	for _, s := range []string{
		`{"leaderId":1,"leaderEpoch":1,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}`,
		`{"clusterId":"","leaderId":-1,"leaderEpoch":6,"votedId":2,"appliedOffset":0,"currentVoters":[{"voterId":1}],"data_version":0}`,
		`{}`, `[`, "",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := parseQuorumState(data)
		if err != nil {
			return
		}
		again, err := parseQuorumState(appendQuorumState(nil, e, 1, nil))
		if err != nil || again != e {
			t.Errorf("%v written and read again is %v, %v", e, again, err)
		}
	})
}

// Whatever a snapshot file holds, reading it ends, and allocates no more than the file's size allows.
func FuzzSnapshot(f *testing.F) {
	fs := vfs.NewMem()
	voter := Voter{ReplicaKey: ReplicaKey{1, uuid.UUID{1}}, Endpoints: []Endpoint{{"C", "h", 1}}, KRaftVersions: KRaftVersions}
	if err := WriteBootstrapSnapshot(BootstrapOptions{FS: fs, Dir: "/d", KRaftVersion: 1, Voters: []Voter{voter}, Records: noRecords(5), Now: time.Unix(1, 0)}); err != nil {
		f.Fatal(err)
	}
	file, err := fs.Open("/d/" + DirName + "/" + snapshotName(bootstrapID))
	if err != nil {
		f.Fatal(err)
	}
	size, _ := file.Size()
	good := make([]byte, size)
	if _, err := file.ReadAt(good, 0); err != nil && err != io.EOF {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)-5])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		// The CRC guards all this; let damage past it.
		for rest := data; len(rest) >= record.HeaderSize; {
			b, after, err := record.Next(rest)
			if err != nil || b == nil {
				break
			}
			crc := b.ComputeCRC()
			b[17], b[18], b[19], b[20] = byte(crc>>24), byte(crc>>16), byte(crc>>8), byte(crc)
			rest = after
		}
		fs := vfs.NewMem()
		out, err := fs.Create("/" + snapshotName(OffsetAndEpoch{7, 1}))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := out.WriteAt(data, 0); err != nil {
			t.Fatal(err)
		}
		r, err := OpenSnapshotFile(fs, "/"+snapshotName(OffsetAndEpoch{7, 1}))
		if err != nil {
			return
		}
		defer r.Close()
		for {
			if _, err := r.Next(); err != nil {
				return
			}
		}
	})
}

// Whatever another node sends, the core answers it once or parks it, and lives on.
func FuzzRequests(f *testing.F) {
	keys := []int16{1, 52, 53, 54, 55, 59, 80, 81, 82}
	for i, key := range keys {
		r := kmsg.RequestForKey(key)
		r.SetVersion(r.MaxVersion())
		f.Add(uint8(i), uint8(r.MaxVersion()), r.AppendTo(nil))
	}
	f.Fuzz(func(t *testing.T, which, version uint8, body []byte) {
		r := kmsg.RequestForKey(keys[int(which)%len(keys)])
		r.SetVersion(int16(version) % (r.MaxVersion() + 1))
		if r.Key() == 1 && r.GetVersion() < 4 {
			return
		}
		if err := r.ReadFrom(bytes.Clone(body)); err != nil {
			return
		}
		for _, role := range []Role{Leader, Follower, Unattached} {
			c := fuzzCore(role)
			answers := 0
			for _, e := range c.Step(time.Unix(2, 0), Requested{ID: 1, Listener: "CONTROLLER", Request: r}) {
				switch e := e.(type) {
				case Reply:
					answers++
					e.Response.AppendTo(nil)
				case ReplyRecords, ReplySnapshot:
					answers++
				}
			}
			parked := c.lead != nil && (len(c.lead.parked) > 0 || c.lead.add != nil || c.lead.remove != nil || c.lead.update != nil)
			if answers > 1 || answers == 0 && !parked {
				t.Fatalf("%v: %d answers to %#v", role, answers, r)
			}
		}
	})
}

// Whatever a leader answers, a follower takes only what fits and lives on.
func FuzzFetchedBatches(f *testing.F) {
	b, err := dataBatch(record.NewBuilder(record.BuilderOptions{}.NoProducer()), 10, 5, 0, noRecords(3))
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(b))
	c, err := controlBatch(10, 5, 0, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(c))
	f.Fuzz(func(t *testing.T, data []byte) {
		for rest := data; len(rest) >= record.HeaderSize; {
			b, after, err := record.Next(rest)
			if err != nil || b == nil {
				break
			}
			crc := b.ComputeCRC()
			b[17], b[18], b[19], b[20] = byte(crc>>24), byte(crc>>16), byte(crc>>8), byte(crc)
			rest = after
		}
		c := fuzzCore(Follower)
		resp := kmsg.NewPtrFetchResponse()
		p := kmsg.NewFetchResponseTopicPartition()
		p.CurrentLeader.LeaderID, p.CurrentLeader.LeaderEpoch = 2, 5
		p.RecordBatches = data
		resp.Topics = []kmsg.FetchResponseTopic{{TopicID: uuid.MetadataTopic, Partitions: []kmsg.FetchResponseTopicPartition{p}}}
		for _, e := range c.Step(time.Unix(2, 0), Responded{Correlation: c.correlation, Response: resp}) {
			if a, ok := e.(AppendFetched); ok {
				c.Step(time.Unix(2, 0), Stored{})
				if c.view.end <= 10 || len(a.Batches) == 0 {
					t.Fatalf("appended %d bytes, log end %d", len(a.Batches), c.view.end)
				}
				return
			}
		}
	})
}

// fuzzCore is node 1 of voters 1, 2, 3 with ten records of epoch 4, in epoch 5.
func fuzzCore(role Role) *Core {
	var voters VoterSet
	for id := int32(1); id <= 3; id++ {
		voters = append(voters, Voter{ReplicaKey: ReplicaKey{id, traceDir(id)}, Endpoints: traceEndpoints(id), KRaftVersions: KRaftVersions})
	}
	c := NewCore(CoreConfig{
		NodeID: 1, ReplicaKey: ReplicaKey{1, traceDir(1)}, ClusterID: "c", CanVote: true, Listener: "CONTROLLER", Endpoints: traceEndpoints(1),
		KRaftVersions: KRaftVersions, ElectionTimeout: time.Second, ElectionBackoffMax: time.Second, FetchTimeout: 2 * time.Second,
		RequestTimeout: 2 * time.Second, RetryBackoff: 20 * time.Millisecond, FetchMaxWait: 500 * time.Millisecond,
		FetchMaxBytes: MaxBatchBytes, FetchSnapshotMaxBytes: 1 << 20,
	}, rand.New(rand.NewPCG(1, 2)), slog.New(slog.DiscardHandler))
	now := time.Unix(1, 0)
	e := &ElectionState{Epoch: 5, LeaderID: 2, Voted: NoVote}
	if role != Follower {
		e = &ElectionState{Epoch: 4, LeaderID: NoLeader, Voted: NoVote}
	}
	sum := LogSummary{End: 10, Epochs: []EpochStart{{4, 0}}, Snapshots: []OffsetAndEpoch{{5, 4}}, Voters: []VotersAt{{4, voters}}, Versions: []VersionAt{{4, 1}}}
	c.Step(now, Started{Log: sum, Election: e})
	if role == Leader {
		now = now.Add(1990 * time.Millisecond)
		c.Step(now, Ticked{})
		for c.role != Leader {
			resp := kmsg.NewPtrVoteResponse()
			resp.Topics = []kmsg.VoteResponseTopic{{Topic: TopicName, Partitions: []kmsg.VoteResponseTopicPartition{{LeaderID: -1, LeaderEpoch: c.epoch, VoteGranted: true}}}}
			c.Step(now, Responded{Correlation: c.peers[2].inflight, Response: resp})
		}
		c.Step(now, Written{Batches: []WrittenBatch{{Base: 10, Last: 10, Epoch: 5}}})
		c.Step(now, Synced{11})
	}
	return c
}
