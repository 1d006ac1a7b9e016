package message

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"

	"gregor/internal/uuid"
)

// names is all messages, in a fixed order so that fuzz inputs keep their meaning.
var names = func() []string {
	var s []string
	for name := range constructors {
		s = append(s, name)
	}
	slices.Sort(s)
	return s
}()

// FuzzReadFrom decodes arbitrary bytes as any message in any version. It must not panic; what it accepts must come back as
// something that decodes to the same bytes again.
func FuzzReadFrom(f *testing.F) {
	for i, v := range recordVectors(f) {
		if i%7 == 0 {
			f.Add(uint8(slices.Index(names, v.name)), uint8(v.version), v.body)
		}
	}
	f.Fuzz(func(t *testing.T, which, version uint8, src []byte) {
		m := New(names[int(which)%len(names)])
		ver := int16(version % 8)
		rest, err := m.ReadFrom(src, ver)
		if err != nil {
			return
		}
		if len(rest) > len(src) {
			t.Fatalf("%d bytes left of %d", len(rest), len(src))
		}
		m.AppendJSON(nil, ver)
		b, err := m.AppendTo(nil, ver)
		if err != nil {
			// Unknown tags may come unordered or twice; Kafka reads that and can't write it either.
			if errors.Is(err, ErrInvalid) {
				return
			}
			t.Fatalf("%s v%d: %x read but not written: %v", m.MessageName(), ver, src, err)
		}
		if len(b) != m.Size(ver) {
			t.Fatalf("%s v%d: Size = %d, wrote %d", m.MessageName(), ver, m.Size(ver), len(b))
		}
		again := New(m.MessageName())
		if rest, err := again.ReadFrom(b, ver); err != nil || len(rest) != 0 {
			t.Fatalf("%s v%d: %x can't be read back: %v", m.MessageName(), ver, b, err)
		}
		c, err := again.AppendTo(nil, ver)
		if err != nil || !bytes.Equal(b, c) {
			t.Fatalf("%s v%d: %x became %x, %v", m.MessageName(), ver, b, c, err)
		}
	})
}

// FuzzReadMetadataRecord decodes arbitrary bytes as the value of a metadata record.
func FuzzReadMetadataRecord(f *testing.F) {
	f.Add([]byte{1, 0x14, 0, 0})
	f.Add([]byte("\x01\x0c\x00\x11metadata.version\x00\x21\x00"))
	f.Fuzz(func(t *testing.T, src []byte) {
		v, err := ReadMetadataRecord(src)
		if err != nil {
			return
		}
		AppendMetadataJSON(nil, v)
		if b, err := AppendMetadataRecord(nil, v.Message, v.Version); err == nil {
			if _, err := ReadMetadataRecord(b); err != nil {
				t.Fatalf("%x became %x: %v", src, b, err)
			}
		}
	})
}

// FuzzCoordinatorRecord decodes arbitrary bytes as keys, values, control records and consumer protocol.
func FuzzCoordinatorRecord(f *testing.F) {
	f.Add([]byte{0, 1, 0, 1, 'g', 0, 1, 't', 0, 0, 0, 1}, []byte{0, 4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 2, 2, 'm', 0, 0, 0, 0, 0, 0, 0, 9, 0})
	f.Fuzz(func(t *testing.T, key, value []byte) {
		for _, c := range []Coordinator{GroupRecords, TransactionRecords, ShareRecords} {
			k, err := c.ReadKey(key)
			if err != nil {
				continue
			}
			AppendKeyJSON(nil, k)
			if v, err := c.ReadValue(k.APIKey(), value); err == nil && v.Message != nil {
				AppendValueJSON(nil, v)
			}
		}
		if typ, err := ReadControlKey(key); err == nil {
			if v, err := ReadControlValue(typ, value); err == nil {
				v.Message.AppendJSON(nil, v.Version)
			}
		}
		if m, v, err := ReadSubscription(value); err == nil {
			m.AppendJSON(nil, v)
		}
		if m, v, err := ReadAssignment(value); err == nil {
			m.AppendJSON(nil, v)
		}
	})
}

// TestCountsAreBounded claims two thousand million elements in every array of every message, in bytes that are otherwise
// Kafka's, and checks that nothing large is allocated for them.
func TestCountsAreBounded(t *testing.T) {
	huge := binary.AppendUvarint(nil, math.MaxInt32)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, v := range recordVectors(t) {
		if v.mode != "D" {
			continue
		}
		for i := range v.body {
			if i > 100 {
				break
			}
			m := New(v.name)
			_, _ = m.ReadFrom(slices.Concat(v.body[:i], huge, v.body[i:]), v.version)
			_, _ = m.ReadFrom(slices.Concat(v.body[:i], []byte{0x7f, 0xff, 0xff, 0xff}, v.body[i:]), v.version)
		}
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 {
		t.Errorf("%d bytes were allocated for counts that nothing stands behind", n)
	}
}

// TestCountsFitWhatIsLeft claims as many elements as there are bytes: more than fit, because each takes several.
func TestCountsFitWhatIsLeft(t *testing.T) {
	left := make([]byte, 100)
	for _, n := range []byte{6, 7, 100} {
		r := reader{b: slices.Concat([]byte{n + 1}, left)}
		if got, null := r.count(true, false, 16, "Directories"); null || (r.err == nil) != (n <= 6) || r.err == nil && got != int(n) {
			t.Errorf("%d elements of 16 bytes in 100: %d, %v", n, got, r.err)
		}
	}
	src := binary.BigEndian.AppendUint32(nil, 0)
	src = append(src, make([]byte, 16)...)                      // the partition and the topic id
	src = slices.Concat(src, []byte{200, 1}, make([]byte, 199)) // replicas, 199 of them in 199 bytes
	if _, err := NewPartitionRecord().ReadFrom(src, 0); !errors.Is(err, ErrTruncated) {
		t.Errorf("199 replicas in 199 bytes: %v", err)
	}
}

func ptr[T any](v T) *T { return &v }

// TestRefusesToWrite checks what the encoder must not let through.
func TestRefusesToWrite(t *testing.T) {
	f := func(m Message, version int16, want error) {
		t.Helper()
		dst := []byte("kept")
		got, err := m.AppendTo(dst, version)
		if !errors.Is(err, want) || string(got) != "kept" {
			t.Errorf("%s v%d: %q, %v, want %v", m.MessageName(), version, got, err, want)
		}
	}
	f(NewTopicRecord(), 1, ErrUnsupportedVersion)
	f(NewTopicRecord(), -1, ErrUnsupportedVersion)
	f(NewProducerSnapshot(), 0, ErrUnsupportedVersion)
	// Fields that the version lacks, and that may not be dropped.
	f(&RegisterBrokerRecord{LogDirs: []uuid.UUID{uuid.One}}, 2, ErrUnsupportedVersion)
	f(&RegisterBrokerRecord{CordonedLogDirs: []uuid.UUID{}}, 3, ErrUnsupportedVersion)
	f(&PartitionRecord{Directories: []uuid.UUID{uuid.One}}, 0, ErrUnsupportedVersion)
	f(&TransactionLogValue{PreviousProducerID: 7}, 0, ErrUnsupportedVersion)
	f(&TransactionLogValue{UnknownTags: []Tag{{Tag: 9}}, PreviousProducerID: -1, NextProducerID: -1, NextProducerEpoch: -1}, 0, ErrUnsupportedVersion)
	// Strings of more than an int16.
	f(&TopicRecord{Name: string(make([]byte, 1<<15))}, 0, ErrInvalid)
	// Unknown tags in the wrong order, or with the number of a known one.
	f(&TopicRecord{UnknownTags: []Tag{{Tag: 2}, {Tag: 2}}}, 0, ErrInvalid)
	f(&BeginTransactionRecord{Name: ptr("x"), UnknownTags: []Tag{{Tag: 0}}}, 0, ErrInvalid)

	// Ignorable ones are dropped.
	v := NewOffsetCommitValue()
	v.LeaderEpoch = 3
	if b, err := v.AppendTo(nil, 2); err != nil || len(b) != 18 {
		t.Errorf("an ignorable field is not dropped: %x, %v", b, err)
	}
}

func TestMetadataRecordFraming(t *testing.T) {
	f := func(value string, want error) {
		t.Helper()
		if v, err := ReadMetadataRecord([]byte(value)); !errors.Is(err, want) {
			t.Errorf("ReadMetadataRecord(%x) = %v, %v, want %v", value, v, err, want)
		}
	}
	f("\x01\x14\x00\x00", nil)
	f("", ErrTruncated)
	f("\x01\x14\x00", ErrTruncated)
	f("\x01\x14\x00\x00\x00", ErrInvalid) // a byte left over
	f("\x00\x14\x00\x00", ErrUnsupportedVersion)
	f("\x02\x14\x00\x00", ErrUnsupportedVersion)
	f("\x01\x06\x00\x00", ErrUnknownType)
	f("\x01\x14\x01\x00", ErrUnsupportedVersion)
	f("\x01\xff\xff\xff\xff\x0f\x00\x00", ErrInvalid)
	f("\x01\xff\xff\xff\xff\xff\x00\x00", ErrInvalid)
	for _, m := range []Message{NewEndTxnMarker(), NewOffsetCommitKey()} {
		if _, err := AppendMetadataRecord(nil, m, 0); !errors.Is(err, ErrUnknownType) {
			t.Errorf("%s was framed as a metadata record: %v", m.MessageName(), err)
		}
	}
}

func TestCoordinatorRecords(t *testing.T) {
	key, err := AppendKey(nil, &OffsetCommitKey{Group: "g", Topic: "t", Partition: 1})
	if want := "\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x01"; err != nil || string(key) != want {
		t.Errorf("key %x, %v, want %x", key, err, want)
	}
	v := NewOffsetCommitValue()
	v.Offset, v.LeaderEpoch, v.Metadata, v.CommitTimestamp = 5, 2, "m", 9
	value, err := AppendVersioned(nil, v, 4)
	if want := "\x00\x04\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x02\x02m\x00\x00\x00\x00\x00\x00\x00\x09\x00"; err != nil || string(value) != want {
		t.Errorf("value %x, %v, want %x", value, err, want)
	}
	k, err := GroupRecords.ReadKey(append(key, 7)) // bytes left over are ignored
	if err != nil || k.(*OffsetCommitKey).Topic != "t" {
		t.Errorf("ReadKey = %v, %v", k, err)
	}
	got, err := GroupRecords.ReadValue(k.APIKey(), value)
	if err != nil || got.Version != 4 || got.Message.(*OffsetCommitValue).Offset != 5 {
		t.Errorf("ReadValue = %v, %v", got, err)
	}
	if tomb, err := GroupRecords.ReadValue(1, nil); err != nil || tomb.Message != nil {
		t.Errorf("a tombstone gives %v, %v", tomb, err)
	}
	if _, err := GroupRecords.ReadKey([]byte{0, 9, 0, 0}); !errors.Is(err, ErrUnknownType) {
		t.Errorf("type 9: %v", err)
	}
	if _, err := TransactionRecords.ReadKey([]byte{0, 1, 0, 0}); !errors.Is(err, ErrUnknownType) {
		t.Errorf("transaction type 1: %v", err)
	}
	if _, err := ShareRecords.ReadKey([]byte{0}); !errors.Is(err, ErrTruncated) {
		t.Errorf("one byte: %v", err)
	}
	if _, err := GroupRecords.ReadValue(1, []byte{0, 5}); !errors.Is(err, ErrUnsupportedVersion) {
		t.Errorf("version 5: %v", err)
	}
}

// TestProtocolIsLenient: a later version is read as the highest, and what it added is ignored.
func TestProtocolIsLenient(t *testing.T) {
	m := NewConsumerProtocolSubscription()
	m.Topics, m.RackID = []string{"a", "b"}, ptr("r")
	b, err := AppendVersioned(nil, m, 3)
	if err != nil {
		t.Fatal(err)
	}
	b[1] = 9
	got, version, err := ReadSubscription(append(b, 1, 2, 3))
	if err != nil || version != 3 || fmt.Sprint(got.Topics) != "[a b]" || *got.RackID != "r" {
		t.Errorf("ReadSubscription = %+v, %d, %v", got, version, err)
	}
	if _, _, err := ReadAssignment([]byte{0}); !errors.Is(err, ErrTruncated) {
		t.Errorf("one byte: %v", err)
	}
}

// TestDefaultsThatAreNotNull: a nullable field without the default null starts empty, and null is written.
func TestDefaultsThatAreNotNull(t *testing.T) {
	m := NewConsumerGroupMemberMetadataValue()
	if m.ClassicMemberMetadata == nil {
		t.Fatal("the default is null")
	}
	empty, _ := m.AppendTo(nil, 0)
	m.ClassicMemberMetadata = nil
	null, _ := m.AppendTo(nil, 0)
	if want := append(empty[:len(empty)-1:len(empty)-1], 1, 0, 1, 0); !bytes.Equal(null, want) {
		t.Errorf("null is written as %x, want %x", null, want)
	}
	if _, err := m.ReadFrom(null, 0); err != nil || m.ClassicMemberMetadata != nil {
		t.Errorf("null is read as %v, %v", m.ClassicMemberMetadata, err)
	}
}

func TestJSONValues(t *testing.T) {
	f := func(v float64, want string) {
		t.Helper()
		if got := string(jsonFloat64(nil, v)); got != want {
			t.Errorf("%v is printed as %s, want %s", v, got, want)
		}
	}
	f(0, "0.0")
	f(200, "200.0")
	f(1048576, "1048576.0")
	f(9999999, "9999999.0")
	f(1e7, "1.0E7")
	f(123456789, "1.23456789E8")
	f(0.001, "0.001")
	f(0.00099, "9.9E-4")
	f(-2.5, "-2.5")
	f(math.Copysign(0, -1), "-0.0")
	f(math.NaN(), `"NaN"`)
	f(math.Inf(-1), `"-Infinity"`)
	s := "a\"\\/\b\t\n\f\r\x01\x1f\u00e9\u2028\xff"
	want := `"a\"\\/\b\t\n\f\r\u0001\u001F` + "\u00e9\u2028\ufffd" + `"`
	if got := string(jsonString(nil, s)); got != want {
		t.Errorf("%q is printed as %s, want %s", s, got, want)
	}
}

func BenchmarkReadPartitionRecord(b *testing.B) {
	m := NewPartitionRecord()
	m.Replicas, m.ISR, m.Directories = []int32{1, 2, 3}, []int32{1, 2, 3}, make([]uuid.UUID, 3)
	src, err := AppendMetadataRecord(nil, m, 2)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(src)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ReadMetadataRecord(src); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendPartitionRecord(b *testing.B) {
	m := NewPartitionRecord()
	m.Replicas, m.ISR, m.Directories = []int32{1, 2, 3}, []int32{1, 2, 3}, make([]uuid.UUID, 3)
	dst := make([]byte, 0, 256)
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if dst, err = AppendMetadataRecord(dst[:0], m, 2); err != nil {
			b.Fatal(err)
		}
	}
}
