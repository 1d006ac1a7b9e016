package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/client"
	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/raft"
	"gregor/internal/record"
	"gregor/internal/uuid"
	"gregor/internal/vfs"
)

// imageLoader makes an image of batches and snapshots of the metadata log. Records that don't fit are left out.
type imageLoader struct {
	l      *metadata.Loader
	d      *record.Decompressor
	faults []error
	next   int64 // the offset after the last one loaded
	epoch  int32
	// dataOnly takes no notice of control batches in the image's provenance, as Kafka's shell does for single files.
	dataOnly bool
}

func newImageLoader() *imageLoader {
	x := &imageLoader{d: record.NewDecompressor(record.DecompressorOptions{MaxBytes: 4 * raft.MaxBatchBytes})}
	x.l = metadata.NewLoader(metadata.LoaderOptions{
		Logger: slog.New(slog.DiscardHandler),
		// All that is read counts.
		HighWatermark: func() int64 { return 0 },
		OnFault:       func(err error) { x.faults = append(x.faults, err) },
	})
	return x
}

// image is what was loaded. What didn't fit is told: a segment from the middle of a log begins with changes of what isn't there.
func (x *imageLoader) image(warn io.Writer) *metadata.Image {
	if n := len(x.faults); n > 0 {
		fmt.Fprintf(warn, "gregor: %s without effect, since what they change is not there; the first: %v\n", count(n, "record"), x.faults[0])
	}
	return x.l.Image()
}

// batch loads one batch.
func (x *imageLoader) batch(b record.Batch) error {
	if err := b.Check(); err != nil {
		return fmt.Errorf("batch at offset %d: %w", b.BaseOffset(), err)
	}
	in := metadata.Batch{
		BaseOffset: b.BaseOffset(), LastOffset: b.LastOffset(), Epoch: b.PartitionLeaderEpoch(), AppendTime: b.MaxTimestamp(), Bytes: b.Size(),
	}
	x.next, x.epoch = b.NextOffset(), b.PartitionLeaderEpoch()
	if b.IsControl() && x.dataOnly {
		return nil
	}
	if !b.IsControl() {
		it := b.Records(x.d)
		defer it.Close()
		for it.Next() {
			r := it.Record()
			v, err := message.ReadMetadataRecord(r.Value)
			if err != nil {
				return fmt.Errorf("record at offset %d: %w", r.Offset, err)
			}
			in.Records = append(in.Records, v)
		}
		if err := it.Err(); err != nil {
			return fmt.Errorf("batch at offset %d: %w", b.BaseOffset(), err)
		}
	}
	x.l.HandleCommit(in)
	return nil
}

// file loads the batches of a segment or of a snapshot from an offset on. What is behind the last whole batch was cut off by a
// crash, or is being written.
func (x *imageLoader) file(fsys vfs.FS, name string, from int64) error {
	s, err := openSegment(fsys, name, 0, math.MaxInt32)
	if err != nil {
		return err
	}
	defer s.close()
	for {
		e, err := s.next()
		if err != nil {
			return err
		}
		if e == nil {
			return nil
		}
		if e.Magic() < 2 {
			return fmt.Errorf("%s: a batch of format %d in the metadata", name, e.Magic())
		}
		b := e.Batch()
		if b.BaseOffset() < from {
			continue
		}
		if err := x.batch(b); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
}

const metadataDir = "__cluster_metadata-0"

// directory loads the newest snapshot of a metadata directory and the log behind it.
func (x *imageLoader) directory(fsys vfs.FS, dir string) error {
	if _, err := fsys.Stat(filepath.Join(dir, metadataDir)); err == nil {
		dir = filepath.Join(dir, metadataDir)
	}
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return err
	}
	var snapshots, segments []string
	for _, f := range entries {
		switch filepath.Ext(f.Name()) {
		case ".checkpoint":
			snapshots = append(snapshots, f.Name())
		case ".log":
			segments = append(segments, f.Name())
		}
	}
	if len(snapshots)+len(segments) == 0 {
		return fmt.Errorf("%s: no snapshot and no log of the metadata here: %w", dir, fs.ErrNotExist)
	}
	slices.Sort(snapshots)
	slices.Sort(segments)
	// A log that begins with the first record has what the snapshot of the formatting has, and more.
	first := int64(-1)
	if len(segments) > 0 {
		if first, err = baseOffset(segments[0]); err != nil {
			return err
		}
	}
	if len(snapshots) > 0 {
		r, err := raft.OpenSnapshotFile(fsys, filepath.Join(dir, snapshots[len(snapshots)-1]))
		if err != nil {
			return err
		}
		defer r.Close()
		if r.ID().Offset > 0 || first != 0 {
			if err := x.snapshot(r); err != nil {
				return err
			}
		}
	}
	if first > x.next {
		return fmt.Errorf("%s: the log begins at offset %d, and there is no snapshot up to there", dir, first)
	}
	for i, name := range segments {
		if i+1 < len(segments) {
			if end, err := baseOffset(segments[i+1]); err == nil && end <= x.next {
				continue
			}
		}
		if err := x.file(fsys, filepath.Join(dir, name), x.next); err != nil {
			return err
		}
	}
	return nil
}

func (x *imageLoader) snapshot(r *raft.SnapshotReader) error {
	id := r.ID()
	x.next, x.epoch = id.Offset, id.Epoch
	return x.l.HandleSnapshot(id.Offset, id.Epoch, r.LastContainedLogTime(), r)
}

// loadFromCluster reads the metadata log of the quorum's leader as a consumer would, up to the high watermark.
func loadFromCluster(ctx context.Context, e *Env, c *connection, x *imageLoader) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("no success within %v", c.timeout))
	defer cancel()
	return c.do(ctx, e, func(ctx context.Context, cl *client.Client) error {
		q, err := cl.DescribeQuorum(ctx)
		if err != nil {
			return err
		}
		if c.controllers == "" {
			// Brokers don't pass on fetches of the metadata log.
			ends := q.Endpoints[q.LeaderID]
			if len(ends) == 0 {
				return fmt.Errorf("the address of the active controller, node %d, isn't known to the broker: name controllers with --bootstrap-controller", q.LeaderID)
			}
			direct := *c
			direct.controllers = fmt.Sprintf("%s:%d", bracketed(ends[0].Host), ends[0].Port)
			direct.byBroker = func() bool { return false }
			return direct.do(ctx, e, func(ctx context.Context, cl *client.Client) error { return x.fetch(ctx, cl, q) })
		}
		return x.fetch(ctx, cl, q)
	})
}

func bracketed(host string) string {
	if strings.Contains(host, ":") {
		return "[" + host + "]"
	}
	return host
}

const (
	consumerReplica = -1 // who fetches without being a replica
	fetchBytes      = 8 << 20
)

// fetch reads the log from the leader.
func (x *imageLoader) fetch(ctx context.Context, cl *client.Client, q *client.Quorum) error {
	end := q.HighWatermark
	for x.next < end {
		req := kmsg.NewPtrFetchRequest()
		req.ReplicaID, req.MaxWaitMillis, req.MinBytes, req.MaxBytes = consumerReplica, 500, 0, fetchBytes
		rt := kmsg.NewFetchRequestTopic()
		rt.Topic, rt.TopicID = raft.TopicName, uuid.MetadataTopic
		rp := kmsg.NewFetchRequestTopicPartition()
		rp.CurrentLeaderEpoch, rp.FetchOffset, rp.LastFetchedEpoch, rp.PartitionMaxBytes = q.LeaderEpoch, x.next, x.epoch, fetchBytes
		rt.Partitions = append(rt.Partitions, rp)
		req.Topics = append(req.Topics, rt)
		resp, err := rawTo[*kmsg.FetchResponse](ctx, cl, q.LeaderID, req)
		if err != nil {
			return err
		}
		if err := client.ErrorOf(resp.ErrorCode); err != nil {
			return fmt.Errorf("fetch metadata at offset %d: %w", x.next, err)
		}
		if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
			return fmt.Errorf("fetch metadata at offset %d: an answer about %d topics", x.next, len(resp.Topics))
		}
		p := &resp.Topics[0].Partitions[0]
		if err := client.ErrorOf(p.ErrorCode); err != nil {
			return fmt.Errorf("fetch metadata at offset %d: %w", x.next, err)
		}
		switch {
		case p.SnapshotID.EndOffset >= 0:
			if err := x.fetchSnapshot(ctx, cl, q, p.SnapshotID.EndOffset, p.SnapshotID.Epoch); err != nil {
				return err
			}
		case p.DivergingEpoch.EndOffset >= 0:
			return errors.New("the quorum got a new leader meanwhile: try again")
		default:
			before := x.next
			if err := x.batches(p.RecordBatches, end); err != nil {
				return err
			}
			if x.next == before && ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
	}
	return nil
}

// batches loads those of a fetch that are committed.
func (x *imageLoader) batches(data []byte, end int64) error {
	for len(data) > 0 {
		b, rest, err := record.Next(data)
		if errors.Is(err, record.ErrTruncated) {
			return nil // the rest of it comes with the next fetch
		}
		if err != nil {
			return fmt.Errorf("metadata at offset %d: %w", x.next, err)
		}
		if b.NextOffset() > end {
			return nil
		}
		if b.BaseOffset() >= x.next {
			if err := x.batch(b); err != nil {
				return err
			}
		}
		data = rest
	}
	return nil
}

// fetchSnapshot loads a snapshot, which has what the leader's log doesn't have any more. It is kept in a file meanwhile.
func (x *imageLoader) fetchSnapshot(ctx context.Context, cl *client.Client, q *client.Quorum, endOffset int64, epoch int32) (err error) {
	dir, err := os.MkdirTemp("", "gregor-metadata-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	name := filepath.Join(dir, fmt.Sprintf("%020d-%010d.checkpoint", endOffset, epoch))
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = copySnapshot(ctx, cl, q, endOffset, epoch, f)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("fetch snapshot %d-%d: %w", endOffset, epoch, err)
	}
	r, err := raft.OpenSnapshotFile(vfs.OS, name)
	if err != nil {
		return err
	}
	defer r.Close()
	return x.snapshot(r)
}

func copySnapshot(ctx context.Context, cl *client.Client, q *client.Quorum, endOffset int64, epoch int32, w io.Writer) error {
	for position := int64(0); ; {
		req := kmsg.NewPtrFetchSnapshotRequest()
		req.ReplicaID, req.MaxBytes = consumerReplica, fetchBytes
		rp := kmsg.NewFetchSnapshotRequestTopicPartition()
		rp.CurrentLeaderEpoch, rp.Position = q.LeaderEpoch, position
		rp.SnapshotID.EndOffset, rp.SnapshotID.Epoch = endOffset, epoch
		req.Topics = []kmsg.FetchSnapshotRequestTopic{{Topic: raft.TopicName, Partitions: []kmsg.FetchSnapshotRequestTopicPartition{rp}}}
		resp, err := rawTo[*kmsg.FetchSnapshotResponse](ctx, cl, q.LeaderID, req)
		if err != nil {
			return err
		}
		if err := client.ErrorOf(resp.ErrorCode); err != nil {
			return err
		}
		if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
			return fmt.Errorf("an answer about %d topics", len(resp.Topics))
		}
		p := &resp.Topics[0].Partitions[0]
		if err := client.ErrorOf(p.ErrorCode); err != nil {
			return err
		}
		if _, err := w.Write(p.Bytes); err != nil {
			return err
		}
		if position += int64(len(p.Bytes)); position >= p.Size {
			return nil
		}
		if len(p.Bytes) == 0 {
			return fmt.Errorf("nothing at byte %d of %d", position, p.Size)
		}
	}
}

// rawTo sends a request to one node.
func rawTo[R kmsg.Response](ctx context.Context, cl *client.Client, node int32, req kmsg.Request) (R, error) {
	var none R
	resp, err := cl.Raw(ctx, &node, req)
	if err != nil {
		return none, fmt.Errorf("node %d: %w", node, err)
	}
	r, ok := resp.(R)
	if !ok {
		return none, fmt.Errorf("node %d: an answer of another kind, %T", node, resp)
	}
	return r, nil
}
