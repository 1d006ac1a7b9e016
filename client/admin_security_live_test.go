package client

import (
	"context"
	"os"
	"reflect"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor"
	"gregor/internal/await"
)

func TestLiveACLs(t *testing.T) {
	if os.Getenv("CLIENT_TEST_BOOTSTRAP") != "" {
		t.Skip("the cluster that is running may have no authorizer")
	}
	n, err := gregor.Start(t.Context(), gregor.Config{Properties: map[string]string{
		"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer", "super.users": "User:ANONYMOUS",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	c, err := New(Options{Seeds: []string{n.Addr()}, Timeout: await.Patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	read := ACL{
		kmsg.ACLResourceTypeTopic, "orders", kmsg.ACLResourcePatternTypeLiteral, "User:alice", "*", kmsg.ACLOperationRead,
		kmsg.ACLPermissionTypeAllow,
	}
	write := read
	write.Name, write.Pattern, write.Operation, write.Permission = "ord", kmsg.ACLResourcePatternTypePrefixed, kmsg.ACLOperationWrite, kmsg.ACLPermissionTypeDeny
	bad := read
	bad.Principal = "nobody"
	created, err := c.CreateACLs(ctx, []ACL{read, bad, write})
	if err != nil || len(created) != 3 || created[0].Err != nil || created[1].Err == nil || created[1].Principal != "nobody" || created[2].Err != nil {
		t.Fatalf("%+v %v", created, err)
	}
	describe := func(filter ACL, want ...ACL) {
		t.Helper()
		var got []ACL
		await.True(t, "the rules are as they should be", func() bool {
			got, err = c.DescribeACLs(ctx, filter)
			return err != nil || reflect.DeepEqual(got, want)
		})
		if err != nil {
			t.Error(got, err)
		}
	}
	describe(AnyACL, write, read)
	filter := AnyACL
	filter.Operation = kmsg.ACLOperationRead
	describe(filter, read)
	filter = AnyACL
	filter.Resource, filter.Name, filter.Pattern = kmsg.ACLResourceTypeTopic, "orders", kmsg.ACLResourcePatternTypeMatch
	describe(filter, write, read)
	deleted, err := c.DeleteACLs(ctx, []ACL{write, bad})
	if err != nil || len(deleted) != 2 || len(deleted[0].Deleted) != 1 || deleted[0].Deleted[0] != (ACLResult{ACL: write}) || len(deleted[1].Deleted) != 0 {
		t.Errorf("%+v %v", deleted, err)
	}
	describe(AnyACL, read)
}

func TestLiveSCRAMUsers(t *testing.T) {
	c := liveClient(t)
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	const alice, bob = "client-test-alice", "client-test-bob"
	t.Cleanup(func() {
		c.AlterSCRAMUsers(context.Background(), []SCRAMChange{{User: alice, Mechanism: SCRAMSHA512, Delete: true}})
	})
	res, err := c.AlterSCRAMUsers(ctx, []SCRAMChange{{User: alice, Mechanism: SCRAMSHA256, Password: "a"}})
	if err != nil || len(res) != 1 || res[0].Err != nil {
		t.Fatalf("%+v %v", res, err)
	}
	res, err = c.AlterSCRAMUsers(ctx, []SCRAMChange{
		{User: alice, Mechanism: SCRAMSHA512, Password: "a", Iterations: 5000}, {User: bob, Mechanism: SCRAMSHA256, Password: "b", Iterations: 1},
	})
	if err != nil || len(res) != 2 || res[0].User != alice || res[0].Err != nil || res[1].Err == nil {
		t.Fatalf("%+v %v", res, err)
	}
	describe := func(want ...SCRAMCredential) {
		t.Helper()
		var users []SCRAMUser
		await.True(t, "the credentials are as they should be", func() bool {
			users, err = c.DescribeSCRAMUsers(ctx, alice, bob)
			return err != nil || len(users) == 2 && reflect.DeepEqual(users[0].Credentials, want)
		})
		if err != nil || users[0].Err != nil || users[1].Name != bob || users[1].Err == nil {
			t.Errorf("%+v %v", users, err)
		}
	}
	describe(SCRAMCredential{SCRAMSHA256, 4096}, SCRAMCredential{SCRAMSHA512, 5000})
	res, err = c.AlterSCRAMUsers(ctx, []SCRAMChange{{User: alice, Mechanism: SCRAMSHA256, Delete: true}})
	if err != nil || len(res) != 1 || res[0].Err != nil {
		t.Fatalf("%+v %v", res, err)
	}
	describe(SCRAMCredential{SCRAMSHA512, 5000})
	if _, err := c.AlterSCRAMUsers(ctx, []SCRAMChange{{User: alice, Mechanism: 9, Password: "a"}}); err == nil {
		t.Error("a mechanism that there isn't was taken")
	}
}

func TestLiveClientQuotas(t *testing.T) {
	c := liveClient(t)
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	one, other := QuotaEntity{QuotaUser: "client-test-u", QuotaClientID: "app"}, QuotaEntity{QuotaUser: "client-test-u", QuotaClientID: ""}
	if one.String() != "client-id=app,user=client-test-u" || other.String() != "client-id=<default>,user=client-test-u" {
		t.Error(one, other)
	}
	alter := func(changes ...QuotaChange) []QuotaResult {
		t.Helper()
		res, err := c.AlterClientQuotas(ctx, changes, false)
		if err != nil || len(res) != len(changes) {
			t.Fatalf("%+v %v", res, err)
		}
		return res
	}
	res := alter(
		QuotaChange{Entity: one, Set: map[string]float64{"producer_byte_rate": 1e6, "consumer_byte_rate": 2e6}},
		QuotaChange{Entity: QuotaEntity{"planet": "x"}, Set: map[string]float64{"producer_byte_rate": 1}},
		QuotaChange{Entity: other, Set: map[string]float64{"request_percentage": 150}})
	if res[0].Err != nil || res[1].Err == nil || res[2].Err != nil {
		t.Fatalf("%+v", res)
	}
	describe := func(filters []QuotaFilter, want ...ClientQuota) {
		t.Helper()
		var err error
		var got []ClientQuota
		await.True(t, "the quotas are as they should be", func() bool {
			got, err = c.DescribeClientQuotas(ctx, true, filters...)
			return err != nil || reflect.DeepEqual(got, want)
		})
		if err != nil {
			t.Error(got, err)
		}
	}
	user := QuotaFilter{Type: QuotaUser, Name: "client-test-u"}
	wantOne := ClientQuota{one, map[string]float64{"producer_byte_rate": 1e6, "consumer_byte_rate": 2e6}}
	wantOther := ClientQuota{other, map[string]float64{"request_percentage": 150}}
	describe([]QuotaFilter{user, {Type: QuotaClientID, Any: true}}, wantOther, wantOne)
	describe([]QuotaFilter{user, {Type: QuotaClientID, Default: true}}, wantOther)
	describe([]QuotaFilter{user, {Type: QuotaClientID, Name: "app"}}, wantOne)
	describe([]QuotaFilter{user})
	alter(QuotaChange{Entity: one, Remove: []string{"producer_byte_rate", "consumer_byte_rate"}}, QuotaChange{Entity: other, Remove: []string{"request_percentage"}})
	describe([]QuotaFilter{user, {Type: QuotaClientID, Any: true}})
}
