package config

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// validate checks what no single key can show. The conditions and their words are those of Kafka's KafkaConfig, because the
// words are what people search for.
func (c *compiler) validate() {
	c.validateNumbers()
	c.validateQuorum()
	c.validateListeners()
	c.validateGroups()
}

func (c *compiler) require(ok bool, key, format string, args ...any) {
	if !ok {
		c.bad(key, format, args...)
		c.problems[len(c.problems)-1].requirement = true
	}
}

// check is require for what Kafka refuses without a "requirement failed".
func (c *compiler) check(ok bool, key, format string, args ...any) {
	if !ok {
		c.bad(key, format, args...)
	}
}

func (c *compiler) validateNumbers() {
	b := c.b
	c.check(b.Value("broker.id").Int32() == b.NodeID, "node.id", "You must set `node.id` to the same value as `broker.id`.")
	c.require(b.Topic.SegmentAge >= time.Millisecond, "log.roll.ms", "log.roll.ms must be greater than or equal to 1")
	c.require(b.Topic.SegmentJitter >= 0, "log.roll.jitter.ms", "log.roll.jitter.ms must be greater than or equal to 0")
	c.require(b.Topic.Retention != 0, "log.retention.ms", "log.retention.ms must be unlimited (-1) or, greater than or equal to 1")
	if b.CleanerThreads > 0 {
		c.require(b.CleanerDedupeBufferBytes/int64(b.CleanerThreads) > 1<<20, "log.cleaner.dedupe.buffer.size",
			"log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.")
	} else {
		c.problems = append(c.problems, Problem{Where: b.layers.where("log.cleaner.threads"), Key: "log.cleaner.threads",
			Text: "log.cleaner.threads must be at least 1", client: "/ by zero"}) // which Kafka does
	}
	c.require(b.ReplicaFetchWaitMax <= b.ReplicaSocketTimeout, "replica.socket.timeout.ms",
		"replica.socket.timeout.ms should always be at least replica.fetch.wait.max.ms to prevent unnecessary socket timeouts")
	c.require(b.ReplicaFetchWaitMax <= b.ReplicaLagTimeMax, "replica.fetch.wait.max.ms",
		"replica.fetch.wait.max.ms should always be less than or equal to replica.lag.time.max.ms to prevent frequent changes in ISR")
	c.require(2*b.BrokerHeartbeatInterval <= b.BrokerSessionTimeout, "broker.heartbeat.interval.ms",
		"broker.heartbeat.interval.ms should be less than or equal to half of broker.session.timeout.ms")
	if lo, hi := b.Topic.MinCompactionLag, b.Topic.MaxCompactionLag; lo > hi {
		c.bad("log.cleaner.min.compaction.lag.ms", "conflict topic config setting log.cleaner.min.compaction.lag.ms (%d) > log.cleaner.max.compaction.lag.ms (%d)", lo.Milliseconds(), hi.Milliseconds())
	}
	var missing []string
	for _, d := range b.CordonedLogDirs {
		if !slices.Contains(b.LogDirs, d) && d != "*" {
			missing = append(missing, d)
		}
	}
	c.require(len(missing) == 0, "cordoned.log.dirs",
		"All entries in cordoned.log.dirs must be present in log.dirs or log.dir. Missing entries : %s", strings.Join(missing, ", "))
	if b.Value("remote.log.storage.system.enable").Bool() {
		if err := localWithin("log.retention.bytes", b.Topic.RetentionBytes, "log.local.retention.bytes", b.Topic.LocalRetentionBytes); err != nil {
			c.bad("log.local.retention.bytes", "%v", err)
		}
		if err := localWithin("log.retention.ms", b.Topic.RetentionMs(), "log.local.retention.ms", b.Topic.LocalRetentionMs); err != nil {
			c.bad("log.local.retention.ms", "%v", err)
		}
	}
}

func (c *compiler) validateQuorum() {
	b := c.b
	var ids []int32
	for _, v := range b.QuorumVoters {
		c.require(!slices.Contains(ids, v.ID), "controller.quorum.voters", "voter %d is there twice", v.ID)
		ids = append(ids, v.ID)
	}
	c.check(len(ids) > 0 || len(b.QuorumBootstrapServers) > 0, "controller.quorum.bootstrap.servers",
		"If using process.roles, either controller.quorum.bootstrap.servers must contain the set of bootstrap controllers or controller.quorum.voters must contain a parseable set of controllers.")
	voter := slices.Contains(ids, b.NodeID)
	if b.Roles.Controller {
		c.require(len(ids) == 0 || voter, "controller.quorum.voters",
			"If process.roles contains the 'controller' role, the node id %d must be included in the set of voters controller.quorum.voters=%s", b.NodeID, idSet(ids))
		return
	}
	c.require(!voter, "controller.quorum.voters",
		"If process.roles contains just the 'broker' role, the node id %d must not be included in the set of voters controller.quorum.voters=%s", b.NodeID, idSet(ids))
	c.require(!b.QuorumAutoJoin, "controller.quorum.auto.join.enable", "controller.quorum.auto.join.enable is only supported when process.roles contains the 'controller' role.")
}

func idSet(ids []int32) string {
	return strings.Replace(strings.Trim(fmt.Sprint(ids), "[]"), " ", ", ", -1)
}

func (c *compiler) validateListeners() {
	b := c.b
	var names, brokers []string
	for _, l := range b.Listeners {
		names = append(names, l.Name)
	}
	for _, l := range b.AdvertisedListeners {
		brokers = append(brokers, l.Name)
	}
	if b.Roles.Controller {
		c.require(len(b.AdvertisedControllers) > 0, "controller.listener.names",
			"controller.listener.names must contain at least one value appearing in the 'listeners' configuration when running the KRaft controller role")
		for _, n := range b.ControllerListeners {
			c.require(slices.Contains(names, n), "controller.listener.names",
				"controller.listener.names must only contain values appearing in the 'listeners' configuration when running the KRaft controller role")
		}
	} else {
		for _, n := range b.ControllerListeners {
			c.require(!slices.Contains(names, n), "controller.listener.names",
				"controller.listener.names must not contain a value appearing in the 'listeners' configuration when running KRaft with just the broker role")
			if _, ok := b.ListenerProtocols[n]; !ok {
				c.bad("controller.listener.names", "Controller listener with name %s defined in controller.listener.names not found in listener.security.protocol.map "+
					"(an explicit security mapping for each controller listener is required if listener.security.protocol.map is non-empty, or if there are security protocols other than PLAINTEXT in use)", n)
			}
		}
	}
	if !b.Roles.Broker {
		for _, n := range names {
			c.require(b.IsController(n), "listeners", "The listeners config must only contain KRaft controller listeners from controller.listener.names when process.roles=controller")
		}
	} else {
		c.require(len(brokers) > 0, "advertised.listeners",
			"There must be at least one broker advertised listener. Perhaps all listeners appear in controller.listener.names?")
		c.require(len(brokers) == 0 || slices.Contains(brokers, b.InterBrokerListener), "inter.broker.listener.name",
			"inter.broker.listener.name must be a listener name defined in advertised.listeners. The valid options based on currently configured listeners are %s", strings.Join(brokers, ","))
		for _, n := range brokers {
			c.require(slices.Contains(names, n), "advertised.listeners",
				"advertised.listeners listener names must be equal to or a subset of the ones defined in listeners. Found %s. The valid options based on the current configuration are %s",
				strings.Join(brokers, ","), strings.Join(names, ","))
		}
	}
	for _, l := range slices.Concat(b.AdvertisedListeners, b.AdvertisedControllers) {
		// A listener on 0.0.0.0 without an advertised address is refused too: nobody could connect to what is registered.
		c.require(l.Host != "0.0.0.0", "advertised.listeners", "advertised.listeners cannot use the nonroutable meta-address 0.0.0.0. Use a routable IP address.")
	}
	for _, n := range b.EarlyStartListeners {
		c.require(slices.Contains(names, n) || b.IsController(n), "early.start.listeners",
			"early.start.listeners contains listener %s, but this is not contained in listeners or controller.listener.names", n)
	}
	c.require(b.InterBrokerProtocol.TLS() || !b.InterBrokerProtocol.SASL() || b.saslEnabled(b.InterBrokerListener, b.Value("sasl.mechanism.inter.broker.protocol").Text()),
		"sasl.mechanism.inter.broker.protocol", "sasl.mechanism.inter.broker.protocol must be included in sasl.enabled.mechanisms when SASL is used for inter-broker communication")
}

func (b *Broker) saslEnabled(listener, mechanism string) bool {
	return slices.Contains(b.ListenerValue(listener, "sasl.enabled.mechanisms").List(), mechanism)
}

// validateGroups checks that each bounded group setting of the broker lies within the broker's own bounds.
func (c *compiler) validateGroups() {
	b := c.b
	c.check(slices.ContainsFunc(b.GroupCoordinator.RebalanceProtocols, func(s string) bool { return strings.EqualFold(s, "classic") }),
		"group.coordinator.rebalance.protocols", "Disabling the 'classic' protocol is not supported.")
	for _, g := range groupBounds {
		key := groupSynonyms[g.key]
		if key == "" {
			continue
		}
		v := b.Value(key).Int64()
		if g.least != "" && g.most != "" {
			c.check(b.Value(g.most).Int64() >= b.Value(g.least).Int64(), g.most, "%s must be greater than or equal to %s", g.most, g.least)
		}
		c.check(g.least == "" || v >= b.Value(g.least).Int64(), key, "%s must be greater than or equal to %s", key, g.least)
		c.check(g.most == "" || v <= b.Value(g.most).Int64(), key, "%s must be less than or equal to %s", key, g.most)
	}
	for _, kind := range []string{"consumer", "share", "streams"} {
		key := "group." + kind + ".heartbeat.interval.ms"
		c.check(b.Value(key).Int64() < b.Value("group."+kind+".session.timeout.ms").Int64(), key,
			"%s must be less than group.%s.session.timeout.ms", key, kind)
	}
}
