package broker

import (
	"cmp"
	"log/slog"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/log"
	"gregor/internal/network"
	"gregor/internal/security"
	"gregor/internal/uuid"
)

// unknownSize is what stands for a size that is not known.
const unknownSize int64 = -1

func (b *Broker) describeLogDirs(r *network.Request, q *kmsg.DescribeLogDirsRequest) kmsg.Response {
	resp := q.ResponseKind().(*kmsg.DescribeLogDirsResponse)
	if !b.allowsCluster(r, security.Describe) {
		resp.ErrorCode = api.ErrClusterAuthorizationFailed.Code
		return resp
	}
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
	byDir := make(map[uuid.UUID][]describedLog)
	logs := b.replicas.Logs()
	for l := range logs.Logs() {
		if wanted(l.TopicPartition()) {
			byDir[l.DirID()] = append(byDir[l.DirID()], describedLog{l, false, max(l.HighWatermark()-l.EndOffset(), 0)})
		}
	}
	for l := range logs.Futures() {
		if tp := l.TopicPartition(); wanted(tp) {
			lag := unknownSize
			if cur := logs.Log(tp); cur != nil && logs.CheckDir(cur.ParentDir()) == nil {
				lag = cur.EndOffset() - l.EndOffset()
			}
			byDir[l.DirID()] = append(byDir[l.DirID()], describedLog{l, true, lag})
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

// describedLog is a log, or one that a replica moves to, and how much it lacks.
type describedLog struct {
	*log.Log
	future bool
	lag    int64
}

func logsOf(logs []describedLog) []kmsg.DescribeLogDirsResponseDirTopic {
	slices.SortFunc(logs, func(a, b describedLog) int {
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
			OffsetLag: l.lag, IsFuture: l.future})
	}
	return out
}

func (b *Broker) alterReplicaLogDirs(r *network.Request, q *kmsg.AlterReplicaLogDirsRequest) kmsg.Response {
	resp := q.ResponseKind().(*kmsg.AlterReplicaLogDirsResponse)
	// A partition that is named twice goes where it is named last, and is answered once.
	wanted := make(map[log.TopicPartition]string)
	var order []log.TopicPartition
	for _, d := range q.Dirs {
		for _, t := range d.Topics {
			for _, p := range t.Partitions {
				tp := log.TopicPartition{Topic: t.Topic, Partition: p}
				if _, twice := wanted[tp]; !twice {
					order = append(order, tp)
				}
				wanted[tp] = d.Dir
			}
		}
	}
	topics := make(map[string]int)
	allowed := b.allowsCluster(r, security.Alter)
	for _, tp := range order {
		var err error = api.ErrClusterAuthorizationFailed
		if allowed {
			err = b.replicas.AlterLogDir(tp, wanted[tp])
		}
		if err != nil {
			b.logger.Warn("a replica can't move to another log directory", slog.String("partition", tp.String()),
				slog.String("dir", wanted[tp]), slog.Any("err", err))
		}
		i, ok := topics[tp.Topic]
		if !ok {
			i = len(resp.Topics)
			topics[tp.Topic] = i
			resp.Topics = append(resp.Topics, kmsg.AlterReplicaLogDirsResponseTopic{Topic: tp.Topic})
		}
		resp.Topics[i].Partitions = append(resp.Topics[i].Partitions, kmsg.AlterReplicaLogDirsResponseTopicPartition{Partition: tp.Partition, ErrorCode: api.CodeOf(err)})
	}
	return resp
}
