package coordinator

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gregor/internal/api"
	"gregor/internal/clock"
	"gregor/internal/coordinator/memlog"
	"gregor/internal/record"
	"gregor/internal/timeline"
)

// A number under a name; deleted when nil. The core of these tests keeps a map of them.
type setting struct {
	name  string
	value *int64
}

type settingCodec struct{}

func (settingCodec) AppendKey(dst []byte, r setting) ([]byte, error) {
	if r.name == "unencodable" {
		return nil, errors.New("unencodable")
	}
	return append(dst, r.name...), nil
}

func (settingCodec) AppendValue(dst []byte, r setting) ([]byte, bool, error) {
	if r.value == nil {
		return dst, true, nil
	}
	return binary.BigEndian.AppendUint64(dst, uint64(*r.value)), false, nil
}

func (settingCodec) Decode(key, value []byte) (setting, bool, error) {
	switch {
	case string(key) == "unknown":
		return setting{}, false, nil
	case string(key) == "corrupt":
		return setting{}, false, errors.New("corrupt")
	case value == nil:
		return setting{name: string(key)}, true, nil
	}
	v := int64(binary.BigEndian.Uint64(value))
	return setting{string(key), &v}, true, nil
}

type settingsCore struct {
	env      Env[setting]
	values   *timeline.Map[string, int64]
	offsets  []int64 // of every record replayed
	pending  map[int64][]setting
	loaded   bool
	unloaded bool
	timer    Timer[setting]
}

func newSettingsCore(env Env[setting]) *settingsCore {
	return &settingsCore{env: env, values: timeline.NewMap[string, int64](env.Registry), pending: map[int64][]setting{}}
}

func (c *settingsCore) Replay(offset, producerID int64, _ int16, r setting) error {
	if r.name == "unreplayable" {
		return errors.New("unreplayable")
	}
	c.offsets = append(c.offsets, offset)
	if producerID >= 0 {
		c.pending[producerID] = append(c.pending[producerID], r)
		return nil
	}
	c.apply(r)
	return nil
}

func (c *settingsCore) apply(r setting) {
	if r.value == nil {
		c.values.Delete(r.name)
	} else {
		c.values.Set(r.name, *r.value)
	}
}

func (c *settingsCore) ReplayTransactionEnd(producerID int64, _ int16, commit bool) error {
	for _, r := range c.pending[producerID] {
		if r.name == "unendable" {
			return errors.New("unendable")
		}
		if commit {
			c.apply(r)
		}
	}
	delete(c.pending, producerID)
	return nil
}

func (c *settingsCore) Loaded(time.Time)   { c.loaded = true }
func (c *settingsCore) Unloaded(time.Time) { c.unloaded = true }

type world struct {
	*testing.T
	log  *memlog.Log
	rt   *Runtime[*settingsCore, setting]
	core atomic.Pointer[settingsCore] // the latest made
}

// inWorld runs f in a bubble, with a runtime over a log in memory that is closed afterwards.
func inWorld(t *testing.T, configure func(*Options[*settingsCore, setting]), f func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, log: &memlog.Log{}}
		o := Options[*settingsCore, setting]{
			Name: "test", Topic: "settings", Log: w.log, Codec: settingCodec{}, Clock: clock.System, Linger: -1,
			NewCore: func(env Env[setting]) *settingsCore {
				c := newSettingsCore(env)
				w.core.Store(c)
				return c
			},
		}
		if configure != nil {
			configure(&o)
		}
		w.rt = New(o)
		w.log.Committed = w.rt.HighWatermarkUpdated
		f(w)
		w.rt.Close()
	})
}

// put sets a value; the result is there when it is committed, or in the channel later.
func (w *world) put(name string, value int64) <-chan error {
	done := make(chan error, 1)
	w.rt.Write(0, func(*settingsCore, time.Time) (Result[setting], error) {
		return Result[setting]{Records: []setting{{name, &value}}}, nil
	}, func(err error) { done <- err })
	return done
}

// get reads the committed value of a name, -1 if it has none, -2 with an error.
func (w *world) get(name string) (value int64, err error) {
	done := make(chan struct{})
	w.rt.Read(0, func(c *settingsCore, committed int64) {
		v, ok := c.values.At(committed, name)
		if !ok {
			v = -1
		}
		value = v
		c.env.Later(func() { close(done) })
	}, func(e error) {
		value, err = -2, e
		close(done)
	})
	<-done
	return value, err
}

// ready is the result in the channel, a failure if there is none.
func (w *world) ready(c <-chan error) error {
	w.Helper()
	synctest.Wait()
	select {
	case err := <-c:
		return err
	default:
		w.Fatal("operation is still waiting")
		return nil
	}
}

func (w *world) waiting(c <-chan error) {
	w.Helper()
	synctest.Wait()
	select {
	case err := <-c:
		w.Fatalf("operation ended with %v", err)
	default:
	}
}

func (w *world) want(name string, want int64) {
	w.Helper()
	if got, err := w.get(name); got != want || err != nil {
		w.Fatalf("%s = %d, %v, want %d", name, got, err, want)
	}
}

func (w *world) load() {
	w.rt.Load(0, 1)
	synctest.Wait()
}

func TestUnknownPartitionIsNotCoordinated(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		if err := w.ready(w.put("a", 1)); !errors.Is(err, api.ErrNotCoordinator) {
			t.Fatalf("write: %v", err)
		}
		if _, err := w.get("a"); !errors.Is(err, api.ErrNotCoordinator) {
			t.Fatalf("read: %v", err)
		}
	})
}

func TestWriteIsAnsweredOnCommit(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.load()
		w.log.Hold = true
		a := w.put("a", 7)
		w.waiting(a)
		w.want("a", -1) // applied, but nobody may rely on it
		var nothing Result[setting]
		saw := make(chan error, 1)
		w.rt.Write(0, func(c *settingsCore, _ time.Time) (Result[setting], error) {
			if v, _ := c.values.Get("a"); v != 7 {
				t.Errorf("the next operation sees %d", v)
			}
			return nothing, nil
		}, func(err error) { saw <- err })
		w.waiting(saw)
		w.log.Commit(0, 1)
		if err := w.ready(a); err != nil {
			t.Fatal(err)
		}
		if err := w.ready(saw); err != nil {
			t.Fatal(err)
		}
		w.want("a", 7)
	})
}

func TestOperationErrorIsPassedOn(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.load()
		done := make(chan error, 1)
		w.rt.Write(0, func(*settingsCore, time.Time) (Result[setting], error) {
			return Result[setting]{}, api.ErrUnknownMemberID
		}, func(err error) { done <- err })
		if err := w.ready(done); !errors.Is(err, api.ErrUnknownMemberID) {
			t.Fatal(err)
		}
	})
}

func TestFailedAppendReverts(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.load()
		if err := w.ready(w.put("a", 1)); err != nil {
			t.Fatal(err)
		}
		w.log.Fail = func(int32, record.Batch) error { return api.ErrNotEnoughReplicas }
		var told error
		done := make(chan error, 1)
		two := int64(2)
		w.rt.Write(0, func(*settingsCore, time.Time) (Result[setting], error) {
			return Result[setting]{
				Records:   []setting{{"a", &two}, {"b", &two}},
				Committed: func(_ time.Time, err error) { told = err },
			}, nil
		}, func(err error) { done <- err })
		if err := w.ready(done); !errors.Is(err, api.ErrNotEnoughReplicas) || !errors.Is(told, api.ErrNotEnoughReplicas) {
			t.Fatalf("done %v, committed %v", err, told)
		}
		w.log.Fail = nil
		w.want("a", 1)
		w.want("b", -1)
		if err := w.ready(w.put("c", 3)); err != nil {
			t.Fatal(err)
		}
		w.want("c", 3)
	})
}

func TestBadRecordFailsItsBatchOnly(t *testing.T) {
	for _, name := range []string{"unreplayable", "unencodable"} {
		inWorld(t, nil, func(w *world) {
			w.load()
			if err := w.ready(w.put(name, 1)); err == nil {
				t.Fatalf("%s was written", name)
			}
			if err := w.ready(w.put("a", 1)); err != nil {
				t.Fatal(err)
			}
			w.want("a", 1)
		})
	}
}

func TestOperationsShareBatches(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.load()
		// While the shard is in an operation, others gather in its mailbox.
		inside, proceed := make(chan struct{}), make(chan struct{})
		first := make(chan error, 1)
		go w.rt.Write(0, func(*settingsCore, time.Time) (Result[setting], error) {
			close(inside)
			<-proceed
			one := int64(1)
			return Result[setting]{Records: []setting{{"first", &one}}}, nil
		}, func(err error) { first <- err })
		<-inside
		var all []<-chan error
		for i := range 100 {
			all = append(all, w.put(fmt.Sprint("k", i%10), int64(i)))
		}
		close(proceed)
		for _, c := range append(all, first) {
			if err := w.ready(c); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(w.log.Batches(0)); n != 2 {
			t.Fatalf("%d batches, want 2", n)
		}
		b := w.log.Batches(0)[1]
		if b.Count() != 100 || b.ProducerID() != -1 || b.BaseSequence() != 0 || b.PartitionLeaderEpoch() != 1 {
			t.Fatalf("batch has %d records, producer %d, sequence %d, epoch %d", b.Count(), b.ProducerID(), b.BaseSequence(),
				b.PartitionLeaderEpoch())
		}
		w.want("k9", 99)
	})
}

func TestLingerGathersOverTime(t *testing.T) {
	inWorld(t, func(o *Options[*settingsCore, setting]) { o.Linger = 10 * time.Millisecond }, func(w *world) {
		w.load()
		a := w.put("a", 1)
		time.Sleep(6 * time.Millisecond)
		b := w.put("b", 2)
		w.waiting(a)
		time.Sleep(6 * time.Millisecond)
		if err := errors.Join(w.ready(a), w.ready(b)); err != nil {
			t.Fatal(err)
		}
		if n := len(w.log.Batches(0)); n != 1 {
			t.Fatalf("%d batches, want 1", n)
		}
	})
}

func TestBatchesAreBounded(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.log.BatchBytes = 200
		w.load()
		many := func(n int, split bool) error {
			done := make(chan error, 1)
			w.rt.Write(0, func(*settingsCore, time.Time) (Result[setting], error) {
				var r Result[setting]
				for i := range n {
					v := int64(i)
					r.Records = append(r.Records, setting{fmt.Sprint("k", i), &v})
				}
				r.Splittable = split
				return r, nil
			}, func(err error) { done <- err })
			return w.ready(done)
		}
		if err := many(50, false); !errors.Is(err, api.ErrMessageTooLarge) {
			t.Fatalf("too large: %v", err)
		}
		w.want("k1", -1)
		if err := many(50, true); err != nil {
			t.Fatalf("split: %v", err)
		}
		w.want("k49", 49)
		for _, b := range w.log.Batches(0) {
			if len(b) > 200 {
				t.Fatalf("batch of %d bytes", len(b))
			}
		}
	})
}

func TestSlowCommitTimesOut(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.load()
		w.log.Hold = true
		a := w.put("a", 1)
		time.Sleep(4 * time.Second)
		b := w.put("b", 1)
		w.waiting(a)
		time.Sleep(1001 * time.Millisecond)
		if err := w.ready(a); !errors.Is(err, api.ErrRequestTimedOut) {
			t.Fatal(err)
		}
		w.waiting(b)
		w.log.Commit(0, 2)
		if err := w.ready(b); err != nil {
			t.Fatal(err)
		}
		w.want("a", 1) // it was written after all
	})
}

func TestUnloadFailsWhatWaits(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.load()
		core := w.core.Load()
		w.log.Hold = true
		a := w.put("a", 1)
		w.rt.Unload(0, 1) // not newer than the election
		w.waiting(a)
		w.rt.Unload(0, 2)
		if err := w.ready(a); !errors.Is(err, api.ErrNotCoordinator) {
			t.Fatal(err)
		}
		if !core.unloaded {
			t.Fatal("the core wasn't told")
		}
		if ps := w.rt.Partitions(); len(ps) != 0 {
			t.Fatalf("partitions %v", ps)
		}
		if err := w.ready(w.put("a", 1)); !errors.Is(err, api.ErrNotCoordinator) {
			t.Fatal(err)
		}
		// The next leader had not seen the record; when this node leads again it is gone.
		w.log.Truncate(0)
		w.log.Hold = false
		w.rt.Load(0, 3)
		synctest.Wait()
		w.want("a", -1)
	})
}

func TestLoadReplays(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.load()
		for i := range 20 {
			if err := w.ready(w.put(fmt.Sprint("k", i%7), int64(i))); err != nil {
				t.Fatal(err)
			}
		}
		done := make(chan error, 1)
		w.rt.Write(0, func(*settingsCore, time.Time) (Result[setting], error) {
			one := int64(1)
			return Result[setting]{Records: []setting{{name: "k0"}, {"unknown", &one}}, Applied: true}, nil
		}, func(err error) { done <- err })
		if err := w.ready(done); err != nil {
			t.Fatal(err)
		}
		w.rt.Unload(0, -1)
		w.rt.Load(0, 2)
		if _, err := w.get("k1"); err != nil && !errors.Is(err, api.ErrCoordinatorLoadInProgress) {
			t.Fatal(err)
		}
		synctest.Wait()
		w.want("k0", -1)
		w.want("k1", 15)
		core := w.core.Load()
		if !core.loaded || len(core.offsets) != 21 || core.offsets[20] != 20 {
			t.Fatalf("loaded %v, replayed %v", core.loaded, core.offsets)
		}
		if err := w.ready(w.put("k1", 100)); err != nil {
			t.Fatal(err)
		}
		w.want("k1", 100)
	})
}

// offsets.topic.compression.codec: what is written compressed is read back.
func TestCompressedBatches(t *testing.T) {
	for _, codec := range []record.Codec{record.Gzip, record.Snappy, record.LZ4, record.Zstd} {
		inWorld(t, func(o *Options[*settingsCore, setting]) { o.Compression = codec }, func(w *world) {
			w.load()
			for i := range 50 {
				if err := w.ready(w.put(fmt.Sprint("a rather long name that shrinks well ", i%3), int64(i))); err != nil {
					t.Fatal(err)
				}
			}
			if b := w.log.Batches(0)[49]; b.Codec() != codec {
				t.Fatalf("batch is %v, want %v", b.Codec(), codec)
			}
			w.rt.Unload(0, -1)
			w.rt.Load(0, 2)
			synctest.Wait()
			w.want("a rather long name that shrinks well 1", 49)
		})
	}
}

// The end of the log isn't committed yet when the shard becomes active: readers see what can't be lost.
func TestLoadBeyondHighWatermark(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.load()
		if err := w.ready(w.put("a", 1)); err != nil {
			t.Fatal(err)
		}
		w.log.Hold = true
		_, _ = w.put("a", 2), w.put("a", 3)
		w.rt.Unload(0, -1)
		w.rt.Load(0, 2)
		synctest.Wait()
		w.want("a", 1)
		saw := make(chan error, 1)
		w.rt.Write(0, func(c *settingsCore, _ time.Time) (Result[setting], error) {
			if v, _ := c.values.Get("a"); v != 3 {
				t.Errorf("latest is %d", v)
			}
			return Result[setting]{}, nil
		}, func(err error) { saw <- err })
		w.waiting(saw)
		w.log.Commit(0, 2)
		synctest.Wait()
		w.want("a", 2)
		w.waiting(saw)
		w.log.Commit(0, 3)
		synctest.Wait()
		w.want("a", 3)
		if err := w.ready(saw); err != nil {
			t.Fatal(err)
		}
	})
}

func TestFailedLoadRetriesOnElection(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.load()
		if err := w.ready(w.put("corrupt", 1)); err != nil {
			t.Fatal(err)
		}
		w.rt.Unload(0, -1)
		w.rt.Load(0, 2)
		synctest.Wait()
		if err := w.ready(w.put("a", 1)); !errors.Is(err, api.ErrNotCoordinator) {
			t.Fatal(err)
		}
		if err := w.log.Load(0, nil); err != nil {
			t.Fatal(err)
		}
		w.rt.Load(0, 2) // not a new election
		synctest.Wait()
		if err := w.ready(w.put("a", 1)); !errors.Is(err, api.ErrNotCoordinator) {
			t.Fatal(err)
		}
		w.rt.Load(0, 3)
		synctest.Wait()
		if err := w.ready(w.put("a", 1)); err != nil {
			t.Fatal(err)
		}
	})
}

// Something else has written to the log: the state machine takes that in before it goes on.
func TestOutOfStepReloads(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.load()
		if err := w.ready(w.put("a", 1)); err != nil {
			t.Fatal(err)
		}
		foreign := record.NewBuilder(record.BuilderOptions{}.NoProducer())
		foreign.Append(0, []byte("b"), binary.BigEndian.AppendUint64(nil, 5), nil)
		batch, err := foreign.Build()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.log.Append(0, 1, batch); err != nil {
			t.Fatal(err)
		}
		if err := w.ready(w.put("a", 2)); !errors.Is(err, api.ErrNotCoordinator) {
			t.Fatal(err)
		}
		synctest.Wait()
		w.want("b", 5)
		w.want("a", 2) // as in the log
		if err := w.ready(w.put("c", 3)); err != nil {
			t.Fatal(err)
		}
	})
}

func TestTransactions(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.load()
		txn := func(producer int64, name string, value int64) error {
			done := make(chan error, 1)
			w.rt.WriteTransactional(0, producer, 3, func(*settingsCore, time.Time) (Result[setting], error) {
				return Result[setting]{Records: []setting{{name, &value}}}, nil
			}, func(err error) { done <- err })
			return w.ready(done)
		}
		end := func(producer int64, commit bool) error {
			done := make(chan error, 1)
			w.rt.CompleteTransaction(0, producer, 3, 9, commit, func(err error) { done <- err })
			return w.ready(done)
		}
		if err := errors.Join(txn(1, "a", 1), txn(2, "b", 2), w.ready(w.put("c", 3))); err != nil {
			t.Fatal(err)
		}
		w.want("a", -1)
		if err := errors.Join(end(1, true), end(2, false)); err != nil {
			t.Fatal(err)
		}
		w.want("a", 1)
		w.want("b", -1)
		b := w.log.Batches(0)
		if len(b) != 5 || !b[0].IsTransactional() || b[0].ProducerID() != 1 || b[0].ProducerEpoch() != 3 || !b[3].IsControl() {
			t.Fatalf("%d batches", len(b))
		}
		w.rt.Unload(0, -1)
		w.rt.Load(0, 2)
		synctest.Wait()
		w.want("a", 1)
		w.want("b", -1)
	})
}

// A transaction that can't be ended leaves nothing of itself behind, and those after it go on.
func TestTransactionThatCannotBeEnded(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.load()
		one, done := int64(1), make(chan error, 1)
		w.rt.WriteTransactional(0, 1, 3, func(*settingsCore, time.Time) (Result[setting], error) {
			return Result[setting]{Records: []setting{{"a", &one}, {"unendable", &one}}}, nil
		}, func(err error) { done <- err })
		if err := w.ready(done); err != nil {
			t.Fatal(err)
		}
		w.rt.CompleteTransaction(0, 1, 3, 9, true, func(err error) { done <- err })
		if err := w.ready(done); err == nil || err.Error() != "unendable" {
			t.Errorf("the end: %v", err)
		}
		w.want("a", -1)
		if n := len(w.log.Batches(0)); n != 1 {
			t.Errorf("%d batches: there is a marker", n)
		}
		if err := w.ready(w.put("c", 3)); err != nil {
			t.Error(err)
		}
		w.want("c", 3)
		w.want("a", -1)
	})
}

func TestTimersFireInTime(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.load()
		core := w.core.Load()
		begin := time.Now()
		var fired atomic.Int64
		core.timer.Fire = func(now time.Time) (Result[setting], error) {
			fired.Store(int64(now.Sub(begin)))
			v := int64(now.Sub(begin) / time.Second)
			return Result[setting]{Records: []setting{{"fired", &v}}}, nil
		}
		set := func(d time.Duration) {
			w.rt.Write(0, func(c *settingsCore, now time.Time) (Result[setting], error) {
				c.env.Timers.Set(&c.timer, now.Add(d))
				return Result[setting]{}, nil
			}, func(error) {})
		}
		set(10 * time.Second)
		time.Sleep(5 * time.Second)
		set(10 * time.Second) // prolonged
		time.Sleep(9 * time.Second)
		if fired.Load() != 0 {
			t.Fatal("fired early")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := time.Duration(fired.Load()); got != 15*time.Second {
			t.Fatalf("fired after %v", got)
		}
		w.want("fired", 15)
		set(time.Hour)
		set(time.Second) // shortened
		time.Sleep(1001 * time.Millisecond)
		w.want("fired", 17)
	})
}

func TestFullMailboxRefuses(t *testing.T) {
	inWorld(t, func(o *Options[*settingsCore, setting]) { o.MailboxLimit = 3 }, func(w *world) {
		w.load()
		inside, proceed := make(chan struct{}), make(chan struct{})
		go w.rt.Write(0, func(*settingsCore, time.Time) (Result[setting], error) {
			close(inside)
			<-proceed
			return Result[setting]{}, nil
		}, func(error) {})
		<-inside
		var all []<-chan error
		for range 4 {
			all = append(all, w.put("a", 1))
		}
		if err := w.ready(all[3]); !errors.Is(err, api.ErrCoordinatorLoadInProgress) {
			t.Fatal(err)
		}
		close(proceed)
		for _, c := range all[:3] {
			if err := w.ready(c); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A continuation that blocks holds up nobody but its own caller.
func TestSlowReplyDoesNotHoldUpTheShard(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		w.load()
		release := make(chan struct{})
		go func() {
			one := int64(1)
			w.rt.Write(0, func(*settingsCore, time.Time) (Result[setting], error) {
				return Result[setting]{Records: []setting{{"slow", &one}}}, nil
			}, func(error) { <-release })
		}()
		synctest.Wait()
		if err := w.ready(w.put("a", 1)); err != nil {
			t.Fatal(err)
		}
		close(release)
	})
}

func TestConcurrentWriters(t *testing.T) {
	inWorld(t, nil, func(w *world) {
		for p := range int32(4) {
			w.rt.Load(p, 1)
		}
		synctest.Wait()
		var wg sync.WaitGroup
		var failed atomic.Int32
		const writers, each = 16, 200
		for i := range writers {
			wg.Go(func() {
				for n := range each {
					done := make(chan error, 1)
					v := int64(n)
					w.rt.Write(int32(i%4), func(*settingsCore, time.Time) (Result[setting], error) {
						return Result[setting]{Records: []setting{{fmt.Sprint("w", i), &v}}}, nil
					}, func(err error) { done <- err })
					if <-done != nil {
						failed.Add(1)
					}
				}
			})
		}
		wg.Wait()
		if failed.Load() > 0 {
			t.Fatalf("%d writes failed", failed.Load())
		}
		w.want("w0", each-1)
		var records int32
		for p := range int32(4) {
			for _, b := range w.log.Batches(p) {
				records += b.Count()
			}
		}
		if records != writers*each {
			t.Fatalf("%d records in the log", records)
		}
	})
}

func TestPartitionFor(t *testing.T) {
	f := func(key string, want uint32) {
		t.Helper()
		if got := javaHash(key); got != want {
			t.Errorf("hash of %q = %d, want %d", key, got, want)
		}
	}
	f("", 0)
	f("a", 97)
	f("console-consumer-1", 35782224)
	f("é", 233)
	f("😀", 1772899)
	// As Kafka 4.4.0 stores them; the first two have negative hashes, the third the one that cannot be negated.
	for key, want := range map[string]int32{"read-in-0": 1, "by-hand-1": 3, "polygenelubricants": 0, "read-in-3": 2, "a": 1} {
		if got := PartitionFor(key, 4); got != want {
			t.Errorf("partition of %q = %d, want %d", key, got, want)
		}
	}
}
