package replica

import (
	"gregor/internal/api"
	"gregor/internal/log"
)

// ReaderKind says on whose behalf offsets are asked for.
type ReaderKind uint8

const (
	// Consumer sees up to the high watermark, or the last stable offset.
	Consumer ReaderKind = iota
	// Follower sees the whole log of the leader.
	Follower
	// Debugger sees the whole log of any replica (replica id -2).
	Debugger
)

// OffsetFound answers an offset look-up; Offset is -1 when there is none.
type OffsetFound struct {
	Offset, Timestamp int64
	LeaderEpoch       int32
}

var noOffset = OffsetFound{Offset: log.UnknownOffset, Timestamp: -1, LeaderEpoch: log.NoEpoch}

// Offset looks an offset up by timestamp, which may be one of the special ones (ListOffsets).
//
// Errors: those of a wrong leader or epoch, and what the log cannot read.
func (p *Partition) Offset(ts int64, kind ReaderKind, readCommitted bool, leaderEpoch int32) (OffsetFound, error) {
	r := p.role.Load()
	if err := p.checkReader(r, leaderEpoch, kind != Debugger); err != nil {
		return noOffset, err
	}
	fetchable := p.log().EndOffset()
	if kind == Consumer {
		fetchable = p.log().HighWatermark()
		if readCommitted {
			fetchable = p.log().LastStableOffset()
		}
	}
	// A leader whose high watermark hasn't reached the beginning of its epoch doesn't know yet what is committed (KIP-207).
	catchesUp := kind == Consumer && p.catchesUp(r)
	if ts == log.TimestampLatest {
		if catchesUp {
			return noOffset, api.ErrOffsetNotAvailable
		}
		return OffsetFound{Offset: fetchable, Timestamp: -1, LeaderEpoch: r.leaderEpoch}, nil
	}
	found, ok, err := p.log().OffsetForTimestamp(ts)
	if err != nil {
		return noOffset, err
	}
	isStart := ts == log.TimestampEarliest || ts == log.TimestampEarliestLocal
	if !ok || !isStart && found.Offset >= fetchable {
		if catchesUp && !isStart {
			return noOffset, api.ErrOffsetNotAvailable
		}
		return noOffset, nil
	}
	return OffsetFound{Offset: found.Offset, Timestamp: found.Timestamp, LeaderEpoch: found.LeaderEpoch}, nil
}

// catchesUp says whether the high watermark of a leader is below the beginning of its epoch.
func (p *Partition) catchesUp(r *role) bool {
	if !r.leader || r.alone() {
		return false
	}
	p.stMu.Lock()
	defer p.stMu.Unlock()
	return p.st.epochStart > p.log().HighWatermark()
}

// checkReader is checkLeader, with any replica accepted unless the leader is needed.
func (p *Partition) checkReader(r *role, leaderEpoch int32, needLeader bool) error {
	err := p.checkLeader(r, leaderEpoch)
	if err == api.ErrNotLeaderOrFollower && !needLeader && p.gone.Load() == nil {
		return nil
	}
	return err
}

// EndOffsetForEpoch is the largest leader epoch not above epoch and the offset at which it ended; both -1 when the log knows
// of none (OffsetForLeaderEpoch, KIP-101).
func (p *Partition) EndOffsetForEpoch(epoch, leaderEpoch int32) (EpochEnd, error) {
	if err := p.checkLeader(p.role.Load(), leaderEpoch); err != nil {
		return EpochEnd{Epoch: log.NoEpoch, EndOffset: log.UnknownOffset}, err
	}
	e, end, ok := p.log().EndOffsetForEpoch(epoch)
	if !ok {
		return EpochEnd{Epoch: log.NoEpoch, EndOffset: log.UnknownOffset}, nil
	}
	return EpochEnd{Epoch: e, EndOffset: end}, nil
}

// DeleteRecordsToHighWatermark asks DeleteRecords to delete all that is committed.
const DeleteRecordsToHighWatermark int64 = -1

// DeleteRecords moves the log start offset up to offset, and returns where it is to be and the low watermark: the smallest log
// start offset among the replicas that are in service. AckOp.WaitDeleted waits for the one to reach the other.
//
// Errors: OFFSET_OUT_OF_RANGE beyond the high watermark or negative, POLICY_VIOLATION when the topic's cleanup.policy does not
// delete, NOT_LEADER_OR_FOLLOWER.
func (p *Partition) DeleteRecords(offset int64) (start, lowWatermark int64, err error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if err := p.checkLeader(p.role.Load(), -1); err != nil {
		return -1, -1, err
	}
	if !p.log().Config().CleanupDelete {
		return -1, -1, api.WithMessage(api.ErrPolicyViolation,
			"Records of partition %s can not be deleted due to the configured policy", p.tp)
	}
	if offset == DeleteRecordsToHighWatermark {
		offset = p.log().HighWatermark()
	}
	if offset < 0 {
		return -1, -1, api.WithMessage(api.ErrOffsetOutOfRange, "The offset %d for partition %s is not valid", offset, p.tp)
	}
	if err := p.log().IncrementLogStart(offset, "client delete records request"); err != nil {
		return -1, -1, err
	}
	return offset, p.lowWatermark(), nil
}
