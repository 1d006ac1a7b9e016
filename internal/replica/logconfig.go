package replica

import (
	"time"

	"gregor/internal/config"
	"gregor/internal/log"
	"gregor/internal/record"
)

// LogConfig is what a topic's configuration means for its logs.
func LogConfig(t *config.Topic) log.Config {
	c := log.Config{
		SegmentBytes:       t.SegmentBytes,
		SegmentAge:         t.SegmentAge,
		SegmentJitter:      t.SegmentJitter,
		IndexBytes:         t.SegmentIndexBytes,
		IndexIntervalBytes: t.IndexIntervalBytes,
		Preallocate:        t.Preallocate,
		MaxMessageBytes:    t.MaxMessageBytes,
		LogAppendTime:      t.TimestampType == config.LogAppendTime,
		TimestampBeforeMax: millis(t.TimestampBeforeMaxMs),
		TimestampAfterMax:  millis(t.TimestampAfterMaxMs),
		FlushMessages:      t.FlushMessages,
		FlushInterval:      t.FlushInterval,
		CleanupDelete:      t.CleanupDelete,
		CleanupCompact:     t.CleanupCompact,
		RetentionBytes:     t.RetentionBytes,
		RetentionAge:       t.Retention,
		FileDeleteDelay:    t.FileDeleteDelay,
		DeleteRetention:    t.DeleteRetention,
		MinCompactionLag:   t.MinCompactionLag,
		MaxCompactionLag:   t.MaxCompactionLag,
		MinCleanableRatio:  t.MinCleanableRatio,
	}
	switch t.CompressionType {
	case "uncompressed":
		c.Recompress, c.RecompressTo = true, record.None
	case "gzip":
		c.Recompress, c.RecompressTo, c.CompressionLevel = true, record.Gzip, int(t.GzipLevel)
	case "snappy":
		c.Recompress, c.RecompressTo = true, record.Snappy
	case "lz4":
		c.Recompress, c.RecompressTo, c.CompressionLevel = true, record.LZ4, int(t.LZ4Level)
	case "zstd":
		c.Recompress, c.RecompressTo, c.CompressionLevel = true, record.Zstd, int(t.ZstdLevel)
	}
	return c
}

// millis is a bound in ms as a duration; one that no duration can hold is no bound.
func millis(ms int64) time.Duration {
	if ms < 0 || ms > int64((1<<63-1)/time.Millisecond) {
		return -1
	}
	return time.Duration(ms) * time.Millisecond
}
