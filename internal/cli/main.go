package cli

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
)

// errSilent fails a command that has already said why.
var errSilent = errors.New("the command has said what is wrong")

// scripts maps the names of Kafka's scripts to the commands that stand for them and take their flags.
var scripts = map[string][]string{
	"kafka-dump-log":     {"dump-log"},
	"kafka-server-start": {"server"},
	"kafka-storage":      {"storage"},
}

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

// commandLine turns the call of one of Kafka's scripts into that of a command.
func commandLine(args []string) []string {
	name := strings.TrimSuffix(filepath.Base(args[0]), ".sh")
	if command, ok := scripts[name]; ok {
		return append(append([]string{}, command...), args[1:]...)
	}
	return args[1:]
}
