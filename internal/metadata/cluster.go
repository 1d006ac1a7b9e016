package metadata

import (
	"fmt"
	"maps"
	"slices"

	"gregor/internal/message"
	"gregor/internal/uuid"
)

// Endpoint is where one listener of a node can be reached.
type Endpoint struct {
	Name             string // the listener's name
	Host             string
	Port             uint16
	SecurityProtocol int16 // Kafka's id: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL
}

// Broker is a registered broker. It is immutable.
type Broker struct {
	ID            int32
	Epoch         int64 // offset of the registration
	IncarnationID uuid.UUID
	Listeners     map[string]Endpoint
	Features      map[string]FeatureRange
	Rack          *string
	// Fenced brokers lead nothing and are in no ISR.
	Fenced               bool
	InControlledShutdown bool
	// LogDirs are the ids of the log directories that are online, in rising order.
	LogDirs []uuid.UUID
	// CordonedLogDirs are those of them that get no new replicas. It is nil while the broker has not said which they are; the
	// records, and so snapshots, tell that apart from none.
	CordonedLogDirs []uuid.UUID
	// MigratingZK was set by brokers on their way from ZooKeeper. It has no meaning any more and is kept for the records.
	MigratingZK bool
}

// Active says whether the broker may lead partitions and get new ones.
func (b *Broker) Active() bool { return !b.Fenced && !b.InControlledShutdown }

// HasOnlineDir says whether a replica in that directory is online: it is one of the broker's, or its place isn't known yet.
func (b *Broker) HasOnlineDir(dir uuid.UUID) bool {
	if dir == uuid.Lost {
		return false
	}
	return dir == uuid.Zero || dir == uuid.Unassigned || len(b.LogDirs) == 0 || slices.Contains(b.LogDirs, dir)
}

// Equal says whether two registrations are the same. Either may be nil.
func (b *Broker) Equal(o *Broker) bool {
	if b == nil || o == nil {
		return b == o
	}
	return b.ID == o.ID && b.Epoch == o.Epoch && b.IncarnationID == o.IncarnationID && maps.Equal(b.Listeners, o.Listeners) &&
		maps.Equal(b.Features, o.Features) && equalString(b.Rack, o.Rack) && b.Fenced == o.Fenced &&
		b.InControlledShutdown == o.InControlledShutdown && slices.Equal(b.LogDirs, o.LogDirs) &&
		slices.Equal(b.CordonedLogDirs, o.CordonedLogDirs) && (b.CordonedLogDirs == nil) == (o.CordonedLogDirs == nil) &&
		b.MigratingZK == o.MigratingZK
}

func equalString(a, b *string) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// BrokerFromRecord is the registration that a record makes.
func BrokerFromRecord(r *message.RegisterBrokerRecord) *Broker {
	b := &Broker{
		ID: r.BrokerID, Epoch: r.BrokerEpoch, IncarnationID: r.IncarnationID, Rack: r.Rack, Fenced: r.Fenced,
		InControlledShutdown: r.InControlledShutdown, LogDirs: sortedDirs(r.LogDirs), CordonedLogDirs: sortedDirs(r.CordonedLogDirs),
		MigratingZK: r.IsMigratingZkBroker,
		Listeners:   map[string]Endpoint{}, Features: map[string]FeatureRange{},
	}
	for _, e := range r.EndPoints {
		b.Listeners[e.Name] = Endpoint{e.Name, e.Host, e.Port, e.SecurityProtocol}
	}
	for _, f := range r.Features {
		b.Features[f.Name] = FeatureRange{f.MinSupportedVersion, f.MaxSupportedVersion}
	}
	return b
}

// Change is the registration after a change record. The receiver stays as it is.
func (b *Broker) Change(r *message.BrokerRegistrationChangeRecord) (*Broker, error) {
	n := *b
	switch r.Fenced {
	case 1:
		n.Fenced = true
	case -1:
		n.Fenced = false
	case 0:
	default:
		return nil, fmt.Errorf("broker %d: unknown value %d for fenced", r.BrokerID, r.Fenced)
	}
	switch r.InControlledShutdown {
	case 1:
		n.InControlledShutdown = true
	case 0:
	default:
		return nil, fmt.Errorf("broker %d: unknown value %d for in controlled shutdown", r.BrokerID, r.InControlledShutdown)
	}
	if len(r.LogDirs) > 0 {
		n.LogDirs = sortedDirs(r.LogDirs)
	}
	if r.CordonedLogDirs != nil {
		n.CordonedLogDirs = sortedDirs(r.CordonedLogDirs)
	}
	return &n, nil
}

func sortedDirs(dirs []uuid.UUID) []uuid.UUID {
	s := slices.Clone(dirs)
	slices.SortFunc(s, uuid.UUID.Compare)
	return s
}

// record is b as a snapshot's record.
func (b *Broker) record(o *WriteOptions) *message.RegisterBrokerRecord {
	r := &message.RegisterBrokerRecord{
		BrokerID: b.ID, IncarnationID: b.IncarnationID, BrokerEpoch: b.Epoch, Rack: b.Rack, Fenced: b.Fenced,
		InControlledShutdown: b.InControlledShutdown,
	}
	switch {
	case !b.MigratingZK:
	case o.MetadataVersion >= V3_4_IV0:
		r.IsMigratingZkBroker = true
	default:
		o.lose("the ZooKeeper migration flag of one or more brokers")
	}
	switch {
	case o.MetadataVersion.Directories():
		r.LogDirs = b.LogDirs
	case len(b.LogDirs) > 0:
		o.lose("the online log directories of one or more brokers")
	}
	switch {
	case o.MetadataVersion.CordonedLogDirs():
		r.CordonedLogDirs = b.CordonedLogDirs
	case len(b.CordonedLogDirs) > 0:
		o.lose("the cordoned log directories of one or more brokers")
	}
	for _, name := range slices.Sorted(maps.Keys(b.Listeners)) {
		e := b.Listeners[name]
		r.EndPoints = append(r.EndPoints, message.RegisterBrokerRecordBrokerEndpoint{
			Name: name, Host: e.Host, Port: e.Port, SecurityProtocol: e.SecurityProtocol,
		})
	}
	for _, name := range slices.Sorted(maps.Keys(b.Features)) {
		f := b.Features[name]
		r.Features = append(r.Features, message.RegisterBrokerRecordBrokerFeature{
			Name: name, MinSupportedVersion: f.Min, MaxSupportedVersion: f.Max,
		})
	}
	return r
}

// Controller is a registered controller. It is immutable.
type Controller struct {
	ID               int32
	IncarnationID    uuid.UUID
	Listeners        map[string]Endpoint
	Features         map[string]FeatureRange
	ZKMigrationReady bool
}

// Equal says whether two registrations are the same. Either may be nil.
func (c *Controller) Equal(o *Controller) bool {
	if c == nil || o == nil {
		return c == o
	}
	return c.ID == o.ID && c.IncarnationID == o.IncarnationID && maps.Equal(c.Listeners, o.Listeners) &&
		maps.Equal(c.Features, o.Features) && c.ZKMigrationReady == o.ZKMigrationReady
}

// ControllerFromRecord is the registration that a record makes.
func ControllerFromRecord(r *message.RegisterControllerRecord) *Controller {
	c := &Controller{
		ID: r.ControllerID, IncarnationID: r.IncarnationID, ZKMigrationReady: r.ZkMigrationReady,
		Listeners: map[string]Endpoint{}, Features: map[string]FeatureRange{},
	}
	for _, e := range r.EndPoints {
		c.Listeners[e.Name] = Endpoint{e.Name, e.Host, e.Port, e.SecurityProtocol}
	}
	for _, f := range r.Features {
		c.Features[f.Name] = FeatureRange{f.MinSupportedVersion, f.MaxSupportedVersion}
	}
	return c
}

func (c *Controller) record() *message.RegisterControllerRecord {
	r := &message.RegisterControllerRecord{ControllerID: c.ID, IncarnationID: c.IncarnationID, ZkMigrationReady: c.ZKMigrationReady}
	for _, name := range slices.Sorted(maps.Keys(c.Listeners)) {
		e := c.Listeners[name]
		r.EndPoints = append(r.EndPoints, message.RegisterControllerRecordControllerEndpoint{
			Name: name, Host: e.Host, Port: e.Port, SecurityProtocol: e.SecurityProtocol,
		})
	}
	for _, name := range slices.Sorted(maps.Keys(c.Features)) {
		f := c.Features[name]
		r.Features = append(r.Features, message.RegisterControllerRecordControllerFeature{
			Name: name, MinSupportedVersion: f.Min, MaxSupportedVersion: f.Max,
		})
	}
	return r
}

// ClusterImage is the registered nodes. It is immutable, its maps included.
type ClusterImage struct {
	Brokers     map[int32]*Broker
	Controllers map[int32]*Controller
}

// Broker returns the broker with that id, or nil.
func (c *ClusterImage) Broker(id int32) *Broker { return c.Brokers[id] }

// BrokerIDs is the ids of all registered brokers, in rising order.
func (c *ClusterImage) BrokerIDs() []int32 { return slices.Sorted(maps.Keys(c.Brokers)) }

// ControllerIDs is the ids of all registered controllers, in rising order.
func (c *ClusterImage) ControllerIDs() []int32 { return slices.Sorted(maps.Keys(c.Controllers)) }

func (c *ClusterImage) write(w func(message.Versioned) error, o *WriteOptions) error {
	for _, id := range c.BrokerIDs() {
		r := c.Brokers[id].record(o)
		if err := w(message.Versioned{Message: r, Version: o.MetadataVersion.RegisterBrokerRecordVersion()}); err != nil {
			return err
		}
	}
	if !o.MetadataVersion.ControllerRegistrations() {
		if len(c.Controllers) > 0 {
			o.lose("the registrations of controllers")
		}
		return nil
	}
	for _, id := range c.ControllerIDs() {
		if err := w(message.Versioned{Message: c.Controllers[id].record()}); err != nil {
			return err
		}
	}
	return nil
}

// ClusterDelta is what changed in the registrations. A nil value is a node that is gone.
type ClusterDelta struct {
	Brokers     map[int32]*Broker
	Controllers map[int32]*Controller

	base *ClusterImage
}

func newClusterDelta(base *ClusterImage) *ClusterDelta {
	return &ClusterDelta{Brokers: map[int32]*Broker{}, Controllers: map[int32]*Controller{}, base: base}
}

func (d *ClusterDelta) broker(id int32) *Broker {
	if b, ok := d.Brokers[id]; ok {
		return b
	}
	return d.base.Brokers[id]
}

func (d *ClusterDelta) replayChange(r *message.BrokerRegistrationChangeRecord) error {
	b := d.broker(r.BrokerID)
	if b == nil {
		return fmt.Errorf("broker %d is not registered", r.BrokerID)
	}
	if b.Epoch != r.BrokerEpoch {
		return fmt.Errorf("broker %d has epoch %d, the record is for epoch %d", r.BrokerID, b.Epoch, r.BrokerEpoch)
	}
	n, err := b.Change(r)
	if err != nil {
		return err
	}
	if !n.Equal(b) {
		d.Brokers[r.BrokerID] = n
	}
	return nil
}

func (d *ClusterDelta) finishSnapshot() {
	for id := range d.base.Brokers {
		if _, ok := d.Brokers[id]; !ok {
			d.Brokers[id] = nil
		}
	}
	for id := range d.base.Controllers {
		if _, ok := d.Controllers[id]; !ok {
			d.Controllers[id] = nil
		}
	}
}

func (d *ClusterDelta) apply() *ClusterImage {
	return &ClusterImage{Brokers: applyMap(d.base.Brokers, d.Brokers), Controllers: applyMap(d.base.Controllers, d.Controllers)}
}

// applyMap is base with the changes, of which nil ones delete.
func applyMap[K comparable, V any](base, changes map[K]*V) map[K]*V {
	m := maps.Clone(base)
	if m == nil {
		m = map[K]*V{}
	}
	for k, v := range changes {
		if v == nil {
			delete(m, k)
		} else {
			m[k] = v
		}
	}
	return m
}
