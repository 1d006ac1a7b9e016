package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"gregor/client"
)

func newLeader(e *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "leader",
		Short: "Have the leaders of partitions elected",
		Example: `  gregor leader elect --all-topic-partitions
  gregor leader elect orders
  gregor leader elect orders:0 --election-type unclean`,
	}
	c := connectFlags(cmd)
	c.configFlag(cmd)
	cmd.AddCommand(newLeaderElect(e, c))
	return cmd
}

func newLeaderElect(e *Env, c *connection) *cobra.Command {
	var kind, topic, file, output string
	var partition int32
	var all bool
	cmd := &cobra.Command{
		Use:   "elect [TOPIC | TOPIC:PARTITION,...]...",
		Short: "Have the leaders of partitions elected",
		Long: `Have the leaders of partitions elected.

A preferred election gives the leadership back to the first replica, if it is in sync: after brokers have been restarted their
partitions are led elsewhere, until this, or auto.leader.rebalance.enable, brings them back. An unclean election makes a replica
that is not in sync leader where nobody else is left; records that only the lost replicas had are gone then.

A file given with --path-to-json-file looks like {"partitions": [{"topic": "orders", "partition": 0}]}.`,
		Example: `  gregor leader elect --all-topic-partitions
  gregor leader elect orders other:2
  gregor leader elect --election-type unclean --topic orders --partition 0`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var election client.ElectionType
			switch strings.ToLower(kind) {
			case "preferred":
				election = client.PreferredElection
			case "unclean":
				election = client.UncleanElection
			default:
				return usageError(cmd, "--election-type is preferred or unclean, not %q", kind)
			}
			ways := 0
			for _, given := range []bool{len(args) > 0, topic != "", all, file != ""} {
				if given {
					ways++
				}
			}
			switch {
			case ways != 1:
				return usageError(cmd, "name partitions in one way: as arguments, with --topic and --partition, with --path-to-json-file, or --all-topic-partitions")
			case topic != "" && !cmd.Flags().Changed("partition"):
				return usageError(cmd, "--topic needs --partition")
			case topic == "" && cmd.Flags().Changed("partition"):
				return usageError(cmd, "--partition is only allowed with --topic")
			}
			want, err := parsePartitionArgs(args)
			if err != nil {
				return usageError(cmd, "%w", err)
			}
			if file != "" {
				if want, err = readElectionFile(e, file); err != nil {
					return err
				}
			}
			if topic != "" {
				want = []partitionArg{{topic: topic, partition: &partition}}
			}
			return c.do(cmd.Context(), e, func(ctx context.Context, cl *client.Client) error {
				var tps []client.TopicPartition
				if !all {
					var err error
					if tps, err = namedPartitions(ctx, cl, want); err != nil {
						return err
					}
				}
				results, err := cl.ElectLeaders(ctx, election, tps)
				if err != nil {
					return err
				}
				return printElections(e, election, results, output)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&kind, "election-type", "preferred", "preferred or unclean")
	f.StringVar(&topic, "topic", "", "the topic of one partition")
	f.Int32Var(&partition, "partition", 0, "the number of that partition")
	f.StringVar(&file, "path-to-json-file", "", "a `file` that names partitions")
	f.BoolVar(&all, "all-topic-partitions", false, "all partitions of the cluster")
	outputFlag(cmd, &output)
	return cmd
}

// partitionArg is a topic, or one partition of it.
type partitionArg struct {
	topic     string
	partition *int32
}

// parsePartitionArgs reads TOPIC and TOPIC:0,1.
func parsePartitionArgs(args []string) ([]partitionArg, error) {
	var out []partitionArg
	for _, a := range args {
		topic, numbers, some := strings.Cut(a, ":")
		if !some {
			out = append(out, partitionArg{topic: topic})
			continue
		}
		for _, number := range strings.Split(numbers, ",") {
			n, err := strconv.ParseInt(number, 10, 32)
			if err != nil {
				return nil, fmt.Errorf("%q: %q is no partition", a, number)
			}
			id := int32(n)
			out = append(out, partitionArg{topic, &id})
		}
	}
	return out, nil
}

// namedPartitions lists partitions, all partitions of topics that are named without one.
func namedPartitions(ctx context.Context, cl *client.Client, args []partitionArg) ([]client.TopicPartition, error) {
	tps := []client.TopicPartition{}
	for _, a := range args {
		if a.partition != nil {
			tps = append(tps, client.TopicPartition{Topic: a.topic, Partition: *a.partition})
			continue
		}
		m, err := cl.Metadata(ctx, []string{a.topic})
		if err != nil {
			return nil, err
		}
		for _, t := range m.Topics {
			if t.Err != nil {
				return nil, fmt.Errorf("topic %s: %w", t.Name, t.Err)
			}
			for _, p := range t.Partitions {
				tps = append(tps, client.TopicPartition{Topic: t.Name, Partition: p.ID})
			}
		}
	}
	return tps, nil
}

func readElectionFile(e *Env, file string) ([]partitionArg, error) {
	text, err := readFile(e, file)
	if err != nil {
		return nil, err
	}
	var in struct {
		Partitions *[]struct {
			Topic     string `json:"topic"`
			Partition int32  `json:"partition"`
		} `json:"partitions"`
	}
	if err := json.Unmarshal(text, &in); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if in.Partitions == nil {
		return nil, fmt.Errorf(`%s: replica election data is missing "partitions" field`, file)
	}
	var out []partitionArg
	seen := map[client.TopicPartition]bool{}
	for _, p := range *in.Partitions {
		tp := client.TopicPartition{Topic: p.Topic, Partition: p.Partition}
		if seen[tp] {
			return nil, fmt.Errorf("%s: replica election data contains duplicate partitions: %v", file, tp)
		}
		seen[tp] = true
		out = append(out, partitionArg{p.Topic, &p.Partition})
	}
	return out, nil
}

// printElections tells what happened in the words of Kafka's tool.
func printElections(e *Env, kind client.ElectionType, results []client.PartitionResult, output string) error {
	name := "PREFERRED"
	if kind == client.UncleanElection {
		name = "UNCLEAN"
	}
	type row struct {
		Topic     string `json:"topic"`
		Partition int32  `json:"partition"`
		Elected   bool   `json:"elected"`
		Needed    bool   `json:"needed"`
		Error     string `json:"error,omitempty"`
	}
	rows := []row{}
	var elected, valid []client.TopicPartition
	var failed []client.PartitionResult
	for _, r := range results {
		row := row{Topic: r.Topic, Partition: r.Partition, Elected: r.Err == nil, Needed: true}
		switch {
		case r.Err == nil:
			elected = append(elected, r.TopicPartition)
		case errors.Is(r.Err, client.ElectionNotNeeded):
			row.Needed = false
			valid = append(valid, r.TopicPartition)
		default:
			row.Error = r.Err.Error()
			failed = append(failed, r)
		}
		rows = append(rows, row)
	}
	if output == "json" {
		if err := printJSON(e.Stdout, rows); err != nil {
			return err
		}
	} else {
		if len(elected) > 0 {
			fmt.Fprintf(e.Stdout, "Successfully completed leader election (%s) for partitions %s\n", name, joined(elected, ", "))
		}
		if len(valid) > 0 {
			fmt.Fprintf(e.Stdout, "Valid replica already elected for partitions %s\n", joined(valid, ", "))
		}
		for _, r := range failed {
			fmt.Fprintf(e.Stdout, "Error completing leader election (%s) for partition: %v: %v\n", name, r.TopicPartition, r.Err)
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("%d replica(s) could not be elected", len(failed))
	}
	return nil
}

// duplicates are the items that come more than once, in order.
func duplicates[T comparable](items []T) []T {
	var out []T
	for i, x := range items {
		if slices.Contains(items[:i], x) && !slices.Contains(out, x) {
			out = append(out, x)
		}
	}
	return out
}
