package config

import (
	"fmt"
	"io"
	"strings"
)

// Document writes the documentation page of all keys, in Markdown.
func Document(w io.Writer) error {
	var b strings.Builder
	b.WriteString("# Configuration keys\n\n" +
		"Generated from the declarations in `internal/config`; `go test ./internal/config -rewrite` writes it anew. All keys of Kafka 4.4\n" +
		"are known. \"Honoured\" says whether gregor acts on a key; one that it doesn't act on is checked, described to clients, and\n" +
		"named at start when it is set. \"Change\": at run time for one broker (broker), for all (cluster), or by a restart.\n")
	for _, s := range []struct {
		title  string
		change bool
		tables [][]Key
	}{
		{"gregor's own", true, [][]Key{gregorKeys}},
		{"Roles, quorum and lifecycle", true, [][]Key{kraftKeys}},
		{"Listeners, connections, requests", true, [][]Key{networkKeys}},
		{"Storage and defaults of topics", true, [][]Key{logKeys}},
		{"Replication, placement, leadership", true, [][]Key{replicationKeys}},
		{"Offsets, transactions, producer ids", true, [][]Key{coordinatorKeys}},
		{"Groups", true, [][]Key{groupKeys}},
		{"Security", true, [][]Key{securityKeys}},
		{"Of the authorizer", true, [][]Key{authorizerKeys}},
		{"Tiered storage", true, [][]Key{remoteKeys, remoteMetadataKeys}},
		{"Process", true, [][]Key{serverKeys}},
		{"Of a topic", false, [][]Key{topicKeys}},
		{"Of a group", false, [][]Key{groupResourceKeys}},
		{"Of a client metrics subscription", false, [][]Key{clientMetricsKeys}},
		{"Throttles of a broker", false, [][]Key{brokerQuotaKeys}},
		{"Quotas of users, clients and addresses", false, [][]Key{clientQuotaKeys, ipQuotaKeys}},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n| key | type | default | allowed |%s honoured | what |\n|---|---|---|---|%s---|---|\n",
			s.title, map[bool]string{true: " change |"}[s.change], map[bool]string{true: "---|"}[s.change])
		for _, t := range s.tables {
			for i := range t {
				documentKey(&b, &t[i], s.change)
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func documentKey(b *strings.Builder, k *Key, change bool) {
	def, ok := k.DefaultText()
	switch {
	case k.Required():
		def = "must be set"
	case !ok:
		def = "null"
	default:
		def = "`" + def + "`"
	}
	if def == "``" {
		def = "empty"
	}
	fmt.Fprintf(b, "| `%s` | %s | %s | %s |", k.Name, strings.ToLower(k.Type.String()), def, strings.ReplaceAll(k.Allowed(), "|", "\\|"))
	if change {
		how := "restart"
		if k.Flags&PerBroker != 0 {
			how = "broker"
		} else if k.Flags&ClusterWide != 0 {
			how = "cluster"
		}
		fmt.Fprintf(b, " %s |", how)
	}
	fmt.Fprintf(b, " %s | %s |\n", map[bool]string{true: "yes", false: "not yet"}[k.Honoured()], k.Doc)
}
