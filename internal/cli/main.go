package cli

import (
	"context"
	"errors"
)

// errSilent fails a command that has already said why.
var errSilent = errors.New("the command has said what is wrong")

// Main runs the program with its arguments, the name it was called by first, and returns its exit code.
func Main(ctx context.Context, e *Env, args []string) int {
	root := Root(e, newServer(), newStorage())
	root.SetArgs(commandLine(args))
	err := root.ExecuteContext(ctx)
	if errors.Is(err, errSilent) {
		return 1
	}
	return Report(e.Stderr, err)
}
