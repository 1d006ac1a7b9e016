package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"gregor/client"
)

func sorted[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

func newConfig(e *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Show and change the configs of topics, brokers and groups",
		Example: `  gregor config describe topic orders
  gregor config describe broker 1 --all
  gregor config alter topic orders retention.ms=3600000
  gregor config alter broker --default log.cleaner.threads=2
  gregor config alter topic orders --delete retention.ms`,
	}
	c := connectFlags(cmd)
	cmd.AddCommand(newConfigDescribe(e, c), newConfigAlter(e, c))
	return cmd
}

// resource reads "topic orders", "broker 1", or "broker" with --default.
func resource(cmd *cobra.Command, args []string, def bool) (client.Resource, []string, error) {
	t, ok := client.ResourceTypeOf(args[0])
	if !ok {
		return client.Resource{}, nil, usageError(cmd, "%q is none of topic, broker, group, client-metrics, broker-logger", args[0])
	}
	r, rest := client.Resource{Type: t}, args[1:]
	if def {
		if t != client.BrokerResource {
			return r, nil, usageError(cmd, "only brokers have a default for all")
		}
		return r, rest, nil
	}
	if len(rest) == 0 {
		return r, nil, usageError(cmd, "name the %v", t)
	}
	r.Name = rest[0]
	return r, rest[1:], nil
}

func newConfigDescribe(e *Env, c *connection) *cobra.Command {
	var all, def, doc bool
	var keys []string
	var output string
	cmd := &cobra.Command{
		Use:   "describe TYPE NAME",
		Short: "Show configs",
		Long: `Show the configs of a topic, broker, group… that were set for it; with --all every one that counts, and where its value
comes from.`,
		Args: need(1, 2, "a type (topic, broker, group…) and a name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, _, err := resource(cmd, args, def)
			if err != nil {
				return err
			}
			return c.do(cmd.Context(), e, func(ctx context.Context, cl *client.Client) error {
				res, err := cl.DescribeConfigs(ctx, []client.Resource{r}, keys, doc || output == "json")
				if err != nil {
					return err
				}
				for _, rc := range res {
					if rc.Err != nil {
						return fmt.Errorf("%v %s: %w", rc.Type, rc.Name, rc.Err)
					}
					entries := rc.Entries
					if !all && keys == nil {
						entries = slices.DeleteFunc(entries, func(c client.ConfigEntry) bool { return !setHere(r, c.Source) })
					}
					if output == "json" {
						return printConfigJSON(e, entries)
					}
					if err := printConfigs(e, entries, doc); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&all, "all", "a", false, "all configs, not only those set here")
	f.BoolVar(&def, "default", false, "the default of all brokers")
	f.BoolVar(&doc, "doc", false, "with what they mean")
	f.StringSliceVarP(&keys, "key", "k", nil, "only these configs, `key,...`")
	outputFlag(cmd, &output)
	return cmd
}

// setHere says whether a value was set for this very resource.
func setHere(r client.Resource, s client.ConfigSource) bool {
	if r.Type == client.BrokerResource && r.Name == "" {
		return s == client.DynamicDefaultSource
	}
	return s != client.DefaultSource && s != client.StaticBrokerSource && s != client.DynamicDefaultSource && (r.Type != client.TopicResource || s == client.TopicConfigSource)
}

func printConfigs(e *Env, entries []client.ConfigEntry, doc bool) error {
	if len(entries) == 0 {
		fmt.Fprintln(e.Stderr, "nothing is set here; --all shows the defaults")
		return nil
	}
	t := newTable(e.Stdout, "CONFIG", "VALUE", "SOURCE")
	for _, c := range entries {
		v := "(unset)"
		if c.Value != nil {
			v = *c.Value
		} else if c.Sensitive {
			v = "(hidden)"
		}
		t.row(c.Name, v, c.Source)
		if doc && c.Doc != "" {
			if err := t.flush(); err != nil {
				return err
			}
			fmt.Fprintf(e.Stdout, "    %s\n", strings.ReplaceAll(c.Doc, "\n", "\n    "))
		}
	}
	return t.flush()
}

func printConfigJSON(e *Env, entries []client.ConfigEntry) error {
	type synonym struct {
		Name   string  `json:"name"`
		Value  *string `json:"value"`
		Source string  `json:"source"`
	}
	type row struct {
		Name      string    `json:"name"`
		Value     *string   `json:"value"`
		Type      string    `json:"type"`
		Source    string    `json:"source"`
		ReadOnly  bool      `json:"readOnly"`
		Sensitive bool      `json:"sensitive"`
		Synonyms  []synonym `json:"synonyms,omitempty"`
		Doc       string    `json:"documentation,omitempty"`
	}
	rows := []row{}
	for _, c := range entries {
		r := row{Name: c.Name, Value: c.Value, Type: c.Type, Source: c.Source.String(), ReadOnly: c.ReadOnly, Sensitive: c.Sensitive, Doc: c.Doc}
		for _, s := range c.Synonyms {
			r.Synonyms = append(r.Synonyms, synonym{s.Name, s.Value, s.Source.String()})
		}
		rows = append(rows, r)
	}
	return printJSON(e.Stdout, rows)
}

func newConfigAlter(e *Env, c *connection) *cobra.Command {
	var def, dryRun bool
	var unset, add, subtract []string
	cmd := &cobra.Command{
		Use:   "alter TYPE NAME [KEY=VALUE...]",
		Short: "Change configs, without a restart",
		Long:  "Change configs of a topic, broker, group…, all of those given or none.",
		Example: `  gregor config alter topic orders retention.ms=3600000 cleanup.policy=compact
  gregor config alter topic orders --delete retention.ms
  gregor config alter topic orders --append cleanup.policy=delete
  gregor config alter broker --default log.cleaner.threads=2`,
		Args: need(1, -1, "a type (topic, broker, group…), a name and what to change"),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, rest, err := resource(cmd, args, def)
			if err != nil {
				return err
			}
			pairs, err := parsePairs(rest)
			if err != nil {
				return usageError(cmd, "%w", err)
			}
			addPairs, err := parsePairs(add)
			if err != nil {
				return usageError(cmd, "--append %w", err)
			}
			subtractPairs, err := parsePairs(subtract)
			if err != nil {
				return usageError(cmd, "--subtract %w", err)
			}
			changes := changesOf(pairs, unset, addPairs, subtractPairs)
			if len(changes) == 0 {
				return usageError(cmd, "say what to change: key=value, --delete, --append or --subtract")
			}
			return c.do(cmd.Context(), e, func(ctx context.Context, cl *client.Client) error {
				return alterConfigs(ctx, e, cl, r, changes, dryRun)
			})
		},
	}
	f := cmd.Flags()
	f.BoolVar(&def, "default", false, "the default of all brokers")
	f.BoolVar(&dryRun, "dry-run", false, "only say whether it would work")
	f.StringSliceVar(&unset, "delete", nil, "back to the default, `key,...`")
	f.StringArrayVar(&add, "append", nil, "add to a list, `key=value`")
	f.StringArrayVar(&subtract, "subtract", nil, "take out of a list, `key=value`")
	return cmd
}

func changesOf(set map[string]string, unset []string, add, subtract map[string]string) []client.ConfigChange {
	var out []client.ConfigChange
	pairs := func(m map[string]string, op client.AlterOp) {
		for _, k := range sorted(m) {
			out = append(out, client.ConfigChange{Name: k, Op: op, Value: m[k]})
		}
	}
	pairs(set, client.SetConfig)
	for _, k := range unset {
		out = append(out, client.ConfigChange{Name: k, Op: client.DeleteConfig})
	}
	pairs(add, client.AppendConfig)
	pairs(subtract, client.SubtractConfig)
	return out
}

func alterConfigs(ctx context.Context, e *Env, cl *client.Client, r client.Resource, changes []client.ConfigChange, dryRun bool) error {
	if err := cl.AlterConfigs(ctx, r, changes, dryRun); err != nil {
		return fmt.Errorf("%v %s: %w", r.Type, nameOf(r), err)
	}
	verb := "changed"
	if dryRun {
		verb = "could be changed"
	}
	fmt.Fprintf(e.Stdout, "%v %s: %s %s\n", r.Type, nameOf(r), count(len(changes), "config"), verb)
	return nil
}

// nameOf is a resource's name for people.
func nameOf(r client.Resource) string {
	if r.Name == "" {
		return "default"
	}
	return r.Name
}
