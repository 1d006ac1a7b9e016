package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"gregor/client"
)

// consumeOptions are the flags of consume.
type consumeOptions struct {
	topics     []string
	group      string
	from       string
	partitions []int32
	max        int
	untilEnd   bool
	committed  bool
	format     string
	keys       bool
	output     string
}

func newConsume(e *Env) *cobra.Command {
	var o consumeOptions
	cmd := &cobra.Command{
		Use:   "consume TOPIC...",
		Short: "Read records from topics and print them",
		Long: `Read records and print each value on a line of its own. Without --from only what comes from now on; it goes on until
Ctrl-C, --max or --until-end.

--from is earliest, latest, an offset, a time (2026-01-02T03:04:05Z, 2026-01-02, or how long ago: 1h30m), or -N for the last N
records of each partition. In a group (--group) the group's committed offsets come first.

--format prints what you like: %t topic, %p partition, %o offset, %T time, %k key, %v value, %h headers, \n, \t.`,
		Example: `  gregor consume orders
  gregor consume orders --from earliest --until-end
  gregor consume orders --from 15m --format '%p/%o %k %v\n'
  gregor consume orders --from -10 --until-end --output json
  gregor consume orders --group billing`,
		Args: need(1, -1, "a topic"),
	}
	c := connectFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.topics = args
		if o.group != "" && len(o.partitions) > 0 {
			return usageError(cmd, "a group hands out partitions itself: give --group or --partition")
		}
		if o.keys && o.format != "" {
			return usageError(cmd, "--keys is short for --format '%%k\\t%%v\\n': give one of them")
		}
		return consume(cmd, e, c, &o)
	}
	f := cmd.Flags()
	f.StringVarP(&o.from, "from", "f", "latest", "where to begin")
	f.StringVarP(&o.group, "group", "g", "", "join this consumer group and commit what is printed")
	f.Int32SliceVarP(&o.partitions, "partition", "p", nil, "only these partitions, `0,1,...`")
	f.IntVarP(&o.max, "max", "n", 0, "stop after this many records")
	f.BoolVarP(&o.untilEnd, "until-end", "e", false, "stop where the partitions end now")
	f.BoolVar(&o.committed, "committed", false, "leave out records of open and aborted transactions")
	f.StringVar(&o.format, "format", "", "how to print a record")
	f.BoolVarP(&o.keys, "keys", "k", false, "print keys before values, with a tab between")
	outputFlag(cmd, &o.output)
	return cmd
}

// start is where to begin in a partition: an offset or special offset, a time, or so many before the end.
type start struct {
	at     int64
	time   time.Time
	behind int64
}

func parseStart(s string, now time.Time) (start, error) {
	switch s {
	case "earliest", "beginning":
		return start{at: client.Earliest}, nil
	case "latest", "end":
		return start{at: client.Latest}, nil
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		if n < 0 {
			return start{behind: -n}, nil
		}
		return start{at: n}, nil
	}
	if d, err := time.ParseDuration(strings.TrimPrefix(s, "-")); err == nil {
		return start{time: now.Add(-d)}, nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02"} {
		if t, err := time.ParseInLocation(layout, s, time.Local); err == nil {
			return start{time: t}, nil
		}
	}
	return start{}, fmt.Errorf("%q is no place to begin: earliest, latest, an offset, -N, a time or a duration", s)
}

func consume(cmd *cobra.Command, e *Env, c *connection, o *consumeOptions) error {
	from, err := parseStart(o.from, time.Now())
	if err != nil {
		return usageError(cmd, "--from %w", err)
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return c.do(ctx, e, func(ctx context.Context, cl *client.Client) error {
		opts := client.ConsumerOptions{Group: o.group, ReadCommitted: o.committed}
		var ends map[client.TopicPartition]int64
		var err error
		if o.group == "" {
			opts.Partitions, ends, err = resolvePartitions(ctx, cl, o, from)
		} else {
			opts.Topics, opts.AutoCommit = o.topics, -1 // what is printed is committed, not what was fetched
			if from.at != client.Latest {
				opts.Reset = client.ResetEarliest
			}
			if from.at >= 0 || from.behind > 0 || !from.time.IsZero() {
				return usageError(cmd, "in a group, --from is earliest or latest; 'gregor group reset-offsets' moves a group")
			}
			if o.untilEnd {
				_, ends, err = resolvePartitions(ctx, cl, o, from)
			}
		}
		if err != nil {
			return err
		}
		printed := &printedOffsets{next: map[client.TopicPartition]int64{}}
		var u *client.Consumer
		started := make(chan struct{})
		opts.OnRevoked = func([]client.TopicPartition) {
			<-started
			printed.commit(ctx, u)
		}
		if u, err = cl.NewConsumer(opts); err != nil {
			return err
		}
		close(started)
		if e.Terminal && !o.untilEnd && o.max == 0 {
			fmt.Fprintln(e.Stderr, "Waiting for records; Ctrl-C ends.")
		}
		err = printRecords(ctx, e, u, o, ends, printed)
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		return errors.Join(err, printed.commit(closing, u), u.Close(closing))
	})
}

// resolvePartitions turns topics and --from into offsets, and finds where the partitions end now.
func resolvePartitions(ctx context.Context, cl *client.Client, o *consumeOptions, from start) (begin, ends map[client.TopicPartition]int64, err error) {
	m, err := cl.Metadata(ctx, o.topics)
	if err != nil {
		return nil, nil, err
	}
	begin = map[client.TopicPartition]int64{}
	latest, at := map[client.TopicPartition]int64{}, map[client.TopicPartition]int64{}
	for _, t := range m.Topics {
		if t.Err != nil {
			return nil, nil, fmt.Errorf("topic %s: %w", t.Name, t.Err)
		}
		for _, p := range o.partitions {
			if int(p) >= len(t.Partitions) || p < 0 {
				return nil, nil, fmt.Errorf("topic %s has %s, no partition %d", t.Name, count(len(t.Partitions), "partition"), p)
			}
		}
		for _, p := range t.Partitions {
			if len(o.partitions) > 0 && !contains(o.partitions, p.ID) {
				continue
			}
			tp := client.TopicPartition{Topic: t.Name, Partition: p.ID}
			latest[tp], begin[tp] = client.Latest, from.at
			at[tp] = client.Earliest
			if !from.time.IsZero() {
				at[tp] = from.time.UnixMilli()
			}
		}
	}
	offsets := func(want map[client.TopicPartition]int64) (map[client.TopicPartition]int64, error) {
		got, err := cl.ListOffsets(ctx, want, o.committed)
		out := map[client.TopicPartition]int64{}
		for _, g := range got {
			if g.Err != nil {
				return nil, fmt.Errorf("partition %v: %w", g.TopicPartition, g.Err)
			}
			out[g.TopicPartition] = g.Offset
		}
		return out, err
	}
	if ends, err = offsets(latest); err != nil {
		return nil, nil, err
	}
	first, err := offsets(at)
	if err != nil {
		return nil, nil, err
	}
	for tp := range begin {
		switch {
		case !from.time.IsZero():
			if begin[tp] = first[tp]; first[tp] < 0 {
				begin[tp] = ends[tp] // nothing that late
			}
		case from.behind > 0:
			begin[tp] = max(first[tp], ends[tp]-from.behind)
		case from.at == client.Latest:
			begin[tp] = ends[tp]
		case from.at == client.Earliest:
			begin[tp] = first[tp]
		}
	}
	return begin, ends, nil
}

func contains(v []int32, x int32) bool {
	for _, y := range v {
		if x == y {
			return true
		}
	}
	return false
}

// printedOffsets is what a group has to remember of what was printed.
type printedOffsets struct {
	mu   sync.Mutex
	next map[client.TopicPartition]int64 // guarded by mu: not yet committed
	at   time.Time                       // guarded by mu: of the last commit
}

func (p *printedOffsets) add(r *client.Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next[client.TopicPartition{Topic: r.Topic, Partition: r.Partition}] = r.Offset + 1
}

// due says whether a second has passed since the last commit.
func (p *printedOffsets) due(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return now.Sub(p.at) >= time.Second
}

// commit commits; without a group it does nothing.
func (p *printedOffsets) commit(ctx context.Context, u *client.Consumer) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at = time.Now()
	var offsets []client.CommittedOffset
	for tp, o := range p.next {
		offsets = append(offsets, client.CommittedOffset{TopicPartition: tp, Offset: o, LeaderEpoch: -1})
	}
	clear(p.next)
	if len(offsets) == 0 {
		return nil
	}
	return u.CommitOffsets(ctx, offsets)
}

// printRecords prints until it is enough.
func printRecords(ctx context.Context, e *Env, u *client.Consumer, o *consumeOptions, ends map[client.TopicPartition]int64, printed *printedOffsets) error {
	out := bufio.NewWriterSize(e.Stdout, 1<<16)
	defer out.Flush()
	print := printer(o)
	n := 0
	for {
		if o.untilEnd && reached(u, ends) {
			return out.Flush()
		}
		poll, cancel := ctx, context.CancelFunc(func() {})
		if o.untilEnd || o.group != "" {
			// A partition may end in a transaction marker, behind which no record comes; and what was printed is to be
			// committed, though nothing may follow for long.
			poll, cancel = context.WithTimeout(ctx, 500*time.Millisecond)
		}
		records, err := u.Poll(poll)
		cancel()
		for _, r := range records {
			if o.untilEnd && r.Offset >= ends[client.TopicPartition{Topic: r.Topic, Partition: r.Partition}] {
				continue
			}
			if err := print(out, r); err != nil {
				return err
			}
			if o.group != "" {
				printed.add(r)
			}
			if n++; n == o.max {
				return out.Flush()
			}
		}
		if ferr := out.Flush(); ferr != nil {
			return ferr
		}
		if o.group != "" && printed.due(time.Now()) {
			if err := printed.commit(ctx, u); err != nil && ctx.Err() == nil {
				return err
			}
		}
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil // Ctrl-C
		case poll != ctx && errors.Is(err, context.DeadlineExceeded):
		default:
			return err
		}
	}
}

// reached says whether everything up to the ends has been read. Partitions that others of the group read don't count.
func reached(u *client.Consumer, ends map[client.TopicPartition]int64) bool {
	assigned := u.Assignment()
	for _, tp := range assigned {
		if p, ok := u.Position(tp); !ok || p < ends[tp] {
			return false
		}
	}
	return len(assigned) > 0
}

// printer is how a record is printed.
func printer(o *consumeOptions) func(w io.Writer, r *client.Record) error {
	if o.output == "json" {
		return func(w io.Writer, r *client.Record) error {
			enc := json.NewEncoder(w)
			enc.SetEscapeHTML(false)
			return enc.Encode(jsonOf(r))
		}
	}
	format := o.format
	if format == "" {
		format = `%v\n`
		if o.keys {
			format = `%k\t%v\n`
		}
	}
	return func(w io.Writer, r *client.Record) error {
		_, err := io.WriteString(w, formatRecord(format, r))
		return err
	}
}

func jsonOf(r *client.Record) recordJSON {
	j := recordJSON{Topic: r.Topic, Partition: &r.Partition, Offset: &r.Offset}
	if !r.Timestamp.IsZero() {
		t := r.Timestamp.UTC()
		j.Timestamp = &t
	}
	j.Key, j.KeyRaw = text(r.Key)
	j.Value, j.ValueRaw = text(r.Value)
	for _, h := range r.Headers {
		hj := headerJSON{Key: h.Key}
		hj.Value, hj.ValueRaw = text(h.Value)
		j.Headers = append(j.Headers, hj)
	}
	return j
}

func formatRecord(format string, r *client.Record) string {
	null := func(b []byte) string {
		if b == nil {
			return "null"
		}
		return string(b)
	}
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		c := format[i]
		if c != '%' && c != '\\' || i+1 == len(format) {
			b.WriteByte(c)
			continue
		}
		i++
		switch string([]byte{c, format[i]}) {
		case "%t":
			b.WriteString(r.Topic)
		case "%p":
			b.WriteString(strconv.Itoa(int(r.Partition)))
		case "%o":
			b.WriteString(strconv.FormatInt(r.Offset, 10))
		case "%T":
			if r.Timestamp.IsZero() {
				b.WriteString("-")
			} else {
				b.WriteString(r.Timestamp.UTC().Format("2006-01-02T15:04:05.000Z"))
			}
		case "%k":
			b.WriteString(null(r.Key))
		case "%v":
			b.WriteString(null(r.Value))
		case "%h":
			for i, h := range r.Headers {
				if i > 0 {
					b.WriteByte(',')
				}
				b.WriteString(h.Key + "=" + null(h.Value))
			}
		case `\n`:
			b.WriteByte('\n')
		case `\t`:
			b.WriteByte('\t')
		case `\\`, `%%`:
			b.WriteByte(c)
		default:
			b.WriteByte(c)
			b.WriteByte(format[i])
		}
	}
	return b.String()
}
