package api

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestErrorTable(t *testing.T) {
	names := make(map[string]bool)
	for code := int16(minCode); code <= maxCode; code++ {
		e := ErrorFor(code)
		if code == CodeNone {
			if e != nil || FromCode(code) != nil {
				t.Error("code 0 is an error")
			}
			continue
		}
		if e == nil || e.Code != code || e.Name == "" || e.Message == "" || names[e.Name] || CodeOf(FromCode(code)) != code {
			t.Errorf("%d: %+v", code, e)
			continue
		}
		names[e.Name] = true
		if (e.RefreshMetadata || e.RefreshCoordinator) && !e.Retriable {
			t.Errorf("%s asks for a refresh but is not retriable", e.Name)
		}
	}
	if len(names) != 137 {
		t.Errorf("%d errors", len(names))
	}
	for _, unknown := range []int16{-2, 137, 32767, -32768} {
		if ErrorFor(unknown) != ErrUnknownServerError {
			t.Errorf("%d: %v", unknown, ErrorFor(unknown))
		}
	}
}

func TestErrorFlagsAsInKafka(t *testing.T) {
	// kerr of franz-go differs from Kafka in these.
	for e, want := range map[*Error]bool{
		ErrBrokerNotAvailable: false, ErrConcurrentTransactions: true, ErrShareSessionNotFound: true,
		ErrInvalidShareSessionEpoch: true, ErrNotController: true, ErrRebalanceInProgress: false,
	} {
		if e.Retriable != want {
			t.Errorf("%s: retriable %v", e.Name, e.Retriable)
		}
	}
	if !ErrNotLeaderOrFollower.RefreshMetadata || !ErrNotCoordinator.RefreshCoordinator || ErrNotCoordinator.RefreshMetadata {
		t.Error("refresh flags")
	}
}

func TestCodeAndMessageOfWrappedErrors(t *testing.T) {
	f := func(err error, code int16, message string) {
		t.Helper()
		if CodeOf(err) != code || MessageOf(err) != message {
			t.Errorf("%v: %d %q, want %d %q", err, CodeOf(err), MessageOf(err), code, message)
		}
		said, text := CodeAndMessage(err)
		if silent := code == 0 || code == CodeUnknownServerError; said != code || (text == nil) != silent || !silent && *text != message {
			t.Errorf("%v: responses carry %d and text %v", err, said, text)
		}
	}
	f(nil, 0, "")
	f(ErrInvalidConfig, 40, ErrInvalidConfig.Message)
	f(fmt.Errorf("topic %s: %w", "secret", ErrInvalidConfig), 40, ErrInvalidConfig.Message)
	f(WithMessage(ErrInvalidConfig, "%s is %d", "retention.ms", -7), 40, "retention.ms is -7")
	f(fmt.Errorf("topic: %w", WithMessage(ErrInvalidConfig, "no")), 40, "no")
	f(errors.New("open /data/x: permission denied"), -1, ErrUnknownServerError.Message)
	if err := WithMessage(ErrInvalidConfig, "no"); !errors.Is(err, ErrInvalidConfig) || err.Error() != "INVALID_CONFIG: no" {
		t.Error(err)
	}
}

func TestTables(t *testing.T) {
	if n := len(FullTable(BrokerListener).Advertised(nil)); n != 79 {
		t.Errorf("%d keys on a broker listener", n)
	}
	if n := len(FullTable(ControllerListener).Advertised(nil)); n != 42 {
		t.Errorf("%d keys on a controller listener", n)
	}
	tab := NewTable(BrokerListener, Metadata, Produce, ApiVersions, Vote)
	want := []Range{{Produce, 0, 13}, {Metadata, 0, 13}, {ApiVersions, 0, 5}}
	if got := tab.Advertised(nil); !slices.Equal(got, want) {
		t.Errorf("advertised %v", got)
	}
	for _, x := range []struct {
		k    Key
		v    int16
		want bool
	}{
		{Produce, 2, false}, {Produce, 3, true}, {Produce, 13, true}, {Produce, 14, false}, {Produce, -1, false},
		{Vote, 0, false}, {Fetch, 4, false}, {Key(4), 0, false}, {Key(-1), 0, false}, {Key(95), 0, false},
		{ApiVersions, 5, true}, {ApiVersions, 6, false},
	} {
		if got := tab.Serves(x.k, x.v); got != x.want {
			t.Errorf("%s v%d: served %v", x.k, x.v, got)
		}
	}
}

func TestKeyNames(t *testing.T) {
	if Produce.String() != "Produce" || UnregisterController.String() != "UnregisterController" || Key(5).String() != "ApiKey(5)" || Key(-3).String() != "ApiKey(-3)" {
		t.Error(Produce, UnregisterController, Key(5), Key(-3))
	}
	for _, v := range vectors(t) {
		if !v.key.Exists() {
			t.Fatalf("key %d of the vectors is not in the table", v.key)
		}
	}
	if !CreateTopics.Forwarded() || Metadata.Forwarded() || Envelope.ServedOn(BrokerListener) {
		t.Error("forwarding or listeners")
	}
}

func TestHeaders(t *testing.T) {
	f := func(frame string, want Header, rest string) {
		t.Helper()
		h, body, err := ParseHeader([]byte(frame), "me")
		if err != nil || h != want || string(body) != rest {
			t.Errorf("%x: %+v %x %v", frame, h, body, err)
		}
	}
	f("\x00\x03\x00\x00\x00\x00\x00\x07\x00\x02mebody", Header{Key: Metadata, CorrelationID: 7, ClientID: "me"}, "body")
	f("\x00\x03\x00\x0c\x00\x00\x00\x07\x00\x00\x00body", Header{Key: Metadata, Version: 12, CorrelationID: 7}, "body")
	// Tagged fields are skipped, whatever they hold.
	f("\x00\x03\x00\x0c\x00\x00\x00\x07\xff\xff\x02\x00\x01x\x05\x00body", Header{Key: Metadata, Version: 12, CorrelationID: 7, NullClientID: true}, "body")
	// Any negative length is null.
	f("\x00\x03\x00\x00\x00\x00\x00\x07\x80\x00body", Header{Key: Metadata, CorrelationID: 7, NullClientID: true}, "body")
	// ApiVersions of a version to come has a header with tags; below zero it has not.
	f("\x00\x12\x7f\xff\x00\x00\x00\x07\xff\xff\x00", Header{Key: ApiVersions, Version: 32767, CorrelationID: 7, NullClientID: true}, "")
	f("\x00\x12\xff\xff\x00\x00\x00\x07\xff\xff\x00", Header{Key: ApiVersions, Version: -1, CorrelationID: 7, NullClientID: true}, "\x00")

	for _, cut := range []string{
		"", "\x00\x03\x00\x0c\x00\x00\x00", "\x00\x03\x00\x0c\x00\x00\x00\x07", "\x00\x03\x00\x0c\x00\x00\x00\x07\x00",
		"\x00\x03\x00\x0c\x00\x00\x00\x07\x00\x05me", "\x00\x03\x00\x0c\x00\x00\x00\x07\x00\x02me",
		"\x00\x03\x00\x0c\x00\x00\x00\x07\x00\x02me\x01", "\x00\x03\x00\x0c\x00\x00\x00\x07\x00\x02me\x01\x00\x09x",
		"\x00\x03\x00\x0c\x00\x00\x00\x07\x00\x02me\xff\xff\xff\xff\xff\xff",
	} {
		if _, _, err := ParseHeader([]byte(cut), ""); !errors.Is(err, ErrShort) {
			t.Errorf("%x: %v", cut, err)
		}
	}
}

func TestResponseHeaders(t *testing.T) {
	f := func(k Key, version int16, want string) {
		t.Helper()
		if got := AppendResponseHeader(nil, k, version, 7); string(got) != want {
			t.Errorf("%s v%d: %x", k, version, got)
		}
	}
	f(Metadata, 8, "\x00\x00\x00\x07")
	f(Metadata, 9, "\x00\x00\x00\x07\x00")
	f(ApiVersions, 4, "\x00\x00\x00\x07")
	f(SaslHandshake, 1, "\x00\x00\x00\x07")
}

func TestDecodeRequestRefuses(t *testing.T) {
	f := func(k Key, version int16, body, want string) {
		t.Helper()
		_, err := DecodeRequest(k, version, []byte(body))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s v%d %x: %v", k, version, body, err)
		}
	}
	f(Produce, 2, "", "not supported")
	f(Key(4), 0, "", "not supported")
	f(Metadata, 0, "\x7f\xff\xff\xff", "array of 2147483647 elements")
	f(Metadata, 12, "\xff\xff\xff\xff\x07", "array of 2147483646 elements")
	f(Metadata, 13, "\x01\x00\x00", "message is cut short")
	// Fetch v14 knows no tag 1; BrokerHeartbeat v1 has tag 0 but not 1.
	f(Fetch, 14, "\xff\xff\xff\xff\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x01\x01\x01\x01\x0d\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00", "tag 1: tag is not valid")
	f(BrokerHeartbeat, 1, strings.Repeat("\x00", 22)+"\x01\x01\x01\x01", "tag 1: tag is not valid")
}

func TestFieldsThatAVersionLacksGetKafkasDefaults(t *testing.T) {
	r, err := DecodeRequest(Metadata, 3, []byte{0, 0, 0, 0})
	if err != nil || !r.(*kmsg.MetadataRequest).AllowAutoTopicCreation {
		t.Errorf("Metadata v3: %+v %v", r, err)
	}
	r, err = DecodeRequest(ListOffsets, 1, []byte{0, 0, 0, 0, 0, 0, 0, 0})
	if err != nil || r.(*kmsg.ListOffsetsRequest).TimeoutMillis != 0 {
		t.Errorf("ListOffsets v1: %+v %v", r, err)
	}
	r, err = DecodeRequest(UpdateFeatures, 0, []byte("\x00\x00\x00\x00\x02\x02f\x00\x01\x00\x00\x00"))
	if err != nil || r.(*kmsg.UpdateFeaturesRequest).FeatureUpdates[0].UpgradeType != 1 {
		t.Errorf("UpdateFeatures v0: %+v %v", r, err)
	}
}

func TestTagsThatAVersionLacksAreNotWritten(t *testing.T) {
	p := kmsg.NewPtrProduceResponse()
	p.Brokers = []kmsg.ProduceResponseBroker{{NodeID: 1, Host: "h"}}
	x := kmsg.NewProduceResponseTopicPartition()
	x.CurrentLeader.LeaderID, x.CurrentLeader.LeaderEpoch = 1, 2
	p.Topics = []kmsg.ProduceResponseTopic{{Topic: "t", Partitions: []kmsg.ProduceResponseTopicPartition{x}}}
	p.Version = 10
	with := len(AppendResponse(nil, p))
	p.Version = 9
	if without := len(AppendResponse(nil, p)); without >= with || p.Brokers != nil {
		t.Errorf("produce response of %d bytes at v9, %d at v10", without, with)
	}
	h := kmsg.NewPtrBrokerHeartbeatRequest()
	h.OfflineLogDirs, h.CordonedLogDirs = [][16]byte{{1}}, [][16]byte{{2}}
	for v, want := range []int{23, 23 + 19, 23 + 2*19} {
		h := *h
		h.Version = int16(v)
		if b := AppendRequest(nil, &h); len(b) != want {
			t.Errorf("heartbeat v%d of %d bytes, want %d", v, len(b), want)
		} else if _, err := DecodeRequest(BrokerHeartbeat, int16(v), b); err != nil {
			t.Error(err)
		}
	}
}
