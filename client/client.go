package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gregor/internal/record"
	"gregor/internal/uuid"
)

// UUID is a topic's, a cluster's or a log directory's id; String gives Kafka's 22 characters.
type UUID = uuid.UUID

// Options configure a Client. Only Seeds is needed.
type Options struct {
	// Seeds are the addresses ("host:port"; the port may be left out for 9092) of some brokers to begin with.
	Seeds []string
	// Controllers says that the seeds are controllers. Then only what controllers serve can be asked for (KIP-919), and each
	// request goes to the active one.
	Controllers bool
	// ClientID names the client in the brokers' logs, metrics and quotas. Default "gregor".
	ClientID string
	// Dial opens connections. Default is TCP with ConnectTimeout.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// TLS, if set, is spoken on every connection (security.protocol=SSL or SASL_SSL).
	TLS *tls.Config
	// SASL, if set, is how the client says who it is (security.protocol=SASL_SSL or SASL_PLAINTEXT, sasl.mechanism).
	SASL SASL
	// Logger gets a line for each lost connection and the like. Default: nothing is logged.
	Logger *slog.Logger
	// Timeout bounds each call that is given a context without a deadline, retries included. Default 60 s.
	Timeout time.Duration
	// RequestTimeout bounds one request on one connection; then the connection is given up. Default 30 s.
	RequestTimeout time.Duration
	// ConnectTimeout bounds dialling and negotiating versions. Default 10 s.
	ConnectTimeout time.Duration
	// RetryBackoff to RetryBackoffMax is the pause before a request is tried again, doubling, with 20 % of jitter
	// (retry.backoff.ms, retry.backoff.max.ms). Default 100 ms to 1 s.
	RetryBackoff, RetryBackoffMax time.Duration
	// ReconnectBackoff to ReconnectBackoffMax is the pause before a broker that couldn't be reached is dialled again, doubling,
	// with 20 % of jitter (reconnect.backoff.ms, reconnect.backoff.max.ms). Default 50 ms to 1 s.
	ReconnectBackoff, ReconnectBackoffMax time.Duration
	// MaxResponseBytes bounds a response of a broker. What is larger ends the connection. Default 512 MiB.
	MaxResponseBytes int
	// MetadataMaxAge is how long what is known of a topic is believed without a failure. Default 5 min.
	MetadataMaxAge time.Duration
	// Hooks, if set, hear of every request.
	Hooks Hooks
	// Rand draws jitter and partitions. Default is seeded at random.
	Rand *rand.Rand
}

func (o *Options) setDefaults() {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&o.Timeout, time.Minute)
	def(&o.RequestTimeout, 30*time.Second)
	def(&o.ConnectTimeout, 10*time.Second)
	def(&o.RetryBackoff, 100*time.Millisecond)
	def(&o.RetryBackoffMax, time.Second)
	def(&o.ReconnectBackoff, 50*time.Millisecond)
	def(&o.ReconnectBackoffMax, time.Second)
	def(&o.MetadataMaxAge, 5*time.Minute)
	if o.MaxResponseBytes <= 0 {
		o.MaxResponseBytes = maxResponse
	}
	if o.ClientID == "" {
		o.ClientID = "gregor"
	}
	if o.Dial == nil {
		o.Dial = (&net.Dialer{}).DialContext
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Rand == nil {
		o.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
}

// Client talks to a cluster: it finds brokers, keeps connections, and retries what is worth retrying. It does the admin calls
// itself; Producer and Consumer stand on it. Safe for concurrent use.
type Client struct {
	o            Options
	pool         *pool
	meta         metadataCache
	decompressor *record.Decompressor
	compressor   *record.Compressor
	ratio        atomic.Uint64 // how much the last batch grew when it was decompressed: a float

	mu           sync.Mutex
	rand         *rand.Rand            // guarded by mu
	coordinators map[coordinator]int32 // guarded by mu
}

// New makes a client. It connects when it is first used, not here; it fails only for options that can't be.
func New(o Options) (*Client, error) {
	o.setDefaults()
	var seeds []string
	for _, s := range o.Seeds {
		for _, a := range strings.Split(s, ",") {
			if a = strings.TrimSpace(a); a == "" {
				continue
			}
			if _, _, err := net.SplitHostPort(a); err != nil {
				a = net.JoinHostPort(strings.Trim(a, "[]"), "9092")
			}
			seeds = append(seeds, a)
		}
	}
	if len(seeds) == 0 {
		return nil, errors.New("client needs the address of at least one broker")
	}
	o.Seeds = seeds
	c := &Client{
		o: o, rand: o.Rand, coordinators: map[coordinator]int32{},
		decompressor: record.NewDecompressor(record.DecompressorOptions{}), compressor: record.NewCompressor(),
	}
	c.meta.topics = map[string]*cachedTopic{}
	c.pool = newPool(&c.o)
	return c, nil
}

// Close closes all connections. What still waits fails with ErrClosed.
func (c *Client) Close() error {
	c.pool.close()
	return nil
}

// Ping connects to any broker and learns the cluster's brokers.
func (c *Client) Ping(ctx context.Context) error {
	_, err := c.Metadata(ctx, []string{})
	return err
}

// random draws from 0 to n-1.
func (c *Client) random(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rand.IntN(n)
}

// deadline gives ctx the client's own timeout if it has none.
func (c *Client) deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, c.o.Timeout, fmt.Errorf("no success within %v: %w", c.o.Timeout, context.DeadlineExceeded))
}

// backoff is the pause before the given retry (0 is the first).
func (c *Client) backoff(attempt int) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return backoff(c.o.RetryBackoff, c.o.RetryBackoffMax, c.rand, attempt)
}

// backoff is the pause before the given attempt: from low, doubling, to high, with jitter of a fifth either way.
func backoff(low, high time.Duration, r *rand.Rand, attempt int) time.Duration {
	d := min(low<<min(attempt, 20), high)
	return time.Duration(float64(d) * (0.8 + 0.4*r.Float64()))
}

// retry calls f until it succeeds, fails for good, or ctx ends. Between the tries it forgets what has proved wrong.
func (c *Client) retry(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, cancel := c.deadline(ctx)
	defer cancel()
	var last error
	for attempt := 0; ; attempt++ {
		err := f(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			if Retriable(err) || last == nil {
				last = err
			}
			return ctxErr(ctx, last)
		}
		if !Retriable(err) || errors.Is(err, ErrClosed) {
			return err
		}
		last = err
		if needsRefresh(err) {
			c.meta.invalidate()
		}
		c.o.Logger.Debug("retrying", "attempt", attempt+1, "err", err)
		if !sleep(ctx, c.backoff(attempt)) {
			return ctxErr(ctx, err)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
