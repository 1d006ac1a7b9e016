package config

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// Rule bounds the values of a key.
type Rule interface {
	// check returns a *ValueError when v is not allowed.
	check(key string, v Value) error
	// String is the short form of Kafka's documentation, for example "[0,...]".
	String() string
}

// bounds is Kafka's Range.
type bounds struct {
	min, max       float64
	hasMin, hasMax bool
}

// atLeast allows numbers from n on.
func atLeast(n float64) Rule { return bounds{min: n, hasMin: true} }

// between allows numbers from lo to hi.
func between(lo, hi float64) Rule { return bounds{lo, hi, true, true} }

func (b bounds) check(key string, v Value) error {
	if v.Null() {
		return &ValueError{Key: key, Value: "null", Problem: "Value must be non-null"}
	}
	n := v.real
	if v.typ != Double {
		n = float64(v.num)
	}
	switch {
	case b.hasMin && n < b.min:
		return &ValueError{Key: key, Value: v.String(), Problem: "Value must be at least " + number(b.min)}
	case b.hasMax && n > b.max:
		return &ValueError{Key: key, Value: v.String(), Problem: "Value must be no more than " + number(b.max)}
	}
	return nil
}

func (b bounds) String() string {
	if b.hasMax {
		return "[" + number(b.min) + ",...," + number(b.max) + "]"
	}
	return "[" + number(b.min) + ",...]"
}

func number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// gzipLevels allows 1 to 9 and -1, zlib's "default".
type gzipLevels struct{}

func (gzipLevels) check(key string, v Value) error {
	if n := v.num; n != -1 && (n < 1 || n > 9) {
		return &ValueError{Key: key, Value: v.String(), Problem: "Value must be between 1 and 9 or equal to -1"}
	}
	return nil
}

func (gzipLevels) String() string { return "[1,...,9] or -1" }

// oneOf allows some strings only.
type oneOf struct {
	names []string
	fold  bool // upper and lower case are the same
}

// in allows exactly these strings.
func in(names ...string) Rule { return oneOf{names: names} }

// inFold allows these strings in any case.
func inFold(names ...string) Rule { return oneOf{names, true} }

func (o oneOf) check(key string, v Value) error {
	if o.fold {
		if !slices.ContainsFunc(o.names, func(n string) bool { return strings.EqualFold(n, v.text) }) {
			return &ValueError{Key: key, Value: v.String(), Problem: "String must be one of (case insensitive): " + strings.Join(o.names, ", ")}
		}
		return nil
	}
	if v.Null() || !slices.Contains(o.names, v.text) {
		return &ValueError{Key: key, Value: v.String(), Problem: "String must be one of: " + strings.Join(o.names, ", ")}
	}
	return nil
}

func (o oneOf) String() string {
	s := "[" + strings.Join(o.names, ", ") + "]"
	if o.fold {
		s = "(case insensitive) " + s
	}
	return s
}

// listOf is Kafka's ValidList: no duplicates, no empty member, and where names are given only those.
type listOf struct {
	names   []string
	emptyOK bool // an empty list is allowed
	nullOK  bool
}

func (l listOf) check(key string, v Value) error {
	if v.Null() {
		if l.nullOK {
			return nil
		}
		return refuse(key, "null", "Configuration '"+key+"' values must not be null.")
	}
	if len(v.list) == 0 {
		if !l.emptyOK {
			return refuse(key, "", "Configuration '"+key+"' must not be empty. Valid values include: "+l.valid())
		}
		return nil
	}
	if len(distinct(slices.Clone(v.list))) < len(v.list) {
		return refuse(key, v.listText(), "Configuration '"+key+"' values must not be duplicated.")
	}
	for _, s := range v.list {
		switch {
		case len(l.names) > 0 && !slices.Contains(l.names, s):
			return &ValueError{Key: key, Value: s, Problem: "String must be one of: " + strings.Join(l.names, ", ")}
		case s == "":
			return refuse(key, v.listText(), "Configuration '"+key+"' values must not be empty.")
		}
	}
	return nil
}

func (l listOf) valid() string {
	if len(l.names) == 0 {
		return "any non-empty value"
	}
	return "[" + strings.Join(l.names, ", ") + "]"
}

func (l listOf) String() string {
	switch {
	case len(l.names) > 0:
		return l.valid()
	case l.emptyOK:
		return ""
	}
	return "non-empty list"
}

// listText is Java's print of a list.
func (v Value) listText() string { return "[" + strings.Join(v.list, ", ") + "]" }

// nonEmpty allows null and every string but "".
type nonEmpty struct{}

func (nonEmpty) check(key string, v Value) error {
	if !v.Null() && v.text == "" {
		return &ValueError{Key: key, Value: "", Problem: "String must be non-empty"}
	}
	return nil
}

func (nonEmpty) String() string { return "non-empty string" }

// nonNull allows every string, the empty one too.
type nonNull struct{}

func (nonNull) check(key string, v Value) error {
	if v.Null() {
		return &ValueError{Key: key, Value: "null", Problem: "entry must be non null"}
	}
	return nil
}

func (nonNull) String() string { return "non-null string" }

// throttledReplicas is the form of the throttled replica lists: "*", or pairs of partition and broker.
type throttledReplicas struct{}

func (throttledReplicas) check(key string, v Value) error {
	if len(v.list) == 0 || len(v.list) == 1 && v.list[0] == "*" {
		return nil
	}
	for _, p := range v.list {
		partition, broker, ok := strings.Cut(strings.TrimSpace(p), ":")
		if !ok || !digits(partition) || !digits(broker) {
			return &ValueError{Key: key, Value: v.listText(), Problem: key + " must be the literal '*' or a list of replicas in the following format: [partitionId]:[brokerId],[partitionId]:[brokerId],..."}
		}
	}
	return nil
}

func (throttledReplicas) String() string {
	return "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
}

func digits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// offsetReset is what a share group starts from: a name, or a duration back from now.
type offsetReset struct{}

func (offsetReset) check(key string, v Value) error {
	switch s := v.text; {
	case s == "earliest" || s == "latest":
		return nil
	case strings.HasPrefix(s, "by_duration:"):
		if d, ok := parseISODuration(s[len("by_duration:"):]); ok && d >= 0 {
			return nil
		}
	}
	return &ValueError{Key: key, Value: v.text, Problem: "Invalid value `" + v.text + "` for configuration " + key + ". The value must be either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'."}
}

func (offsetReset) String() string { return "[latest, earliest, by_duration:PnDTnHnMn.nS]" }

// parseISODuration reads the days-to-seconds part of an ISO 8601 duration, which is what Java's Duration.parse accepts.
func parseISODuration(s string) (time.Duration, bool) {
	s = strings.ToUpper(s)
	neg := strings.HasPrefix(s, "-")
	s = strings.TrimLeft(s, "+-")
	s, ok := strings.CutPrefix(s, "P")
	if !ok || s == "" {
		return 0, false
	}
	var total time.Duration
	inTime, any, last := false, false, 0
	units := map[byte]struct {
		order int
		time  bool
		unit  time.Duration
	}{'D': {1, false, 24 * time.Hour}, 'H': {2, true, time.Hour}, 'M': {3, true, time.Minute}, 'S': {4, true, time.Second}}
	for s != "" {
		if s[0] == 'T' {
			if inTime || len(s) == 1 {
				return 0, false
			}
			inTime, s = true, s[1:]
			continue
		}
		i := strings.IndexAny(s, "DHMS")
		if i <= 0 {
			return 0, false
		}
		u, num := units[s[i]], s[:i]
		if u.time != inTime || u.order <= last || strings.Contains(num, ".") && u.order != 4 {
			return 0, false
		}
		f, err := strconv.ParseFloat(num, 64)
		if err != nil || strings.ContainsAny(num, "eExXiInN_") {
			return 0, false
		}
		total += time.Duration(f * float64(u.unit))
		last, any, s = u.order, true, s[i+1:]
	}
	if neg {
		total = -total
	}
	return total, any
}

// voters is the form of controller.quorum.voters.
type voters struct{}

func (voters) check(key string, v Value) error {
	for _, s := range v.list {
		if _, err := ParseQuorumVoter(s); err != nil {
			return refuse(key, s, "Invalid configuration value for "+key+". Each entry should be in the form `{id}@{host}:{port}`.")
		}
	}
	return nil
}

func (voters) String() string { return "id@host:port,..." }

// bootstrapServers is a list of addresses.
type bootstrapServers struct{}

func (bootstrapServers) check(key string, v Value) error {
	for _, s := range v.list {
		if _, _, err := splitHostPort(s); err != nil {
			return refuse(key, s, "Failed to parse host name from "+s+" for the configuration "+key+`. Each entry should be in the form "{host}:{port}"`)
		}
	}
	return nil
}

func (bootstrapServers) String() string { return "host:port,..." }

// refuse makes a ValueError that Kafka words without its usual beginning.
func refuse(key, value, text string) error { return &ValueError{Key: key, Value: value, text: text} }
