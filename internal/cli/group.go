package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gregor/client"
)

func newGroup(e *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "group",
		Short: "List, describe and delete consumer groups, and move their offsets",
		Example: `  gregor group list
  gregor group describe billing
  gregor group reset-offsets billing --topic orders --to earliest --execute
  gregor group delete billing`,
	}
	c := connectFlags(cmd)
	cmd.AddCommand(newGroupList(e, c), newGroupDescribe(e, c), newGroupDelete(e, c), newGroupReset(e, c))
	return cmd
}

func newGroupList(e *Env, c *connection) *cobra.Command {
	var states, types []string
	var output string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List consumer groups",
		Args:  need(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.do(cmd.Context(), e, func(ctx context.Context, cl *client.Client) error {
				groups, err := cl.ListGroups(ctx, states, types)
				if err != nil {
					return err
				}
				if output == "json" {
					type row struct {
						Group       string `json:"group"`
						Type        string `json:"type"`
						State       string `json:"state"`
						Protocol    string `json:"protocolType"`
						Coordinator int32  `json:"coordinator"`
					}
					rows := []row{}
					for _, g := range groups {
						rows = append(rows, row{g.ID, g.Type, g.State, g.ProtocolType, g.Coordinator})
					}
					return printJSON(e.Stdout, rows)
				}
				if len(groups) == 0 {
					fmt.Fprintln(e.Stderr, "no groups")
					return nil
				}
				t := newTable(e.Stdout, "GROUP", "TYPE", "STATE", "PROTOCOL", "COORDINATOR")
				for _, g := range groups {
					t.row(g.ID, orDash(g.Type), orDash(g.State), orDash(g.ProtocolType), g.Coordinator)
				}
				return t.flush()
			})
		},
	}
	cmd.Flags().StringSliceVar(&states, "state", nil, "only groups in these states: Stable, Empty, PreparingRebalance…")
	cmd.Flags().StringSliceVar(&types, "type", nil, "only groups of these types: classic, consumer, share…")
	outputFlag(cmd, &output)
	return cmd
}

// groupPartition is what describe shows of a partition.
type groupPartition struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Committed *int64 `json:"committedOffset"`
	Start     *int64 `json:"startOffset"`
	End       *int64 `json:"endOffset"`
	Lag       *int64 `json:"lag"`
	Member    string `json:"member,omitempty"`
	Host      string `json:"host,omitempty"`
	ClientID  string `json:"clientId,omitempty"`
}

type groupMember struct {
	Member     string   `json:"member"`
	InstanceID string   `json:"instanceId,omitempty"`
	ClientID   string   `json:"clientId"`
	Host       string   `json:"host"`
	Topics     []string `json:"topics"`
	Partitions []string `json:"partitions"`
}

type groupDescription struct {
	Group       string           `json:"group"`
	Type        string           `json:"type"`
	State       string           `json:"state"`
	Assignor    string           `json:"assignor"`
	Coordinator int32            `json:"coordinator"`
	Members     []groupMember    `json:"members"`
	Partitions  []groupPartition `json:"partitions"`
}

func newGroupDescribe(e *Env, c *connection) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "describe GROUP...",
		Short: "Show groups' members, offsets and lag",
		Args:  need(1, -1, "a group"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.do(cmd.Context(), e, func(ctx context.Context, cl *client.Client) error {
				var bad failures
				var all []groupDescription
				for _, id := range args {
					d, err := describeGroup(ctx, cl, id)
					if err != nil {
						bad.add("group "+id, err)
						continue
					}
					all = append(all, *d)
				}
				if output == "json" {
					if err := printJSON(e.Stdout, all); err != nil {
						return err
					}
					return bad.err()
				}
				for i := range all {
					if i > 0 {
						fmt.Fprintln(e.Stdout)
					}
					if err := printGroup(e, &all[i]); err != nil {
						return err
					}
				}
				return bad.err()
			})
		},
	}
	outputFlag(cmd, &output)
	return cmd
}

func describeGroup(ctx context.Context, cl *client.Client, id string) (*groupDescription, error) {
	g, err := cl.DescribeGroup(ctx, id)
	if err != nil {
		return nil, err
	}
	if g.Err != nil {
		return nil, g.Err
	}
	if g.State == "Dead" {
		return nil, errors.New("there is no such group")
	}
	d := &groupDescription{Group: id, Type: g.Type, State: g.State, Assignor: g.Protocol, Coordinator: g.Coordinator, Members: []groupMember{}, Partitions: []groupPartition{}}
	parts := map[client.TopicPartition]*groupPartition{}
	for _, m := range g.Members {
		gm := groupMember{Member: m.ID, InstanceID: m.InstanceID, ClientID: m.ClientID, Host: m.Host, Topics: m.Topics, Partitions: []string{}}
		for _, tp := range m.Assigned {
			gm.Partitions = append(gm.Partitions, tp.String())
			parts[tp] = &groupPartition{Topic: tp.Topic, Partition: tp.Partition, Member: m.ID, Host: m.Host, ClientID: m.ClientID}
		}
		d.Members = append(d.Members, gm)
	}
	committed, err := cl.GroupOffsets(ctx, id, nil, false)
	if err != nil {
		return nil, err
	}
	for _, o := range committed {
		if o.Offset < 0 {
			continue
		}
		if parts[o.TopicPartition] == nil {
			parts[o.TopicPartition] = &groupPartition{Topic: o.Topic, Partition: o.Partition}
		}
		parts[o.TopicPartition].Committed = &o.Offset
	}
	if err := addLag(ctx, cl, parts); err != nil {
		return nil, err
	}
	for _, tp := range sortedPartitions(parts) {
		d.Partitions = append(d.Partitions, *parts[tp])
	}
	return d, nil
}

func sortedPartitions[V any](m map[client.TopicPartition]V) []client.TopicPartition {
	var tps []client.TopicPartition
	for tp := range m {
		tps = append(tps, tp)
	}
	slices.SortFunc(tps, func(a, b client.TopicPartition) int {
		if c := strings.Compare(a.Topic, b.Topic); c != 0 {
			return c
		}
		return int(a.Partition - b.Partition)
	})
	return tps
}

// addLag finds where partitions begin and end. Topics may be gone by now; their partitions stay without.
func addLag(ctx context.Context, cl *client.Client, parts map[client.TopicPartition]*groupPartition) error {
	want := map[client.TopicPartition]int64{}
	first := map[client.TopicPartition]int64{}
	names := map[string]bool{}
	for tp := range parts {
		names[tp.Topic] = true
	}
	if len(names) == 0 {
		return nil
	}
	m, err := cl.Metadata(ctx, sorted(names))
	if err != nil {
		return err
	}
	for _, t := range m.Topics {
		for _, p := range t.Partitions {
			if tp := (client.TopicPartition{Topic: t.Name, Partition: p.ID}); parts[tp] != nil && p.Leader >= 0 {
				want[tp], first[tp] = client.Latest, client.Earliest
			}
		}
	}
	if len(want) == 0 {
		return nil
	}
	ends, err := cl.ListOffsets(ctx, want, false)
	if err != nil {
		return err
	}
	starts, err := cl.ListOffsets(ctx, first, false)
	if err != nil {
		return err
	}
	for _, o := range starts {
		if o.Err == nil {
			parts[o.TopicPartition].Start = &o.Offset
		}
	}
	for _, o := range ends {
		if o.Err != nil {
			continue
		}
		p := parts[o.TopicPartition]
		p.End = &o.Offset
		if p.Committed != nil {
			// Offsets behind the start are gone: what is left to read begins there. And never less than nothing, though
			// a commit may be newer than the end that was asked for before it.
			from := *p.Committed
			if p.Start != nil {
				from = max(from, *p.Start)
			}
			lag := max(0, o.Offset-from)
			p.Lag = &lag
		}
	}
	return nil
}

func number(n *int64) string {
	if n == nil {
		return "-"
	}
	return strconv.FormatInt(*n, 10)
}

func printGroup(e *Env, d *groupDescription) error {
	fmt.Fprintf(e.Stdout, "Group %s, %s, %s, assignor %s, coordinator %d\n", d.Group, strings.ToLower(d.Type), d.State, orDash(d.Assignor), d.Coordinator)
	if len(d.Members) > 0 {
		t := newTable(e.Stdout, "MEMBER", "INSTANCE", "CLIENT", "HOST", "PARTITIONS")
		for _, m := range d.Members {
			t.row(m.Member, orDash(m.InstanceID), m.ClientID, m.Host, list(m.Partitions))
		}
		if err := t.flush(); err != nil {
			return err
		}
	}
	if len(d.Partitions) == 0 {
		return nil
	}
	t := newTable(e.Stdout, "TOPIC", "PARTITION", "COMMITTED", "START", "END", "LAG", "CLIENT")
	for _, p := range d.Partitions {
		t.row(p.Topic, p.Partition, number(p.Committed), number(p.Start), number(p.End), number(p.Lag), orDash(p.ClientID))
	}
	return t.flush()
}

func newGroupDelete(e *Env, c *connection) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "delete GROUP...",
		Short: "Delete groups without members, and their offsets",
		Args:  need(1, -1, "a group"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := confirm(e, yes, fmt.Sprintf("Delete %s with all offsets?", strings.Join(args, ", "))); err != nil {
				return err
			}
			return c.do(cmd.Context(), e, func(ctx context.Context, cl *client.Client) error {
				var bad failures
				for _, g := range args {
					err := cl.DeleteGroup(ctx, g)
					bad.add("group "+g, err)
					if err == nil {
						fmt.Fprintf(e.Stdout, "%s deleted\n", g)
					}
				}
				return bad.err()
			})
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "don't ask")
	return cmd
}

// resetOptions are the flags of reset-offsets.
type resetOptions struct {
	group   string
	topics  []string
	all     bool
	to      string
	shift   int64
	execute bool
	output  string
}

func newGroupReset(e *Env, c *connection) *cobra.Command {
	var o resetOptions
	cmd := &cobra.Command{
		Use:   "reset-offsets GROUP",
		Short: "Move a group's offsets",
		Long: `Move the offsets of a group that has no members now. Shows what would change; --execute does it.

--to is earliest, latest, an offset, or a time (2026-01-02T03:04:05Z, 2026-01-02, or how long ago: 1h30m); -N is N before the
end. --shift moves each offset by so many, forward or back. All stays within what the partitions hold.`,
		Example: `  gregor group reset-offsets billing --topic orders --to earliest
  gregor group reset-offsets billing --topic orders:0,2 --to 1000 --execute
  gregor group reset-offsets billing --all-topics --to 2h --execute
  gregor group reset-offsets billing --all-topics --shift -10 --execute`,
		Args: need(1, 1, "one group"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.group = args[0]
			if (o.to == "") == (o.shift == 0) {
				return usageError(cmd, "say where to: --to or --shift")
			}
			if o.all == (len(o.topics) > 0) {
				return usageError(cmd, "say for which topics: --topic or --all-topics")
			}
			return c.do(cmd.Context(), e, func(ctx context.Context, cl *client.Client) error { return resetOffsets(ctx, cmd, e, cl, &o) })
		},
	}
	f := cmd.Flags()
	f.StringArrayVarP(&o.topics, "topic", "t", nil, "a topic, or some of its partitions: `topic[:0,1]`; may be given several times")
	f.BoolVar(&o.all, "all-topics", false, "all topics that the group has offsets in")
	f.StringVar(&o.to, "to", "", "where to")
	f.Int64Var(&o.shift, "shift", 0, "by how many")
	f.BoolVar(&o.execute, "execute", false, "do it")
	outputFlag(cmd, &o.output)
	return cmd
}

func resetOffsets(ctx context.Context, cmd *cobra.Command, e *Env, cl *client.Client, o *resetOptions) error {
	g, err := cl.DescribeGroup(ctx, o.group)
	if err != nil {
		return err
	}
	if len(g.Members) > 0 {
		return fmt.Errorf("group %s has %s; stop them first", o.group, count(len(g.Members), "member"))
	}
	committed := map[client.TopicPartition]int64{}
	offsets, err := cl.GroupOffsets(ctx, o.group, nil, false)
	if err != nil {
		return err
	}
	for _, c := range offsets {
		if c.Offset >= 0 {
			committed[c.TopicPartition] = c.Offset
		}
	}
	tps, err := resetPartitions(ctx, cl, o, committed)
	if err != nil {
		return err
	}
	if len(tps) == 0 {
		return fmt.Errorf("group %s has no offsets", o.group)
	}
	target, err := resetTargets(ctx, cmd, cl, o, tps, committed)
	if err != nil {
		return err
	}
	var commits []client.CommittedOffset
	type row struct {
		Topic     string `json:"topic"`
		Partition int32  `json:"partition"`
		Old       *int64 `json:"oldOffset"`
		New       int64  `json:"newOffset"`
	}
	rows := []row{}
	for _, tp := range sortedPartitions(target) {
		r := row{Topic: tp.Topic, Partition: tp.Partition, New: target[tp]}
		if old, ok := committed[tp]; ok {
			r.Old = &old
		}
		rows = append(rows, r)
		commits = append(commits, client.CommittedOffset{TopicPartition: tp, Offset: target[tp], LeaderEpoch: -1})
	}
	if o.execute {
		if err := cl.CommitGroupOffsets(ctx, o.group, commits); err != nil {
			return err
		}
	}
	if o.output == "json" {
		return printJSON(e.Stdout, rows)
	}
	t := newTable(e.Stdout, "TOPIC", "PARTITION", "OLD", "NEW")
	for _, r := range rows {
		t.row(r.Topic, r.Partition, number(r.Old), r.New)
	}
	if err := t.flush(); err != nil {
		return err
	}
	if !o.execute {
		fmt.Fprintln(e.Stderr, "nothing was changed; --execute does it")
	}
	return nil
}

// resetPartitions are those that the flags name.
func resetPartitions(ctx context.Context, cl *client.Client, o *resetOptions, committed map[client.TopicPartition]int64) ([]client.TopicPartition, error) {
	if o.all {
		return sortedPartitions(committed), nil
	}
	args, err := parsePartitionArgs(o.topics)
	if err != nil {
		return nil, fmt.Errorf("--topic %w", err)
	}
	return namedPartitions(ctx, cl, args)
}

// resetTargets finds the new offsets, held within what there is.
func resetTargets(ctx context.Context, cmd *cobra.Command, cl *client.Client, o *resetOptions, tps []client.TopicPartition, committed map[client.TopicPartition]int64) (map[client.TopicPartition]int64, error) {
	lookUp := func(at int64) (map[client.TopicPartition]int64, error) {
		want, out := map[client.TopicPartition]int64{}, map[client.TopicPartition]int64{}
		for _, tp := range tps {
			want[tp] = at
		}
		got, err := cl.ListOffsets(ctx, want, false)
		for _, g := range got {
			if g.Err != nil {
				return nil, fmt.Errorf("partition %v: %w", g.TopicPartition, g.Err)
			}
			out[g.TopicPartition] = g.Offset
		}
		return out, err
	}
	first, err := lookUp(client.Earliest)
	if err != nil {
		return nil, err
	}
	ends, err := lookUp(client.Latest)
	if err != nil {
		return nil, err
	}
	var s start
	var byTime map[client.TopicPartition]int64
	if o.to != "" {
		if s, err = parseStart(o.to, time.Now()); err != nil {
			return nil, usageError(cmd, "--to %w", err)
		}
		if !s.time.IsZero() {
			if byTime, err = lookUp(s.time.UnixMilli()); err != nil {
				return nil, err
			}
		}
	}
	out := map[client.TopicPartition]int64{}
	for _, tp := range tps {
		var to int64
		switch {
		case o.shift != 0:
			old, ok := committed[tp]
			if !ok {
				return nil, fmt.Errorf("partition %v: the group has no offset to shift", tp)
			}
			to = old + o.shift
		case byTime != nil:
			if to = byTime[tp]; to < 0 {
				to = ends[tp]
			}
		case s.behind > 0:
			to = ends[tp] - s.behind
		case s.at == client.Earliest:
			to = first[tp]
		case s.at == client.Latest:
			to = ends[tp]
		default:
			to = s.at
		}
		out[tp] = min(max(to, first[tp]), ends[tp])
	}
	return out, nil
}
