package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"gregor/schema"
)

func main() {
	out := flag.String("out", filepath.Join("internal", "message"), "directory that the *_gen.go files are written to")
	flag.Parse()
	if err := run(*out); err != nil {
		fmt.Fprintln(os.Stderr, "schemagen:", err)
		os.Exit(1)
	}
}

func run(dir string) error {
	sources, err := schema.Sources()
	if err != nil {
		return err
	}
	for name, src := range sources {
		if err := os.WriteFile(filepath.Join(dir, name), src, 0o644); err != nil {
			return err
		}
	}
	return nil
}
