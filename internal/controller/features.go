package controller

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/timeline"
)

// features manages the feature levels in force. kraft.version isn't among them: it lives in control records.
type features struct {
	c *Core
	// finalized holds all but metadata.version; a feature at level 0 isn't there.
	finalized *timeline.Map[string, int16]
	// version is metadata.version, 0 before the first record.
	version *timeline.Value[metadata.Version]
}

func newFeatures(c *Core) *features {
	return &features{
		c: c, finalized: timeline.NewMap[string, int16](c.registry), version: timeline.NewValue[metadata.Version](c.registry, 0),
	}
}

func (m *features) level() metadata.Version { return m.version.Get() }

// elr says whether eligible leader replicas are kept.
func (m *features) elr() bool {
	v, _ := m.finalized.Get(metadata.FeatureELR)
	return v >= 1
}

// all returns every level, by feature; the caller owns the map.
func (m *features) all() map[string]int16 {
	out := map[string]int16{metadata.FeatureMetadataVersion: int16(m.level())}
	for name, v := range m.finalized.All() {
		out[name] = v
	}
	return out
}

func (m *features) replay(r *message.FeatureLevelRecord) error {
	if supported := findFeature(m.c.opts.Features, r.Name); !supported.contains(r.FeatureLevel) {
		return fmt.Errorf("feature %s is at level %d, but this controller supports %s", r.Name, r.FeatureLevel, supported)
	}
	switch {
	case r.Name == metadata.FeatureMetadataVersion:
		m.version.Set(metadata.Version(r.FeatureLevel))
	case r.Name == metadata.FeatureKRaft:
	case r.FeatureLevel == 0:
		m.finalized.Delete(r.Name)
	default:
		m.finalized.Set(r.Name, r.FeatureLevel)
	}
	return nil
}

// Upgrade types of UpdateFeatures.
const (
	upgrade         int8 = 1
	safeDowngrade   int8 = 2
	unsafeDowngrade int8 = 3
)

func (m *features) update(req *kmsg.UpdateFeaturesRequest) (Result, error) {
	resp := req.ResponseKind().(*kmsg.UpdateFeaturesResponse)
	updates := make(map[string]int16)
	kinds := make(map[string]int8)
	for _, u := range req.FeatureUpdates {
		kind := u.UpgradeType
		if req.Version == 0 {
			// v0 has a flag that allows downgrades, but Kafka 4.4's controller does not look at it.
			kind = upgrade
		}
		updates[u.Feature], kinds[u.Feature] = u.MaxVersionLevel, kind
	}
	proposed := m.all()
	for name, v := range updates {
		proposed[name] = v
	}
	var records []message.Versioned
	for _, name := range sortedKeys(updates) {
		record, changed, err := m.updateOne(name, updates[name], kinds[name], proposed, req.ValidateOnly)
		if err != nil {
			resp.ErrorCode = api.CodeOf(err)
			text := "The update failed for all features since the following feature had an error: " + api.MessageOf(err)
			resp.ErrorMessage = &text
			return Result{Response: resp}, nil
		}
		if changed {
			records = append(records, record)
		}
	}
	if req.Version <= 1 {
		for _, u := range req.FeatureUpdates {
			r := kmsg.NewUpdateFeaturesResponseResult()
			// Kafka's words for "no error".
			r.Feature, r.ErrorMessage = u.Feature, kmsg.StringPtr("NONE")
			resp.Results = append(resp.Results, r)
		}
	}
	if req.ValidateOnly {
		return Result{Response: resp}, nil
	}
	if updates[metadata.FeatureELR] > 0 {
		records = append(m.c.configs.elrRecords(), records...)
	}
	return Result{Records: records, Response: resp, Atomic: true}, nil
}

func (m *features) updateOne(name string, v int16, kind int8, proposed map[string]int16, validateOnly bool) (message.Versioned, bool, error) {
	var none message.Versioned
	invalid := func(format string, args ...any) (message.Versioned, bool, error) {
		return none, false, api.WithMessage(api.ErrInvalidUpdateVersion, "Invalid update version %d for feature %s. %s", v, name, fmt.Sprintf(format, args...))
	}
	if kind < upgrade || kind > unsafeDowngrade {
		return invalid("The controller does not support the given upgrade type.")
	}
	var current int16
	switch name {
	case metadata.FeatureMetadataVersion:
		current = int16(m.level())
	case metadata.FeatureKRaft:
		current = m.c.log.KRaftVersion()
	default:
		current, _ = m.finalized.Get(name)
	}
	if v < 0 {
		return invalid("A feature version cannot be less than 0.")
	}
	if reason := m.whyNot(name, v); reason != "" {
		return invalid("%s", reason)
	}
	if v < current && kind == upgrade {
		return invalid("Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe downgrade.")
	}
	if v > current && kind != upgrade {
		return invalid("Can't downgrade to a newer version.")
	}
	switch name {
	case metadata.FeatureMetadataVersion:
		if err := m.checkDowngrade(metadata.Version(v), kind == unsafeDowngrade); err != nil {
			return none, false, err
		}
	case metadata.FeatureKRaft:
		if kind != upgrade {
			if v != current {
				return invalid("Can't downgrade the version of this feature.")
			}
			return none, false, nil
		}
		if _, err := m.c.log.UpgradeKRaftVersion(m.c.epoch, v, validateOnly); err != nil {
			if api.CodeOf(err) == api.CodeUnknownServerError {
				return invalid("%s", err)
			}
			return none, false, err
		}
		// The level itself is a control record; this one moves the log, so that the answer waits for it.
		return message.Versioned{Message: message.NewNoOpRecord()}, true, nil
	default:
		if v >= 1 && proposed[metadata.FeatureMetadataVersion] < int16(metadata.MinVersion) {
			return invalid("%s could not be set to %d because it depends on metadata.version=%d (%s)", name, v, int16(metadata.MinVersion), metadata.MinVersion)
		}
		f, ok := metadata.FeatureByName(name)
		if !ok {
			return invalid("Feature %s not found.", name)
		}
		for _, l := range f.Levels {
			if l.Level == v && proposed[metadata.FeatureMetadataVersion] < int16(l.Needs) {
				return invalid("%s could not be set to %d because it depends on metadata.version level %d", name, v, int16(l.Needs))
			}
		}
	}
	r := message.NewFeatureLevelRecord()
	r.Name, r.FeatureLevel = name, v
	return message.Versioned{Message: r}, true, nil
}

func (m *features) checkDowngrade(to metadata.Version, unsafe bool) error {
	from := m.level()
	if to >= from || from.CheckDowngrade(to) {
		return nil
	}
	why := "Refusing to perform the requested downgrade because it might delete metadata information."
	if unsafe {
		why = "Unsafe metadata downgrade is not supported in this version."
	}
	return api.WithMessage(api.ErrInvalidUpdateVersion, "Unsupported metadata.version downgrade from %d to %d. %s", int16(from), int16(to), why)
}

// whyNot says which node stands against a feature level, or "".
func (m *features) whyNot(name string, v int16) string {
	reason := func(what string, r VersionRange) string {
		switch {
		case r.contains(v):
			return ""
		case r.Max == 0:
			return what + " does not support this feature."
		}
		return what + " only supports versions " + r.String()
	}
	if why := reason(fmt.Sprintf("Local controller %d", m.c.opts.NodeID), findFeature(m.c.opts.Features, name)); why != "" {
		return why
	}
	for _, b := range m.c.cluster.brokersByID() {
		if why := reason(fmt.Sprintf("Broker %d", b.id), findFeature(b.features, name)); why != "" {
			return why
		}
	}
	if !m.level().ControllerRegistrations() {
		return ""
	}
	found := map[int32]bool{m.c.opts.NodeID: true}
	for _, r := range m.c.cluster.controllersByID() {
		if r.id == m.c.opts.NodeID {
			continue
		}
		if why := reason(fmt.Sprintf("Controller %d", r.id), findFeature(r.features, name)); why != "" {
			return why
		}
		found[r.id] = true
	}
	for _, id := range m.c.opts.StaticVoters {
		if !found[id] {
			return fmt.Sprintf("controller %d has not registered, and may not support this feature", id)
		}
	}
	return ""
}
