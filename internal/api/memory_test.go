package api

import (
	"runtime"
	"strconv"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestDecodedSizeIsABound compares with what decoding allocates.
func TestDecodedSizeIsABound(t *testing.T) {
	const n = 50_000
	metadata := kmsg.NewPtrMetadataRequest()
	metadata.Version = 4
	find := kmsg.NewPtrFindCoordinatorRequest()
	find.Version, find.CoordinatorKeys = 4, make([]string, n)
	list := kmsg.NewPtrListOffsetsRequest()
	list.Version, list.ReplicaID = 7, -1
	list.Topics = []kmsg.ListOffsetsRequestTopic{{Topic: "a", Partitions: make([]kmsg.ListOffsetsRequestTopicPartition, n)}}
	tagged := kmsg.NewPtrDeleteTopicsRequest()
	tagged.Version = 6
	create := kmsg.NewPtrCreateTopicsRequest()
	create.Version = 7
	for i := range n {
		metadata.Topics = append(metadata.Topics, kmsg.MetadataRequestTopic{Topic: kmsg.StringPtr(strconv.Itoa(i))})
		dt := kmsg.NewDeleteTopicsRequestTopic()
		dt.UnknownTags.Set(99, []byte("x"))
		dt.UnknownTags.Set(100, nil)
		tagged.Topics = append(tagged.Topics, dt)
		ct := kmsg.NewCreateTopicsRequestTopic()
		ct.Topic = strconv.Itoa(i)
		ct.ReplicaAssignment = make([]kmsg.CreateTopicsRequestTopicReplicaAssignment, i%3)
		create.Topics = append(create.Topics, ct)
	}
	elect := kmsg.NewPtrElectLeadersRequest()
	elect.Version = 2
	elect.Topics = []kmsg.ElectLeadersRequestTopic{{Topic: "a", Partitions: make([]int32, n)}}
	for _, r := range []kmsg.Request{metadata, find, list, tagged, create, elect} {
		body := r.AppendTo(nil)
		bound := DecodedSize(Key(r.Key()), r.GetVersion(), body)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := DecodeRequest(Key(r.Key()), r.GetVersion(), body); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		took := int64(after.TotalAlloc - before.TotalAlloc)
		if took > bound || bound > 40*took {
			t.Errorf("%s of %d bytes: %d bytes when decoded, bound %d", Key(r.Key()), len(body), took, bound)
		}
		t.Logf("%s of %d bytes: %d bytes when decoded, bound %d", Key(r.Key()), len(body), took, bound)
		if got := DecodedSize(Key(r.Key()), r.GetVersion(), body[:len(body)/2]); got != 0 {
			t.Errorf("%s cut in half: %d", Key(r.Key()), got)
		}
	}
	if got := DecodedSize(Metadata, 99, nil); got != 0 {
		t.Errorf("a version that there isn't: %d", got)
	}
}
