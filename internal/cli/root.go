package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// errSilent fails a command that has already said why.
var errSilent = errors.New("")

// commands are those of the root, in the order of the help.
func commands() []*cobra.Command {
	return []*cobra.Command{newServer(), newStorage()}
}

// scripts maps the names of Kafka's scripts to the commands that stand for them.
var scripts = map[string][]string{
	"kafka-server-start": {"server"},
	"kafka-storage":      {"storage"},
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "gregor",
		Short:         "A Kafka cluster in one binary",
		Long:          "gregor is Apache Kafka 4.4 as one program: a node of a cluster, its tools and its client.",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(commands()...)
	return root
}

// Main runs the program with its arguments, the name it was called by first, and returns its exit code.
func Main(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetArgs(commandLine(args))
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case !errors.Is(err, errSilent):
		fmt.Fprintln(stderr, "gregor:", err)
	}
	return 1
}

// commandLine turns the call of a Kafka script into that of a command.
func commandLine(args []string) []string {
	name := strings.TrimSuffix(filepath.Base(args[0]), ".sh")
	if command, ok := scripts[name]; ok {
		return append(append([]string{}, command...), args[1:]...)
	}
	return args[1:]
}
