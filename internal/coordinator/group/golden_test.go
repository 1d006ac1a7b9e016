package group

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/clock"
	"gregor/internal/coordinator/memlog"
	"gregor/internal/record"
)

// goldenDirs are data directories that Kafka 4.4.0 has written, and the log directory in them that has the offsets topic.
var goldenDirs = []string{"single-clean", "single-kill9", "single-deleting", "quorum3-clean", "static-jbod"}

// goldenSegments are the segments of __consumer_offsets in a golden archive, by partition, of the first node that has it.
func goldenSegments(t *testing.T, name string) map[int32][]byte {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "..", "..", "testdata", "golden", name+".tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zr, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	var names []string
	for tr := tar.NewReader(zr); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(h.Name, "/"+Topic+"-") && path.Ext(h.Name) == ".log" {
			b, err := io.ReadAll(tr)
			if err != nil {
				t.Fatal(err)
			}
			files[h.Name] = b
			names = append(names, h.Name)
		}
	}
	slices.Sort(names)
	segments := map[int32][]byte{}
	owner := map[int32]string{}
	for _, n := range names {
		dir := path.Dir(n)
		p, err := strconv.Atoi(dir[strings.LastIndexByte(dir, '-')+1:])
		if err != nil {
			t.Fatal(err)
		}
		if o := owner[int32(p)]; o == "" || o == dir {
			owner[int32(p)] = dir
			segments[int32(p)] = append(segments[int32(p)], files[n]...)
		}
	}
	return segments
}

// goldenGroups is what Kafka's clients saw on a golden directory.
type goldenGroup struct {
	Type, Protocol, State string
	Members               int
	Offsets               map[string]struct {
		Offset      int64
		Metadata    string
		LeaderEpoch int32
	}
}

func goldenExpectation(t *testing.T, name string) map[string]goldenGroup {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "..", "testdata", "golden", name+".expect.json"))
	if err != nil {
		t.Fatal(err)
	}
	var e struct {
		AfterKafkaStartedOnIt struct{ Groups map[string]goldenGroup }
	}
	if err := json.Unmarshal(b, &e); err != nil {
		t.Fatal(err)
	}
	return e.AfterKafkaStartedOnIt.Groups
}

// What Kafka wrote is read as Kafka reads it.
func TestGoldenGroups(t *testing.T) {
	for _, name := range goldenDirs {
		t.Run(name, func(t *testing.T) {
			segments := goldenSegments(t, name)
			if len(segments) == 0 {
				t.Fatal("no offsets topic in there")
			}
			want := goldenExpectation(t, name)
			synctest.Test(t, func(t *testing.T) {
				log := &memlog.Log{}
				c := New(Options{Log: log, Clock: clock.System, Rand: newRand(1), Config: DefaultConfig(), Linger: -1})
				defer c.Close()
				log.Committed = c.HighWatermarkUpdated
				var last int32
				for p, b := range segments {
					if err := log.Load(p, b); err != nil {
						t.Fatal(err)
					}
					c.Elected(p, 100)
					last = max(last, p)
				}
				c.Start(last + 1)
				synctest.Wait()

				got := map[string]goldenGroup{}
				c.ListGroups(&Context{Version: 5}, kmsg.NewPtrListGroupsRequest(), func(r *kmsg.ListGroupsResponse) {
					if r.ErrorCode != 0 {
						t.Errorf("list: error %d", r.ErrorCode)
					}
					for _, g := range r.Groups {
						got[g.Group] = goldenGroup{Type: g.GroupType, Protocol: g.ProtocolType, State: g.GroupState}
					}
				})
				if len(got) != len(want) {
					t.Errorf("groups %v, want %v", got, want)
				}
				for id, w := range want {
					g := got[id]
					if !strings.EqualFold(g.Type, w.Type) || g.State != w.State || g.Protocol != w.Protocol {
						t.Errorf("group %s is %v, want %v", id, g, w)
					}
					var offsets []string
					r := kmsg.NewOffsetFetchRequestGroup()
					r.Group = id
					c.OffsetFetch(&Context{Version: 9}, &r, true, false, func(r kmsg.OffsetFetchResponseGroup) {
						for _, tp := range r.Topics {
							for _, p := range tp.Partitions {
								offsets = append(offsets, fmt.Sprintf("%s-%d: %d %q %d", tp.Topic, p.Partition, p.Offset, *p.Metadata, p.LeaderEpoch))
							}
						}
					})
					var wantOffsets []string
					for tp, o := range w.Offsets {
						wantOffsets = append(wantOffsets, fmt.Sprintf("%s: %d %q %d", tp, o.Offset, o.Metadata, o.LeaderEpoch))
					}
					slices.Sort(offsets)
					slices.Sort(wantOffsets)
					if !slices.Equal(offsets, wantOffsets) {
						t.Errorf("offsets of %s are %q, want %q", id, offsets, wantOffsets)
					}
					if w.Type == Consumer.String() {
						c.ConsumerGroupDescribe(&Context{}, []string{id}, func(ds []kmsg.ConsumerGroupDescribeResponseGroup) {
							if d := ds[0]; d.State != w.State || len(d.Members) != w.Members || d.Epoch < firstEpoch || d.AssignmentEpoch > d.Epoch {
								t.Errorf("group %s is described as %+v, want %+v", id, d, w)
							}
						})
					}
					if w.Type != Classic.String() {
						continue
					}
					c.DescribeGroups(&Context{Version: 5}, []string{id}, func(ds []kmsg.DescribeGroupsResponseGroup) {
						if d := ds[0]; d.State != w.State || len(d.Members) != w.Members || d.ProtocolType != w.Protocol {
							t.Errorf("group %s is described as %+v, want %+v", id, d, w)
						}
					})
				}
			})
		})
	}
}

// Every record that Kafka wrote is written back with the same bytes.
func TestGoldenRecordsRoundTrip(t *testing.T) {
	d := record.NewDecompressor(record.DecompressorOptions{})
	kinds := map[int16]int{}
	for _, name := range goldenDirs {
		for p, segment := range goldenSegments(t, name) {
			for len(segment) > 0 {
				b, rest, err := record.Next(segment)
				if err != nil {
					t.Fatal(err)
				}
				segment = rest
				if b.IsControl() {
					continue
				}
				it := b.Records(d)
				for it.Next() {
					r := it.Record()
					decoded, ok, err := Codec{}.Decode(r.Key, r.Value)
					if err != nil || !ok {
						t.Fatalf("%s %d offset %d: %v, known %v", name, p, r.Offset, err, ok)
					}
					kinds[decoded.Key.APIKey()]++
					key, err := Codec{}.AppendKey(nil, decoded)
					if err != nil || !bytes.Equal(key, r.Key) {
						t.Fatalf("%s %d offset %d: key %x, %v, want %x", name, p, r.Offset, key, err, r.Key)
					}
					value, tombstone, err := Codec{}.AppendValue(nil, decoded)
					if err != nil || tombstone != (r.Value == nil) || !bytes.Equal(value, r.Value) {
						t.Fatalf("%s %d offset %d: value %x, %v, want %x", name, p, r.Offset, value, err, r.Value)
					}
					switch v := decoded.Version; decoded.Key.APIKey() {
					case 1:
						if decoded.Value != nil && v != offsetCommitVersion {
							t.Errorf("Kafka writes offsets in version %d", v)
						}
					case 2:
						if decoded.Value != nil && v != groupMetadataVersion {
							t.Errorf("Kafka writes groups in version %d", v)
						}
					}
				}
				if err := it.Err(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if len(kinds) < 8 {
		t.Errorf("only record types %v were met", kinds)
	}
}
