package replica

import (
	"errors"

	"gregor/internal/log"
	"gregor/internal/record"
)

// errNotFollowing ends what a fetcher does for a partition that is no longer what the fetcher takes it for.
var errNotFollowing = errors.New("the replica does not follow in that leader epoch any more")

// position is where a follower's log ends, and so what it asks its leader for.
type position struct {
	offset int64
	// epoch is the leader epoch of the last record, -1 when the log has none.
	epoch    int32
	logStart int64
}

// asFollower runs f while the partition stays a follower in leaderEpoch: a change of the role waits for it.
func (p *Partition) asFollower(leaderEpoch int32, f func() error) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	r := p.role.Load()
	if r.leader || r.leaderEpoch != leaderEpoch || p.gone.Load() != nil {
		return errNotFollowing
	}
	return f()
}

// stillAsked is asFollower for what a leader says of a log that ends at offset.
func (p *Partition) stillAsked(leaderEpoch int32, offset int64, f func() error) error {
	return p.asFollower(leaderEpoch, func() error {
		if p.log().EndOffset() != offset {
			return errNotFollowing // somebody has changed the log since it was asked for
		}
		return f()
	})
}

func (p *Partition) position() position {
	at := position{offset: p.log().EndOffset(), epoch: log.NoEpoch, logStart: p.log().LogStartOffset()}
	if e, ok := p.log().LatestEpoch(); ok {
		at.epoch = e
	}
	return at
}

// beginFollowing is where fetching in a leader epoch begins. A log of an old format knows no epochs, so that nobody can say
// where it parts from the leader's: all that isn't known to be committed is cut off.
func (p *Partition) beginFollowing(leaderEpoch int32) (at position, err error) {
	err = p.asFollower(leaderEpoch, func() error {
		at = p.position()
		if hw := p.log().HighWatermark(); at.epoch == log.NoEpoch && at.offset > hw {
			if err := p.log().TruncateTo(hw); err != nil {
				return err
			}
			at = p.position()
		}
		return nil
	})
	return at, err
}

// appendFetched appends what the leader sent for offset, and moves high watermark and log start offset after the leader's.
func (p *Partition) appendFetched(leaderEpoch int32, offset int64, records []byte, highWatermark, logStart int64) (at position, err error) {
	err = p.stillAsked(leaderEpoch, offset, func() error {
		if records = untilEpoch(records, leaderEpoch); len(records) > 0 {
			if err := p.appendBytes(records); err != nil {
				return err
			}
		}
		p.raise(highWatermark)
		if hw := p.log().HighWatermark(); logStart > p.log().LogStartOffset() {
			if err := p.log().IncrementLogStart(min(logStart, hw), "the leader's log start offset"); err != nil {
				return err
			}
		}
		at = p.position()
		return nil
	})
	if err == nil {
		p.Wake()
	}
	return at, err
}

func (p *Partition) appendBytes(records []byte) error {
	_, err := p.log().AppendFollower(records)
	if e, ok := errors.AsType[*log.UnexpectedOffsetError](err); ok {
		// The leader's log may begin in the middle of a batch. An empty log that began there begins with the batch instead.
		start, _, _, end := p.log().Offsets()
		if start != end || e.LastOffset < end {
			return err
		}
		if err := p.log().TruncateFully(e.FirstOffset); err != nil {
			return err
		}
		_, err = p.log().AppendFollower(records)
	}
	if err == nil {
		p.grew(len(records))
	}
	return err
}

// untilEpoch cuts records before the first batch of a later leader epoch than the one that was fetched in: the leader has become
// another one since, and its later records are for those to ask for who know that.
func untilEpoch(records []byte, leaderEpoch int32) []byte {
	for rest := records; len(rest) > 0; {
		e, next, err := record.NextEntry(rest)
		if err != nil {
			break // the log judges it
		}
		if e.PartitionLeaderEpoch() > leaderEpoch {
			return records[:len(records)-len(rest)]
		}
		rest = next
	}
	return records
}

// truncateDiverging cuts off what the leader doesn't have. leader is its answer to a fetch from offset: the largest epoch of its
// log that is not above ours, and where that ends there. If this log has no such epoch, it is cut to where its next lower one
// ends, and the leader must be asked again.
func (p *Partition) truncateDiverging(leaderEpoch int32, offset int64, leader EpochEnd) (at position, err error) {
	err = p.stillAsked(leaderEpoch, offset, func() error {
		to := leader.EndOffset
		if _, end, ok := p.log().EndOffsetForEpoch(leader.Epoch); ok {
			to = min(to, end)
		}
		if err := p.log().TruncateTo(max(to, 0)); err != nil {
			return err
		}
		at = p.position()
		return nil
	})
	return at, err
}

// outOfRange deals with a leader whose log has nothing at offset, this one's end: it ends at leaderEnd, which is before, or begins
// at leaderStart.
func (p *Partition) outOfRange(leaderEpoch int32, offset, leaderStart, leaderEnd int64) (at position, err error) {
	err = p.stillAsked(leaderEpoch, offset, func() error {
		var err error
		switch {
		case leaderEnd < offset:
			// An unclean election: the leader has less than was committed.
			err = p.log().TruncateTo(leaderEnd)
		case leaderStart > offset:
			err = p.log().TruncateFully(leaderStart)
		}
		at = p.position()
		return err
	})
	return at, err
}
