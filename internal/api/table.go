package api

// Range is the versions of a key that a table serves.
type Range struct {
	Key      Key
	Min, Max int16
}

// Table is what one listener serves: the keys that have a handler, with Kafka's version ranges. A key without a handler is not
// in it, so it is neither advertised nor answered. A Table does not change once it is built.
type Table struct {
	listener Listener
	served   [maxKey + 1]bool
}

// NewTable returns the table of a listener that has handlers for the given keys. Keys that Kafka does not serve on such a
// listener are left out.
func NewTable(l Listener, implemented ...Key) *Table {
	t := &Table{listener: l}
	for _, k := range implemented {
		if k.ServedOn(l) {
			t.served[k] = true
		}
	}
	return t
}

// FullTable is the table of a listener that serves all that Kafka 4.4 does.
func FullTable(l Listener) *Table {
	t := &Table{listener: l}
	for k := range keys {
		t.served[k] = Key(k).ServedOn(l)
	}
	return t
}

// Listener is the kind of listener that the table is of.
func (t *Table) Listener() Listener { return t.listener }

// Supported is the range of versions that a request of the key may have; ok is false when the key is not served.
func (t *Table) Supported(k Key) (min, max int16, ok bool) {
	if k < 0 || k > maxKey || !t.served[k] {
		return 0, 0, false
	}
	return keys[k].min, keys[k].max, true
}

// Serves says whether a request of that key and version has a handler.
func (t *Table) Serves(k Key, version int16) bool {
	min, max, ok := t.Supported(k)
	return ok && version >= min && version <= max
}

// Advertised appends the ranges for an ApiVersions response to dst, in key order.
func (t *Table) Advertised(dst []Range) []Range {
	for k, served := range t.served {
		if served {
			dst = append(dst, AdvertisedRange(Key(k)))
		}
	}
	return dst
}

// AdvertisedRange is the range of a live key in an ApiVersions response. It is the range that is served, except for Produce:
// librdkafka takes a broker that lacks the old versions for one too old to know its codecs, so Kafka 4 lists
// them and refuses them (KAFKA-18659).
func AdvertisedRange(k Key) Range {
	r := Range{Key: k, Min: keys[k].min, Max: keys[k].max}
	if k == Produce {
		r.Min = 0
	}
	return r
}

// Supported is the range of versions that Kafka 4.4 accepts of a key on such a listener.
func Supported(l Listener, k Key) (min, max int16, ok bool) {
	if !k.ServedOn(l) {
		return 0, 0, false
	}
	return keys[k].min, keys[k].max, true
}
