package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"gregor/internal/vfs"
)

// Env is what commands use of the world.
type Env struct {
	FS             vfs.FS
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Version is gregor's own, Revision the commit that it was built from.
	Version, Revision string
	// Terminal says that Stderr is a person's screen, so that progress may be drawn over.
	Terminal bool
}

// Root is the command tree. extra are the commands that run a server, which are made apart from the tools.
func Root(e *Env, extra ...*cobra.Command) *cobra.Command {
	root := &cobra.Command{
		Use:   "gregor",
		Short: "A Kafka cluster in one binary",
		Long: `gregor is Apache Kafka 4.4 as one program: a node of a cluster, its tools and its client.

New here? Start a node in one terminal, and talk to it from another:

  gregor server                          a single node on localhost:9092, its data in ./data
  gregor topic create orders -p 3
  gregor produce orders                  type lines; Ctrl-D ends
  gregor consume orders --from earliest

The tools work with any Kafka cluster; --bootstrap-server says where it is. Each command explains itself with --help.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetIn(e.Stdin)
	root.SetOut(e.Stdout)
	root.SetErr(e.Stderr)
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usageError(cmd, "%v", err) })
	root.AddCommand(extra...)
	root.AddCommand(newTopic(e), newProduce(e), newConsume(e), newGroup(e), newConfig(e), newCluster(e), newBroker(e), newQuorum(e), newFeature(e),
		newLeader(e), newReassign(e), newMetadata(e), newDumpLog(e), newVersion(e))
	return root
}

// wrongUse is an error in how a command was called.
type wrongUse struct {
	command string
	err     error
}

func (e *wrongUse) Error() string { return fmt.Sprintf("%v\nTry '%s --help'.", e.err, e.command) }

func (e *wrongUse) Unwrap() error { return e.err }

func usageError(cmd *cobra.Command, format string, args ...any) error {
	return &wrongUse{command: cmd.CommandPath(), err: fmt.Errorf(format, args...)}
}

// need checks how many arguments there are; most -1 is no bound.
func need(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return usageError(cmd, "name %s", what)
		case most >= 0 && len(args) > most:
			return usageError(cmd, "%q is one argument too many", args[most])
		}
		return nil
	}
}

// Report prints what a command failed with, and is the exit code: 0 without an error, 2 for wrong use, 1 for the rest.
func Report(w io.Writer, err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintf(w, "gregor: %v\n", err)
	var u *wrongUse
	if errors.As(err, &u) || strings.HasPrefix(err.Error(), "unknown command") {
		return 2
	}
	return 1
}
