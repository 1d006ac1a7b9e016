package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"gregor/client"
	"gregor/internal/config"
)

// connection are the flags of commands that talk to a cluster.
type connection struct {
	servers  string
	timeout  time.Duration
	clientID string
	verbose  bool
	// Where the command can also be carried out by controllers:
	controllers   string
	commandConfig string
	byBroker      func() bool // --bootstrap-server was given
}

// connectFlags adds them to a command and those below it.
func connectFlags(cmd *cobra.Command) *connection {
	c := &connection{}
	servers := os.Getenv("GREGOR_BOOTSTRAP_SERVER")
	if servers == "" {
		servers = "localhost:9092"
	}
	f := cmd.PersistentFlags()
	f.StringVarP(&c.servers, "bootstrap-server", "b", servers, "some brokers of the cluster, `host:port,...`; default from GREGOR_BOOTSTRAP_SERVER")
	f.DurationVar(&c.timeout, "timeout", 30*time.Second, "how long to try before giving up")
	f.StringVar(&c.clientID, "client-id", "gregor", "name in the brokers' logs, metrics and quotas")
	f.BoolVarP(&c.verbose, "verbose", "v", false, "tell about connections and retries")
	return c
}

// controllerFlags adds what the commands have that controllers can carry out too.
func (c *connection) controllerFlags(cmd *cobra.Command) {
	f := cmd.PersistentFlags()
	f.StringVar(&c.controllers, "bootstrap-controller", "", "instead of brokers, some controllers of the cluster, `host:port,...`")
	c.configFlag(cmd)
	c.byBroker = func() bool { return f.Changed("bootstrap-server") }
}

// configFlag adds the properties file that Kafka's tools take.
func (c *connection) configFlag(cmd *cobra.Command) {
	cmd.PersistentFlags().StringVar(&c.commandConfig, "command-config", "", "a properties `file` with settings of the client, as Kafka's tools take it")
}

// readCommandConfig takes from a properties file what the client has. What would make the connection less safe than the file
// wants is an error; the rest is tuning of another client.
func (c *connection) readCommandConfig() error {
	if c.commandConfig == "" {
		return nil
	}
	text, err := os.ReadFile(c.commandConfig)
	if err != nil {
		return err
	}
	p, err := config.ParseProperties(c.commandConfig, text)
	if err != nil {
		return err
	}
	get := func(key string) string {
		v, _ := p.Get(key)
		return strings.TrimSpace(v)
	}
	if v := get("security.protocol"); v != "" && !strings.EqualFold(v, "PLAINTEXT") {
		return fmt.Errorf("%s: security.protocol=%s: these tools only speak PLAINTEXT", c.commandConfig, v)
	}
	if v := get("client.id"); v != "" {
		c.clientID = v
	}
	if v := get("default.api.timeout.ms"); v != "" {
		ms, err := strconv.ParseInt(v, 10, 32)
		if err != nil || ms <= 0 {
			return fmt.Errorf("%s: default.api.timeout.ms=%s is no number of milliseconds", c.commandConfig, v)
		}
		c.timeout = time.Duration(ms) * time.Millisecond
	}
	return nil
}

func (c *connection) open(e *Env) (*client.Client, error) {
	seeds, controllers := c.servers, c.controllers != ""
	if controllers {
		if c.byBroker() {
			return nil, errors.New("name either brokers with --bootstrap-server or controllers with --bootstrap-controller, not both")
		}
		seeds = c.controllers
	}
	if err := c.readCommandConfig(); err != nil {
		return nil, err
	}
	h := &noticeHandler{w: e.Stderr, level: slog.LevelWarn, seen: map[string]bool{}}
	if c.verbose {
		h.level, h.seen = slog.LevelDebug, nil
	}
	return client.New(client.Options{
		Seeds: []string{seeds}, Controllers: controllers, ClientID: c.clientID, Timeout: c.timeout, Logger: slog.New(h),
		RequestTimeout: min(c.timeout, 30*time.Second), ConnectTimeout: min(c.timeout, 10*time.Second),
	})
}

// do opens a client, runs f and closes the client.
func (c *connection) do(ctx context.Context, e *Env, f func(ctx context.Context, cl *client.Client) error) error {
	cl, err := c.open(e)
	if err != nil {
		return err
	}
	defer cl.Close()
	return f(ctx, cl)
}

// noticeHandler prints the client's warnings in one line for people, the same one once.
type noticeHandler struct {
	w     io.Writer
	level slog.Level
	mu    sync.Mutex
	seen  map[string]bool // nil: print all
}

func (h *noticeHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level }
func (h *noticeHandler) WithAttrs([]slog.Attr) slog.Handler           { return h }
func (h *noticeHandler) WithGroup(string) slog.Handler                { return h }

func (h *noticeHandler) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString(r.Message)
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "err" {
			fmt.Fprintf(&b, ": %v", a.Value)
		} else if h.level < slog.LevelWarn {
			fmt.Fprintf(&b, " %s=%v", a.Key, a.Value)
		}
		return true
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	line := b.String()
	if h.seen[line] {
		return nil
	}
	if h.seen != nil {
		h.seen[line] = true
	}
	_, err := fmt.Fprintf(h.w, "gregor: %s\n", line)
	return err
}

// table prints rows in columns under a heading.
type table struct{ w *tabwriter.Writer }

func newTable(w io.Writer, heading ...string) *table {
	t := &table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	cells := make([]any, len(heading))
	for i, h := range heading {
		cells[i] = h
	}
	t.row(cells...)
	return t
}

func (t *table) row(cells ...any) {
	for i, c := range cells {
		if i > 0 {
			fmt.Fprint(t.w, "\t")
		}
		fmt.Fprint(t.w, c)
	}
	fmt.Fprintln(t.w)
}

func (t *table) flush() error { return t.w.Flush() }

// printJSON prints v as one indented document.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// list prints numbers as 1,2,3, and - for none.
func list[T any](v []T) string {
	if len(v) == 0 {
		return "-"
	}
	parts := make([]string, len(v))
	for i, x := range v {
		parts[i] = fmt.Sprint(x)
	}
	return strings.Join(parts, ",")
}

// orDash is "-" for nothing.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// parsePairs reads key=value arguments.
func parsePairs(args []string) (map[string]string, error) {
	out := map[string]string{}
	for _, a := range args {
		k, v, ok := strings.Cut(a, "=")
		if k = strings.TrimSpace(k); !ok || k == "" {
			return nil, fmt.Errorf("%q is not key=value", a)
		}
		out[k] = v
	}
	return out, nil
}

// failures joins what went wrong for single topics, groups…; nil if nothing did.
type failures []error

func (f *failures) add(what string, err error) {
	if err != nil {
		*f = append(*f, fmt.Errorf("%s: %w", what, err))
	}
}

func (f failures) err() error { return errors.Join(f...) }

// readFile is the contents of a file, or standard input for "-".
func readFile(e *Env, name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(e.Stdin)
	}
	return os.ReadFile(name)
}

// confirm asks a person; programs are not asked and must say --yes.
func confirm(e *Env, yes bool, question string) error {
	if yes {
		return nil
	}
	if !e.Terminal {
		return errors.New("nobody is there to confirm it: say --yes")
	}
	fmt.Fprintf(e.Stderr, "%s [y/N] ", question)
	line, err := bufio.NewReader(e.Stdin).ReadString('\n')
	if err != nil && line == "" {
		return errors.New("not confirmed")
	}
	if a := strings.ToLower(strings.TrimSpace(line)); a != "y" && a != "yes" {
		return errors.New("not confirmed")
	}
	return nil
}

// text is how bytes are shown in JSON: as a string if they are UTF-8, else apart in base64.
func text(b []byte) (s *string, raw []byte) {
	if b == nil {
		return nil, nil
	}
	if !utf8.Valid(b) || bytes.ContainsRune(b, utf8.RuneError) {
		return nil, b
	}
	t := string(b)
	return &t, nil
}

// progress draws one line over and over while something long runs, on a terminal only.
type progress struct {
	w    io.Writer
	on   bool
	next time.Time
}

func (p *progress) update(now time.Time, format string, args ...any) {
	if !p.on || now.Before(p.next) {
		return
	}
	p.next = now.Add(200 * time.Millisecond)
	fmt.Fprintf(p.w, "\r\x1b[K"+format, args...)
}

// clear removes the line.
func (p *progress) clear() {
	if p.on && !p.next.IsZero() {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

// bytesText is a size for people.
func bytesText(n float64) string {
	for _, u := range []string{"B", "KiB", "MiB", "GiB"} {
		if n < 1024 {
			return fmt.Sprintf("%.4g %s", n, u)
		}
		n /= 1024
	}
	return fmt.Sprintf("%.4g TiB", n)
}

// count is "1 record", "2 records".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
