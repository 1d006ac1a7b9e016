package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"gregor/client"
	"gregor/internal/metadata"
)

func newBroker(e *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "broker",
		Short: "List brokers, forget one, ask whether one can be restarted",
		Example: `  gregor broker list
  gregor broker safe-to-restart 3
  gregor broker unregister 7`,
	}
	c := connectFlags(cmd)
	c.controllerFlags(cmd)
	cmd.AddCommand(newBrokerList(e, c), newSafeToRestart(e, c), newBrokerUnregister(e, c))
	return cmd
}

// brokerRow is what --output json shows of a broker.
type brokerRow struct {
	ID       int32             `json:"id"`
	Host     string            `json:"host"`
	Port     int32             `json:"port"`
	Rack     string            `json:"rack,omitempty"`
	Fenced   bool              `json:"fenced"`
	Features map[string]string `json:"features,omitempty"` // what it supports, "0-2"
	Error    string            `json:"error,omitempty"`    // why its features aren't known

	release string
}

func newBrokerList(e *Env, c *connection) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the brokers that are registered",
		Long: `List the brokers that are registered: those that serve, and those that are fenced because they are down, cut off, or not
ready yet.

SUPPORTS is the newest metadata.version that a broker can do, which tells its release; fenced brokers are not asked.`,
		Args: need(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.controllers != "" {
				return usageError(cmd, "controllers don't list brokers: use --bootstrap-server")
			}
			return c.do(cmd.Context(), e, func(ctx context.Context, cl *client.Client) error {
				cluster, err := cl.DescribeCluster(ctx, true)
				if err != nil {
					return err
				}
				rows := make([]brokerRow, len(cluster.Brokers))
				var wg sync.WaitGroup
				for i, b := range cluster.Brokers {
					rows[i] = brokerRow{ID: b.ID, Host: b.Host, Port: b.Port, Rack: b.Rack, Fenced: b.Fenced}
					if !b.Fenced {
						wg.Go(func() { rows[i].ask(ctx, cl) })
					}
				}
				wg.Wait()
				if output == "json" {
					return printJSON(e.Stdout, rows)
				}
				t := newTable(e.Stdout, "ID", "ADDRESS", "RACK", "STATE", "SUPPORTS")
				for i, r := range rows {
					state := "active"
					if r.Fenced {
						state = "fenced"
					}
					t.row(r.ID, cluster.Brokers[i].Addr(), orDash(r.Rack), state, orDash(r.release))
				}
				return t.flush()
			})
		},
	}
	outputFlag(cmd, &output)
	return cmd
}

// askTimeout is how long a broker is waited for that may have died a moment ago.
const askTimeout = 5 * time.Second

func (r *brokerRow) ask(ctx context.Context, cl *client.Client) {
	ctx, cancel := context.WithTimeoutCause(ctx, askTimeout, errors.New("no answer"))
	defer cancel()
	features, err := cl.FeaturesOf(ctx, r.ID)
	if err != nil {
		r.Error = err.Error()
		return
	}
	r.Features = map[string]string{}
	for _, f := range features {
		r.Features[f.Name] = levelText(f.Name, f.MinSupported) + " to " + levelText(f.Name, f.MaxSupported)
		if f.Name == metadata.FeatureMetadataVersion {
			r.release = levelText(f.Name, f.MaxSupported)
		}
	}
}

func newSafeToRestart(e *Env, c *connection) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "safe-to-restart ID",
		Short: "Tell whether a node can be restarted now",
		Long: `Tell whether a node, a broker or a controller, can be restarted now without clients noticing: no partition falls below
min.insync.replicas or loses its only in-sync replica, and the metadata quorum keeps a majority of voters that have caught up.
If not, what stands against it is listed, and the exit code is 1.

For a rolling restart: wait until it is safe, restart the node, and go on with the next when it is safe again.`,
		Example: "  until gregor broker safe-to-restart 3; do sleep 1; done",
		Args:    need(1, 1, "one node id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.brokersOnly(cmd); err != nil {
				return err
			}
			id, err := strconv.ParseInt(args[0], 10, 32)
			if err != nil {
				return usageError(cmd, "%q is no node id", args[0])
			}
			return c.do(cmd.Context(), e, func(ctx context.Context, cl *client.Client) error {
				a, err := cl.SafeToRestart(ctx, int32(id))
				if err != nil {
					return err
				}
				return printRestartAnswer(e, a, output)
			})
		},
	}
	outputFlag(cmd, &output)
	return cmd
}

// shownBlockers is how many partitions are named for people; programs get all.
const shownBlockers = 20

func printRestartAnswer(e *Env, a *client.RestartAnswer, output string) error {
	if output == "json" {
		type blocker struct {
			Topic     string  `json:"topic"`
			Partition int32   `json:"partition"`
			ISR       []int32 `json:"isr"`
			MinISR    int     `json:"minInsyncReplicas"`
			Offline   bool    `json:"offline"`
		}
		out := struct {
			Node       int32     `json:"node"`
			Safe       bool      `json:"safe"`
			Broker     bool      `json:"broker"`
			Voter      bool      `json:"voter"`
			Partitions []blocker `json:"partitions"`
			Quorum     string    `json:"quorum,omitempty"`
		}{a.Node, a.Safe(), a.Broker, a.Voter, []blocker{}, a.Quorum}
		for _, p := range a.Partitions {
			out.Partitions = append(out.Partitions, blocker{p.Topic, p.Partition, p.ISR, p.MinISR, p.Offline})
		}
		if err := printJSON(e.Stdout, out); err != nil {
			return err
		}
	} else if a.Safe() {
		fmt.Fprintf(e.Stdout, "Node %d is safe to restart.\n", a.Node)
	} else {
		fmt.Fprintf(e.Stdout, "Node %d is not safe to restart:\n", a.Node)
		if a.Quorum != "" {
			fmt.Fprintf(e.Stdout, "  metadata quorum: %s\n", a.Quorum)
		}
		for i, p := range a.Partitions {
			if i == shownBlockers {
				fmt.Fprintf(e.Stdout, "  and %s more (--output json has all)\n", count(len(a.Partitions)-i, "partition"))
				break
			}
			fmt.Fprintf(e.Stdout, "  %v\n", p)
		}
	}
	if !a.Safe() {
		return errSilent
	}
	return nil
}

func newBrokerUnregister(e *Env, c *connection) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "unregister ID",
		Short: "Forget a broker that is gone for good",
		Long: `Forget a broker that is gone for good. Stop it before, or it registers again. Replicas that it has stay assigned to it, so
move them elsewhere first ("gregor reassign").`,
		Args: need(1, 1, "one broker id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := strconv.ParseInt(args[0], 10, 32)
			if err != nil {
				return usageError(cmd, "%q is no broker id", args[0])
			}
			if err := confirm(e, yes, fmt.Sprintf("Forget broker %d?", id)); err != nil {
				return err
			}
			return unregisterBroker(cmd.Context(), e, c, int32(id))
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "don't ask")
	return cmd
}

func unregisterBroker(ctx context.Context, e *Env, c *connection, id int32) error {
	return c.do(ctx, e, func(ctx context.Context, cl *client.Client) error {
		if err := cl.UnregisterBroker(ctx, id); err != nil {
			return err
		}
		_, err := fmt.Fprintf(e.Stdout, "Broker %d is no longer registered.\n", id)
		return err
	})
}

func newCluster(e *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "Tell the cluster's id and the addresses of its nodes",
		Long:  "Tell the cluster's id and the addresses of its nodes, with the commands and the output of Kafka's kafka-cluster.sh.",
		Example: `  gregor cluster cluster-id
  gregor cluster list-endpoints --include-fenced-brokers
  gregor cluster list-endpoints --bootstrap-controller localhost:9093`,
	}
	c := connectFlags(cmd)
	c.controllerFlags(cmd)
	id := &cobra.Command{
		Use:   "cluster-id",
		Short: "Print the cluster's id",
		Args:  need(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.do(cmd.Context(), e, func(ctx context.Context, cl *client.Client) error {
				cluster, err := cl.DescribeCluster(ctx, false)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(e.Stdout, "Cluster ID: %s\n", cluster.ID)
				return err
			})
		},
	}
	var brokerID int32
	unregister := &cobra.Command{
		Use:   "unregister --id ID",
		Short: `Forget a broker that is gone for good, as "gregor broker unregister" does`,
		Args:  need(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("id") {
				return usageError(cmd, "name the broker with --id")
			}
			return unregisterBroker(cmd.Context(), e, c, brokerID)
		},
	}
	unregister.Flags().Int32VarP(&brokerID, "id", "i", -1, "the `id` of the broker")
	cmd.AddCommand(id, newListEndpoints(e, c), unregister)
	return cmd
}

func newListEndpoints(e *Env, c *connection) *cobra.Command {
	var fenced bool
	cmd := &cobra.Command{
		Use:   "list-endpoints",
		Short: "List the addresses of the brokers, or of the controllers",
		Args:  need(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			controllers := c.controllers != ""
			if controllers && fenced {
				return usageError(cmd, "the option --include-fenced-brokers is only supported with --bootstrap-server")
			}
			return c.do(cmd.Context(), e, func(ctx context.Context, cl *client.Client) error {
				cluster, err := cl.DescribeCluster(ctx, fenced)
				if err != nil {
					return err
				}
				host, rack := 0, 0
				for _, b := range cluster.Brokers {
					host, rack = max(host, len(b.Host)), max(rack, len(b.Rack))
				}
				if rack == 0 {
					rack = 10
				}
				line := func(id, hostName, port, rackName, state, kind string) {
					fmt.Fprintf(e.Stdout, "%-10s %-*s %-10s %-*s ", id, host, hostName, port, rack, rackName)
					if !controllers {
						fmt.Fprintf(e.Stdout, "%-10s ", state)
					}
					fmt.Fprintf(e.Stdout, "%-15s\n", kind)
				}
				line("ID", "HOST", "PORT", "RACK", "STATE", "ENDPOINT_TYPE")
				for _, b := range cluster.Brokers {
					state, kind, rackName := "unfenced", "broker", b.Rack
					if b.Fenced {
						state = "fenced"
					}
					if controllers {
						kind = "controller"
					}
					if rackName == "" {
						rackName = "null"
					}
					line(strconv.Itoa(int(b.ID)), b.Host, strconv.Itoa(int(b.Port)), rackName, state, kind)
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&fenced, "include-fenced-brokers", false, "list brokers that are fenced, too")
	return cmd
}
