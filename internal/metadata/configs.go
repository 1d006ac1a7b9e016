package metadata

import (
	"cmp"
	"iter"
	"maps"
	"slices"

	"gregor/internal/message"
	"gregor/internal/pmap"
)

// Types of config resources, as on the wire.
const (
	TopicResource         int8 = 2
	BrokerResource        int8 = 4
	BrokerLoggerResource  int8 = 8
	ClientMetricsResource int8 = 16
	GroupResource         int8 = 32
)

// Resource is what configs belong to. A broker resource with an empty name stands for the default of all brokers.
type Resource struct {
	Type int8
	Name string
}

// Compare orders resources by type and name.
func (r Resource) Compare(o Resource) int {
	return cmp.Or(cmp.Compare(r.Type, o.Type), cmp.Compare(r.Name, o.Name))
}

func hashResource(r Resource) uint64 {
	return pmap.Mix(pmap.HashString(r.Name) + uint64(uint8(r.Type)))
}

// ConfigsImage is the dynamic configs. It is immutable, its maps included.
type ConfigsImage struct {
	byResource pmap.Map[Resource, map[string]string]
}

func newConfigsImage() *ConfigsImage {
	return &ConfigsImage{pmap.New[Resource, map[string]string](hashResource)}
}

// Get returns the configs of a resource; nil when it has none. The map must not be changed.
func (c *ConfigsImage) Get(r Resource) map[string]string {
	m, _ := c.byResource.Get(r)
	return m
}

// Topic returns the configs of a topic.
func (c *ConfigsImage) Topic(name string) map[string]string {
	return c.Get(Resource{TopicResource, name})
}

// Len is the number of resources that have configs.
func (c *ConfigsImage) Len() int { return c.byResource.Len() }

// All goes through the resources that have configs, in an order that depends on them alone.
func (c *ConfigsImage) All() iter.Seq2[Resource, map[string]string] { return c.byResource.All() }

func (c *ConfigsImage) write(w func(message.Versioned) error, _ *WriteOptions) error {
	for r, configs := range c.All() {
		for _, name := range slices.Sorted(maps.Keys(configs)) {
			value := configs[name]
			m := &message.ConfigRecord{ResourceType: r.Type, ResourceName: r.Name, Name: name, Value: &value}
			if err := w(message.Versioned{Message: m}); err != nil {
				return err
			}
		}
	}
	return nil
}

// ConfigsDelta is what changed in the configs: by resource and key the new value, or nil for a key that is gone.
type ConfigsDelta struct {
	Changed map[Resource]map[string]*string

	base *ConfigsImage
}

func newConfigsDelta(base *ConfigsImage) *ConfigsDelta {
	return &ConfigsDelta{Changed: map[Resource]map[string]*string{}, base: base}
}

func (d *ConfigsDelta) replay(r *message.ConfigRecord) {
	res := Resource{r.ResourceType, r.ResourceName}
	m := d.Changed[res]
	if m == nil {
		m = map[string]*string{}
		d.Changed[res] = m
	}
	m[r.Name] = r.Value
}

// deleteAll takes all configs of a resource away, those set earlier in the same delta included.
func (d *ConfigsDelta) deleteAll(res Resource) {
	old := d.base.Get(res)
	if len(old) == 0 {
		delete(d.Changed, res)
		return
	}
	m := map[string]*string{}
	for name := range old {
		m[name] = nil
	}
	d.Changed[res] = m
}

func (d *ConfigsDelta) finishSnapshot() {
	for res, configs := range d.base.All() {
		m := d.Changed[res]
		if m == nil {
			d.deleteAll(res)
			continue
		}
		for name := range configs {
			if _, ok := m[name]; !ok {
				m[name] = nil
			}
		}
	}
}

func (d *ConfigsDelta) apply() *ConfigsImage {
	b := d.base.byResource.Builder()
	for res, changes := range d.Changed {
		m := maps.Clone(d.base.Get(res))
		if m == nil {
			m = map[string]string{}
		}
		for name, value := range changes {
			if value == nil {
				delete(m, name)
			} else {
				m[name] = *value
			}
		}
		if len(m) == 0 {
			b.Delete(res)
		} else {
			b.Set(res, m)
		}
	}
	return &ConfigsImage{b.Map()}
}

func fullConfigsDelta(c *ConfigsImage) *ConfigsDelta {
	d := newConfigsDelta(newConfigsImage())
	for res, configs := range c.All() {
		m := make(map[string]*string, len(configs))
		for name, value := range configs {
			m[name] = &value
		}
		d.Changed[res] = m
	}
	return d
}
