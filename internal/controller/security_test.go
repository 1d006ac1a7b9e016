package controller

import (
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/security"
)

func createACL(change func(*kmsg.CreateACLsRequestCreation)) *kmsg.CreateACLsRequest {
	c := kmsg.CreateACLsRequestCreation{ResourceType: 2, ResourceName: "t", ResourcePatternType: 3, Principal: "User:u", Host: "*", Operation: 3, PermissionType: 3}
	change(&c)
	return &kmsg.CreateACLsRequest{Creations: []kmsg.CreateACLsRequestCreation{c}}
}

func TestACLs(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Authorizer = true })
	w.lead()
	f := func(change func(*kmsg.CreateACLsRequestCreation), want string) {
		t.Helper()
		r := ask[*kmsg.CreateACLsResponse](w, createACL(change)).Results[0]
		if got := outcome(r.ErrorCode, r.ErrorMessage); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	f(func(*kmsg.CreateACLsRequestCreation) {}, "ok")
	f(func(*kmsg.CreateACLsRequestCreation) {}, "ok") // there already
	if n := w.core.acls.byID.Len(); n != 1 {
		t.Errorf("%d entries", n)
	}
	f(func(c *kmsg.CreateACLsRequestCreation) { c.ResourceType = 99 }, "INVALID_REQUEST: Invalid resourceType UNKNOWN")
	f(func(c *kmsg.CreateACLsRequestCreation) { c.ResourceType = 1 }, "UNKNOWN_SERVER_ERROR")
	f(func(c *kmsg.CreateACLsRequestCreation) { c.ResourcePatternType = 2 }, "UNKNOWN_SERVER_ERROR")
	f(func(c *kmsg.CreateACLsRequestCreation) { c.Operation = 0 }, "INVALID_REQUEST: Invalid operation UNKNOWN")
	f(func(c *kmsg.CreateACLsRequestCreation) { c.PermissionType = 1 }, "UNKNOWN_SERVER_ERROR")
	f(func(c *kmsg.CreateACLsRequestCreation) { c.ResourcePatternType = 0 }, "INVALID_REQUEST: Invalid patternType UNKNOWN")
	f(func(c *kmsg.CreateACLsRequestCreation) { c.PermissionType = 4 }, "INVALID_REQUEST: Invalid permissionType UNKNOWN")
	f(func(c *kmsg.CreateACLsRequestCreation) { c.ResourceName = "" }, "INVALID_REQUEST: Invalid empty resource name")
	f(func(c *kmsg.CreateACLsRequestCreation) { c.ResourceType = 4 }, "INVALID_REQUEST: The only valid name for the CLUSTER resource is kafka-cluster")
	f(func(c *kmsg.CreateACLsRequestCreation) { c.Principal = "u" },
		"INVALID_REQUEST: Could not parse principal from `u` (no colon is present separating the principal type from the principal name)")
	f(func(c *kmsg.CreateACLsRequestCreation) { c.Host = "" }, "INVALID_REQUEST: Host pattern cannot be null or empty")
	f(func(c *kmsg.CreateACLsRequestCreation) { c.Host = "10.0.0.0/8" }, "ok")
	f(func(c *kmsg.CreateACLsRequestCreation) { c.Host = "10.0.0.0/99" },
		"INVALID_REQUEST: Invalid CIDR notation '10.0.0.0/99': Value [99] not in range [0,32]")
	f(func(c *kmsg.CreateACLsRequestCreation) { c.ResourcePatternType, c.ResourceName = 4, "te" }, "ok")
	f(func(c *kmsg.CreateACLsRequestCreation) { c.ResourceName = "*" }, "ok")

	remove := func(change func(*kmsg.DeleteACLsRequestFilter)) (string, int) {
		f := kmsg.DeleteACLsRequestFilter{ResourceType: 1, ResourcePatternType: 1, Operation: 1, PermissionType: 1}
		change(&f)
		r := ask[*kmsg.DeleteACLsResponse](w, &kmsg.DeleteACLsRequest{Filters: []kmsg.DeleteACLsRequestFilter{f}}).Results[0]
		return outcome(r.ErrorCode, r.ErrorMessage), len(r.MatchingACLs)
	}
	g := func(name string, change func(*kmsg.DeleteACLsRequestFilter), want string, n int) {
		t.Helper()
		if got, m := remove(change); got != want || m != n {
			t.Errorf("%s: %s, %d, want %s, %d", name, got, m, want, n)
		}
	}
	g("nothing", func(f *kmsg.DeleteACLsRequestFilter) { f.Principal = str("User:nobody") }, "ok", 0)
	g("unknown pattern", func(f *kmsg.DeleteACLsRequestFilter) { f.ResourcePatternType = 0 }, "INVALID_REQUEST: Unknown patternFilter.", 0)
	g("unknown operation", func(f *kmsg.DeleteACLsRequestFilter) { f.Operation = 77 }, "INVALID_REQUEST: Unknown entryFilter.", 0)
	g("exact name and host", func(f *kmsg.DeleteACLsRequestFilter) {
		f.ResourceName, f.Host, f.ResourcePatternType = str("t"), str("10.0.0.0/8"), 3
	}, "ok", 1)
	g("all that apply to test", func(f *kmsg.DeleteACLsRequestFilter) { f.ResourceName, f.ResourcePatternType = str("test"), 2 }, "ok", 2)
	g("the rest", func(*kmsg.DeleteACLsRequestFilter) {}, "ok", 1)
	if got, want := w.core.Dump(), w.replayed(w.log.batches).Dump(); got != want {
		t.Errorf("replayed state differs:\n%s", diff(got, want))
	}
}

func TestACLsNeedAnAuthorizer(t *testing.T) {
	w := newWorld(t, nil)
	w.lead()
	if r := ask[*kmsg.CreateACLsResponse](w, createACL(func(*kmsg.CreateACLsRequestCreation) {})).Results[0]; r.ErrorCode != api.ErrSecurityDisabled.Code {
		t.Errorf("code %d", r.ErrorCode)
	}
}

func TestDelegationTokens(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.TokenSecret = "secret" })
	w.lead()
	as := func(principal string, req kmsg.Request) kmsg.Response {
		var got kmsg.Response
		req.SetVersion(req.MaxVersion())
		w.core.Submit(w.now, &RequestContext{Principal: principal}, req, func(r kmsg.Response, _ error) { got = r })
		w.settle()
		return got
	}
	made := as("User:a", &kmsg.CreateDelegationTokenRequest{Renewers: []kmsg.CreateDelegationTokenRequestRenewer{{PrincipalType: "User", PrincipalName: "b"}}, MaxLifetimeMillis: -1}).(*kmsg.CreateDelegationTokenResponse)
	if made.ErrorCode != 0 || made.PrincipalName != "a" || made.MaxTimestamp-made.IssueTimestamp != 7*24*3600_000 || made.ExpiryTimestamp-made.IssueTimestamp != 24*3600_000 {
		t.Fatalf("%+v", made)
	}
	if r := as("User:a", &kmsg.CreateDelegationTokenRequest{Renewers: []kmsg.CreateDelegationTokenRequestRenewer{{PrincipalType: "Group"}}}).(*kmsg.CreateDelegationTokenResponse); r.ErrorCode != api.ErrInvalidPrincipalType.Code {
		t.Errorf("renewer of another type: %d", r.ErrorCode)
	}
	renew := func(who string, secret []byte) (int16, int64) {
		r := as(who, &kmsg.RenewDelegationTokenRequest{HMAC: secret, RenewTimeMillis: 48 * 3600_000}).(*kmsg.RenewDelegationTokenResponse)
		return r.ErrorCode, r.ExpiryTimestamp
	}
	w.pass(time.Hour)
	if code, at := renew("User:b", made.HMAC); code != 0 || at != w.now.UnixMilli()+24*3600_000 {
		t.Errorf("renewer: %d %d", code, at)
	}
	if code, _ := renew("User:c", made.HMAC); code != api.ErrDelegationTokenOwnerMismatch.Code {
		t.Errorf("stranger: %d", code)
	}
	if code, _ := renew("User:a", []byte("guess")); code != api.ErrDelegationTokenNotFound.Code {
		t.Errorf("wrong secret: %d", code)
	}
	expire := func(ms int64) int16 {
		return as("User:a", &kmsg.ExpireDelegationTokenRequest{HMAC: made.HMAC, ExpiryPeriodMillis: ms}).(*kmsg.ExpireDelegationTokenResponse).ErrorCode
	}
	if code := expire(1000); code != 0 {
		t.Errorf("expire: %d", code)
	}
	w.pass(2 * time.Second)
	if code, _ := renew("User:a", made.HMAC); code != api.ErrDelegationTokenExpired.Code {
		t.Errorf("expired: %d", code)
	}
	w.pass(time.Hour) // the sweep
	if n := w.core.tokens.data.Len(); n != 0 {
		t.Errorf("%d tokens are left", n)
	}
	if code := expire(-1); code != api.ErrDelegationTokenNotFound.Code {
		t.Errorf("gone: %d", code)
	}
	if got, want := w.core.Dump(), w.replayed(w.log.batches).Dump(); got != want {
		t.Errorf("replayed state differs:\n%s", diff(got, want))
	}
}

// TestAlterPartitionRefuses each thing that a leader may get wrong, with Kafka's code.
func TestAlterPartitionRefuses(t *testing.T) {
	w := newWorld(t, nil)
	w.lead()
	w.up(1, 2, 3)
	req := createRequest("t", -1, -1)
	req.Topics[0].ReplicaAssignment = assignment([]int32{1, 2, 3})
	ask[*kmsg.CreateTopicsResponse](w, req)
	w.heartbeat(3, true, false)
	tp, _ := w.core.topics.byName.Get("t")
	epoch := func(id int32) int64 { b, _ := w.core.cluster.brokers.Get(id); return b.epoch }
	f := func(name string, want *api.Error, change func(q *kmsg.AlterPartitionRequest, p *kmsg.AlterPartitionRequestTopicPartition)) {
		t.Helper()
		cur := w.partition("t", 0)
		q := kmsg.NewPtrAlterPartitionRequest()
		q.BrokerID, q.BrokerEpoch = 1, epoch(1)
		p := kmsg.AlterPartitionRequestTopicPartition{LeaderEpoch: cur.leaderEpoch, PartitionEpoch: cur.partitionEpoch, NewEpochISR: []kmsg.AlterPartitionRequestTopicPartitionNewEpochISR{{BrokerID: 1, BrokerEpoch: epoch(1)}}}
		q.Topics = []kmsg.AlterPartitionRequestTopic{{TopicID: tp.id}}
		change(q, &p)
		q.Topics[0].Partitions = []kmsg.AlterPartitionRequestTopicPartition{p}
		resp := ask[*kmsg.AlterPartitionResponse](w, q)
		code := resp.ErrorCode
		if code == 0 {
			code = resp.Topics[0].Partitions[0].ErrorCode
		}
		if code != want.Code {
			t.Errorf("%s: code %d, want %d", name, code, want.Code)
		}
	}
	type req2 = *kmsg.AlterPartitionRequest
	type part = *kmsg.AlterPartitionRequestTopicPartition
	isr := func(ids ...int32) (out []kmsg.AlterPartitionRequestTopicPartitionNewEpochISR) {
		for _, id := range ids {
			out = append(out, kmsg.AlterPartitionRequestTopicPartitionNewEpochISR{BrokerID: id, BrokerEpoch: -1})
		}
		return out
	}
	f("stale broker", api.ErrStaleBrokerEpoch, func(q req2, p part) { q.BrokerEpoch-- })
	f("unknown broker", api.ErrStaleBrokerEpoch, func(q req2, p part) { q.BrokerID = 9 })
	f("unknown topic", api.ErrUnknownTopicID, func(q req2, p part) { q.Topics[0].TopicID = [16]byte{9} })
	f("unknown partition", api.ErrUnknownTopicOrPartition, func(q req2, p part) { p.Partition = 7 })
	f("newer leader epoch", api.ErrNotController, func(q req2, p part) { p.LeaderEpoch++ })
	f("newer partition epoch", api.ErrNotController, func(q req2, p part) { p.PartitionEpoch++ })
	f("older leader epoch", api.ErrFencedLeaderEpoch, func(q req2, p part) { p.LeaderEpoch-- })
	f("not the leader", api.ErrInvalidRequest, func(q req2, p part) { q.BrokerID, q.BrokerEpoch = 2, epoch(2) })
	f("older partition epoch", api.ErrInvalidUpdateVersion, func(q req2, p part) { p.PartitionEpoch-- })
	f("no replica", api.ErrInvalidRequest, func(q req2, p part) { p.NewEpochISR = isr(1, 8) })
	f("empty", api.ErrInvalidRequest, func(q req2, p part) { p.NewEpochISR = nil })
	f("twice", api.ErrInvalidRequest, func(q req2, p part) { p.NewEpochISR = isr(1, 1) })
	f("without the leader", api.ErrInvalidRequest, func(q req2, p part) { p.NewEpochISR = isr(2) })
	f("recovering with others", api.ErrInvalidRequest, func(q req2, p part) { p.NewEpochISR, p.LeaderRecoveryState = isr(1, 2), recovering })
	f("recovering again", api.ErrInvalidRequest, func(q req2, p part) { p.LeaderRecoveryState = recovering })
	f("fenced replica", api.ErrIneligibleReplica, func(q req2, p part) { p.NewEpochISR = isr(1, 3) })
	f("replica of another life", api.ErrIneligibleReplica, func(q req2, p part) {
		p.NewEpochISR = []kmsg.AlterPartitionRequestTopicPartitionNewEpochISR{{BrokerID: 1, BrokerEpoch: -1}, {BrokerID: 2, BrokerEpoch: 1}}
	})
}

// TestOldRecordsReplay: what 4.4 doesn't write any more, older controllers did.
func TestOldRecordsReplay(t *testing.T) {
	w := newWorld(t, nil)
	w.lead()
	w.up(1)
	b, _ := w.core.cluster.brokers.Get(1)
	w.lose()
	feed := func(m message.Message) {
		w.log.epoch = w.epoch
		if _, err := w.log.PrepareAppend(w.epoch, []message.Versioned{{Message: m}}); err != nil {
			t.Fatal(err)
		}
		w.commit()
	}
	fenced := func() bool { b, _ := w.core.cluster.brokers.Get(1); return b.fenced }
	feed(&message.FenceBrokerRecord{ID: 1, Epoch: b.epoch})
	if !fenced() {
		t.Error("FenceBrokerRecord didn't fence")
	}
	feed(&message.UnfenceBrokerRecord{ID: 1, Epoch: b.epoch})
	if fenced() {
		t.Error("UnfenceBrokerRecord didn't unfence")
	}
	feed(&message.ZkMigrationStateRecord{ZkMigrationState: 1})
	reg := message.NewRegisterControllerRecord()
	reg.ControllerID = 7
	feed(reg)
	feed(&message.UnregisterControllerRecord{ControllerID: 7})
	if n := w.core.cluster.controllers.Len(); n != 0 {
		t.Errorf("%d controllers", n)
	}
}

// TestReplayRefusesNonsense: a record that doesn't fit ends the process rather than the state.
func TestReplayRefusesNonsense(t *testing.T) {
	for _, m := range []message.Message{
		&message.PartitionRecord{TopicID: [16]byte{1}}, &message.RemoveTopicRecord{TopicID: [16]byte{1}},
		&message.UnregisterBrokerRecord{BrokerID: 5}, &message.BrokerRegistrationChangeRecord{BrokerID: 1, Fenced: 1},
		&message.FeatureLevelRecord{Name: "metadata.version", FeatureLevel: 99}, &message.EndTransactionRecord{}, &message.AbortTransactionRecord{},
		&message.RemoveUserScramCredentialRecord{Name: "x"}, &message.RemoveAccessControlEntryRecord{}, &message.UnregisterControllerRecord{},
		&message.ClearElrRecord{TopicName: "nope"}, &message.TopicRecord{Name: "t", TopicID: [16]byte{2}},
		&message.PartitionChangeRecord{TopicID: [16]byte{3}}, &message.SnapshotHeaderRecord{},
	} {
		w := newWorld(t, nil)
		w.lead()
		w.up(1)
		w.create("t", 1, 1)
		w.lose()
		var fatal []error
		w.core.opts.Fatal = func(err error) { fatal = append(fatal, err) }
		w.core.HandleCommit(w.now, w.log.end, w.log.end, []message.Versioned{{Message: m}})
		if len(fatal) != 1 {
			t.Errorf("%T: %v", m, fatal)
		}
		// A dead core does nothing more.
		w.core.HandleCommit(w.now, w.log.end+1, w.log.end+1, []message.Versioned{{Message: message.NewNoOpRecord()}})
		if w.core.HandleLeaderChange(w.now, 1, 9); w.core.Active() {
			t.Errorf("%T: leads after it died", m)
		}
	}
}

// TestAuthorization: what is asked, and what is answered when it is denied, for requests that aren't about the cluster as a whole.
func TestAuthorization(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.TokenSecret = "secret" })
	w.lead()
	w.up(1)
	w.create("mine", 1, 1)
	w.create("theirs", 1, 1)
	allowed := map[string]bool{}
	as := func(req kmsg.Request) kmsg.Response {
		var got kmsg.Response
		req.SetVersion(req.MaxVersion())
		rc := &RequestContext{Principal: "User:u", Allowed: func(op security.Operation, rt security.ResourceType, name string) bool {
			return allowed[fmt.Sprint(op, " ", rt, " ", name)]
		}}
		w.core.Submit(w.now, rc, req, func(r kmsg.Response, _ error) { got = r })
		w.settle()
		return got
	}
	names := func(list ...string) (out []kmsg.DeleteTopicsRequestTopic) {
		for _, n := range list {
			out = append(out, kmsg.DeleteTopicsRequestTopic{Topic: &n})
		}
		return out
	}
	codes := func(resp kmsg.Response) string {
		got := map[string]string{}
		note := func(name string, code int16) {
			if got[name] = "NONE"; code != 0 {
				got[name] = api.ErrorFor(code).Name
			}
		}
		switch r := resp.(type) {
		case *kmsg.CreateTopicsResponse:
			for _, x := range r.Topics {
				if note(x.Topic, x.ErrorCode); x.ErrorCode == 0 && x.ConfigErrorCode != 0 {
					got[x.Topic] = "configs: " + api.ErrorFor(x.ConfigErrorCode).Name
				}
			}
		case *kmsg.DeleteTopicsResponse:
			for _, x := range r.Topics {
				note(*x.Topic, x.ErrorCode)
			}
		case *kmsg.CreatePartitionsResponse:
			for _, x := range r.Topics {
				note(x.Topic, x.ErrorCode)
			}
		case *kmsg.IncrementalAlterConfigsResponse:
			for _, x := range r.Resources {
				note(fmt.Sprintf("%d:%s", x.ResourceType, x.ResourceName), x.ErrorCode)
			}
		case *kmsg.CreateDelegationTokenResponse:
			note("token", r.ErrorCode)
		}
		return fmt.Sprint(got)
	}
	create := func() kmsg.Request {
		q := kmsg.NewPtrCreateTopicsRequest()
		q.ValidateOnly = true
		for _, n := range []string{"new", "other"} {
			q.Topics = append(q.Topics, kmsg.CreateTopicsRequestTopic{Topic: n, NumPartitions: 1, ReplicationFactor: 1})
		}
		return q
	}
	remove := func() kmsg.Request { return &kmsg.DeleteTopicsRequest{Topics: names("theirs", "none")} }
	more := func() kmsg.Request {
		return &kmsg.CreatePartitionsRequest{ValidateOnly: true, Topics: []kmsg.CreatePartitionsRequestTopic{{Topic: "mine", Count: 2}, {Topic: "theirs", Count: 2}}}
	}
	configs := func() kmsg.Request {
		return &kmsg.IncrementalAlterConfigsRequest{ValidateOnly: true, Resources: []kmsg.IncrementalAlterConfigsRequestResource{
			{ResourceType: 2, ResourceName: "mine"}, {ResourceType: 4, ResourceName: "1"}, {ResourceType: 32, ResourceName: "g"}}}
	}
	owner := "v"
	token := func() kmsg.Request { return &kmsg.CreateDelegationTokenRequest{OwnerPrincipalName: &owner} }
	for _, c := range []struct {
		allowed []string
		req     func() kmsg.Request
		want    string
	}{
		{nil, create, "map[new:TOPIC_AUTHORIZATION_FAILED other:TOPIC_AUTHORIZATION_FAILED]"},
		{[]string{"CREATE TOPIC new"}, create, "map[new:configs: TOPIC_AUTHORIZATION_FAILED other:TOPIC_AUTHORIZATION_FAILED]"},
		{[]string{"CREATE CLUSTER kafka-cluster", "DESCRIBE_CONFIGS TOPIC new"}, create, "map[new:NONE other:configs: TOPIC_AUTHORIZATION_FAILED]"},
		{nil, remove, "map[none:TOPIC_AUTHORIZATION_FAILED theirs:TOPIC_AUTHORIZATION_FAILED]"},
		{[]string{"DESCRIBE TOPIC none", "DESCRIBE TOPIC theirs"}, remove, "map[none:UNKNOWN_TOPIC_OR_PARTITION theirs:TOPIC_AUTHORIZATION_FAILED]"},
		{[]string{"ALTER TOPIC mine"}, more, "map[mine:NONE theirs:TOPIC_AUTHORIZATION_FAILED]"},
		{nil, configs, "map[2:mine:TOPIC_AUTHORIZATION_FAILED 32:g:GROUP_AUTHORIZATION_FAILED 4:1:CLUSTER_AUTHORIZATION_FAILED]"},
		{[]string{"ALTER_CONFIGS TOPIC mine", "ALTER_CONFIGS GROUP g", "ALTER_CONFIGS CLUSTER kafka-cluster"}, configs, "map[2:mine:NONE 32:g:NONE 4:1:NONE]"},
		{nil, token, "map[token:DELEGATION_TOKEN_AUTHORIZATION_FAILED]"},
		{[]string{"CREATE_TOKENS USER User:v"}, token, "map[token:NONE]"},
	} {
		clear(allowed)
		for _, a := range c.allowed {
			allowed[a] = true
		}
		if got := codes(as(c.req())); got != c.want {
			t.Errorf("%v: %s, want %s", c.allowed, got, c.want)
		}
	}
}
