package cli

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gregor/client"
)

func newReassign(e *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reassign",
		Short: "Move partitions between brokers and log directories",
		Long: `Move partitions between brokers and log directories, with the files and the output of Kafka's
kafka-reassign-partitions.sh.

generate proposes who is to have what, as JSON on standard output; save it to a file, and the present state beside it. execute
begins the moves that such a file describes, verify tells whether they are over and takes the throttles off then, cancel takes
them back. The data is copied in the background while clients go on.

A file looks like {"version":1,"partitions":[{"topic":"orders","partition":0,"replicas":[1,2],"log_dirs":["any","any"]}]};
the first replica is the preferred leader, and log_dirs, which may be left out, names a directory on each broker.`,
		Example: `  gregor reassign generate orders --broker-list 1,2,3
  gregor reassign execute --reassignment-json-file plan.json --throttle 50000000
  gregor reassign verify --reassignment-json-file plan.json
  gregor reassign list
  gregor reassign cancel --reassignment-json-file plan.json`,
	}
	c := connectFlags(cmd)
	c.controllerFlags(cmd)
	cmd.AddCommand(newReassignGenerate(e, c), newReassignExecute(e, c), newReassignVerify(e, c), newReassignList(e, c), newReassignCancel(e, c))
	return cmd
}

// brokersOnly refuses controllers for what only brokers serve.
func (c *connection) brokersOnly(cmd *cobra.Command) error {
	if c.controllers != "" {
		return usageError(cmd, `option "--bootstrap-controller" can't be used with %s`, cmd.Name())
	}
	return nil
}

func newReassignGenerate(e *Env, c *connection) *cobra.Command {
	var file, output string
	var brokers []string
	var noRacks bool
	cmd := &cobra.Command{
		Use:   "generate --broker-list IDS TOPIC...",
		Short: "Propose a placement of topics on brokers",
		Long: `Propose a placement of topics on brokers: replicas are spread evenly, over racks too. Nothing is changed.

Topics are named as arguments or in a file like {"topics": [{"topic": "orders"}], "version": 1}.`,
		Example: "  gregor reassign generate orders other --broker-list 1,2,3",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.brokersOnly(cmd); err != nil {
				return err
			}
			ids, err := parseBrokers(brokers)
			if err != nil {
				return usageError(cmd, "%w", err)
			}
			topics := args
			if file != "" {
				text, err := readFile(e, file)
				if err != nil {
					return err
				}
				named, err := parseTopicsToMove(text)
				if err != nil {
					return fmt.Errorf("%s: %w", file, err)
				}
				topics = append(topics, named...)
			}
			if len(topics) == 0 {
				return usageError(cmd, "name topics, or a file that does with --topics-to-move-json-file")
			}
			if d := duplicates(topics); len(d) > 0 {
				return usageError(cmd, "list of topics to reassign contains duplicate entries: %s", strings.Join(d, ", "))
			}
			return c.do(cmd.Context(), e, func(ctx context.Context, cl *client.Client) error {
				current, err := assignmentOf(ctx, cl, topics)
				if err != nil {
					return err
				}
				cluster, err := cl.DescribeCluster(ctx, false)
				if err != nil {
					return err
				}
				racks, err := racksOf(cluster, ids, noRacks)
				if err != nil {
					return err
				}
				proposed, err := proposeAssignment(rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())), current, racks)
				if err != nil {
					return err
				}
				if output == "json" {
					_, err = fmt.Fprintln(e.Stdout, assignmentJSON(proposed, nil))
					return err
				}
				_, err = fmt.Fprintf(e.Stdout, "Current partition replica assignment\n%s\n\nProposed partition reassignment configuration\n%s\n",
					assignmentJSON(current, directoriesOf(ctx, cl, current)), assignmentJSON(proposed, nil))
				return err
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&file, "topics-to-move-json-file", "", "a `file` that names topics")
	f.StringSliceVar(&brokers, "broker-list", nil, "the `ids` of the brokers that are to have the topics")
	f.BoolVar(&noRacks, "disable-rack-aware", false, "take no notice of racks")
	outputFlag(cmd, &output)
	f.Lookup("output").Usage = "text for people, json for the proposed file alone"
	return cmd
}

func parseBrokers(args []string) ([]int32, error) {
	var ids []int32
	for _, a := range args {
		n, err := strconv.ParseInt(strings.TrimSpace(a), 10, 32)
		if err != nil {
			return nil, fmt.Errorf("--broker-list: %q is no broker id", a)
		}
		ids = append(ids, int32(n))
	}
	if len(ids) == 0 {
		return nil, errors.New("name brokers with --broker-list")
	}
	if d := duplicates(ids); len(d) > 0 {
		return nil, fmt.Errorf("broker list contains duplicate entries: %s", list(d))
	}
	return ids, nil
}

// assignmentOf is who has the partitions of topics.
func assignmentOf(ctx context.Context, cl *client.Client, topics []string) (assignment, error) {
	out := assignment{}
	if len(topics) == 0 {
		return out, nil
	}
	m, err := cl.Metadata(ctx, topics)
	if err != nil {
		return nil, err
	}
	for _, t := range m.Topics {
		if errors.Is(t.Err, client.UnknownTopicOrPartition) {
			return nil, fmt.Errorf("topic %s not found: %w", t.Name, t.Err)
		}
		if t.Err != nil {
			return nil, fmt.Errorf("topic %s: %w", t.Name, t.Err)
		}
		for _, p := range t.Partitions {
			out[client.TopicPartition{Topic: t.Name, Partition: p.ID}] = p.Replicas
		}
	}
	return out, nil
}

// racksOf are the brokers to place replicas on, with their racks.
func racksOf(cluster *client.Cluster, ids []int32, noRacks bool) (map[int32]string, error) {
	racks := map[int32]string{}
	with := 0
	for _, b := range cluster.Brokers {
		if !slices.Contains(ids, b.ID) {
			continue
		}
		racks[b.ID] = b.Rack
		if noRacks {
			racks[b.ID] = ""
		} else if b.Rack != "" {
			with++
		}
	}
	if with > 0 && with < len(racks) {
		return nil, errors.New("not all brokers have rack information: add --disable-rack-aware to place replicas without it")
	}
	return racks, nil
}

// onReassignment gives cmd the flag that names the file with the moves, and makes it do act with what the file says, by way of
// what c names and use allows. check looks at the moves before the cluster is asked for anything.
func (c *connection) onReassignment(cmd *cobra.Command, e *Env, use func(*cobra.Command) error, check func(*reassignment) error, act func(context.Context, *reassigner, *reassignment) error) {
	file := cmd.Flags().StringP("reassignment-json-file", "f", "", "the `file` with the new assignment")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := use(cmd); err != nil {
			return err
		}
		if *file == "" {
			return usageError(cmd, "name the file with --reassignment-json-file")
		}
		text, err := readFile(e, *file)
		if err != nil {
			return err
		}
		r, err := parseReassignment(text)
		if err != nil {
			return fmt.Errorf("%s: %w", *file, err)
		}
		if err := check(r); err != nil {
			return err
		}
		return c.do(cmd.Context(), e, func(ctx context.Context, cl *client.Client) error {
			return act(ctx, &reassigner{e: e, cl: cl, controllers: c.controllers != ""}, r)
		})
	}
}

func (c *connection) anyNode(*cobra.Command) error { return nil }

func anyReassignment(*reassignment) error { return nil }

func newReassignExecute(e *Env, c *connection) *cobra.Command {
	var additional, keepFactor bool
	var throttle, dirThrottle int64
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "execute --reassignment-json-file FILE",
		Short: "Begin the moves that a file describes",
		Long: `Begin the moves that a file describes, and print the present assignment, which a file to go back with can be made of.

With a throttle, run verify when the moves are over: it takes the throttle off.`,
		Args: need(0, 0, ""),
	}
	c.onReassignment(cmd, e, c.brokersOnly, (*reassignment).check, func(ctx context.Context, x *reassigner, r *reassignment) error {
		return x.execute(ctx, r, additional, keepFactor, throttle, dirThrottle, wait)
	})
	f := cmd.Flags()
	f.BoolVar(&additional, "additional", false, "besides moves that are under way, or to change their throttle")
	f.Int64Var(&throttle, "throttle", -1, "most `bytes` a second between brokers")
	f.Int64Var(&dirThrottle, "replica-alter-log-dirs-throttle", -1, "most `bytes` a second between directories of a broker")
	f.BoolVar(&keepFactor, "disallow-replication-factor-change", false, "refuse to change how many replicas a partition has")
	f.DurationVar(&wait, "move-timeout", 10*time.Second, "how long to wait until moves between directories can begin")
	return cmd
}

func newReassignVerify(e *Env, c *connection) *cobra.Command {
	var keep bool
	cmd := &cobra.Command{
		Use:   "verify --reassignment-json-file FILE",
		Short: "Tell whether moves are over, and take their throttles off then",
		Args:  need(0, 0, ""),
	}
	c.onReassignment(cmd, e, c.brokersOnly, anyReassignment, func(ctx context.Context, x *reassigner, r *reassignment) error {
		return x.verify(ctx, r, keep)
	})
	cmd.Flags().BoolVar(&keep, "preserve-throttles", false, "leave the throttles on")
	return cmd
}

func newReassignList(e *Env, c *connection) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the moves between brokers that are under way",
		Args:  need(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.do(cmd.Context(), e, func(ctx context.Context, cl *client.Client) error {
				moves, err := cl.ListReassignments(ctx, nil)
				if err != nil {
					return err
				}
				if output == "json" {
					type row struct {
						Topic     string  `json:"topic"`
						Partition int32   `json:"partition"`
						Replicas  []int32 `json:"replicas"`
						Adding    []int32 `json:"adding"`
						Removing  []int32 `json:"removing"`
					}
					rows := []row{}
					for _, m := range moves {
						rows = append(rows, row{m.Topic, m.Partition, m.Replicas, m.Adding, m.Removing})
					}
					return printJSON(e.Stdout, rows)
				}
				if len(moves) == 0 {
					fmt.Fprintln(e.Stdout, "No partition reassignments found.")
					return nil
				}
				fmt.Fprintln(e.Stdout, "Current partition reassignments:")
				for _, m := range moves {
					fmt.Fprintf(e.Stdout, "%v: replicas: %s.", m.TopicPartition, joined(m.Replicas, ","))
					if len(m.Adding) > 0 {
						fmt.Fprintf(e.Stdout, " adding: %s.", joined(m.Adding, ","))
					}
					if len(m.Removing) > 0 {
						fmt.Fprintf(e.Stdout, " removing: %s.", joined(m.Removing, ","))
					}
					fmt.Fprintln(e.Stdout)
				}
				return nil
			})
		},
	}
	outputFlag(cmd, &output)
	return cmd
}

func newReassignCancel(e *Env, c *connection) *cobra.Command {
	var keep bool
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "cancel --reassignment-json-file FILE",
		Short: "Take back moves that are under way",
		Args:  need(0, 0, ""),
	}
	c.onReassignment(cmd, e, c.anyNode, anyReassignment, func(ctx context.Context, x *reassigner, r *reassignment) error {
		return x.cancel(ctx, r, keep, wait)
	})
	f := cmd.Flags()
	f.BoolVar(&keep, "preserve-throttles", false, "leave the throttles on")
	f.DurationVar(&wait, "move-timeout", 10*time.Second, "how long to wait until moves between directories can be taken back")
	return cmd
}
