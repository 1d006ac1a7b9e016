// Command gregor is a node of a Kafka cluster, and the tools for it. "gregor help" tells what it can do.
package main

import (
	"context"
	"os"

	"gregor/internal/cli"
)

func main() {
	os.Exit(cli.Main(context.Background(), os.Args, os.Stdin, os.Stdout, os.Stderr))
}
