package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"gregor/internal/metadata"
)

func newMetadata(e *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "metadata",
		Short: "Look into the cluster's metadata",
	}
	cmd.AddCommand(newMetadataShell(e))
	return cmd
}

// metadataSource says where the shell's metadata comes from.
type metadataSource struct {
	snapshot  string
	directory string
}

func newMetadataShell(e *Env) *cobra.Command {
	var src metadataSource
	cmd := &cobra.Command{
		Use:   "shell [COMMAND [ARGUMENT...]]",
		Short: "Walk through the metadata as through a file system",
		Long: `Walk through the cluster's metadata as through a file system, with ls, cat, cd, tree and find, in the tree that Kafka's
kafka-metadata-shell.sh shows: /image/topics, /image/cluster, /image/configs and so on. With a command it is carried out; without
one the shell asks for commands until "exit".

The metadata is read once, from one of:
  --directory             a node's metadata directory (its metadata.log.dir, or __cluster_metadata-0 in it): the newest snapshot and
                          the log behind it. The node may be running; the last records may not have reached a majority yet.
  --snapshot              one file, a snapshot (.checkpoint) or a segment of the log (.log)
  --bootstrap-controller  the active controller of a running cluster, which any controller names
  --bootstrap-server      the same, found through any broker

Nothing is written, but what it shows includes credentials.`,
		Example: `  gregor metadata shell --directory data
  gregor metadata shell --snapshot data/__cluster_metadata-0/00000000000000000042-0000000001.checkpoint ls /image
  gregor metadata shell --bootstrap-server localhost:9092 cat /image/topics/byName/orders/0
  gregor metadata shell --directory data find '/image/configs/TOPIC:*'`,
	}
	c := connectFlags(cmd)
	c.controllerFlags(cmd)
	f := cmd.Flags()
	f.StringVarP(&src.snapshot, "snapshot", "s", "", "read this `file`")
	f.StringVar(&src.directory, "directory", "", "read this `directory`")
	cmd.MarkFlagsMutuallyExclusive("snapshot", "directory", "bootstrap-controller", "bootstrap-server")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		load := func() (*metadata.Image, error) { return loadMetadata(cmd.Context(), e, c, src) }
		img, err := load()
		if err != nil {
			return err
		}
		sh := newMetaShell(e, img)
		if len(args) > 0 {
			return sh.once(args)
		}
		sh.reload = load
		return sh.interact(e.Stdin)
	}
	return cmd
}

// metaShell carries out commands on a tree.
type metaShell struct {
	e       *Env
	root    *shellNode
	cwd     []string
	out     *bufio.Writer
	width   int // of the screen, 0 for one name a line
	history []string
	reload  func() (*metadata.Image, error) // nil where only one command is carried out
	failed  bool                            // a path of the command wasn't there
}

func newMetaShell(e *Env, img *metadata.Image) *metaShell {
	return &metaShell{e: e, root: shellRoot(img, e.Version, e.Revision), out: bufio.NewWriterSize(e.Stdout, 1<<16)}
}

type shellCommand struct {
	usage, help string
	least, most int // arguments; most -1 is no bound
	shellOnly   bool
	run         func(s *metaShell, args []string) error
}

var errExit = errors.New("exit")

var shellCommands map[string]shellCommand

func init() {
	shellCommands = map[string]shellCommand{
		"cat":     {"cat PATH...", "Show the contents of metadata files.", 1, -1, false, (*metaShell).cat},
		"cd":      {"cd [PATH]", "Set the current working directory.", 0, 1, true, (*metaShell).cd},
		"exit":    {"exit", "Exit the metadata shell.", 0, 0, true, func(*metaShell, []string) error { return errExit }},
		"find":    {"find [PATH...]", "Search for nodes in the directory hierarchy.", 0, -1, false, (*metaShell).find},
		"help":    {"help", "Display this help message.", 0, 0, true, (*metaShell).help},
		"history": {"history [COUNT]", "Print command history.", 0, 1, true, (*metaShell).showHistory},
		"ls":      {"ls [PATH...]", "List metadata nodes.", 0, -1, false, (*metaShell).ls},
		"man":     {"man COMMAND", "Show the help text for a specific command.", 1, 1, true, (*metaShell).man},
		"pwd":     {"pwd", "Print the current working directory.", 0, 0, true, (*metaShell).pwd},
		"reload":  {"reload", "Read the metadata again.", 0, 0, true, (*metaShell).readAgain},
		"tree":    {"tree PATH...", "Show the contents of metadata nodes in a tree structure.", 1, -1, false, (*metaShell).tree},
	}
}

// once carries out one command; paths that aren't there make it fail, after they were told as Kafka's shell tells them.
func (s *metaShell) once(args []string) error {
	c, ok := shellCommands[args[0]]
	if !ok || c.shellOnly {
		return fmt.Errorf("%q is no command that can be given here: use ls, cat, tree or find", args[0])
	}
	err := s.do(c, args[1:])
	if err := s.out.Flush(); err != nil {
		return err
	}
	if err == nil && s.failed {
		return errSilent
	}
	return err
}

func (s *metaShell) do(c shellCommand, args []string) error {
	if len(args) < c.least || c.most >= 0 && len(args) > c.most {
		return fmt.Errorf("usage: %s", c.usage)
	}
	return c.run(s, args)
}

// interact carries out the commands that come line by line.
func (s *metaShell) interact(in io.Reader) error {
	if s.e.Terminal {
		s.width = 80
		if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
			s.width = n
		}
		fmt.Fprintln(s.e.Stderr, "Metadata shell; \"help\" lists the commands.")
	}
	lines := bufio.NewScanner(in)
	for {
		if s.e.Terminal {
			fmt.Fprint(s.e.Stderr, ">> ")
		}
		if !lines.Scan() {
			return lines.Err()
		}
		words, err := splitWords(lines.Text())
		if len(words) == 0 && err == nil {
			continue
		}
		s.history = append(s.history, lines.Text())
		if err == nil {
			if c, ok := shellCommands[words[0]]; ok {
				err = s.do(c, words[1:])
			} else {
				err = fmt.Errorf("no command %q: \"help\" lists those that there are", words[0])
			}
		}
		if errors.Is(err, errExit) {
			return s.out.Flush()
		}
		if err != nil {
			fmt.Fprintln(s.out, err)
		}
		if err := s.out.Flush(); err != nil {
			return err
		}
	}
}

// splitWords splits a line at spaces outside of quotes. A backslash is left for the path's pattern, except in front of a space, a
// quote or another backslash.
func splitWords(line string) ([]string, error) {
	var words []string
	var word strings.Builder
	var quote rune
	in, escaped := false, false
	for _, r := range line {
		switch {
		case escaped:
			if !strings.ContainsRune(" \\'\"", r) {
				word.WriteByte('\\')
			}
			word.WriteRune(r)
			escaped = false
		case r == '\\' && quote != '\'':
			in, escaped = true, true
		case quote != 0:
			if r == quote {
				quote = 0
			} else {
				word.WriteRune(r)
			}
		case r == '\'' || r == '"':
			in, quote = true, r
		case r == ' ' || r == '\t':
			if in {
				words = append(words, word.String())
				word.Reset()
				in = false
			}
		default:
			in = true
			word.WriteRune(r)
		}
	}
	if quote != 0 || escaped {
		return nil, errors.New("a quote or a backslash at the end of the line leads nowhere")
	}
	if in {
		words = append(words, word.String())
	}
	return words, nil
}

// found is a node that a path leads to.
type found struct {
	path []string
	node *shellNode
}

func (f found) last() string {
	if len(f.path) == 0 {
		return "/"
	}
	return f.path[len(f.path)-1]
}

// visit calls f for each node that a path, which may be a pattern, leads to, and is false if there is none.
func (s *metaShell) visit(path string, f func(found)) bool {
	if !strings.HasPrefix(path, "/") {
		path = "/" + strings.Join(s.cwd, "/") + "/" + path
	}
	return walk(s.root, nil, splitPath(path), f)
}

// splitPath gives a path's parts without "." and "..".
func splitPath(path string) []string {
	var out []string
	for _, part := range strings.Split(path, "/") {
		switch part {
		case "", ".":
		case "..":
			if len(out) > 0 {
				out = out[:len(out)-1]
			}
		default:
			out = append(out, part)
		}
	}
	return out
}

func walk(n *shellNode, path, rest []string, f func(found)) bool {
	if len(rest) == 0 {
		f(found{path, n})
		return true
	}
	if !n.dir() {
		return false
	}
	pattern := globPattern(rest[0])
	if pattern == nil {
		child := n.child(rest[0])
		return child != nil && walk(child, append(slices.Clip(path), rest[0]), rest[1:], f)
	}
	any := false
	for _, name := range n.children() {
		if pattern.MatchString(name) && walk(n.child(name), append(slices.Clip(path), name), rest[1:], f) {
			any = true
		}
	}
	return any
}

// globPattern turns *, ? and {a,b} into an expression. It is nil for a plain name, and for a group that doesn't end or is in another,
// which are taken as they stand.
func globPattern(glob string) *regexp.Regexp {
	var b strings.Builder
	plain, group, escaped := true, false, false
	for _, r := range glob {
		switch {
		case escaped:
			b.WriteString(regexp.QuoteMeta(string(r)))
			escaped = false
		case r == '\\':
			escaped = true
		case r == '?':
			plain = false
			b.WriteString(".")
		case r == '*':
			plain = false
			b.WriteString(".*")
		case r == '{':
			if group {
				return nil
			}
			plain, group = false, true
			b.WriteString("(?:(?:")
		case r == ',' && group:
			b.WriteString(")|(?:")
		case r == '}' && group:
			group = false
			b.WriteString("))")
		default:
			b.WriteString(regexp.QuoteMeta(string(r)))
		}
	}
	if plain || group {
		return nil
	}
	if escaped {
		b.WriteString(`\\`)
	}
	re, err := regexp.Compile("(?s)^" + b.String() + "$")
	if err != nil {
		return nil
	}
	return re
}

// paths are the arguments that aren't empty, or the working directory.
func paths(args []string) []string {
	out := slices.DeleteFunc(slices.Clone(args), func(a string) bool { return a == "" })
	if len(out) == 0 {
		return []string{"."}
	}
	return out
}

func (s *metaShell) missing(command, path, what string) {
	s.failed = true
	fmt.Fprintf(s.out, "%s: %s: %s\n", command, path, what)
}

func (s *metaShell) ls(args []string) error {
	var files []string
	var dirs []found
	for _, path := range paths(args) {
		if !s.visit(path, func(f found) {
			if f.node.dir() {
				dirs = append(dirs, f)
			} else {
				files = append(files, f.last())
			}
		}) {
			s.missing("ls", path, "no such file or directory.")
		}
	}
	s.entries("", files)
	named, first := len(files) > 0 || len(dirs) > 1, len(files) == 0
	for _, d := range dirs {
		title := ""
		if named {
			title = d.last() + ":"
			if !first {
				title = "\n" + title
			}
			first = false
		}
		s.entries(title, d.node.children())
	}
	return nil
}

// entries prints names in as many columns as fit.
func (s *metaShell) entries(title string, names []string) {
	if len(names) == 0 {
		return
	}
	if title != "" {
		fmt.Fprintln(s.out, title)
	}
	widths := columns(s.width, names)
	lines := (len(names) + len(widths) - 1) / len(widths)
	for line := range lines {
		for col, width := range widths {
			if i := line + col*lines; i < len(names) {
				if col == len(widths)-1 {
					width = 0
				}
				fmt.Fprintf(s.out, "%-*s", width, names[i])
			}
		}
		fmt.Fprintln(s.out)
	}
}

// columns are the widths of the most columns that names, laid out downwards, fit the screen in.
func columns(screen int, names []string) []int {
	for n := screen / 4; n > 1; n-- {
		lines := (len(names) + n - 1) / n
		widths, total := make([]int, n), 0
		for i, name := range names {
			widths[i/lines] = max(widths[i/lines], len(name)+2)
		}
		for _, w := range widths {
			total += w
		}
		if widths[n-1] > 0 && total <= screen {
			return widths
		}
	}
	return []int{0}
}

func (s *metaShell) cat(args []string) error {
	for _, path := range args {
		if !s.visit(path, func(f found) {
			if f.node.dir() {
				s.missing("cat", path, "Is a directory")
			} else {
				f.node.print(s.out, "")
			}
		}) {
			s.missing("cat", path, "No such file or directory.")
		}
	}
	return nil
}

func (s *metaShell) tree(args []string) error {
	for _, path := range args {
		if !s.visit(path, func(f found) { f.node.print(s.out, "") }) {
			s.missing("tree", path, "No such file or directory.")
		}
	}
	return nil
}

func (s *metaShell) find(args []string) error {
	for _, path := range paths(args) {
		// What a pattern leads to is named by the pattern in Kafka's shell, which tells nobody what was found.
		if !s.visit(path, func(f found) {
			name := path
			if slices.ContainsFunc(splitPath(path), func(part string) bool { return globPattern(part) != nil }) {
				name = "/" + strings.Join(f.path, "/")
			}
			s.list(name, f.node)
		}) {
			s.missing("find", path, "no such file or directory.")
		}
	}
	return nil
}

func (s *metaShell) list(path string, n *shellNode) {
	fmt.Fprintln(s.out, path)
	if !n.dir() {
		return
	}
	for _, name := range n.children() {
		s.list(strings.TrimSuffix(path, "/")+"/"+name, n.child(name))
	}
}

func (s *metaShell) cd(args []string) error {
	path := "/"
	if len(args) > 0 {
		path = args[0]
	}
	if !s.visit(path, func(f found) {
		if f.node.dir() {
			s.cwd = f.path
		} else {
			fmt.Fprintf(s.out, "cd: %s: not a directory.\n", path)
		}
	}) {
		fmt.Fprintf(s.out, "cd: %s: no such directory.\n", path)
	}
	return nil
}

func (s *metaShell) pwd([]string) error {
	_, err := fmt.Fprintln(s.out, "/"+strings.Join(s.cwd, "/"))
	return err
}

func (s *metaShell) showHistory(args []string) error {
	from := 0
	if len(args) > 0 {
		n, err := strconv.Atoi(args[0])
		if err != nil {
			return fmt.Errorf("history: %q is no number", args[0])
		}
		from = max(len(s.history)-max(n, 0), 0)
	}
	for i := from; i < len(s.history); i++ {
		fmt.Fprintf(s.out, "% 5d  %s\n", i, s.history[i])
	}
	return nil
}

func (s *metaShell) help([]string) error {
	t := newTable(s.out, "COMMAND", "")
	for _, name := range sorted(shellCommands) {
		t.row(shellCommands[name].usage, shellCommands[name].help)
	}
	if err := t.flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(s.out, "\nPaths may have *, ? and {a,b}.")
	return err
}

func (s *metaShell) man(args []string) error {
	c, ok := shellCommands[args[0]]
	if !ok {
		return fmt.Errorf("man: unknown command %s: \"help\" lists those that there are", args[0])
	}
	_, err := fmt.Fprintf(s.out, "%s: %s\n\nusage: %s\n", args[0], c.help, c.usage)
	return err
}

func (s *metaShell) readAgain([]string) error {
	img, err := s.reload()
	if err != nil {
		return err
	}
	s.root = shellRoot(img, s.e.Version, s.e.Revision)
	return s.pwd(nil)
}

// loadMetadata reads the metadata from where the flags say.
func loadMetadata(ctx context.Context, e *Env, c *connection, src metadataSource) (*metadata.Image, error) {
	l := newImageLoader()
	var err error
	switch {
	case src.snapshot != "":
		l.dataOnly = true
		err = l.file(e.FS, src.snapshot, 0)
	case src.directory != "":
		err = l.directory(e.FS, src.directory)
	default:
		err = loadFromCluster(ctx, e, c, l)
	}
	if err != nil {
		return nil, err
	}
	return l.image(e.Stderr), nil
}
