package archtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// room is a package, with what lies in folders under it, and its place in the house. A room may import those below it.
type room struct {
	path string
	why  string // why it stands here
}

// rooms from the top of the house to its bottom.
var rooms = []room{
	{"internal/simtest", "assembles whole clusters with faults and checkers, so it may see everything"},
	{"cmd/gregor", "only calls the commands"},
	{"internal/cli", "commands may do all that a program that embeds a node may, and speak to nodes as clients"},
	{".", "the public way to embed a node"},
	{"internal/console", "shows what a node is doing, through the interfaces that the node gives it"},
	{"internal/node", "wires real time, disk and network into everything else, so nothing below may know it"},
	{"internal/broker", "turns requests into calls of what is below; nothing below knows of requests' handlers"},
	{"internal/controller", "decides on metadata; brokers talk to it by requests or through an interface"},
	{"internal/coordinator", "keeps groups and transactions in logs that it sees through interfaces"},
	{"internal/replica", "leads and follows partitions by the metadata image"},
	{"internal/metadata", "the image of the metadata log, which raft replicates"},
	{"internal/raft", "replicates one log; knows records but not their meaning"},
	{"internal/network", "moves requests; knows the table of APIs but no handler"},
	{"internal/peer", "sends requests to other nodes; knows the table of APIs but not what requests mean"},
	{"internal/security", "decides who may do what; asked by those above"},
	{"internal/log", "stores batches; knows nothing of leaders, followers or requests"},
	{"internal/timeline", "values that can go back; pure data structures"},
	{"internal/pmap", "maps that share what is equal between versions; a pure data structure"},
	{"client", "public: what it imports becomes a promise, so only formats and codes"},
	{"internal/api", "keys, versions, codes and codecs of requests"},
	{"internal/message", "codecs of records of the metadata log and the coordinators"},
	{"internal/record", "codecs of batches"},
	{"internal/config", "declarations of settings; imports nothing that it configures"},
	{"internal/rawsock", "moves bytes through sockets that others have made"},
	{"internal/vfs", "the door to the disk"},
	{"internal/clock", "the door to time"},
	{"internal/uuid", "a value"},
	{"internal/xxh3", "a hash function"},
	{"internal/telemetry", "a leaf: metrics and logs are handed to it"},
}

// helpers are used by tests or generators and are no part of the house: they import nothing of it unless it says so here.
var helpers = map[string][]string{
	"internal/sim":         nil, // a leaf, so that every room can be tested on it
	"internal/await":       nil,
	"internal/mutants":     nil,
	"internal/golden":      nil,
	"internal/archtest":    nil,
	"schema":               nil,
	"schema/cmd/schemagen": {"schema"},
}

// deed is a use of the machine that goes through a door.
type deed struct {
	names   map[string][]string // by import path: functions, types and variables; "*" is all of them
	allowed []string            // rooms
	why     string
}

var deeds = []deed{
	{
		names: map[string][]string{
			"os":            {"*"},
			"io/ioutil":     {"*"},
			"path/filepath": {"Walk", "WalkDir", "Glob", "EvalSymlinks", "Abs"},
		},
		allowed: []string{"internal/vfs", "internal/node", "internal/cli", "cmd/gregor", "internal/golden", "internal/mutants", "schema/cmd/schemagen", "."},
		why:     "files are reached through vfs.FS, so that a simulator can lose what was not synced; the environment and signals are the node's and the commands'",
	},
	{
		names: map[string][]string{
			"net": {"Dial", "DialTimeout", "DialTCP", "DialUDP", "Dialer", "Listen", "ListenTCP", "ListenConfig", "ListenPacket",
				"LookupHost", "LookupIP", "LookupAddr", "ResolveTCPAddr", "DefaultResolver", "Resolver", "Interfaces", "InterfaceAddrs"},
			"net/http": {"Get", "Post", "Head", "ListenAndServe", "DefaultClient", "DefaultTransport"},
		},
		allowed: []string{"internal/network", "internal/node", "internal/cli", "client"},
		why:     "sockets are made by whoever wires the process, so that a simulator can put its own in their place",
	},
	{
		names:   map[string][]string{"time": {"Now", "Since", "Until"}},
		allowed: []string{"internal/clock", "internal/node", "internal/cli", "internal/network", "internal/vfs", "internal/sim", "client"},
		why:     "what time it is comes from clock.Clock; waiting with package time is fine, since synctest fakes it",
	},
	{
		names: map[string][]string{
			"math/rand": {"*"},
			"math/rand/v2": {"Int", "IntN", "Int32", "Int32N", "Int64", "Int64N", "Uint32", "Uint32N", "Uint64", "Uint64N", "Float32",
				"Float64", "N", "Perm", "Shuffle", "NormFloat64", "ExpFloat64"},
			"crypto/rand":  {"*"},
			"hash/maphash": {"*"},
		},
		allowed: []string{"internal/node", "internal/cli", "client"},
		why:     "randomness is handed in, so that a seed fixes a run; maphash seeds itself anew in every process",
	},
}

// exceptions are files that may do what their package may not, by import path and name.
var exceptions = []struct {
	file, path string
	names      []string
	why        string
}{
	{"internal/broker/lifecycle.go", "time", []string{"Now", "Until"}, "a loop that sleeps by timers compares deadlines with the clock that the timers run by; the core takes the time as an argument"},
	{"internal/replica/topics.go", "hash/maphash", []string{"Seed", "MakeSeed", "Bytes"}, "which shard a topic lies in is never visible"},
}

func excepted(file string, u use) bool {
	for _, e := range exceptions {
		if e.file == file && e.path == u.path && slices.Contains(e.names, u.name) {
			return true
		}
	}
	return false
}

// leaves are names of package os that touch nothing: errors and constants.
var leaves = []string{"ErrDeadlineExceeded", "ErrNotExist", "ErrExist", "ErrClosed", "ErrPermission", "FileMode", "FileInfo", "PathError",
	"IsNotExist", "IsExist"}

// listed is what go list says of a package.
type listed struct {
	ImportPath string
	Dir        string
	Imports    []string
	GoFiles    []string
	Module     struct{ Path string }
}

var packages = sync.OnceValues(func() ([]listed, error) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Imports,GoFiles,Module", "./...")
	cmd.Dir = filepath.Join("..", "..")
	out, err := cmd.Output()
	if err != nil {
		if x, ok := errors.AsType[*exec.ExitError](err); ok {
			return nil, fmt.Errorf("go list: %w: %s", err, x.Stderr)
		}
		return nil, err
	}
	var all []listed
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := d.Decode(&p); err == io.EOF {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
})

// relative is a package's path within the module, "." for its root; ok is false for packages that are not of the module.
func relative(module, path string) (string, bool) {
	if path == module {
		return ".", true
	}
	return strings.CutPrefix(path, module+"/")
}

// roomOf is the index of the room that a package lies in, or -1.
func roomOf(path string) int {
	for i, r := range rooms {
		if path == r.path || r.path != "." && strings.HasPrefix(path, r.path+"/") {
			return i
		}
	}
	return -1
}

func TestImportsGoDown(t *testing.T) {
	all, err := packages()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		path, _ := relative(p.Module.Path, p.ImportPath)
		from := roomOf(path)
		allowed, isHelper := helpers[path]
		if from < 0 && !isHelper {
			t.Errorf("%s has no place in the house: give it one in rooms, with the reason", path)
			continue
		}
		for _, imp := range p.Imports {
			to, ok := relative(p.Module.Path, imp)
			if !ok {
				continue
			}
			room := roomOf(to)
			switch {
			case isHelper && !slices.Contains(allowed, to):
				t.Errorf("%s imports %s, but helpers import nothing of the house", path, to)
			case isHelper:
			case room < 0:
				t.Errorf("%s imports %s, which is for tests and generators", path, to)
			case room < from:
				t.Errorf("%s imports %s, which is above it: %s is %s", path, to, rooms[room].path, rooms[room].why)
			}
		}
	}
}

func TestMachineIsTouchedThroughDoors(t *testing.T) {
	all, err := packages()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		path, _ := relative(p.Module.Path, p.ImportPath)
		for _, name := range p.GoFiles {
			for _, u := range usesOf(t, filepath.Join(p.Dir, name)) {
				for _, d := range deeds {
					if d.covers(u) && !d.permits(path) && !excepted(path+"/"+name, u) {
						t.Errorf("%s uses %s.%s: %s", u.pos, u.path, u.name, d.why)
					}
				}
			}
		}
	}
}

func (d deed) covers(u use) bool {
	names := d.names[u.path]
	return slices.Contains(names, u.name) || slices.Contains(names, "*") && !(u.path == "os" && slices.Contains(leaves, u.name))
}

func (d deed) permits(path string) bool {
	for _, a := range d.allowed {
		if path == a || a != "." && strings.HasPrefix(path, a+"/") {
			return true
		}
	}
	return false
}

// use is a name of another package in a file.
type use struct {
	path, name string
	pos        token.Position
}

func usesOf(t *testing.T, file string) (uses []use) {
	t.Helper()
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	imports := make(map[string]string)
	for _, i := range f.Imports {
		path, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(path)
		if name == "v2" {
			name = filepath.Base(filepath.Dir(path))
		}
		if i.Name != nil {
			name = i.Name.Name
		}
		imports[name] = path
	}
	ast.Inspect(f, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := s.X.(*ast.Ident); ok && imports[x.Name] != "" {
			uses = append(uses, use{imports[x.Name], s.Sel.Name, set.Position(s.Pos())})
		}
		return true
	})
	return uses
}

// The rules are only worth something if they can be broken.
func TestRulesCatch(t *testing.T) {
	for _, x := range []struct {
		path string
		use  use
		bad  bool
	}{
		{"internal/log", use{path: "os", name: "Open"}, true},
		{"internal/vfs", use{path: "os", name: "Open"}, false},
		{"internal/network", use{path: "os", name: "ErrDeadlineExceeded"}, false},
		{"internal/raft", use{path: "time", name: "Now"}, true},
		{"internal/raft", use{path: "time", name: "AfterFunc"}, false},
		{"internal/coordinator/group", use{path: "math/rand/v2", name: "IntN"}, true},
		{"internal/coordinator/group", use{path: "math/rand/v2", name: "New"}, false},
		{"internal/raft", use{path: "net", name: "Dial"}, true},
		{"internal/raft", use{path: "net", name: "JoinHostPort"}, false},
	} {
		bad := false
		for _, d := range deeds {
			bad = bad || d.covers(x.use) && !d.permits(x.path)
		}
		if bad != x.bad {
			t.Errorf("%s using %s.%s: caught %v", x.path, x.use.path, x.use.name, bad)
		}
	}
	if roomOf("internal/coordinator/group") != roomOf("internal/coordinator") || roomOf("internal/logger") != -1 || roomOf("internal/log") < roomOf("internal/network") {
		t.Error("rooms")
	}
}
