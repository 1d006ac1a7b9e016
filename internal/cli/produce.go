package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"gregor/client"
	"gregor/internal/record"
)

// produceOptions are the flags of produce.
type produceOptions struct {
	topic     string
	key       string
	separator string
	headers   []string
	null      string
	partition int32
	codec     string
	acks      string
	linger    time.Duration
	input     string
	file      string
	output    string
	create    bool
}

func newProduce(e *Env) *cobra.Command {
	var o produceOptions
	cmd := &cobra.Command{
		Use:   "produce TOPIC",
		Short: "Write records to a topic, one a line of standard input",
		Long: `Write records to a topic: each line of standard input, or of a file, is one record's value. Records are spread over the
partitions, or go by their key: the same key always to the same partition.

With --input json each line is an object: {"key": "k", "value": "v", "headers": [{"key": "h", "value": "x"}], "partition": 0,
"timestamp": "2026-01-02T03:04:05Z"}, all but the value optional; keyBase64 and valueBase64 are for bytes that are no text.
It is what 'gregor consume --output json' prints, so that one topic can be copied into another.`,
		Example: `  echo hello | gregor produce orders
  gregor produce orders --key-separator : <<< 'customer-7:{"total": 12}'
  gregor produce orders --file orders.ndjson --compression zstd
  gregor consume old --from earliest --until-end -o json | gregor produce new --input json`,
		Args: need(1, 1, "one topic"),
	}
	c := connectFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.topic = args[0]
		if o.input != "text" && o.input != "json" {
			return usageError(cmd, "--input is text or json, not %q", o.input)
		}
		return produce(cmd, e, c, &o)
	}
	f := cmd.Flags()
	f.StringVarP(&o.key, "key", "k", "", "key of all records")
	f.StringVarP(&o.separator, "key-separator", "s", "", "what stands between key and value in a line; without it lines have no key")
	f.StringArrayVarP(&o.headers, "header", "H", nil, "header of all records, `key=value`; may be given several times")
	f.StringVar(&o.null, "null-marker", "", "what stands for null as a key or value")
	f.Int32VarP(&o.partition, "partition", "p", -1, "partition for all records")
	f.StringVarP(&o.codec, "compression", "z", "none", "none, gzip, snappy, lz4 or zstd")
	f.StringVar(&o.acks, "acks", "all", "whose word to wait for: all (in-sync replicas), 1 (the leader) or 0 (nobody)")
	f.DurationVar(&o.linger, "linger", 5*time.Millisecond, "how long a batch waits for more records")
	f.StringVarP(&o.input, "input", "i", "text", "text: a line is a value; json: a line is an object")
	f.StringVarP(&o.file, "file", "f", "", "read this file instead of standard input")
	f.BoolVar(&o.create, "create", true, "make a missing topic, if the brokers allow that (auto.create.topics.enable)")
	outputFlag(cmd, &o.output)
	return cmd
}

func produce(cmd *cobra.Command, e *Env, c *connection, o *produceOptions) error {
	opts := client.ProducerOptions{Linger: o.linger, CreateTopics: o.create}
	var ok bool
	if opts.Codec, ok = record.CodecOf(o.codec); !ok {
		return usageError(cmd, "--compression %q is none of none, gzip, snappy, lz4, zstd", o.codec)
	}
	switch o.acks {
	case "all", "-1":
	case "1":
		opts.Acks = client.LeaderAck
	case "0":
		opts.Acks = client.NoAcks
	default:
		return usageError(cmd, "--acks %q is none of all, 1, 0", o.acks)
	}
	headers, err := parseHeaders(o.headers)
	if err != nil {
		return usageError(cmd, "%w", err)
	}
	in, size := e.Stdin, int64(0)
	if o.file != "" {
		f, err := e.FS.Open(o.file)
		if err != nil {
			return err
		}
		defer f.Close()
		if size, err = f.Size(); err != nil {
			return err
		}
		in = io.NewSectionReader(f, 0, size)
	} else if e.Terminal {
		fmt.Fprintln(e.Stderr, "Each line is a record; Ctrl-D ends.")
	}
	return c.do(cmd.Context(), e, func(ctx context.Context, cl *client.Client) error {
		p := cl.NewProducer(opts)
		n, err := produceLines(ctx, e, p, o, in, size, headers)
		// What was read is sent even if a later line is at fault.
		flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.timeout)
		defer cancel()
		err = errors.Join(err, p.Close(flush))
		if err == nil && o.output != "json" && (e.Terminal || n != 1) {
			fmt.Fprintf(e.Stderr, "%s written to %s\n", count(n, "record"), o.topic)
		}
		return err
	})
}

func parseHeaders(args []string) ([]client.Header, error) {
	var out []client.Header
	for _, a := range args {
		k, v, ok := strings.Cut(a, "=")
		if !ok {
			return nil, fmt.Errorf("--header %q is not key=value", a)
		}
		out = append(out, client.Header{Key: k, Value: []byte(v)})
	}
	return out, nil
}

// produceLines reads until the end and returns how many records were written.
func produceLines(ctx context.Context, e *Env, p *client.Producer, o *produceOptions, in io.Reader, size int64, headers []client.Header) (int, error) {
	var mu sync.Mutex
	var first error
	written := 0
	done := func(r *client.Record, err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			if first == nil {
				first = err
			}
			return
		}
		written++
		if o.output == "json" {
			json.NewEncoder(e.Stdout).Encode(struct {
				Topic     string `json:"topic"`
				Partition int32  `json:"partition"`
				Offset    int64  `json:"offset"`
			}{r.Topic, r.Partition, r.Offset})
		}
	}
	bar := &progress{w: e.Stderr, on: e.Terminal && o.file != ""}
	defer bar.clear()
	br := bufio.NewReaderSize(in, 1<<16)
	start, read := time.Now(), int64(0)
	for line := 1; ctx.Err() == nil; line++ {
		b, err := br.ReadBytes('\n')
		read += int64(len(b))
		if err != nil && err != io.EOF {
			return written, err
		}
		if len(b) == 0 {
			break
		}
		b = bytes.TrimSuffix(bytes.TrimSuffix(b, []byte("\n")), []byte("\r"))
		r, perr := o.record(b, headers)
		if perr != nil {
			return written, fmt.Errorf("line %d: %w", line, perr)
		}
		if r == nil {
			continue
		}
		if perr := p.Produce(ctx, r, done); perr != nil {
			return written, perr
		}
		mu.Lock()
		failed := first
		mu.Unlock()
		if failed != nil {
			return written, failed
		}
		if now := time.Now(); bar.on {
			bar.update(now, "%d%%, %d records, %s/s", read*100/max(size, 1), line, bytesText(float64(read)/now.Sub(start).Seconds()))
		}
		if err == io.EOF {
			break
		}
	}
	if err := p.Flush(ctx); err != nil {
		return written, err
	}
	mu.Lock()
	defer mu.Unlock()
	return written, first
}

// recordJSON is a record as consume prints and produce reads it.
type recordJSON struct {
	Topic     string       `json:"topic,omitempty"`
	Partition *int32       `json:"partition,omitempty"`
	Offset    *int64       `json:"offset,omitempty"`
	Timestamp *time.Time   `json:"timestamp,omitempty"`
	Key       *string      `json:"key"`
	KeyRaw    []byte       `json:"keyBase64,omitempty"`
	Value     *string      `json:"value"`
	ValueRaw  []byte       `json:"valueBase64,omitempty"`
	Headers   []headerJSON `json:"headers,omitempty"`
}

type headerJSON struct {
	Key      string  `json:"key"`
	Value    *string `json:"value"`
	ValueRaw []byte  `json:"valueBase64,omitempty"`
}

func bytesOf(s *string, raw []byte) []byte {
	if s != nil {
		return []byte(*s)
	}
	return raw
}

// record makes a record of a line; nil for an empty line of JSON input.
func (o *produceOptions) record(line []byte, headers []client.Header) (*client.Record, error) {
	r := &client.Record{Topic: o.topic, Partition: o.partition, Headers: headers}
	if o.input == "json" {
		if len(bytes.TrimSpace(line)) == 0 {
			return nil, nil
		}
		var j recordJSON
		if err := json.Unmarshal(line, &j); err != nil {
			return nil, err
		}
		r.Key, r.Value = bytesOf(j.Key, j.KeyRaw), bytesOf(j.Value, j.ValueRaw)
		if j.Timestamp != nil {
			r.Timestamp = *j.Timestamp
		}
		if j.Partition != nil && o.partition < 0 {
			r.Partition = *j.Partition
		}
		for _, h := range j.Headers {
			r.Headers = append(r.Headers[:len(r.Headers):len(r.Headers)], client.Header{Key: h.Key, Value: bytesOf(h.Value, h.ValueRaw)})
		}
		return r, nil
	}
	value := line
	if o.key != "" {
		r.Key = []byte(o.key)
	}
	if o.separator != "" {
		k, v, ok := bytes.Cut(line, []byte(o.separator))
		if !ok {
			return nil, fmt.Errorf("no %q between key and value", o.separator)
		}
		r.Key, value = k, v
	}
	r.Value = bytes.Clone(value)
	if r.Value == nil {
		r.Value = []byte{}
	}
	r.Key = bytes.Clone(r.Key)
	if o.null != "" {
		if string(r.Key) == o.null {
			r.Key = nil
		}
		if string(value) == o.null {
			r.Value = nil
		}
	}
	return r, nil
}
