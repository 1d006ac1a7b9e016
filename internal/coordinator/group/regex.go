package group

import (
	"errors"
	"maps"
	"regexp"
	"regexp/syntax"
	"slices"
	"time"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/metadata"
)

// regexStatus is what a request has done to a member's regular expression.
type regexStatus uint8

const (
	regexSame regexStatus = iota
	// regexChanged: what the new one matches isn't known yet.
	regexChanged
	// regexResolved: changed, and what it matches is known.
	regexResolved
)

// regexPause is the shortest time between two looks at what a group's regular expressions match, and how long one may take.
const regexPause = 10 * time.Second

// compileRegex compiles a regular expression that has to match a whole topic name. The syntax is RE2's, as in Kafka.
func compileRegex(regex string) (*regexp.Regexp, error) {
	if _, err := regexp.Compile(regex); err != nil {
		var se *syntax.Error
		text := err.Error()
		if errors.As(err, &se) {
			text = se.Code.String()
		}
		return nil, api.WithMessage(api.ErrInvalidRegularExpression,
			"SubscribedTopicRegex `%s` is not a valid regular expression: %s.", regex, text)
	}
	return regexp.Compile(`\A(?:` + regex + `)\z`)
}

// resolveRegexes looks up what regular expressions match, among the topics that whoever wants to know may know of. It may take long where there are many topics, so it is done off the
// shard.
func resolveRegexes(img *metadata.Image, regexes []string, describes func(topic string) bool, at int64) map[string]resolvedRegex {
	resolved := make(map[string]resolvedRegex, len(regexes))
	for _, s := range regexes {
		r := resolvedRegex{topics: []string{}, version: img.Offset, at: at}
		// One that was valid for another version of the coordinator matches nothing.
		if re, err := compileRegex(s); err == nil {
			for t := range img.Topics.All() {
				if re.MatchString(t.Name) && (describes == nil || describes(t.Name)) {
					r.topics = append(r.topics, t.Name)
				}
			}
			slices.Sort(r.topics)
		}
		resolved[s] = r
	}
	return resolved
}

func regexTombstone(group, regex string) Record {
	return Record{Key: &message.ConsumerGroupRegularExpressionKey{GroupID: group, RegularExpression: regex}}
}

// updateRegex looks after the regular expressions: drops the one that nobody has any more, and has all of them looked up
// again when there is a new one, when there are new topics, and from time to time.
func (u *memberUpdate) updateRegex() (regexStatus, error) {
	g, old, now := u.g, u.old.regex, u.member.regex
	status, lookUp := regexSame, false
	if old != now {
		status = regexChanged
		if old != "" && g.regexReaders(old) == 1 {
			u.records = append(u.records, regexTombstone(g.id, old))
		}
		_, known := g.regexes.Get(now)
		switch {
		case now == "":
			status = regexResolved
		case g.regexReaders(now) == 0:
			if _, err := compileRegex(now); err != nil {
				return status, err
			}
			lookUp = true
		case known:
			status = regexResolved
		}
	}
	regexes := g.regexMembers()
	if !lookUp && len(regexes) == 0 {
		return status, nil
	}
	if since, ok := u.c.resolving[g.id]; ok && u.now.Sub(since) < regexPause {
		return status, nil
	}
	var last resolvedRegex
	resolvedBefore := false
	for _, r := range g.regexes.All() {
		if !resolvedBefore || r.at < last.at {
			last, resolvedBefore = r, true
		}
	}
	if resolvedBefore && u.now.UnixMilli() <= last.at+regexPause.Milliseconds() {
		return status, nil
	}
	if old != "" {
		if regexes[old]--; regexes[old] <= 0 {
			delete(regexes, old)
		}
	}
	if now != "" {
		regexes[now]++
	}
	lookUp = lookUp || !resolvedBefore || len(regexes) != g.regexes.Len() || last.version < u.c.newTopics ||
		u.now.UnixMilli() > last.at+u.c.cfg.RegexRefreshInterval.Milliseconds()
	if lookUp && len(regexes) > 0 {
		u.c.lookUpRegexes(g.id, slices.Sorted(maps.Keys(regexes)), u.from.Describes, u.now)
	}
	return status, nil
}

// lookUpRegexes resolves a group's regular expressions in the background and stores the outcome. It is up to what the member may
// know whose heartbeat it is that leads here, as in Kafka.
func (c *core) lookUpRegexes(id string, regexes []string, describes func(topic string) bool, now time.Time) {
	c.resolving[id] = now
	img := c.image
	c.background(func() func(*core, time.Time) (result, error) {
		resolved := resolveRegexes(img, regexes, describes, now.UnixMilli())
		return func(c *core, now time.Time) (result, error) { return c.regexesResolved(id, regexes, resolved), nil }
	})
}

// stranded says whether a member with a regular expression that matches these topics has others in its target. It had another
// expression when that was computed; if the new one matches nothing, nothing else tells that the target must change.
//
// Differs from Kafka, where the partitions stay with that member, who doesn't read them, until another rebalance.
func (c *core) stranded(g *consumerGroup, regex string, topics []string) bool {
	for id, m := range g.members.All() {
		if m.regex != regex {
			continue
		}
		target, _ := g.targets.Get(id)
		for _, tp := range target {
			t := c.image.Topics.ByID(tp.topic)
			if t == nil {
				continue
			}
			_, named := slices.BinarySearch(m.topics, t.Name)
			_, matched := slices.BinarySearch(topics, t.Name)
			if !named && !matched {
				return true
			}
		}
	}
	return false
}

// regexesResolved stores what regular expressions match. If that has changed, so does the group epoch.
func (c *core) regexesResolved(id string, regexes []string, resolved map[string]resolvedRegex) result {
	delete(c.resolving, id)
	existing, _ := c.groups.Get(id)
	g, ok := existing.(*consumerGroup)
	if !ok {
		return result{}
	}
	var (
		records []Record
		bump    bool
		after   = make(map[string]readers, g.topics.Len())
	)
	for t, r := range g.topics.All() {
		after[t] = r
	}
	add := func(topics []string, n int32) {
		for _, t := range topics {
			after[t] = readers{after[t].byName, after[t].byRegex + n}
		}
	}
	for _, s := range regexes {
		if g.regexReaders(s) == 0 {
			continue // nobody wants it any more
		}
		r := resolved[s]
		old, had := g.regexes.Get(s)
		if !slices.Equal(old.topics, r.topics) {
			bump = true
			add(old.topics, -1)
			add(r.topics, 1)
		}
		bump = bump || !had && c.stranded(g, s, r.topics)
		records = append(records, Record{
			Key:   &message.ConsumerGroupRegularExpressionKey{GroupID: id, RegularExpression: s},
			Value: &message.ConsumerGroupRegularExpressionValue{Topics: r.topics, Version: r.version, Timestamp: r.at},
		})
	}
	hash := c.metadataHash(readNames(after))
	if bump || hash != g.hash.Get() {
		epoch := g.epoch.Get() + 1
		records = append(records, epochRecord(id, epoch, hash))
		c.counters.rebalances.Add(1)
		g.fresh, g.freshEpoch = true, epoch
		c.log.Info("group epoch rises", "group", id, "epoch", epoch, "regexes", regexes)
	}
	return result{Records: records}
}
