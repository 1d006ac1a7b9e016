package record

import (
	"bufio"
	"compress/gzip"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// testdata/validate.txt.gz holds 2,400 produced batches, most of them with something wrong, and what Kafka 4.4.0's LogValidator
// says of each: batch | compacted topic | LogAppendTime topic | before.max | after.max | max record size | answer. The clock
// stands at 5000, the partition is orders-0. Where the answers differ, the reason is one of those below.
func TestValidateLikeKafka(t *testing.T) {
	t.Parallel()
	f, err := os.Open("testdata/validate.txt.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	d := NewDecompressor(DecompressorOptions{})
	counts := map[string]int{}
	sc := bufio.NewScanner(z)
	sc.Buffer(nil, 1<<20)
	for n := 1; sc.Scan(); n++ {
		fields := strings.SplitN(sc.Text(), "|", 7)
		b, err := hex.DecodeString(fields[0])
		if err != nil {
			t.Fatal(err)
		}
		num := func(i int) int64 {
			v, err := strconv.ParseInt(fields[i], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		o := ValidateOptions{
			TopicPartition: "orders-0", FromClient: true, Target: KeepCodec, Now: 5000, Compacted: num(1) == 1, TimestampType: TimestampType(num(2)),
			BeforeMax: num(3), AfterMax: num(4), MaxRecordBytes: int32(num(5)), Decompressor: d,
		}
		v, err := Validate(Batch(b), &o)
		got := fmt.Sprintf("OK %d false", v.MaxTimestamp)
		var e *Error
		if errors.As(err, &e) {
			got = "ERR " + e.Message
			if e.Kind == ErrCodec || e.Kind == ErrDecompress {
				got = "ERR -1"
			}
			if len(e.Records) > 0 {
				got += " ["
				for i, r := range e.Records {
					if i > 0 {
						got += ", "
					}
					got += fmt.Sprintf("RecordError(batchIndex=%d, message='%s')", r.Index, r.Message)
				}
				got += "]"
			}
		}
		want := fields[6]
		for _, class := range []string{"InvalidRecordException", "InvalidTimestampException", "CorruptRecordException"} {
			want = strings.Replace(want, "ERR "+class+": ", "ERR ", 1)
		}
		for _, class := range []string{"KafkaException", "IllegalArgumentException"} {
			if strings.HasPrefix(want, "ERR "+class) {
				want = "ERR -1"
			}
		}
		if reason := differs(got, want, Batch(b), v); reason != "" {
			if counts[reason]++; strings.HasPrefix(reason, "!") && counts[reason] < 4 {
				t.Errorf("line %d, %v, %d records: got %s\nwant %s", n, Batch(b).Codec(), Batch(b).Count(), got, want)
			}
		}
	}
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
	t.Log(counts)
}

// differs is why two answers aren't the same, beginning with ! if there's no good reason.
func differs(got, want string, b Batch, v Validated) string {
	kind := func(s string) string {
		switch {
		case strings.HasPrefix(s, "OK"), s == "ERR -1":
			return s
		case strings.HasPrefix(s, "ERR One or more"):
			return s // goes to the client, so it has to be the very same
		}
		return "invalid"
	}
	switch {
	case kind(got) == kind(want):
		return "" // what else is wrong with a record is only for the log
	case v.Rebuild && strings.HasPrefix(got, "OK"):
		return "offset deltas that aren't 0, 1, 2… are put right"
	case b.Codec() != None && kind(got) == "invalid" && (strings.HasPrefix(want, "OK") || strings.HasPrefix(want, "ERR One or more")):
		return "a compressed record whose size doesn't fit is refused"
	case b.Codec() != None && got == "ERR -1" && strings.HasPrefix(want, "ERR "):
		return "a corrupt stream is noticed before a faulty record in it"
	}
	return "!"
}
