package broker

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/await"
	"gregor/internal/clock"
	"gregor/internal/config"
	"gregor/internal/coordinator/group"
	"gregor/internal/log"
	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/network"
	"gregor/internal/record"
	"gregor/internal/replica"
	"gregor/internal/security"
	"gregor/internal/uuid"
	"gregor/internal/vfs"
)

// world is a broker with real logs behind a real listener; its metadata is what the test publishes.
type world struct {
	tb     testing.TB
	broker *Broker
	groups *group.Coordinator
	logs   *log.Manager
	image  *metadata.Image
	// authorizer is there if "authorizer.class.name" is set; it knows what the test loads.
	authorizer *security.Authorizer
	addr       string
	offset     int64
}

// idController allocates producer ids and refuses all else.
type idController struct{ next int64 }

func (c *idController) Forward(_ Client, q kmsg.Request, _ time.Time, reply func(kmsg.Response, error)) {
	if q, ok := q.(*kmsg.AllocateProducerIDsRequest); ok {
		resp := q.ResponseKind().(*kmsg.AllocateProducerIDsResponse)
		resp.ProducerIDStart, resp.ProducerIDLen = c.next, 1000
		c.next += 1000
		reply(resp, nil)
		return
	}
	reply(nil, api.ErrRequestTimedOut)
}

func newWorld(tb testing.TB, props map[string]string) *world {
	tb.Helper()
	dir := tb.TempDir()
	all := map[string]string{"process.roles": "broker,controller", "node.id": "1", "log.dirs": dir,
		"listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0", "controller.listener.names": "CONTROLLER",
		"controller.quorum.voters": "1@127.0.0.1:9093", "offsets.topic.num.partitions": "1"}
	for k, v := range props {
		all[k] = v
	}
	cfg, err := config.Load(config.NewProperties(all))
	if err != nil {
		tb.Fatal(err)
	}
	live := config.NewLive(cfg)
	dirID, err := uuid.New(crand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	if err := log.WriteMetaProperties(vfs.OS, dir, log.MetaProperties{Version: 1, ClusterID: "c", NodeID: 1, DirectoryID: dirID}, time.Now()); err != nil {
		tb.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	logs, err := log.Open(context.Background(), log.Options{FS: vfs.OS, Clock: clock.System, Logger: quiet, Dirs: []string{dir},
		NodeID: 1, ClusterID: "c", MaxRecordBytes: cfg.Topic.MaxDecompressedMessageBytes})
	if err != nil {
		tb.Fatal(err)
	}
	w := &world{tb: tb, logs: logs, image: metadata.EmptyImage()}
	replicas := replica.New(replica.Options{NodeID: 1, Logs: logs, Config: live, Logger: quiet, Rand: rand.New(rand.NewPCG(1, 2))})
	groupConfig := group.DefaultConfig()
	groupConfig.Group = func(own map[string]string) group.Settings {
		c := cfg.GroupWith(own)
		return group.Settings{SessionTimeout: c.ConsumerSessionTimeout, HeartbeatInterval: c.ConsumerHeartbeatInterval,
			AssignmentInterval: c.ConsumerAssignmentInterval}
	}
	groupConfig.InitialRebalanceDelay = cfg.GroupCoordinator.InitialRebalanceDelay
	groupConfig.StreamsGroup = func(own map[string]string) group.StreamsSettings {
		c, s := cfg.GroupWith(own), group.DefaultStreamsSettings()
		s.InitialDelay, s.AssignmentInterval = c.StreamsInitialDelay, c.StreamsAssignmentInterval
		return s
	}
	groups := group.New(group.Options{Log: replicas.CoordinatorLog(offsetsTopic), Clock: clock.System, Rand: crand.Reader,
		Config: groupConfig, Linger: -1})
	w.groups = groups
	table := api.NewTable(api.BrokerListener, Keys()...)
	if cfg.Value("authorizer.class.name").Text() != "" {
		w.authorizer = security.NewAuthorizer(security.Settings{}, quiet)
	}
	w.broker = New(Options{NodeID: 1, ClusterID: "c", Config: live, Replicas: replicas, Clock: clock.System, Logger: quiet,
		Controller: &idController{next: 4000}, Groups: groups, Table: table, Authorizer: w.authorizer, KRaftVersion: func() int16 { return 1 }})
	groups.Start(1)
	srv, err := network.New(network.Options{Clock: clock.System, Listeners: []network.Listener{{Name: "PLAINTEXT",
		Addr: "127.0.0.1:0", SecurityProtocol: "PLAINTEXT", Table: table, Handler: w.broker}}})
	if err != nil {
		tb.Fatal(err)
	}
	if err := srv.Listen(context.Background()); err != nil {
		tb.Fatal(err)
	}
	srv.Start()
	w.addr = srv.Addr("PLAINTEXT").String()
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
		defer cancel()
		groups.Close()
		replicas.Close()
		if err := srv.Shutdown(ctx); err != nil {
			tb.Error(err)
		}
		if err := logs.Close(ctx, 1); err != nil {
			tb.Error(err)
		}
	})
	w.publish(&message.FeatureLevelRecord{Name: metadata.FeatureMetadataVersion, FeatureLevel: int16(metadata.LatestProduction)},
		&message.RegisterBrokerRecord{BrokerID: 1, BrokerEpoch: 1, LogDirs: []uuid.UUID{dirID}, EndPoints: []message.RegisterBrokerRecordBrokerEndpoint{
			{Name: "PLAINTEXT", Host: "127.0.0.1", Port: 9092}}},
		&message.BrokerRegistrationChangeRecord{BrokerID: 1, BrokerEpoch: 1, Fenced: -1})
	return w
}

// publish replays records and publishes the image.
func (w *world) publish(records ...message.Message) {
	w.tb.Helper()
	d := metadata.NewDelta(w.image)
	for _, r := range records {
		w.offset++
		if err := d.Replay(r); err != nil {
			w.tb.Fatal(err)
		}
	}
	w.image = d.Apply(metadata.Provenance{Offset: w.offset, BatchAligned: true})
	w.broker.replicas.Publish(d, w.image)
	w.broker.Publish(d, w.image)
}

// topic creates a topic that this broker leads, with configs as key, value, key, value... It can be used when this returns.
func (w *world) topic(name string, partitions int, configs ...string) uuid.UUID {
	w.tb.Helper()
	id, err := uuid.New(crand.Reader)
	if err != nil {
		w.tb.Fatal(err)
	}
	records := []message.Message{&message.TopicRecord{Name: name, TopicID: id}}
	for p := range partitions {
		records = append(records, &message.PartitionRecord{PartitionID: int32(p), TopicID: id, Replicas: []int32{1}, ISR: []int32{1}, Leader: 1})
	}
	for i := 0; i < len(configs); i += 2 {
		records = append(records, &message.ConfigRecord{ResourceType: metadata.TopicResource, ResourceName: name, Name: configs[i], Value: &configs[i+1]})
	}
	w.publish(records...)
	if name == offsetsTopic {
		w.awaitGroups(partitions)
	}
	return id
}

// awaitGroups waits until the group coordinator serves that many partitions: it loads them in the background, and sends who asks
// meanwhile away.
func (w *world) awaitGroups(partitions int) {
	w.tb.Helper()
	await.True(w.tb, "groups are served", func() bool { return w.groups.Stats().Partitions["active"] == partitions })
}

func (w *world) removeTopic(id uuid.UUID) {
	w.tb.Helper()
	w.publish(&message.RemoveTopicRecord{TopicID: id})
}

// client is one connection that speaks kmsg.
type client struct {
	tb   testing.TB
	conn net.Conn
	next int32
}

func (w *world) client() *client {
	w.tb.Helper()
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		w.tb.Fatal(err)
	}
	w.tb.Cleanup(func() { c.Close() })
	return &client{tb: w.tb, conn: c}
}

func (c *client) send(q kmsg.Request) {
	c.tb.Helper()
	c.next++
	f := kmsg.NewRequestFormatter(kmsg.FormatterClientID("test"))
	if _, err := c.conn.Write(f.AppendRequest(nil, q, c.next)); err != nil {
		c.tb.Fatal(err)
	}
}

// longWait is a wait of a request that the test ends, in ms: longer than the test would take for it.
const longWait = int32(2 * await.Patience / time.Millisecond)

var errClosed = errors.New("connection closed")

func (c *client) receive(q kmsg.Request) (kmsg.Response, error) {
	c.conn.SetReadDeadline(time.Now().Add(await.Patience))
	var size [4]byte
	if _, err := io.ReadFull(c.conn, size[:]); err != nil {
		return nil, fmt.Errorf("%w: %w", errClosed, err)
	}
	body := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(c.conn, body); err != nil {
		return nil, err
	}
	body = body[4:]
	if q.IsFlexible() && q.Key() != int16(api.ApiVersions) {
		body = body[1:]
	}
	resp := q.ResponseKind()
	return resp, resp.ReadFrom(body)
}

// call sends a request of the version set in it and returns the response.
func call[R kmsg.Response](c *client, q kmsg.Request) R {
	c.tb.Helper()
	c.send(q)
	resp, err := c.receive(q)
	if err != nil {
		c.tb.Fatalf("%T v%d: %v", q, q.GetVersion(), err)
	}
	return resp.(R)
}

// batch is an encoded batch of records with these values, at base offset 0.
func batch(tb testing.TB, o record.BuilderOptions, values ...string) []byte {
	tb.Helper()
	b := record.NewBuilder(o)
	for i, v := range values {
		b.Append(1_700_000_000_000+int64(i), nil, []byte(v), nil)
	}
	out, err := b.Build()
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

func plain() record.BuilderOptions {
	return record.BuilderOptions{ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1, LeaderEpoch: -1}
}

func produceRequest(version int16, acks int16, topic string, id uuid.UUID, partition int32, records []byte) *kmsg.ProduceRequest {
	q := kmsg.NewPtrProduceRequest()
	q.Version, q.Acks, q.TimeoutMillis = version, acks, longWait
	q.Topics = []kmsg.ProduceRequestTopic{{Topic: topic, TopicID: id, Partitions: []kmsg.ProduceRequestTopicPartition{
		{Partition: partition, Records: records}}}}
	return q
}

func (w *world) produce(c *client, topic string, partition int32, records []byte) kmsg.ProduceResponseTopicPartition {
	w.tb.Helper()
	resp := call[*kmsg.ProduceResponse](c, produceRequest(12, -1, topic, uuid.Zero, partition, records))
	return resp.Topics[0].Partitions[0]
}
