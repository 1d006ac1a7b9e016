package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gregor/client"
	"gregor/internal/log"
	"gregor/internal/uuid"
)

func newQuorum(e *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "quorum",
		Short: "Look at the metadata quorum, and change who votes in it",
		Long: `Look at the controllers that keep the cluster's metadata, and change which of them vote.

Voters elect the leader, which is the active controller; a change of the cluster counts when most of them have it. Observers
(the brokers, and controllers that don't vote) only follow.`,
		Example: `  gregor quorum describe
  gregor quorum describe --replication --bootstrap-controller localhost:9093
  gregor quorum add-controller --config controller.properties
  gregor quorum remove-controller --controller-id 3`,
	}
	c := connectFlags(cmd)
	c.controllerFlags(cmd)
	cmd.AddCommand(newQuorumDescribe(e, c), newQuorumAdd(e, c), newQuorumRemove(e, c))
	return cmd
}

func newQuorumDescribe(e *Env, c *connection) *cobra.Command {
	var status, replication, human bool
	var output string
	cmd := &cobra.Command{
		Use:   "describe",
		Short: "Tell who leads, votes and follows, and how far each is",
		Long: `Tell who leads, who votes and follows, and how far each is. --status is about the whole, --replication about each node;
without either, both are told. The text is that of Kafka's kafka-metadata-quorum.sh.

MaxFollowerLag is how many records the slowest voter is behind, MaxFollowerLagTimeMs for how long; -1 is unknown.`,
		Args: need(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if human && !replication {
				if status {
					return usageError(cmd, "the option --human-readable is only supported along with --replication")
				}
				replication = true
			}
			if status && replication {
				return usageError(cmd, "only one of --status and --replication can be given; without either, both are told")
			}
			return c.do(cmd.Context(), e, func(ctx context.Context, cl *client.Client) error {
				q, err := cl.DescribeQuorum(ctx)
				if err != nil {
					return err
				}
				cluster, err := cl.DescribeCluster(ctx, false)
				if err != nil {
					return err
				}
				if output == "json" {
					return printJSON(e.Stdout, quorumJSON(cluster.ID, q))
				}
				if !replication {
					if err := printQuorumStatus(e.Stdout, cluster.ID, q); err != nil {
						return err
					}
				}
				if status {
					return nil
				}
				var now time.Time
				if !replication {
					fmt.Fprintln(e.Stdout)
				}
				if !replication || human {
					now = time.Now()
				}
				return printReplication(e.Stdout, q, now)
			})
		},
	}
	f := cmd.Flags()
	f.BoolVar(&status, "status", false, "only a summary")
	f.BoolVar(&replication, "replication", false, "only a line for each node")
	f.BoolVar(&human, "human-readable", false, "with --replication: how long ago, instead of timestamps")
	outputFlag(cmd, &output)
	return cmd
}

// quorumLag is how far the slowest voter is behind.
func quorumLag(q *client.Quorum) (records, millis int64, err error) {
	leader, ok := q.Leader()
	if !ok {
		return 0, 0, fmt.Errorf("node %d leads the quorum in epoch %d and isn't among its voters: it is being removed; try again", q.LeaderID, q.LeaderEpoch)
	}
	slowest := q.Voters[0]
	for _, v := range q.Voters {
		if v.LogEndOffset < slowest.LogEndOffset {
			slowest = v
		}
	}
	records = leader.LogEndOffset - slowest.LogEndOffset
	switch {
	case records == 0:
	case leader.LastCaughtUp.IsZero() || slowest.LastCaughtUp.IsZero():
		millis = -1
	default:
		millis = leader.LastCaughtUp.Sub(slowest.LastCaughtUp).Milliseconds()
	}
	return records, millis, nil
}

func printQuorumStatus(w io.Writer, clusterID string, q *client.Quorum) error {
	records, millis, err := quorumLag(q)
	if err != nil {
		return err
	}
	for _, l := range [][2]string{
		{"ClusterId", clusterID},
		{"LeaderId", strconv.Itoa(int(q.LeaderID))},
		{"LeaderEpoch", strconv.Itoa(int(q.LeaderEpoch))},
		{"HighWatermark", strconv.FormatInt(q.HighWatermark, 10)},
		{"MaxFollowerLag", strconv.FormatInt(records, 10)},
		{"MaxFollowerLagTimeMs", strconv.FormatInt(millis, 10)},
		{"CurrentVoters", quorumNodes(q, q.Voters)},
		{"CurrentObservers", quorumNodes(q, q.Observers)},
	} {
		if _, err := fmt.Fprintf(w, "%-24s%s\n", l[0]+":", l[1]); err != nil {
			return err
		}
	}
	return nil
}

// quorumNodes is the JSON that Kafka's tool puts in a line, with its spaces.
func quorumNodes(q *client.Quorum, replicas []client.QuorumReplica) string {
	var out []string
	for _, r := range replicas {
		dir := "null"
		if r.DirectoryID != (client.UUID{}) {
			dir = strconv.Quote(r.DirectoryID.String())
		}
		s := fmt.Sprintf(`{"id": %d, "directoryId": %s`, r.ID, dir)
		if ends := q.Endpoints[r.ID]; len(ends) > 0 {
			s += `, "endpoints": ["` + joined(ends, `", "`) + `"]`
		}
		out = append(out, s+"}")
	}
	return "[" + strings.Join(out, ", ") + "]"
}

// joined is the items' texts with a separator.
func joined[T any](items []T, separator string) string {
	parts := make([]string, len(items))
	for i, x := range items {
		parts[i] = fmt.Sprint(x)
	}
	return strings.Join(parts, separator)
}

// printReplication prints a line a node, with times as they are, or as how long ago if now isn't zero.
func printReplication(w io.Writer, q *client.Quorum, now time.Time) error {
	leader, ok := q.Leader()
	if !ok {
		_, _, err := quorumLag(q)
		return err
	}
	at := func(t time.Time) string {
		switch {
		case t.IsZero():
			return "-1"
		case now.IsZero():
			return strconv.FormatInt(t.UnixMilli(), 10)
		}
		// Clocks differ between machines; a node is not ahead of the leader for that.
		return fmt.Sprintf("%d ms ago", max(now.Sub(t).Milliseconds(), 0))
	}
	rows := [][]string{{"NodeId", "DirectoryId", "LogEndOffset", "Lag", "LastFetchTimestamp", "LastCaughtUpTimestamp", "Status"}}
	add := func(r client.QuorumReplica, status string) {
		rows = append(rows, []string{
			strconv.Itoa(int(r.ID)), r.DirectoryID.String(), strconv.FormatInt(r.LogEndOffset, 10),
			strconv.FormatInt(leader.LogEndOffset-r.LogEndOffset, 10), at(r.LastFetch), at(r.LastCaughtUp), status,
		})
	}
	add(leader, "Leader")
	for _, v := range q.Voters {
		if v.ID != leader.ID {
			add(v, "Follower")
		}
	}
	for _, o := range q.Observers {
		add(o, "Observer")
	}
	return printKafkaTable(w, rows)
}

// printKafkaTable prints rows as Kafka's tools do: each cell padded to its column's width and followed by a tab.
func printKafkaTable(w io.Writer, rows [][]string) error {
	widths := make([]int, len(rows[0]))
	for _, r := range rows {
		for i, cell := range r {
			widths[i] = max(widths[i], len(cell))
		}
	}
	for _, r := range rows {
		for i, cell := range r {
			if _, err := fmt.Fprintf(w, "%-*s\t", widths[i], cell); err != nil {
				return err
			}
		}
		fmt.Fprintln(w)
	}
	return nil
}

type quorumNodeJSON struct {
	ID           int32    `json:"id"`
	DirectoryID  string   `json:"directoryId,omitempty"`
	Status       string   `json:"status"`
	LogEndOffset int64    `json:"logEndOffset"`
	Lag          *int64   `json:"lag,omitempty"`
	LastFetch    *int64   `json:"lastFetchTimestamp,omitempty"`
	LastCaughtUp *int64   `json:"lastCaughtUpTimestamp,omitempty"`
	Endpoints    []string `json:"endpoints,omitempty"`
}

func quorumJSON(clusterID string, q *client.Quorum) any {
	out := struct {
		ClusterID            string           `json:"clusterId"`
		LeaderID             int32            `json:"leaderId"`
		LeaderEpoch          int32            `json:"leaderEpoch"`
		HighWatermark        int64            `json:"highWatermark"`
		MaxFollowerLag       *int64           `json:"maxFollowerLag,omitempty"`
		MaxFollowerLagTimeMs *int64           `json:"maxFollowerLagTimeMs,omitempty"`
		Voters               []quorumNodeJSON `json:"voters"`
		Observers            []quorumNodeJSON `json:"observers"`
	}{ClusterID: clusterID, LeaderID: q.LeaderID, LeaderEpoch: q.LeaderEpoch, HighWatermark: q.HighWatermark}
	leader, led := q.Leader()
	if records, millis, err := quorumLag(q); err == nil {
		out.MaxFollowerLag, out.MaxFollowerLagTimeMs = &records, &millis
	}
	node := func(r client.QuorumReplica, status string) quorumNodeJSON {
		n := quorumNodeJSON{ID: r.ID, Status: status, LogEndOffset: r.LogEndOffset}
		if r.DirectoryID != (client.UUID{}) {
			n.DirectoryID = r.DirectoryID.String()
		}
		if led {
			lag := leader.LogEndOffset - r.LogEndOffset
			n.Lag = &lag
		}
		millis := func(t time.Time) *int64 {
			if t.IsZero() {
				return nil
			}
			ms := t.UnixMilli()
			return &ms
		}
		n.LastFetch, n.LastCaughtUp = millis(r.LastFetch), millis(r.LastCaughtUp)
		for _, e := range q.Endpoints[r.ID] {
			n.Endpoints = append(n.Endpoints, e.String())
		}
		return n
	}
	out.Voters, out.Observers = []quorumNodeJSON{}, []quorumNodeJSON{}
	for _, v := range q.Voters {
		status := "follower"
		if v.ID == q.LeaderID {
			status = "leader"
		}
		out.Voters = append(out.Voters, node(v, status))
	}
	for _, o := range q.Observers {
		out.Observers = append(out.Observers, node(o, "observer"))
	}
	return out
}

func newQuorumAdd(e *Env, c *connection) *cobra.Command {
	var file string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "add-controller --config FILE",
		Short: "Make a running controller a voter",
		Long: `Make a controller a voter of the quorum (KIP-853). It must be running and have caught up: start it formatted with
"gregor storage format --no-initial-controllers", and look at "gregor quorum describe --replication" until its lag is 0.

Its server.properties say what it is: its id, its controller listeners, and the directory whose meta.properties has its
directory id. Run this where both can be read.`,
		Example: "  gregor quorum add-controller --config controller.properties --bootstrap-server broker1:9092",
		Args:    need(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				file = c.commandConfig
			}
			if file == "" {
				return usageError(cmd, "name the configuration file of the controller with --config")
			}
			voter, err := readVoter(e, file)
			if err != nil {
				return err
			}
			verb := "DRY RUN of adding"
			if !dryRun {
				verb = "Added"
				if err := c.do(cmd.Context(), e, func(ctx context.Context, cl *client.Client) error {
					return cl.AddVoter(ctx, voter.id, voter.directory, voter.endpoints)
				}); err != nil {
					return err
				}
			}
			_, err = fmt.Fprintf(e.Stdout, "%s controller %d with directory id %s and endpoints: %s\n", verb, voter.id, voter.directory, joined(voter.endpoints, ", "))
			return err
		},
	}
	f := cmd.Flags()
	f.StringVarP(&file, "config", "c", "", "the server.properties `file` of the controller to add")
	f.BoolVar(&dryRun, "dry-run", false, "only say what would be added")
	return cmd
}

// voter is a controller as its configuration describes it.
type voter struct {
	id        int32
	directory client.UUID
	endpoints []client.QuorumEndpoint
}

func readVoter(e *Env, file string) (*voter, error) {
	cfg, err := loadConfig(file, nil)
	if err != nil {
		return nil, err
	}
	if !cfg.Roles.Controller {
		return nil, fmt.Errorf("%s: process.roles doesn't have controller: is it the configuration of a controller?", file)
	}
	v := &voter{id: cfg.NodeID}
	dir := cfg.MetadataLogDir
	m, err := log.ReadMetaProperties(e.FS, dir)
	if err != nil {
		return nil, fmt.Errorf("directory id of the controller: %w", err)
	}
	if m.DirectoryID == uuid.Zero {
		return nil, fmt.Errorf("no directory id in %s/%s", dir, log.MetaPropertiesFile)
	}
	v.directory = m.DirectoryID
	for _, l := range cfg.AdvertisedControllers {
		host := l.Host
		if host == "" {
			host = "localhost"
		}
		v.endpoints = append(v.endpoints, client.QuorumEndpoint{Name: l.Name, Host: host, Port: uint16(l.Port)})
	}
	return v, nil
}

func newQuorumRemove(e *Env, c *connection) *cobra.Command {
	var id int32
	var directory string
	var dryRun, unregister bool
	cmd := &cobra.Command{
		Use:   "remove-controller --controller-id ID",
		Short: "Take a voter out of the quorum",
		Long: `Take a controller out of the quorum's voters (KIP-853). It may be running or gone. The directory id tells it from another
node that got the same id; it can be left out while only one voter has the id.`,
		Example: "  gregor quorum remove-controller --controller-id 3 --controller-directory-id 07R5amHmR32VDA6jHkGbTA",
		Args:    need(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("controller-id") {
				return usageError(cmd, "name the controller with --controller-id")
			}
			if id < 0 {
				return usageError(cmd, "invalid negative --controller-id: %d", id)
			}
			var dir client.UUID
			if directory != "" {
				var err error
				if dir, err = uuid.Parse(directory); err != nil {
					return usageError(cmd, "--controller-directory-id: %w", err)
				}
			}
			return c.do(cmd.Context(), e, func(ctx context.Context, cl *client.Client) error {
				if directory == "" {
					var err error
					if dir, err = directoryOf(ctx, cl, id); err != nil {
						return err
					}
				}
				verb := "DRY RUN of removing"
				if !dryRun {
					verb = "Removed"
					if err := cl.RemoveVoter(ctx, id, dir); err != nil {
						return err
					}
				}
				fmt.Fprintf(e.Stdout, "%s KRaft controller %d with directory id %s\n", verb, id, dir)
				if !unregister {
					return nil
				}
				verb = "DRY RUN of unregistering"
				if !dryRun {
					verb = "Unregistered"
					if err := cl.UnregisterController(ctx, id); err != nil {
						return err
					}
				}
				fmt.Fprintf(e.Stdout, "%s KRaft controller %d\n", verb, id)
				return nil
			})
		},
	}
	f := cmd.Flags()
	f.Int32VarP(&id, "controller-id", "i", -1, "the `id` of the controller")
	f.StringVarP(&directory, "controller-directory-id", "d", "", "the `id` of its metadata directory")
	f.BoolVar(&dryRun, "dry-run", false, "only say what would be removed")
	f.BoolVar(&unregister, "unregister", false, "and make the cluster forget its registration")
	return cmd
}

// directoryOf is the directory id of the only voter with that id.
func directoryOf(ctx context.Context, cl *client.Client, id int32) (client.UUID, error) {
	q, err := cl.DescribeQuorum(ctx)
	if err != nil {
		return client.UUID{}, err
	}
	var found []client.UUID
	for _, v := range q.Voters {
		if v.ID == id {
			found = append(found, v.DirectoryID)
		}
	}
	switch len(found) {
	case 0:
		return client.UUID{}, fmt.Errorf("controller %d is not a voter", id)
	case 1:
		return found[0], nil
	}
	return client.UUID{}, errors.New("two voters have that id: name one with --controller-directory-id, " + joined(found, " or "))
}
