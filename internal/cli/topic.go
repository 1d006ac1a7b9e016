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

func newTopic(e *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "topic",
		Short: "Create, list, describe, change and delete topics",
		Example: `  gregor topic create orders --partitions 6 --config retention.ms=604800000
  gregor topic list
  gregor topic describe orders
  gregor topic alter orders --partitions 12
  gregor topic delete orders`,
	}
	c := connectFlags(cmd)
	cmd.AddCommand(newTopicCreate(e, c), newTopicList(e, c), newTopicDescribe(e, c), newTopicAlter(e, c), newTopicDelete(e, c))
	return cmd
}

func newTopicCreate(e *Env, c *connection) *cobra.Command {
	var partitions int32
	var replication int16
	var configs []string
	var assignment, output string
	var ifNotExists, dryRun bool
	cmd := &cobra.Command{
		Use:   "create TOPIC...",
		Short: "Create topics",
		Long: `Create topics. How many partitions and replicas they get is up to the brokers' defaults (num.partitions,
default.replication.factor) unless said here. Names may have letters, digits, '.', '_' and '-'.`,
		Example: `  gregor topic create orders
  gregor topic create orders --partitions 6 --replication-factor 3 --config cleanup.policy=compact
  gregor topic create orders --assignment 1:2,2:3      two partitions, the first on brokers 1 and 2`,
		Args: need(1, -1, "a topic"),
		RunE: func(cmd *cobra.Command, args []string) error {
			pairs, err := parsePairs(configs)
			if err != nil {
				return usageError(cmd, "--config %w", err)
			}
			spec := client.TopicSpec{Partitions: partitions, ReplicationFactor: replication, Configs: pairs}
			if assignment != "" {
				if partitions > 0 || replication > 0 {
					return usageError(cmd, "--assignment says it all: leave --partitions and --replication-factor out")
				}
				if spec.Assignment, err = parseAssignment(assignment); err != nil {
					return usageError(cmd, "%w", err)
				}
			}
			return c.do(cmd.Context(), e, func(ctx context.Context, cl *client.Client) error {
				var specs []client.TopicSpec
				for _, name := range args {
					s := spec
					s.Name = name
					specs = append(specs, s)
				}
				created, err := cl.CreateTopics(ctx, specs, dryRun)
				if err != nil {
					return err
				}
				if !dryRun {
					awaitTopics(ctx, cl, created)
				}
				return printCreated(e, created, ifNotExists, dryRun, output)
			})
		},
	}
	f := cmd.Flags()
	f.Int32VarP(&partitions, "partitions", "p", 0, "number of partitions")
	f.Int16VarP(&replication, "replication-factor", "r", 0, "number of replicas of each partition")
	f.StringArrayVarP(&configs, "config", "c", nil, "set a topic config, `key=value`; may be given several times")
	f.StringVar(&assignment, "assignment", "", "which brokers hold each partition, `1:2,2:3`, the preferred leader first")
	f.BoolVar(&ifNotExists, "if-not-exists", false, "topics that exist are no error")
	f.BoolVar(&dryRun, "dry-run", false, "only say whether it would work")
	outputFlag(cmd, &output)
	return cmd
}

// awaitTopics waits a moment until brokers know the new topics, so that the next command finds them.
func awaitTopics(ctx context.Context, cl *client.Client, created []client.CreatedTopic) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	var names []string
	for _, t := range created {
		if t.Err == nil {
			names = append(names, t.Name)
		}
	}
	for len(names) > 0 && ctx.Err() == nil {
		m, err := cl.Metadata(ctx, names)
		if err != nil {
			return
		}
		names = nil
		for _, t := range m.Topics {
			if t.Err != nil || slices.ContainsFunc(t.Partitions, func(p client.Partition) bool { return p.Leader < 0 }) {
				names = append(names, t.Name)
			}
		}
		if len(names) > 0 {
			time.Sleep(20 * time.Millisecond)
		}
	}
}

func parseAssignment(s string) ([][]int32, error) {
	var out [][]int32
	for _, part := range strings.Split(s, ",") {
		var replicas []int32
		for _, id := range strings.Split(part, ":") {
			n, err := strconv.ParseInt(strings.TrimSpace(id), 10, 32)
			if err != nil {
				return nil, fmt.Errorf("--assignment %q: %q is no broker id", s, id)
			}
			replicas = append(replicas, int32(n))
		}
		out = append(out, replicas)
	}
	return out, nil
}

func printCreated(e *Env, created []client.CreatedTopic, ifNotExists, dryRun bool, output string) error {
	type row struct {
		Topic             string `json:"topic"`
		ID                string `json:"id,omitempty"`
		Partitions        int32  `json:"partitions,omitempty"`
		ReplicationFactor int16  `json:"replicationFactor,omitempty"`
		Created           bool   `json:"created"`
		Error             string `json:"error,omitempty"`
	}
	var rows []row
	var bad failures
	for _, t := range created {
		r := row{Topic: t.Name, Created: t.Err == nil && !dryRun}
		switch {
		case t.Err == nil:
			r.Partitions, r.ReplicationFactor = t.Partitions, t.ReplicationFactor
			if t.ID != (client.UUID{}) {
				r.ID = t.ID.String()
			}
		case ifNotExists && errors.Is(t.Err, client.TopicAlreadyExists):
			r.Error = "exists already"
		default:
			r.Error = t.Err.Error()
			bad.add("topic "+t.Name, t.Err)
		}
		rows = append(rows, r)
		if output == "json" {
			continue
		}
		verb := "created"
		if dryRun {
			verb = "would be created"
		}
		switch {
		case t.Err == nil:
			fmt.Fprintf(e.Stdout, "%s %s: %s, replication factor %d\n", t.Name, verb, count(int(t.Partitions), "partition"), t.ReplicationFactor)
		case r.Error == "exists already":
			fmt.Fprintf(e.Stdout, "%s exists already\n", t.Name)
		}
	}
	if output == "json" {
		if err := printJSON(e.Stdout, rows); err != nil {
			return err
		}
	}
	return bad.err()
}

func newTopicList(e *Env, c *connection) *cobra.Command {
	var all bool
	var output string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List topics",
		Args:  need(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.do(cmd.Context(), e, func(ctx context.Context, cl *client.Client) error {
				topics, err := cl.Topics(ctx)
				if err != nil {
					return err
				}
				if !all {
					topics = slices.DeleteFunc(topics, func(t client.Topic) bool { return t.Internal })
				}
				if output == "json" {
					return printJSON(e.Stdout, topicRows(topics, nil))
				}
				if len(topics) == 0 {
					fmt.Fprintln(e.Stderr, "no topics; 'gregor topic create NAME' makes one")
					return nil
				}
				t := newTable(e.Stdout, "TOPIC", "PARTITIONS", "REPLICAS", "ID")
				for _, topic := range topics {
					t.row(topic.Name, len(topic.Partitions), replicationOf(topic), topic.ID)
				}
				return t.flush()
			})
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "internal topics too")
	outputFlag(cmd, &output)
	return cmd
}

func replicationOf(t client.Topic) int {
	n := 0
	for _, p := range t.Partitions {
		n = max(n, len(p.Replicas))
	}
	return n
}

// topicRow and partitionRow are what --output json shows of a topic.
type topicRow struct {
	Topic             string            `json:"topic"`
	ID                string            `json:"id"`
	Internal          bool              `json:"internal"`
	ReplicationFactor int               `json:"replicationFactor"`
	Configs           map[string]string `json:"configs,omitempty"`
	Partitions        []partitionRow    `json:"partitions"`
}

type partitionRow struct {
	Partition   int32   `json:"partition"`
	Leader      int32   `json:"leader"`
	LeaderEpoch int32   `json:"leaderEpoch"`
	Replicas    []int32 `json:"replicas"`
	ISR         []int32 `json:"isr"`
	Offline     []int32 `json:"offlineReplicas"`
	Start       *int64  `json:"startOffset,omitempty"`
	End         *int64  `json:"endOffset,omitempty"`
}

// topicExtras is what describe adds to metadata.
type topicExtras struct {
	configs    map[string]map[string]string
	start, end map[client.TopicPartition]int64
}

func topicRows(topics []client.Topic, x *topicExtras) []topicRow {
	rows := []topicRow{}
	for _, t := range topics {
		r := topicRow{Topic: t.Name, ID: t.ID.String(), Internal: t.Internal, ReplicationFactor: replicationOf(t), Partitions: []partitionRow{}}
		if x != nil {
			r.Configs = x.configs[t.Name]
		}
		for _, p := range t.Partitions {
			pr := partitionRow{Partition: p.ID, Leader: p.Leader, LeaderEpoch: p.LeaderEpoch, Replicas: notNil(p.Replicas), ISR: notNil(p.ISR), Offline: notNil(p.Offline)}
			if x != nil {
				tp := client.TopicPartition{Topic: t.Name, Partition: p.ID}
				if o, ok := x.start[tp]; ok {
					pr.Start = &o
				}
				if o, ok := x.end[tp]; ok {
					pr.End = &o
				}
			}
			r.Partitions = append(r.Partitions, pr)
		}
		rows = append(rows, r)
	}
	return rows
}

func notNil(v []int32) []int32 {
	if v == nil {
		return []int32{}
	}
	return v
}

func newTopicDescribe(e *Env, c *connection) *cobra.Command {
	var output string
	var noOffsets bool
	cmd := &cobra.Command{
		Use:   "describe [TOPIC...]",
		Short: "Show topics' configs, and where their partitions are",
		Long:  "Show topics' partitions (leader, replicas, in-sync replicas, offsets) and the configs that differ from the defaults. Without names: all but internal topics.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.do(cmd.Context(), e, func(ctx context.Context, cl *client.Client) error {
				var names []string
				if len(args) > 0 {
					names = args
				}
				m, err := cl.Metadata(ctx, names)
				if err != nil {
					return err
				}
				var bad failures
				topics := slices.DeleteFunc(m.Topics, func(t client.Topic) bool {
					if t.Err != nil {
						bad.add("topic "+t.Name, t.Err)
					}
					return t.Err != nil || names == nil && t.Internal
				})
				x, err := describeExtras(ctx, cl, topics, !noOffsets)
				if err != nil {
					return err
				}
				if output == "json" {
					err = printJSON(e.Stdout, topicRows(topics, x))
				} else {
					err = printTopics(e, topics, x)
				}
				if err != nil {
					return err
				}
				return bad.err()
			})
		},
	}
	cmd.Flags().BoolVar(&noOffsets, "no-offsets", false, "leave out start and end offsets, which need the partitions' leaders")
	outputFlag(cmd, &output)
	return cmd
}

func describeExtras(ctx context.Context, cl *client.Client, topics []client.Topic, offsets bool) (*topicExtras, error) {
	x := &topicExtras{configs: map[string]map[string]string{}, start: map[client.TopicPartition]int64{}, end: map[client.TopicPartition]int64{}}
	var resources []client.Resource
	earliest, latest := map[client.TopicPartition]int64{}, map[client.TopicPartition]int64{}
	for _, t := range topics {
		resources = append(resources, client.Resource{Type: client.TopicResource, Name: t.Name})
		for _, p := range t.Partitions {
			if p.Leader >= 0 {
				tp := client.TopicPartition{Topic: t.Name, Partition: p.ID}
				earliest[tp], latest[tp] = client.Earliest, client.Latest
			}
		}
	}
	if len(resources) == 0 {
		return x, nil
	}
	configs, err := cl.DescribeConfigs(ctx, resources, nil, false)
	if err != nil {
		return nil, err
	}
	for _, r := range configs {
		own := map[string]string{}
		for _, c := range r.Entries {
			if c.Source == client.TopicConfigSource && c.Value != nil {
				own[c.Name] = *c.Value
			}
		}
		x.configs[r.Name] = own
	}
	if !offsets || len(earliest) == 0 {
		return x, nil
	}
	for into, want := range map[*map[client.TopicPartition]int64]map[client.TopicPartition]int64{&x.start: earliest, &x.end: latest} {
		got, err := cl.ListOffsets(ctx, want, false)
		if err != nil {
			return nil, err
		}
		for _, o := range got {
			if o.Err == nil {
				(*into)[o.TopicPartition] = o.Offset
			}
		}
	}
	return x, nil
}

func printTopics(e *Env, topics []client.Topic, x *topicExtras) error {
	for i, t := range topics {
		if i > 0 {
			fmt.Fprintln(e.Stdout)
		}
		fmt.Fprintf(e.Stdout, "Topic %s, id %s, %s, replication factor %d\n", t.Name, t.ID, count(len(t.Partitions), "partition"), replicationOf(t))
		for _, k := range sorted(x.configs[t.Name]) {
			fmt.Fprintf(e.Stdout, "  %s=%s\n", k, x.configs[t.Name][k])
		}
		tb := newTable(e.Stdout, "PARTITION", "LEADER", "EPOCH", "REPLICAS", "IN SYNC", "OFFLINE", "START", "END")
		for _, p := range t.Partitions {
			tp := client.TopicPartition{Topic: t.Name, Partition: p.ID}
			leader := strconv.Itoa(int(p.Leader))
			if p.Leader < 0 {
				leader = "none"
			}
			tb.row(p.ID, leader, p.LeaderEpoch, list(p.Replicas), list(p.ISR), list(p.Offline), offsetText(x.start, tp), offsetText(x.end, tp))
		}
		if err := tb.flush(); err != nil {
			return err
		}
	}
	return nil
}

func offsetText(m map[client.TopicPartition]int64, tp client.TopicPartition) string {
	if o, ok := m[tp]; ok {
		return strconv.FormatInt(o, 10)
	}
	return "-"
}

func newTopicAlter(e *Env, c *connection) *cobra.Command {
	var partitions int32
	var set, unset []string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "alter TOPIC",
		Short: "Give a topic more partitions, or change its configs",
		Long: `Give a topic more partitions, or change its configs. Partitions can't be taken away. With more partitions, keys move:
records of one key may be in two partitions from then on.`,
		Example: `  gregor topic alter orders --partitions 12
  gregor topic alter orders --config retention.ms=3600000 --delete-config segment.bytes`,
		Args: need(1, 1, "one topic"),
		RunE: func(cmd *cobra.Command, args []string) error {
			pairs, err := parsePairs(set)
			if err != nil {
				return usageError(cmd, "--config %w", err)
			}
			if partitions == 0 && len(pairs) == 0 && len(unset) == 0 {
				return usageError(cmd, "say what to change: --partitions, --config or --delete-config")
			}
			return c.do(cmd.Context(), e, func(ctx context.Context, cl *client.Client) error {
				if partitions > 0 {
					res, err := cl.CreatePartitions(ctx, map[string]int32{args[0]: partitions}, dryRun)
					if err != nil {
						return err
					}
					if len(res) == 1 && res[0].Err != nil {
						return fmt.Errorf("topic %s: %w", args[0], res[0].Err)
					}
					fmt.Fprintf(e.Stdout, "%s: %s\n", args[0], count(int(partitions), "partition"))
				}
				if len(pairs)+len(unset) == 0 {
					return nil
				}
				return alterConfigs(ctx, e, cl, client.Resource{Type: client.TopicResource, Name: args[0]}, changesOf(pairs, unset, nil, nil), dryRun)
			})
		},
	}
	f := cmd.Flags()
	f.Int32VarP(&partitions, "partitions", "p", 0, "number of partitions that the topic is to have")
	f.StringArrayVarP(&set, "config", "c", nil, "set a config, `key=value`; may be given several times")
	f.StringSliceVar(&unset, "delete-config", nil, "set configs back to the default, `key,...`")
	f.BoolVar(&dryRun, "dry-run", false, "only say whether it would work")
	return cmd
}

func newTopicDelete(e *Env, c *connection) *cobra.Command {
	var yes, ifExists bool
	cmd := &cobra.Command{
		Use:   "delete TOPIC...",
		Short: "Delete topics and all their records",
		Args:  need(1, -1, "a topic"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := confirm(e, yes, fmt.Sprintf("Delete %s with all records?", strings.Join(args, ", "))); err != nil {
				return err
			}
			return c.do(cmd.Context(), e, func(ctx context.Context, cl *client.Client) error {
				res, err := cl.DeleteTopics(ctx, args)
				if err != nil {
					return err
				}
				var bad failures
				for _, r := range res {
					if ifExists && errors.Is(r.Err, client.UnknownTopicOrPartition) {
						continue
					}
					if r.Err == nil {
						fmt.Fprintf(e.Stdout, "%s deleted\n", r.Name)
					}
					bad.add("topic "+r.Name, r.Err)
				}
				return bad.err()
			})
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "don't ask")
	cmd.Flags().BoolVar(&ifExists, "if-exists", false, "topics that don't exist are no error")
	return cmd
}
