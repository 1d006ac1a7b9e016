package simtest

import (
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/controller"
	"gregor/internal/metadata"
	"gregor/internal/uuid"
)

// active is the node to ask for the active controller: mostly the right one.
func (w *world) activeNode() *node {
	if w.Rand.IntN(12) == 0 {
		return w.nodes[w.Rand.IntN(len(w.nodes))]
	}
	procs := w.procs()
	if len(procs) == 0 {
		return nil
	}
	id := procs[w.Rand.IntN(len(procs))].m.Core().LeaderAndEpoch().LeaderID
	if id <= 0 {
		return nil
	}
	return w.nodes[id-1]
}

// broker is what the process of a broker does towards the controller.
type broker struct {
	p           *proc
	incarnation uuid.UUID
	lives       int
	epoch       int64 // -1 as long as it is not registered
	fenced      bool
	stopping    bool // wants to stop, by the rules
	stopped     bool
	previous    int64
}

func newBroker(p *proc) *broker {
	b := &broker{p: p, epoch: -1, fenced: true, previous: p.n.lastEpoch, incarnation: p.n.incarnation(1)}
	p.n.lastEpoch = -1
	p.after(p.w.Between(0, 20*time.Millisecond), b.beat)
	return b
}

func (b *broker) dirs() [][16]byte {
	id := byte(b.p.n.id)
	return [][16]byte{{0: 0xd1, 13: id, 15: 1}, {0: 0xd1, 13: id, 15: 2}}[:1+b.p.n.id%2]
}

// ask sends a request to the active controller. answer is not called by what comes for an earlier process.
func (b *broker) ask(req kmsg.Request, answer func(kmsg.Response)) {
	to := b.p.w.activeNode()
	if to == nil {
		return
	}
	to.submit(b.p.n.id, req, func(resp kmsg.Response, err error) {
		if err == nil && b.p.alive() && b.p.broker == b {
			b.p.do(func() { answer(resp) })
		}
	})
}

// beat does what is next: register, or send a heartbeat.
func (b *broker) beat() {
	w := b.p.w
	b.p.after(w.Between(40*time.Millisecond, 100*time.Millisecond), b.beat)
	switch {
	case b.stopped:
		if w.healing || w.Rand.IntN(4) == 0 { // the next life
			b.lives++
			b.stopping, b.stopped, b.previous, b.epoch, b.fenced = false, false, b.epoch, -1, true
			b.incarnation[2] = byte(b.lives)
		}
	case b.epoch < 0:
		b.register()
	default:
		b.heartbeat()
		if !w.healing || w.Rand.IntN(4) == 0 {
			b.lead()
		}
		if w.Rand.IntN(10) == 0 {
			r := kmsg.NewPtrAllocateProducerIDsRequest()
			r.BrokerID, r.BrokerEpoch = b.p.n.id, b.epoch
			b.ask(r, func(kmsg.Response) {})
		}
	}
	if b.p.core != nil && w.Rand.IntN(4) == 0 {
		b.registerController()
	}
}

func (b *broker) register() {
	req := kmsg.NewPtrBrokerRegistrationRequest()
	req.BrokerID, req.ClusterID, req.PreviousBrokerEpoch, req.IncarnationID = b.p.n.id, clusterID, b.previous, b.incarnation
	req.LogDirs = b.dirs()
	if b.p.n.id%3 > 0 {
		rack := "r" + strconv.Itoa(int(b.p.n.id%3))
		req.Rack = &rack
	}
	for _, f := range controller.SupportedFeatures() {
		x := kmsg.NewBrokerRegistrationRequestFeature()
		x.Name, x.MinSupportedVersion, x.MaxSupportedVersion = f.Name, f.Min, f.Max
		req.Features = append(req.Features, x)
	}
	l := kmsg.NewBrokerRegistrationRequestListener()
	l.Name, l.Host, l.Port = "PLAINTEXT", "broker"+strconv.Itoa(int(b.p.n.id)), 9092
	req.Listeners = append(req.Listeners, l)
	inc := b.incarnation
	b.ask(req, func(resp kmsg.Response) {
		if r := resp.(*kmsg.BrokerRegistrationResponse); r.ErrorCode == 0 && b.incarnation == inc {
			b.epoch = r.BrokerEpoch
		}
	})
}

func (b *broker) heartbeat() {
	w := b.p.w
	if !w.healing && !b.stopping && w.Rand.IntN(60) == 0 {
		b.stopping = true
	}
	req := kmsg.NewPtrBrokerHeartbeatRequest()
	req.BrokerID, req.BrokerEpoch, req.CurrentMetadataOffset = b.p.n.id, b.epoch, b.p.loader.LastAppliedOffset()
	req.WantShutdown = b.stopping
	req.WantFence = !w.healing && w.Rand.IntN(30) == 0
	if dirs := b.dirs(); len(dirs) > 1 && !w.healing && w.Rand.IntN(20) == 0 {
		req.OfflineLogDirs = dirs[1:]
	}
	epoch := b.epoch
	b.ask(req, func(resp kmsg.Response) {
		r := resp.(*kmsg.BrokerHeartbeatResponse)
		if b.epoch != epoch {
			return
		}
		switch {
		case r.ErrorCode == api.CodeOf(api.ErrStaleBrokerEpoch), r.ErrorCode == api.CodeOf(api.ErrBrokerIDNotRegistered):
			// It was replaced or unregistered: its process ends and another begins.
			b.stopped = true
		case r.ErrorCode == 0:
			b.fenced = r.IsFenced
			if r.ShouldShutdown {
				b.stopped = true
			}
		}
	})
}

// lead changes the ISR of a partition that this broker leads, as far as it knows.
func (b *broker) lead() {
	w, img := b.p.w, b.p.loader.Image()
	if img.Topics.Len() == 0 {
		return
	}
	skip := w.Rand.IntN(img.Topics.PartitionCount() + 1)
	for t := range img.Topics.All() {
		for id, p := range t.Partitions() {
			if skip--; skip > 0 || p.Leader != b.p.n.id {
				continue
			}
			b.alterPartition(img, t, id, p)
			return
		}
	}
}

func (b *broker) alterPartition(img *metadata.Image, t *metadata.Topic, id int32, p *metadata.Partition) {
	w := b.p.w
	req := kmsg.NewPtrAlterPartitionRequest()
	req.BrokerID, req.BrokerEpoch = b.p.n.id, b.epoch
	x := kmsg.NewAlterPartitionRequestTopicPartition()
	x.Partition, x.LeaderEpoch, x.PartitionEpoch = id, p.LeaderEpoch, p.PartitionEpoch
	for _, r := range p.Replicas {
		o := img.Cluster.Broker(r)
		in := slices.Contains(p.ISR, r)
		// Brokers drop who doesn't fetch and add who has caught up.
		if r == b.p.n.id || o != nil && (in && w.Rand.IntN(4) > 0 || !in && !o.Fenced && w.Rand.IntN(4) > 0) {
			e := kmsg.AlterPartitionRequestTopicPartitionNewEpochISR{BrokerID: r, BrokerEpoch: -1}
			if o != nil {
				e.BrokerEpoch = o.Epoch
			}
			x.NewEpochISR = append(x.NewEpochISR, e)
		}
	}
	req.Topics = append(req.Topics, kmsg.AlterPartitionRequestTopic{TopicID: t.ID, Partitions: []kmsg.AlterPartitionRequestTopicPartition{x}})
	b.ask(req, func(kmsg.Response) {})
}

// registerController makes the node known as a controller, as the node's registrar does.
func (b *broker) registerController() {
	p := b.p
	if c := p.loader.Image().Cluster.Controllers[p.n.id]; c != nil && c.IncarnationID == p.n.incarnation(2) {
		return
	}
	req := kmsg.NewPtrControllerRegistrationRequest()
	req.ControllerID, req.IncarnationID = p.n.id, p.n.incarnation(2)
	l := kmsg.NewControllerRegistrationRequestListener()
	l.Name, l.Host, l.Port = p.n.ep.Name, p.n.ep.Host, p.n.ep.Port
	req.Listeners = append(req.Listeners, l)
	for _, f := range controller.SupportedFeatures() {
		x := kmsg.NewControllerRegistrationRequestFeature()
		x.Name, x.MinSupportedVersion, x.MaxSupportedVersion = f.Name, f.Min, f.Max
		req.Features = append(req.Features, x)
	}
	b.ask(req, func(kmsg.Response) {})
}

// client changes the cluster as administrators do, and remembers what it was told.
type client struct {
	w       *world
	serial  int
	kept    map[string]uuid.UUID // topics that it was told are there, and never asked to delete
	deleted map[string]bool      // and those that it asked to delete
	created string
}

func (c *client) unique(prefix string) string {
	c.serial++
	return prefix + strconv.Itoa(c.serial)
}

// send asks the active controller, from a node that stands in for the client's.
func (c *client) send(req kmsg.Request, answer func(kmsg.Response)) {
	to := c.w.activeNode()
	if to == nil {
		return
	}
	from := c.w.nodes[c.w.Rand.IntN(len(c.w.nodes))].id
	to.submit(from, req, func(resp kmsg.Response, err error) {
		if c.w.out != nil {
			text, _ := json.Marshal(resp) // no addresses: what is logged must be the same in every run
			c.w.logf("client is answered with a %T: %s %v", resp, text, err)
		}
		if err == nil && answer != nil {
			answer(resp)
		}
	})
}

// topic is one that there is, as far as a random node knows.
func (c *client) topic() *metadata.Topic {
	procs := c.w.procs()
	if len(procs) == 0 {
		return nil
	}
	img := procs[c.w.Rand.IntN(len(procs))].loader.Image()
	if img.Topics.Len() == 0 {
		return nil
	}
	skip := c.w.Rand.IntN(img.Topics.Len())
	for t := range img.Topics.All() {
		if skip == 0 {
			return t
		}
		skip--
	}
	return nil
}

func (c *client) brokerIDs() []int32 {
	var ids []int32
	for _, n := range c.w.nodes {
		if n.broker {
			ids = append(ids, n.id)
		}
	}
	return ids
}

// replicas is some brokers in random order.
func (c *client) replicas() []int32 {
	ids := c.brokerIDs()
	c.w.Rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	return ids[:1+c.w.Rand.IntN(min(len(ids), 3))]
}

// act does one thing.
func (c *client) act() {
	w := c.w
	switch w.Rand.IntN(24) {
	case 0, 1, 2, 3, 4, 5:
		c.create(c.unique("t"), nil)
	case 6, 7:
		c.create("again", nil)
	case 8, 9, 10:
		c.delete()
	case 11:
		if t := c.topic(); t != nil {
			req := kmsg.NewPtrCreatePartitionsRequest()
			x := kmsg.NewCreatePartitionsRequestTopic()
			x.Topic, x.Count = t.Name, int32(t.Len()+w.Rand.IntN(2))
			req.Topics = append(req.Topics, x)
			c.send(req, nil)
		}
	case 12, 13, 14:
		c.configure()
	case 15, 16, 17, 18:
		c.reassign()
	case 19:
		req := kmsg.NewPtrElectLeadersRequest()
		req.ElectionType = int8(w.Rand.IntN(2))
		c.send(req, nil)
	case 20:
		req := kmsg.NewPtrAlterClientQuotasRequest()
		user := "u" + strconv.Itoa(w.Rand.IntN(2))
		e := kmsg.NewAlterClientQuotasRequestEntry()
		e.Entity = []kmsg.AlterClientQuotasRequestEntryEntity{{Type: "user", Name: &user}}
		e.Ops = []kmsg.AlterClientQuotasRequestEntryOp{{Key: "producer_byte_rate", Value: float64(w.Rand.IntN(100)), Remove: w.Rand.IntN(3) == 0}}
		req.Entries = append(req.Entries, e)
		c.send(req, nil)
	case 21:
		c.secure()
	case 22:
		if w.Rand.IntN(3) == 0 {
			req := kmsg.NewPtrUnregisterBrokerRequest()
			req.BrokerID = pick(w, c.brokerIDs()...)
			if n := w.nodes[req.BrokerID-1]; n.proc == nil || w.Rand.IntN(4) == 0 {
				c.send(req, nil)
			}
		}
	case 23:
		req := kmsg.NewPtrUpdateFeaturesRequest()
		u := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
		u.Feature, u.MaxVersionLevel, u.UpgradeType = "metadata.version", pick[int16](w, 17, 24, 30, 33), 1
		req.FeatureUpdates = append(req.FeatureUpdates, u)
		c.send(req, nil)
	}
}

func (c *client) create(name string, answer func(*kmsg.CreateTopicsResponseTopic)) {
	w := c.w
	req := kmsg.NewPtrCreateTopicsRequest()
	t := kmsg.NewCreateTopicsRequestTopic()
	t.Topic, t.NumPartitions, t.ReplicationFactor = name, int32(1+w.Rand.IntN(3)), int16(1+w.Rand.IntN(min(3, len(c.brokerIDs()))))
	if w.Rand.IntN(4) == 0 {
		v := "2"
		t.Configs = append(t.Configs, kmsg.CreateTopicsRequestTopicConfig{Name: "min.insync.replicas", Value: &v})
	}
	if w.Rand.IntN(4) == 0 {
		v := "true"
		t.Configs = append(t.Configs, kmsg.CreateTopicsRequestTopicConfig{Name: "unclean.leader.election.enable", Value: &v})
	}
	req.Topics = append(req.Topics, t)
	req.ValidateOnly = answer == nil && w.Rand.IntN(10) == 0
	c.send(req, func(resp kmsg.Response) {
		r := &resp.(*kmsg.CreateTopicsResponse).Topics[0]
		if r.ErrorCode == 0 && !req.ValidateOnly && name != "again" {
			if !c.deleted[name] {
				c.kept[name] = r.TopicID
			}
		}
		if answer != nil {
			answer(r)
		}
	})
}

func (c *client) delete() {
	t := c.topic()
	if t == nil || t.Name[0] == 'k' {
		return
	}
	c.deleted[t.Name] = true
	delete(c.kept, t.Name)
	req := kmsg.NewPtrDeleteTopicsRequest()
	name := t.Name
	x := kmsg.DeleteTopicsRequestTopic{Topic: &name}
	if c.w.Rand.IntN(2) == 0 {
		x = kmsg.DeleteTopicsRequestTopic{TopicID: t.ID}
	}
	req.Topics = append(req.Topics, x)
	c.send(req, nil)
}

func (c *client) configure() {
	w := c.w
	req := kmsg.NewPtrIncrementalAlterConfigsRequest()
	r := kmsg.NewIncrementalAlterConfigsRequestResource()
	x := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	c.serial++
	v := strconv.Itoa(100_000_000 + c.serial)
	t := c.topic()
	if t == nil || w.Rand.IntN(3) == 0 {
		r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeBroker, pick(w, "", "1", "2")
		x.Name = "log.retention.ms"
	} else {
		r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeTopic, t.Name
		x.Name = pick(w, "retention.ms", "segment.ms")
	}
	x.Value = &v
	if w.Rand.IntN(4) == 0 {
		x.Op, x.Value = kmsg.IncrementalAlterConfigOpDelete, nil
	}
	r.Configs = append(r.Configs, x)
	req.Resources = append(req.Resources, r)
	c.send(req, nil)
}

func (c *client) reassign() {
	t := c.topic()
	if t == nil {
		return
	}
	if c.w.Rand.IntN(5) == 0 {
		c.send(kmsg.NewPtrListPartitionReassignmentsRequest(), nil)
		return
	}
	req := kmsg.NewPtrAlterPartitionAssignmentsRequest()
	p := kmsg.NewAlterPartitionAssignmentsRequestTopicPartition()
	p.Partition = int32(c.w.Rand.IntN(t.Len()))
	if c.w.Rand.IntN(4) > 0 {
		p.Replicas = c.replicas()
	}
	req.Topics = append(req.Topics, kmsg.AlterPartitionAssignmentsRequestTopic{Topic: t.Name, Partitions: []kmsg.AlterPartitionAssignmentsRequestTopicPartition{p}})
	c.send(req, nil)
}

func (c *client) secure() {
	w := c.w
	switch w.Rand.IntN(4) {
	case 0:
		req := kmsg.NewPtrAlterUserSCRAMCredentialsRequest()
		req.Upsertions = []kmsg.AlterUserSCRAMCredentialsRequestUpsertion{{Name: "u", Mechanism: 1, Iterations: 4096 + int32(w.Rand.IntN(10)), Salt: []byte("s"), SaltedPassword: []byte("p")}}
		c.send(req, nil)
	case 1:
		req := kmsg.NewPtrAlterUserSCRAMCredentialsRequest()
		req.Deletions = []kmsg.AlterUserSCRAMCredentialsRequestDeletion{{Name: "u", Mechanism: 1}}
		c.send(req, nil)
	case 2:
		req := kmsg.NewPtrCreateACLsRequest()
		req.Creations = []kmsg.CreateACLsRequestCreation{{ResourceType: 2, ResourceName: "t" + strconv.Itoa(w.Rand.IntN(4)), ResourcePatternType: 3, Principal: "User:u", Host: "*", Operation: 3, PermissionType: 3}}
		c.send(req, nil)
	case 3:
		req := kmsg.NewPtrDeleteACLsRequest()
		name := "t" + strconv.Itoa(w.Rand.IntN(4))
		req.Filters = []kmsg.DeleteACLsRequestFilter{{ResourceType: 2, ResourceName: &name, ResourcePatternType: 1, Operation: 1, PermissionType: 1}}
		c.send(req, nil)
	}
}

// upgradeKRaft raises kraft.version, after which voters can change.
func (c *client) upgradeKRaft(to *node) {
	req := kmsg.NewPtrUpdateFeaturesRequest()
	u := kmsg.NewUpdateFeaturesRequestFeatureUpdate()
	u.Feature, u.MaxVersionLevel, u.UpgradeType = "kraft.version", 1, 1
	req.FeatureUpdates = append(req.FeatureUpdates, u)
	to.submit(to.id, req, func(resp kmsg.Response, err error) {
		if err == nil && resp.(*kmsg.UpdateFeaturesResponse).ErrorCode == 0 {
			c.w.stats.voterChanges++
		}
	})
}

// createLast creates a topic after everything, until it has worked.
func (c *client) createLast() {
	if c.created != "" || c.w.Rand.IntN(3) > 0 {
		return
	}
	name := c.unique("k")
	c.create(name, func(r *kmsg.CreateTopicsResponseTopic) {
		if r.ErrorCode == 0 {
			c.created = name
		}
	})
}

// checkEnd: what the client was told is there, and what nobody deleted, is there.
func (c *client) checkEnd() {
	img := c.w.ref.image()
	for name, id := range c.kept {
		if t := img.Topics.ByName(name); t == nil || t.ID != id {
			c.w.fail("topic %s (%s) was created, nobody asked to delete it, and it is gone", name, id)
		}
	}
}
