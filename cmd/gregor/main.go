package main

import (
	"context"
	"os"
	"runtime/debug"

	"gregor/internal/cli"
	"gregor/internal/vfs"
)

func main() {
	e := &cli.Env{FS: vfs.OS, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Version: "unknown"}
	if info, ok := debug.ReadBuildInfo(); ok {
		e.Version = info.Main.Version
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				e.Revision = s.Value[:min(12, len(s.Value))]
			}
		}
	}
	if st, err := os.Stderr.Stat(); err == nil {
		e.Terminal = st.Mode()&os.ModeCharDevice != 0
	}
	os.Exit(cli.Main(context.Background(), e, os.Args))
}
