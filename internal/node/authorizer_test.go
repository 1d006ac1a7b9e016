package node

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"gregor/client"
	"gregor/internal/api"
	"gregor/internal/await"
	"gregor/internal/config"
	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/security"
	"gregor/internal/uuid"
)

func TestNewAuthorizer(t *testing.T) {
	for _, c := range []struct {
		settings string
		there    bool
		err      string
	}{
		{"", false, ""},
		{"super.users=nonsense", false, ""},
		{"authorizer.class.name=" + security.StandardAuthorizer, true, ""},
		{"authorizer.class.name=" + security.StandardAuthorizer + "\nsuper.users=nonsense", false,
			"super.users: expected a string in format principalType:principalName but got nonsense"},
		{"authorizer.class.name=kafka.security.authorizer.AclAuthorizer", false, "authorizer.class.name is kafka.security.authorizer.AclAuthorizer: " +
			"gregor can't run Java classes; it has org.apache.kafka.metadata.authorizer.StandardAuthorizer built in"},
	} {
		p, err := config.ParseProperties("server.properties", []byte("process.roles=broker,controller\nnode.id=1\nlog.dirs=/d\n"+
			"listeners=PLAINTEXT://:9092,CONTROLLER://:9093\ncontroller.listener.names=CONTROLLER\ncontroller.quorum.voters=1@localhost:9093\n"+c.settings))
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Load(p)
		if err != nil {
			t.Fatal(err)
		}
		a, err := newAuthorizer(cfg, slog.New(slog.DiscardHandler))
		if (a != nil) != c.there || fmt.Sprint(err) != map[bool]string{true: "<nil>", false: c.err}[c.err == ""] {
			t.Errorf("%q: %v, %v", c.settings, a, err)
		}
	}
}

// TestAuthorizerFollowsTheMetadata: entry by entry it comes to where one comes who gets the whole image.
func TestAuthorizerFollowsTheMetadata(t *testing.T) {
	who := security.Requester{Principal: "User:u", Addr: netip.MustParseAddr("10.0.0.1")}
	rapid.Check(t, func(t *rapid.T) {
		step := &aclPublisher{authorizer: security.NewAuthorizer(security.Settings{}, slog.New(slog.DiscardHandler))}
		img := metadata.EmptyImage()
		ids := rapid.Custom(func(t *rapid.T) uuid.UUID { return uuid.UUID{15: byte(rapid.IntRange(3, 9).Draw(t, "id"))} })
		for i := range rapid.IntRange(1, 8).Draw(t, "images") {
			d := metadata.NewDelta(img)
			for range rapid.IntRange(0, 4).Draw(t, "records") {
				id := ids.Draw(t, "entry")
				if _, there := img.ACLs.Get(id); there && rapid.Bool().Draw(t, "remove") {
					// It may have gone in this delta already, which is an error of the log, and no matter here.
					_ = d.Replay(&message.RemoveAccessControlEntryRecord{ID: id})
					continue
				}
				r := &message.AccessControlEntryRecord{ID: id, ResourceType: int8(security.Topic), ResourceName: rapid.SampledFrom([]string{"a", "ab", "*"}).Draw(t, "name"),
					PatternType: int8(rapid.SampledFrom([]security.PatternType{security.Literal, security.Prefixed}).Draw(t, "pattern")),
					Principal:   "User:u", Host: "*", Operation: int8(security.Read), PermissionType: int8(rapid.SampledFrom([]security.Permission{security.Deny, security.Allow}).Draw(t, "permission"))}
				if err := d.Replay(r); err != nil {
					t.Fatal(err)
				}
			}
			img = d.Apply(metadata.Provenance{Offset: int64(i)})
			step.Publish(d, img, metadata.Manifest{})
			whole := &aclPublisher{authorizer: security.NewAuthorizer(security.Settings{}, slog.New(slog.DiscardHandler))}
			whole.Publish(metadata.NewDelta(img), img, metadata.Manifest{})
			if step.index.Len() != img.ACLs.Len() || whole.index.Len() != img.ACLs.Len() {
				t.Fatalf("%d and %d entries of %d", step.index.Len(), whole.index.Len(), img.ACLs.Len())
			}
			for _, name := range []string{"a", "ab", "abc", "b"} {
				if got, want := step.authorizer.Would(who, security.Read, security.Topic, name), whole.authorizer.Would(who, security.Read, security.Topic, name); got != want {
					t.Fatalf("%s: %v, want %v", name, got, want)
				}
			}
		}
	})
}

// clientFrom is a client with an address of its own.
func (c *cluster) clientFrom(addr string, broker int) *client.Client {
	c.t.Helper()
	cl, err := client.New(client.Options{Seeds: []string{fmt.Sprintf("10.0.0.%d:9092", broker)}, Timeout: await.Patience,
		Dial: func(ctx context.Context, network, to string) (net.Conn, error) {
			return c.net.DialFrom(ctx, netip.MustParseAddr(addr), network, to)
		}})
	if err != nil {
		c.t.Fatal(err)
	}
	return cl
}

const guarded = "authorizer.class.name=" + security.StandardAuthorizer + "\n"

// TestAccessControl: nodes and an administrator may do all by the range of their addresses, a guest from elsewhere nothing; the
// controller and both brokers see to it, also after a restart.
func TestAccessControl(t *testing.T) {
	c := newCluster(t, 1, 2, false, guarded+"allow.everyone.if.no.acl.found=true\ndefault.replication.factor=2")
	c.start(1, 2, 3)
	defer c.stop()
	admin, guest := c.clientFrom("10.0.0.100", 2), c.clientFrom("10.0.0.200", 3)
	defer func() { admin.Close(); guest.Close() }()
	produce := func() error {
		p := admin.NewProducer(client.ProducerOptions{})
		defer closeProducer(p)
		return p.ProduceSync(t.Context(), &client.Record{Topic: "a", Value: []byte("v")})
	}
	if _, err := admin.CreateTopics(t.Context(), []client.TopicSpec{{Name: "a", Partitions: 1, ReplicationFactor: 2}}, false); err != nil {
		t.Fatal(err)
	}
	rules := kmsg.NewPtrCreateACLsRequest()
	rules.Version = 3
	for kind := security.Topic; kind <= security.User; kind++ {
		name := "*"
		if kind == security.Cluster {
			name = security.ClusterName
		}
		rules.Creations = append(rules.Creations, kmsg.CreateACLsRequestCreation{ResourceType: kmsg.ACLResourceType(kind), ResourceName: name,
			ResourcePatternType: kmsg.ACLResourcePatternTypeLiteral, Principal: "User:*", Host: "10.0.0.0/25", Operation: kmsg.ACLOperationAll,
			PermissionType: kmsg.ACLPermissionTypeAllow})
	}
	for _, r := range raw[*kmsg.CreateACLsResponse](c, admin, 2, rules).Results {
		if r.ErrorCode != 0 {
			t.Fatalf("rule: code %d", r.ErrorCode)
		}
	}
	check := func(when string) {
		t.Helper()
		topic := "a"
		meta := kmsg.NewPtrMetadataRequest()
		meta.Version, meta.Topics = 12, []kmsg.MetadataRequestTopic{{Topic: &topic}}
		c.await(when+": the guest may not know of the topic", func() bool {
			return raw[*kmsg.MetadataResponse](c, guest, 3, meta).Topics[0].ErrorCode == api.ErrTopicAuthorizationFailed.Code
		})
		quorum := kmsg.NewPtrDescribeQuorumRequest()
		quorum.Version = 2
		c.await(when+": the guest may not see the quorum", func() bool { // the controller knows the rules, too
			return raw[*kmsg.DescribeQuorumResponse](c, guest, 3, quorum).ErrorCode == api.ErrClusterAuthorizationFailed.Code
		})
		create := kmsg.NewPtrCreateTopicsRequest()
		create.Version, create.TimeoutMillis = 7, 10_000
		create.Topics = append(create.Topics, kmsg.CreateTopicsRequestTopic{Topic: "b", NumPartitions: 1, ReplicationFactor: 1})
		if code := raw[*kmsg.CreateTopicsResponse](c, guest, 3, create).Topics[0].ErrorCode; code != api.ErrTopicAuthorizationFailed.Code {
			t.Errorf("%s: the guest creates a topic: %d", when, code)
		}
		// All replicas have it, so followers may fetch.
		if err := produce(); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	check("at first")
	c.stop()
	c.start(1, 2, 3)
	check("after a restart")
}

// TestQuorumWithSuperUsers: several controllers come to know the rules only if they may talk without.
func TestQuorumWithSuperUsers(t *testing.T) {
	c := newCluster(t, 3, 1, true, guarded+"super.users=User:ANONYMOUS")
	c.start(1, 2, 3, 4)
	defer c.stop()
	cl := c.client(4)
	defer cl.Close()
	c.create(cl, "a")
	c.sameImages()
}

// TestAdmit: what a controller looks at, before and after it knows the rules.
func TestAdmit(t *testing.T) {
	n := &Node{authorizer: security.NewAuthorizer(security.Settings{SuperUsers: []string{"User:root"}}, slog.New(slog.DiscardHandler))}
	addr := netip.MustParseAddr("10.0.0.1")
	hb := kmsg.NewPtrBrokerHeartbeatRequest()
	for _, c := range []struct {
		name, principal string
		loaded          bool
		q               kmsg.Request
		want            int16
	}{
		{"a super user before the rules are known", "User:root", false, hb, 0},
		{"anybody else", "User:u", false, hb, api.CodeUnknownServerError},
		{"a super user", "User:root", true, hb, 0},
		{"anybody else, later", "User:u", true, hb, api.ErrClusterAuthorizationFailed.Code},
		{"what is decided by topic", "User:u", true, kmsg.NewPtrCreateTopicsRequest(), 0},
	} {
		if c.loaded {
			n.authorizer.Load(new(security.ACLs).Edit().Done())
		}
		if got := api.CodeOf(n.admit(c.principal, addr, c.q)); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
	if err := new(Node).admit("User:u", addr, hb); err != nil {
		t.Errorf("without authorizer: %v", err)
	}
}
