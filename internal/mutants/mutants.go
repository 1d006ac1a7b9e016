package mutants

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// Mutant is a rule that is broken: in File, Old becomes New, where BROKEN says whether this mutant is the one that runs. Some
// need more than one change, in entries of the same name.
type Mutant struct {
	Name, File, Old, New string
	// Seed is one that caught it once.
	Seed uint64
	// Rare ones take hundreds of seeds, and are run only when more than Few are asked for.
	Rare bool
}

// Few seeds are enough to catch most mutants.
const Few = 200

// variable is what tells a binary which mutant it is.
const variable = "GREGOR_MUTANT"

// Running is the name of the mutant that this process is, empty for none.
func Running() string { return os.Getenv(variable) }

const source = `// Package mutant says which rule is broken.
package mutant

import "os"

var name = os.Getenv("` + variable + `")

// On says whether a mutant is the one that runs.
func On(n string) bool { return n == name }
`

// build builds the package in the working directory with all mutants in it. A text that is not found once in its file is a failure
// of the test: the rule has moved, and the mutant must go with it.
func build(t *testing.T, root string, list []Mutant) (binary string) {
	t.Helper()
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	root, err := filepath.Abs(root)
	must(err)
	sources := map[string]string{}
	for _, m := range list {
		path := filepath.Join(root, m.File)
		text, ok := sources[path]
		if !ok {
			b, err := os.ReadFile(path)
			must(err)
			line, rest, _ := strings.Cut(string(b[bytes.Index(b, []byte("\npackage "))+1:]), "\n")
			if strings.HasPrefix(string(b), "package ") {
				line, rest, _ = strings.Cut(string(b), "\n")
			}
			text = line + "\n\nimport \"gregor/internal/mutant\"\n" + rest
		}
		if n := strings.Count(text, m.Old); n != 1 {
			t.Fatalf("mutant %q: its text is in %s %d times, want once:\n%s", m.Name, m.File, n, m.Old)
		}
		sources[path] = strings.Replace(text, m.Old, strings.ReplaceAll(m.New, "BROKEN", "mutant.On("+strconv.Quote(m.Name)+")"), 1)
	}
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	put := func(path, text string) {
		to := filepath.Join(dir, fmt.Sprintf("%d.go", len(overlay.Replace)))
		must(os.WriteFile(to, []byte(text), 0o600))
		overlay.Replace[path] = to
	}
	packages := map[string]bool{}
	for path, text := range sources {
		put(path, text)
		packages[filepath.Dir(path)] = true
	}
	for dir := range packages {
		put(filepath.Join(dir, "btoi.go"), "package "+filepath.Base(dir)+"\n\nfunc btoi(b bool) int {\n\tif b {\n\t\treturn 1\n\t}\n\treturn 0\n}\n")
	}
	put(filepath.Join(root, "internal/mutant/mutant.go"), source)
	text, err := json.Marshal(overlay)
	must(err)
	must(os.WriteFile(filepath.Join(dir, "overlay.json"), text, 0o600))
	binary = filepath.Join(dir, "mutants.test")
	cmd := exec.Command("go", "test", "-c", "-vet=off", "-overlay", filepath.Join(dir, "overlay.json"), "-o", binary, ".")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the mutants: %v\n%s", err, out)
	}
	return binary
}

// Catch runs those mutants whose names match, each with as many seeds at most. Each must be caught, else a checker is blind or the
// simulation doesn't get there. root is the module's, relative to the package under test, whose flags -from and -seeds say which
// seeds TestMutant runs.
func Catch(t *testing.T, root string, list []Mutant, names string, seeds uint64) {
	t.Helper()
	only := regexp.MustCompile(names)
	binary := build(t, root, list)
	var wg sync.WaitGroup
	todo := make(chan Mutant)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for m := range todo {
				cmd := exec.Command(binary, "-test.run", "^TestMutant$", "-test.v", "-from", strconv.FormatUint(cmp.Or(m.Seed, 1), 10),
					"-seeds", strconv.FormatUint(seeds, 10))
				cmd.Env = append(os.Environ(), variable+"="+m.Name, "GOMAXPROCS=1")
				out, err := cmd.CombinedOutput()
				_, caught, ok := strings.Cut(string(out), "caught by ")
				caught, _, _ = strings.Cut(caught, "\n")
				switch {
				case err != nil:
					t.Errorf("%s: %v\n%s", m.Name, err, out)
				case !ok:
					t.Errorf("%s: not caught by %d seeds\n%s", m.Name, seeds, out)
				default:
					t.Logf("%s: %s", m.Name, caught)
				}
			}
		})
	}
	seen := map[string]bool{}
	for _, m := range list {
		if only.MatchString(m.Name) && !seen[m.Name] && (!m.Rare || seeds > Few) {
			todo <- m
		}
		seen[m.Name] = true
	}
	close(todo)
	wg.Wait()
}
