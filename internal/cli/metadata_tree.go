package cli

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"gregor/internal/config"
	"gregor/internal/metadata"
	"gregor/internal/uuid"
)

// shellNode is a node of the tree that the metadata shell shows, with Kafka's names and texts. Directories make their children when
// they are asked for: a cluster may have a million partitions.
type shellNode struct {
	text  *string // of a leaf
	names func() []string
	child func(name string) *shellNode
}

func (n *shellNode) dir() bool { return n.text == nil }

// children are the names below, sorted.
func (n *shellNode) children() []string {
	if n.names == nil {
		return nil
	}
	return slices.Sorted(slices.Values(n.names()))
}

func leaf(format string, args ...any) *shellNode {
	s := fmt.Sprintf(format, args...)
	return &shellNode{text: &s}
}

// fixed is a directory of few nodes.
func fixed(children map[string]func() *shellNode) *shellNode {
	return &shellNode{
		names: func() []string { return slices.Collect(maps.Keys(children)) },
		child: func(name string) *shellNode {
			if f := children[name]; f != nil {
				return f()
			}
			return nil
		},
	}
}

// print writes the node and what is below, two spaces deeper each.
func (n *shellNode) print(w io.Writer, indent string) {
	if !n.dir() {
		fmt.Fprintf(w, "%s%s\n", indent, *n.text)
		return
	}
	for _, name := range n.children() {
		fmt.Fprintf(w, "%s%s:\n", indent, name)
		n.child(name).print(w, indent+"  ")
	}
}

// shellRoot is the root of the tree over an image.
func shellRoot(img *metadata.Image, version, revision string) *shellNode {
	return fixed(map[string]func() *shellNode{
		"image": func() *shellNode { return imageNode(img) },
		"local": func() *shellNode {
			return fixed(map[string]func() *shellNode{
				"version":  func() *shellNode { return leaf("%s", version) },
				"commitId": func() *shellNode { return leaf("%s", cmp.Or(revision, "unknown")) },
			})
		},
	})
}

func imageNode(img *metadata.Image) *shellNode {
	return fixed(map[string]func() *shellNode{
		"provenance": func() *shellNode {
			at := time.UnixMilli(img.Time).UTC()
			return leaf("offset %d, epoch %d, time %s[UTC]", img.Offset, img.Epoch, javaTime(at))
		},
		"features":        func() *shellNode { return featuresNode(img.Features) },
		"cluster":         func() *shellNode { return clusterNode(img.Cluster) },
		"topics":          func() *shellNode { return topicsNode(img.Topics) },
		"configs":         func() *shellNode { return configsNode(img.Configs) },
		"clientQuotas":    func() *shellNode { return quotasNode(img.ClientQuotas) },
		"acls":            func() *shellNode { return aclsNode(img.ACLs) },
		"scram":           func() *shellNode { return scramNode(img.SCRAM) },
		"delegationToken": func() *shellNode { return tokensNode(img.DelegationTokens) },
		"producerIds": func() *shellNode {
			return fixed(map[string]func() *shellNode{"nextProducerId": func() *shellNode { return leaf("%d", img.ProducerIDs.Next) }})
		},
	})
}

// javaTime is a time in UTC as Java's ISO_ZONED_DATE_TIME prints it: no fraction if there is none, else 1 to 9 digits.
func javaTime(t time.Time) string { return t.Format("2006-01-02T15:04:05.999999999") + "Z" }

func featuresNode(f *metadata.FeaturesImage) *shellNode {
	const finalized = "finalized_"
	return &shellNode{
		names: func() []string {
			out := []string{"metadataVersion"}
			for name := range f.Levels {
				out = append(out, finalized+name)
			}
			return out
		},
		child: func(name string) *shellNode {
			if name == "metadataVersion" {
				if f.MetadataVersion == 0 {
					return leaf("Optional.empty")
				}
				return leaf("Optional[%s]", f.MetadataVersion)
			}
			if feature, ok := strings.CutPrefix(name, finalized); ok {
				if level, ok := f.Levels[feature]; ok {
					return leaf("%d", level)
				}
			}
			return nil
		},
	}
}

func clusterNode(c *metadata.ClusterImage) *shellNode {
	return fixed(map[string]func() *shellNode{
		"brokers": func() *shellNode {
			return byNumber(c.BrokerIDs(), func(id int32) *shellNode {
				if b := c.Broker(id); b != nil {
					return leaf("%s", brokerText(b))
				}
				return nil
			})
		},
		"controllers": func() *shellNode {
			return byNumber(c.ControllerIDs(), func(id int32) *shellNode {
				if k := c.Controllers[id]; k != nil {
					return leaf("ControllerRegistration(id=%d, incarnationId=%s, zkMigrationReady=%t, listeners=[%s], supportedFeatures={%s})",
						k.ID, k.IncarnationID, k.ZKMigrationReady, endpointsText(k.Listeners), rangesText(k.Features))
				}
				return nil
			})
		},
	})
}

// byNumber is a directory whose names are numbers.
func byNumber(ids []int32, child func(id int32) *shellNode) *shellNode {
	return &shellNode{
		names: func() []string {
			out := make([]string, len(ids))
			for i, id := range ids {
				out[i] = strconv.Itoa(int(id))
			}
			return out
		},
		child: func(name string) *shellNode {
			id, err := strconv.ParseInt(name, 10, 32)
			if err != nil {
				return nil
			}
			return child(int32(id))
		},
	}
}

func brokerText(b *metadata.Broker) string {
	rack := "Optional.empty"
	if b.Rack != nil {
		rack = "Optional[" + *b.Rack + "]"
	}
	cordoned := "null" // the broker hasn't said
	if b.CordonedLogDirs != nil {
		cordoned = "[" + joined(b.CordonedLogDirs, ", ") + "]"
	}
	return fmt.Sprintf("BrokerRegistration(id=%d, epoch=%d, incarnationId=%s, listeners=[%s], supportedFeatures={%s}, rack=%s, fenced=%t, "+
		"inControlledShutdown=%t, isMigratingZkBroker=%t, directories=[%s], cordonedDirectories=%s)",
		b.ID, b.Epoch, b.IncarnationID, endpointsText(b.Listeners), rangesText(b.Features), rack, b.Fenced, b.InControlledShutdown, b.MigratingZK,
		joined(b.LogDirs, ", "), cordoned)
}

var protocolNames = map[int16]string{0: "PLAINTEXT", 1: "SSL", 2: "SASL_PLAINTEXT", 3: "SASL_SSL"}

func endpointsText(listeners map[string]metadata.Endpoint) string {
	var out []string
	for _, name := range sorted(listeners) {
		l := listeners[name]
		out = append(out, fmt.Sprintf("Endpoint(listenerName='%s', securityProtocol=%s, host='%s', port=%d)",
			l.Name, cmp.Or(protocolNames[l.SecurityProtocol], strconv.Itoa(int(l.SecurityProtocol))), l.Host, l.Port))
	}
	return strings.Join(out, ", ")
}

func rangesText(features map[string]metadata.FeatureRange) string {
	var out []string
	for _, name := range sorted(features) {
		r := features[name]
		text := fmt.Sprintf("%d-%d", r.Min, r.Max)
		switch {
		case r.Min == r.Max:
			text = strconv.Itoa(int(r.Min))
		case r.Max == 1<<15-1:
			text = fmt.Sprintf("%d+", r.Min)
		}
		out = append(out, name+": "+text)
	}
	return strings.Join(out, ", ")
}

func topicsNode(t *metadata.TopicsImage) *shellNode {
	list := func(name func(*metadata.Topic) string) func() []string {
		return func() []string {
			out := make([]string, 0, t.Len())
			for topic := range t.All() {
				out = append(out, name(topic))
			}
			return out
		}
	}
	return fixed(map[string]func() *shellNode{
		"byName": func() *shellNode {
			return &shellNode{
				names: list(func(topic *metadata.Topic) string { return topic.Name }),
				child: func(name string) *shellNode { return topicNode(t.ByName(name)) },
			}
		},
		"byId": func() *shellNode {
			return &shellNode{
				names: list(func(topic *metadata.Topic) string { return topic.ID.String() }),
				child: func(name string) *shellNode {
					id, err := uuid.Parse(name)
					if err != nil {
						return nil
					}
					return topicNode(t.ByID(id))
				},
			}
		},
	})
}

func topicNode(t *metadata.Topic) *shellNode {
	if t == nil {
		return nil
	}
	return &shellNode{
		names: func() []string {
			out := []string{"name", "id"}
			for id := range t.Partitions() {
				out = append(out, strconv.Itoa(int(id)))
			}
			return out
		},
		child: func(name string) *shellNode {
			switch name {
			case "name":
				return leaf("%s", t.Name)
			case "id":
				return leaf("%s", t.ID)
			}
			id, err := strconv.ParseInt(name, 10, 32)
			if err != nil {
				return nil
			}
			p := t.Partition(int32(id))
			if p == nil {
				return nil
			}
			recovery := "RECOVERED"
			if p.LeaderRecoveryState == metadata.Recovering {
				recovery = "RECOVERING"
			}
			return leaf("PartitionRegistration(replicas=[%s], directories=[%s], isr=[%s], removingReplicas=[%s], addingReplicas=[%s], elr=[%s], "+
				"lastKnownElr=[%s], leader=%d, leaderRecoveryState=%s, leaderEpoch=%d, partitionEpoch=%d)",
				joined(p.Replicas, ", "), joined(p.Directories, ", "), joined(p.ISR, ", "), joined(p.Removing, ", "), joined(p.Adding, ", "),
				joined(p.ELR, ", "), joined(p.LastKnownELR, ", "), p.Leader, recovery, p.LeaderEpoch, p.PartitionEpoch)
		},
	}
}

var configTypeNames = map[int8]string{
	metadata.TopicResource: "TOPIC", metadata.BrokerResource: "BROKER", metadata.BrokerLoggerResource: "BROKER_LOGGER",
	metadata.ClientMetricsResource: "CLIENT_METRICS", metadata.GroupResource: "GROUP",
}

func configsNode(c *metadata.ConfigsImage) *shellNode {
	return &shellNode{
		names: func() []string {
			var out []string
			for r := range c.All() {
				name := cmp.Or(configTypeNames[r.Type], "UNKNOWN")
				if r.Name != "" {
					name += ":" + r.Name
				}
				out = append(out, name)
			}
			return out
		},
		child: func(name string) *shellNode {
			kind, resource, _ := strings.Cut(name, ":")
			for t, n := range configTypeNames {
				if n == kind {
					if m := c.Get(metadata.Resource{Type: t, Name: resource}); m != nil {
						return textsNode(m, func(v string) string { return v })
					}
				}
			}
			return nil
		},
	}
}

// textsNode is a directory of leaves.
func textsNode[V any](m map[string]V, text func(V) string) *shellNode {
	return &shellNode{
		names: func() []string { return slices.Collect(maps.Keys(m)) },
		child: func(name string) *shellNode {
			if v, ok := m[name]; ok {
				return leaf("%s", text(v))
			}
			return nil
		},
	}
}

var quotaParts = map[string]string{"client-id": "clientId", "ip": "ip", "user": "user"}

// quotaName is the entity of a quota as a name. Kafka's leaves the defaults out, so that its shell fails on the first of them.
func quotaName(e metadata.QuotaEntity) string {
	escape := strings.NewReplacer(`\`, `\\`, `(`, `\(`, `)`, `\)`)
	var out []string
	for _, p := range e { // in the order of the types
		name := "<default>"
		if p.Name != nil {
			name = escape.Replace(*p.Name)
		}
		out = append(out, cmp.Or(quotaParts[p.Type], p.Type)+"("+name+")")
	}
	return strings.Join(out, "_")
}

func quotasNode(c *metadata.ClientQuotasImage) *shellNode {
	byName := map[string]*metadata.ClientQuota{}
	for q := range c.All() {
		byName[quotaName(q.Entity)] = q
	}
	return &shellNode{
		names: func() []string { return slices.Collect(maps.Keys(byName)) },
		child: func(name string) *shellNode {
			if q := byName[name]; q != nil {
				return textsNode(q.Quotas, config.JavaDouble)
			}
			return nil
		},
	}
}

// The names of Kafka's numbers in ACLs.
var (
	aclResources   = []string{"UNKNOWN", "ANY", "TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID", "DELEGATION_TOKEN", "USER"}
	aclPatterns    = []string{"UNKNOWN", "ANY", "MATCH", "LITERAL", "PREFIXED"}
	aclPermissions = []string{"UNKNOWN", "ANY", "DENY", "ALLOW"}
	aclOperations  = []string{
		"UNKNOWN", "ANY", "ALL", "READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "DESCRIBE_CONFIGS", "ALTER_CONFIGS",
		"IDEMPOTENT_WRITE", "CREATE_TOKENS", "DESCRIBE_TOKENS", "TWO_PHASE_COMMIT",
	}
)

func enumName(names []string, n int8) string {
	if n < 0 || int(n) >= len(names) {
		n = 0
	}
	return names[n]
}

func aclsNode(t *metadata.ACLsImage) *shellNode {
	return fixed(map[string]func() *shellNode{"byId": func() *shellNode {
		return &shellNode{
			names: func() []string {
				var out []string
				for id := range t.All() {
					out = append(out, id.String())
				}
				return out
			},
			child: func(name string) *shellNode {
				id, err := uuid.Parse(name)
				if err != nil {
					return nil
				}
				a, ok := t.Get(id)
				if !ok {
					return nil
				}
				return leaf("StandardAcl[resourceType=%s, resourceName=%s, patternType=%s, principal=%s, host=%s, operation=%s, permissionType=%s]",
					enumName(aclResources, a.ResourceType), a.ResourceName, enumName(aclPatterns, a.PatternType), a.Principal, a.Host,
					enumName(aclOperations, a.Operation), enumName(aclPermissions, a.PermissionType))
			},
		}
	}})
}

func scramNode(t *metadata.SCRAMImage) *shellNode {
	mechanism := func(kind int8) func() *shellNode {
		return func() *shellNode {
			return &shellNode{
				names: func() []string {
					var out []string
					for k := range t.All() {
						if k.Mechanism == kind {
							out = append(out, k.User)
						}
					}
					return out
				},
				child: func(name string) *shellNode {
					c, ok := t.Get(metadata.SCRAMKey{Mechanism: kind, User: name})
					if !ok {
						return nil
					}
					return leaf("ScramCredentialData(salt=%x, storedKey=%x, serverKey=%x, iterations=%d)", c.Salt, c.StoredKey, c.ServerKey, c.Iterations)
				},
			}
		}
	}
	return fixed(map[string]func() *shellNode{"SCRAM-SHA-256": mechanism(1), "SCRAM-SHA-512": mechanism(2)})
}

func tokensNode(t *metadata.DelegationTokensImage) *shellNode {
	return &shellNode{
		names: func() []string {
			var out []string
			for id := range t.All() {
				out = append(out, id)
			}
			return out
		},
		child: func(name string) *shellNode {
			d, ok := t.Get(name)
			if !ok {
				return nil
			}
			// The brackets are as unpaired as Kafka's.
			return leaf("DelegationTokenDatatokenId=%s(owner=%s(tokenRequester=%s(renewers=%s, issueTimestamp=%d, maxTimestamp=%d), expiryTimestamp=%d",
				d.ID, d.Owner, d.Requester, strings.Join(d.Renewers, " "), d.IssueTimestamp, d.MaxTimestamp, d.ExpirationTimestamp)
		},
	}
}
