package broker

import (
	"cmp"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/log"
	"gregor/internal/network"
	"gregor/internal/uuid"
)

// unknownSize is what stands for a size that is not known.
const unknownSize int64 = -1

func (b *Broker) describeLogDirs(_ *network.Request, q *kmsg.DescribeLogDirsRequest) kmsg.Response {
	resp := q.ResponseKind().(*kmsg.DescribeLogDirsResponse)
	wanted := func(log.TopicPartition) bool { return true }
	if q.Topics != nil {
		set := make(map[log.TopicPartition]bool)
		for _, t := range q.Topics {
			for _, p := range t.Partitions {
				set[log.TopicPartition{Topic: t.Topic, Partition: p}] = true
			}
		}
		wanted = func(tp log.TopicPartition) bool { return set[tp] }
	}
	byDir := make(map[uuid.UUID][]*log.Log)
	for l := range b.replicas.Logs().Logs() {
		if wanted(l.TopicPartition()) {
			byDir[l.DirID()] = append(byDir[l.DirID()], l)
		}
	}
	cordoned := b.config.Current().CordonedLogDirs
	for _, d := range b.replicas.Logs().Dirs() {
		out := kmsg.DescribeLogDirsResponseDir{Dir: d.Path, TotalBytes: d.Total, UsableBytes: d.Usable,
			IsCordoned: slices.Contains(cordoned, d.Path)}
		if d.Offline != nil {
			out.ErrorCode = api.ErrKafkaStorageError.Code
			out.TotalBytes, out.UsableBytes = unknownSize, unknownSize
		} else {
			out.Topics = logsOf(byDir[d.ID])
		}
		resp.Dirs = append(resp.Dirs, out)
	}
	return resp
}

func logsOf(logs []*log.Log) []kmsg.DescribeLogDirsResponseDirTopic {
	slices.SortFunc(logs, func(a, b *log.Log) int {
		x, y := a.TopicPartition(), b.TopicPartition()
		return cmp.Or(cmp.Compare(x.Topic, y.Topic), cmp.Compare(x.Partition, y.Partition))
	})
	var out []kmsg.DescribeLogDirsResponseDirTopic
	for _, l := range logs {
		tp := l.TopicPartition()
		if len(out) == 0 || out[len(out)-1].Topic != tp.Topic {
			out = append(out, kmsg.DescribeLogDirsResponseDirTopic{Topic: tp.Topic})
		}
		t := &out[len(out)-1]
		t.Partitions = append(t.Partitions, kmsg.DescribeLogDirsResponseDirTopicPartition{Partition: tp.Partition, Size: l.Size(),
			OffsetLag: max(l.HighWatermark()-l.EndOffset(), 0)})
	}
	return out
}
