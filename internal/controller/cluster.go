package controller

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/timeline"
	"gregor/internal/uuid"
)

// broker is a broker's registration. It is replaced, never changed.
type broker struct {
	id          int32
	epoch       int64
	incarnation uuid.UUID
	rack        *string
	fenced      bool
	// shuttingDown is true from the start of a controlled shutdown to the next registration.
	shuttingDown bool
	endpoints    []message.RegisterBrokerRecordBrokerEndpoint
	features     []Feature
	directories  []uuid.UUID // sorted
	cordoned     []uuid.UUID // nil if the broker never said
	// registeredAt is the offset of the registration record: a broker that has read it knows all that is older.
	registeredAt int64
}

// active says whether the broker may lead and be in ISRs.
func (b *broker) active() bool { return !b.fenced && !b.shuttingDown }

func (b *broker) online(dir uuid.UUID) bool {
	switch dir {
	case uuid.Zero, uuid.Unassigned: // migrating, not yet chosen
		return true
	case uuid.Lost:
		return false
	}
	return len(b.directories) == 0 || slices.Contains(b.directories, dir)
}

// hasUncordoned says whether the broker has a directory that takes new partitions.
func (b *broker) hasUncordoned() bool {
	if len(b.directories) == 0 || b.cordoned == nil {
		return true
	}
	return slices.ContainsFunc(b.directories, func(d uuid.UUID) bool { return !slices.Contains(b.cordoned, d) })
}

// registration is a controller's registration.
type registration struct {
	id          int32
	incarnation uuid.UUID
	features    []Feature
}

// cluster manages the registrations of brokers and controllers.
type cluster struct {
	c           *Core
	brokers     *timeline.Map[int32, *broker]
	controllers *timeline.Map[int32, *registration]
	dirOwner    *timeline.Map[uuid.UUID, int32]
	// pulse is nil on a standby.
	pulse *heartbeats
}

func newCluster(c *Core) *cluster {
	return &cluster{
		c:           c,
		brokers:     timeline.NewMap[int32, *broker](c.registry),
		controllers: timeline.NewMap[int32, *registration](c.registry),
		dirOwner:    timeline.NewMap[uuid.UUID, int32](c.registry),
	}
}

func (m *cluster) activate() {
	m.pulse = newHeartbeats()
	for id, b := range m.brokers.All() {
		m.pulse.register(id, b.fenced)
		if !b.fenced {
			// A session starts anew: whoever is alive will heartbeat within it. A fenced broker has none, so that its next
			// life may register at once.
			m.c.tracker.expect(id, b.epoch, m.c.now)
		}
	}
}

func (m *cluster) deactivate() {
	m.pulse = nil
	m.c.tracker.clear()
}

func (m *cluster) active(id int32) bool {
	b, ok := m.brokers.Get(id)
	return ok && b.active()
}

func (m *cluster) online(id int32, dir uuid.UUID) bool {
	b, ok := m.brokers.Get(id)
	return ok && b.online(dir)
}

// defaultDir is where a new replica on a broker lies: in its only directory, else wherever the broker chooses.
func (m *cluster) defaultDir(id int32) uuid.UUID {
	if !m.c.features.level().Directories() {
		return uuid.Zero
	}
	b, ok := m.brokers.Get(id)
	switch {
	case !ok:
		return uuid.Unassigned
	case len(b.directories) == 0:
		return uuid.Zero
	case len(b.directories) == 1:
		return b.directories[0]
	}
	return uuid.Unassigned
}

// usable lists the brokers that may be given replicas, by id.
func (m *cluster) usable() []usableBroker {
	var out []usableBroker
	for _, id := range m.pulse.ids() {
		b, ok := m.brokers.Get(id)
		if !ok || m.pulse.brokers[id].shutdownOffset >= 0 || !b.hasUncordoned() {
			continue
		}
		u := usableBroker{id: id, fenced: b.fenced}
		if b.rack != nil {
			u.rack = *b.rack
		}
		out = append(out, u)
	}
	return out
}

// checkEpoch refuses what an earlier life of a broker sent.
func (m *cluster) checkEpoch(id int32, epoch int64) error {
	b, ok := m.brokers.Get(id)
	if !ok {
		return api.WithMessage(api.ErrStaleBrokerEpoch, "No broker registration found for broker id %d", id)
	}
	if b.epoch != epoch {
		return api.WithMessage(api.ErrStaleBrokerEpoch, "Expected broker epoch %d, but got broker epoch %d", b.epoch, epoch)
	}
	return nil
}

func (m *cluster) register(req *kmsg.BrokerRegistrationRequest) (Result, error) {
	c := m.c
	if req.ClusterID != c.opts.ClusterID {
		return Result{}, api.WithMessage(api.ErrInconsistentClusterID, "Expected cluster ID %s, but got cluster ID %s", c.opts.ClusterID, req.ClusterID)
	}
	id, incarnation := req.BrokerID, uuid.UUID(req.IncarnationID)
	existing, exists := m.brokers.Get(id)
	sameLife := exists && existing.incarnation == incarnation
	storedEpoch := int64(-2)
	if exists {
		storedEpoch = existing.epoch
		if !sameLife && m.occupied(existing, req) {
			return Result{}, api.WithMessage(api.ErrDuplicateBrokerRegistration,
				"Another broker is registered with that broker id. If the broker was recently restarted this should self-resolve once the heartbeat manager expires the broker's session.")
		}
	}
	if req.IsMigratingZkBroker {
		return Result{}, api.WithMessage(api.ErrBrokerIDNotRegistered, "Controller does not support registering ZK brokers.")
	}
	mv := c.features.level()
	r := message.NewRegisterBrokerRecord()
	r.BrokerID, r.IncarnationID, r.Rack = id, incarnation, req.Rack
	if mv.Directories() {
		dirs, err := m.checkDirectories(id, req.LogDirs)
		if err != nil {
			return Result{}, err
		}
		r.LogDirs = dirs
	}
	for _, l := range req.Listeners {
		r.EndPoints = append(r.EndPoints, message.RegisterBrokerRecordBrokerEndpoint{
			Name: l.Name, Host: l.Host, Port: l.Port, SecurityProtocol: l.SecurityProtocol,
		})
	}
	features, err := m.checkFeatures(req)
	if err != nil {
		return Result{}, err
	}
	r.Features = features

	var records []message.Versioned
	if sameLife {
		r.Fenced, r.InControlledShutdown, r.BrokerEpoch = existing.fenced, existing.shuttingDown, existing.epoch
	} else {
		// From v3 on a broker says in which epoch it last stopped cleanly. If that isn't the one we know, it may have lost
		// what it had acknowledged, and may not lead on the strength of it.
		clean := req.Version >= 3 && req.PreviousBrokerEpoch == storedEpoch
		records = c.topics.shutdownRecords(nil, id, clean)
		r.Fenced, r.BrokerEpoch = true, c.nextOffset
	}
	records = append(records, message.Versioned{Message: r, Version: mv.RegisterBrokerRecordVersion()})
	resp := req.ResponseKind().(*kmsg.BrokerRegistrationResponse)
	resp.BrokerEpoch = r.BrokerEpoch
	return Result{Records: records, Response: resp}, nil
}

func (m *cluster) checkDirectories(id int32, dirs [][16]byte) ([]uuid.UUID, error) {
	if len(dirs) == 0 {
		return nil, api.WithMessage(api.ErrInvalidRegistration, "No directories specified in request")
	}
	out := make([]uuid.UUID, len(dirs))
	for i, d := range dirs {
		out[i] = d
		if out[i].Reserved() {
			return nil, api.WithMessage(api.ErrInvalidRegistration, "Reserved directory ID in request")
		}
	}
	for i, d := range out {
		if slices.Contains(out[:i], d) {
			return nil, api.WithMessage(api.ErrInvalidRegistration, "Duplicate directory ID in request")
		}
	}
	for _, d := range out {
		if owner, ok := m.dirOwner.Get(d); ok && owner != id {
			return nil, api.WithMessage(api.ErrInvalidRegistration, "Broker %d is already registered with directory %s", owner, d)
		}
	}
	return out, nil
}

// checkFeatures refuses a broker that can't live with the feature levels in force.
func (m *cluster) checkFeatures(req *kmsg.BrokerRegistrationRequest) ([]message.RegisterBrokerRecordBrokerFeature, error) {
	finalized := m.c.features.all()
	finalized[metadata.FeatureKRaft] = m.c.log.KRaftVersion()
	check := func(name string, r VersionRange) error {
		if v := finalized[name]; !r.contains(v) {
			return api.WithMessage(api.ErrUnsupportedVersion,
				"Unable to register because the broker does not support finalized version %d of %s. The broker wants a version between %d and %d, inclusive.",
				v, name, r.Min, r.Max)
		}
		return nil
	}
	var out []message.RegisterBrokerRecordBrokerFeature
	named := make(map[string]bool)
	for _, f := range req.Features {
		if err := check(f.Name, VersionRange{f.MinSupportedVersion, f.MaxSupportedVersion}); err != nil {
			return nil, err
		}
		named[f.Name] = true
		out = append(out, message.RegisterBrokerRecordBrokerFeature{
			Name: f.Name, MinSupportedVersion: f.MinSupportedVersion, MaxSupportedVersion: f.MaxSupportedVersion,
		})
	}
	if !named[metadata.FeatureMetadataVersion] {
		return nil, api.WithMessage(api.ErrInvalidRegistration, "Request features do not contain 'metadata.version'")
	}
	for _, name := range sortedKeys(finalized) {
		if finalized[name] != 0 && !named[name] {
			if err := check(name, VersionRange{}); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

func (m *cluster) registerController(req *kmsg.ControllerRegistrationRequest) (Result, error) {
	if !m.c.features.level().ControllerRegistrations() {
		return Result{}, api.WithMessage(api.ErrUnsupportedVersion, "The current MetadataVersion is too old to support controller registrations.")
	}
	r := message.NewRegisterControllerRecord()
	r.ControllerID, r.IncarnationID = req.ControllerID, req.IncarnationID
	for _, l := range req.Listeners {
		r.EndPoints = append(r.EndPoints, message.RegisterControllerRecordControllerEndpoint{
			Name: l.Name, Host: l.Host, Port: l.Port, SecurityProtocol: l.SecurityProtocol,
		})
	}
	for _, f := range req.Features {
		r.Features = append(r.Features, message.RegisterControllerRecordControllerFeature{
			Name: f.Name, MinSupportedVersion: f.MinSupportedVersion, MaxSupportedVersion: f.MaxSupportedVersion,
		})
	}
	return Result{Records: []message.Versioned{{Message: r}}, Response: req.ResponseKind(), Atomic: true}, nil
}

func (m *cluster) unregisterController(req *kmsg.UnregisterControllerRequest) (Result, error) {
	if !m.c.features.level().ControllerUnregistration() {
		return Result{}, api.WithMessage(api.ErrUnsupportedVersion, "The current MetadataVersion is too old to support controller unregistration.")
	}
	if _, ok := m.controllers.Get(req.ControllerID); !ok {
		return Result{}, api.WithMessage(api.ErrControllerIDNotRegistered, "Controller ID %d is not currently registered.", req.ControllerID)
	}
	r := message.NewUnregisterControllerRecord()
	r.ControllerID = req.ControllerID
	return Result{Records: []message.Versioned{{Message: r}}, Response: req.ResponseKind(), Atomic: true}, nil
}

func (m *cluster) replayRegister(r *message.RegisterBrokerRecord, offset int64) error {
	b := &broker{
		id: r.BrokerID, epoch: r.BrokerEpoch, incarnation: r.IncarnationID, rack: r.Rack, fenced: r.Fenced,
		shuttingDown: r.InControlledShutdown, endpoints: r.EndPoints, directories: sortedDirs(r.LogDirs),
		cordoned: r.CordonedLogDirs, registeredAt: offset,
	}
	for _, f := range r.Features {
		b.features = append(b.features, Feature{f.Name, VersionRange{f.MinSupportedVersion, f.MaxSupportedVersion}})
	}
	slices.SortFunc(b.features, byName)
	prev, existed := m.brokers.Set(b.id, b)
	if existed {
		m.dropDirectories(prev)
	}
	if err := m.takeDirectories(b); err != nil {
		return err
	}
	if m.pulse != nil {
		if existed {
			m.pulse.remove(b.id)
		}
		m.pulse.register(b.id, b.fenced)
	}
	return nil
}

func (m *cluster) replayUnregister(r *message.UnregisterBrokerRecord) error {
	b, err := m.known(r.BrokerID, r.BrokerEpoch)
	if err != nil {
		return err
	}
	m.dropDirectories(b)
	m.brokers.Delete(b.id)
	if m.pulse != nil {
		m.pulse.remove(b.id)
		m.c.tracker.forget(b.id)
	}
	return nil
}

// replayFence replays the records that older controllers fenced and unfenced with.
func (m *cluster) replayFence(id int32, epoch int64, fenced bool) error {
	return m.replaceBroker(id, epoch, func(b *broker) { b.fenced = fenced })
}

func (m *cluster) replayChange(r *message.BrokerRegistrationChangeRecord) error {
	if r.Fenced < -1 || r.Fenced > 1 {
		return fmt.Errorf("broker %d: fenced is %d", r.BrokerID, r.Fenced)
	}
	if r.InControlledShutdown < 0 || r.InControlledShutdown > 1 {
		return fmt.Errorf("broker %d: in controlled shutdown is %d", r.BrokerID, r.InControlledShutdown)
	}
	return m.replaceBroker(r.BrokerID, r.BrokerEpoch, func(b *broker) {
		switch r.Fenced {
		case 1:
			b.fenced = true
		case -1:
			b.fenced = false
		}
		if r.InControlledShutdown == 1 {
			b.shuttingDown = true
		}
		if len(r.LogDirs) > 0 {
			b.directories = sortedDirs(r.LogDirs)
		}
		if r.CordonedLogDirs != nil {
			b.cordoned = r.CordonedLogDirs
		}
	})
}

func (m *cluster) replaceBroker(id int32, epoch int64, change func(*broker)) error {
	prev, err := m.known(id, epoch)
	if err != nil {
		return err
	}
	next := *prev
	change(&next)
	m.brokers.Set(id, &next)
	if !slices.Equal(prev.directories, next.directories) {
		m.dropDirectories(prev)
		if err := m.takeDirectories(&next); err != nil {
			return err
		}
	}
	if m.pulse != nil {
		m.pulse.register(id, next.fenced)
	}
	return nil
}

func (m *cluster) known(id int32, epoch int64) (*broker, error) {
	b, ok := m.brokers.Get(id)
	if !ok {
		return nil, fmt.Errorf("broker %d is not registered", id)
	}
	if b.epoch != epoch {
		return nil, fmt.Errorf("broker %d is registered in epoch %d, not %d", id, b.epoch, epoch)
	}
	return b, nil
}

func (m *cluster) takeDirectories(b *broker) error {
	for _, d := range b.directories {
		if owner, taken := m.dirOwner.Set(d, b.id); taken && owner != b.id {
			return fmt.Errorf("directory %s of broker %d belongs to broker %d", d, b.id, owner)
		}
	}
	return nil
}

func (m *cluster) dropDirectories(b *broker) {
	for _, d := range b.directories {
		m.dirOwner.Delete(d)
	}
}

func (m *cluster) replayRegisterController(r *message.RegisterControllerRecord) {
	reg := &registration{id: r.ControllerID, incarnation: r.IncarnationID}
	for _, f := range r.Features {
		reg.features = append(reg.features, Feature{f.Name, VersionRange{f.MinSupportedVersion, f.MaxSupportedVersion}})
	}
	slices.SortFunc(reg.features, byName)
	m.controllers.Set(reg.id, reg)
}

func (m *cluster) replayUnregisterController(r *message.UnregisterControllerRecord) error {
	if _, existed := m.controllers.Delete(r.ControllerID); !existed {
		return fmt.Errorf("controller %d is not registered", r.ControllerID)
	}
	return nil
}

// nodeExists is the check that a BROKER resource of a config change names a node.
func (m *cluster) nodeExists(name string) error {
	id, err := strconv.ParseInt(name, 10, 32)
	if err != nil {
		return api.WithMessage(api.ErrInvalidRequest, "Invalid broker name %s", name)
	}
	if _, ok := m.brokers.Get(int32(id)); ok || m.c.isVoter(int32(id)) {
		return nil
	}
	return api.WithMessage(api.ErrBrokerIDNotRegistered, "No node with id %d found.", id)
}

// brokersByID lists the registrations in rising order of id.
func (m *cluster) brokersByID() []*broker {
	out := make([]*broker, 0, m.brokers.Len())
	for _, b := range m.brokers.All() {
		out = append(out, b)
	}
	slices.SortFunc(out, func(a, b *broker) int { return cmp.Compare(a.id, b.id) })
	return out
}

func (m *cluster) controllersByID() []*registration {
	out := make([]*registration, 0, m.controllers.Len())
	for _, r := range m.controllers.All() {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b *registration) int { return cmp.Compare(a.id, b.id) })
	return out
}

func sortedDirs(dirs []uuid.UUID) []uuid.UUID {
	dirs = slices.Clone(dirs)
	slices.SortFunc(dirs, uuid.UUID.Compare)
	return dirs
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
