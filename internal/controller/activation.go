package controller

import (
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/message"
	"gregor/internal/metadata"
)

// activation returns what a new active controller writes first: into an empty log what formatting left, else the end of
// a transaction that its predecessor couldn't end.
func (c *Core) activation() (Result, error) {
	empty := c.empty.Get()
	if before, ok := c.registry.Floor(c.transaction - 1); ok && c.transaction >= 0 {
		empty = c.empty.At(before)
	}
	if !empty {
		if c.transaction < 0 {
			return Result{}, nil
		}
		c.opts.Logger.Info("aborting the open metadata transaction", "offset", c.transaction)
		return Result{Records: []message.Versioned{abortTransaction()}, Atomic: true}, nil
	}
	bootstrapped, err := bootstrapLevels(c.opts.Bootstrap)
	if err != nil {
		return Result{}, err
	}
	mv := metadata.Version(bootstrapped[metadata.FeatureMetadataVersion])
	var records []message.Versioned
	if c.transaction >= 0 {
		records = append(records, abortTransaction())
	}
	if mv.Transactions() {
		begin := message.NewBeginTransactionRecord()
		name := "Bootstrap records"
		begin.Name = &name
		records = append(records, message.Versioned{Message: begin})
	}
	records = append(records, c.opts.Bootstrap...)
	if bootstrapped[metadata.FeatureELR] > 0 {
		// Which replicas are eligible hangs on this value: from now on it is one for the whole cluster.
		v := c.opts.Configs.Static(minInsyncReplicas)
		records = append(records, configRecords(resource{kindBroker, ""}, []setting{{minInsyncReplicas, &v}})...)
	}
	if mv.Transactions() {
		records = append(records, message.Versioned{Message: message.NewEndTransactionRecord()})
	}
	c.opts.Logger.Info("writing the bootstrap records into the empty metadata log", "records", len(c.opts.Bootstrap), "metadata_version", mv.String())
	return Result{Records: records, Atomic: !mv.Transactions()}, nil
}

func abortTransaction() message.Versioned {
	r := message.NewAbortTransactionRecord()
	reason := "Controller failover"
	r.Reason = &reason
	return message.Versioned{Message: r}
}

// bootstrapLevels reads the feature levels among bootstrap records.
func bootstrapLevels(records []message.Versioned) (map[string]int16, error) {
	levels := make(map[string]int16)
	for _, v := range records {
		if r, ok := v.Message.(*message.FeatureLevelRecord); ok {
			levels[r.Name] = r.FeatureLevel
		}
	}
	switch mv, ok := levels[metadata.FeatureMetadataVersion]; {
	case !ok:
		return nil, errors.New("the metadata log is empty and the bootstrap records have no metadata.version: was the directory formatted?")
	case metadata.Version(mv) < metadata.MinVersion:
		return nil, fmt.Errorf("bootstrap metadata.version %d is below %d", mv, int16(metadata.MinVersion))
	}
	return levels, nil
}

// The tasks that others hurry.
const (
	taskFence = "fence stale brokers"
	taskProbe = "look for silent brokers"
)

// makeTasks sets up what the active controller does beside answering requests.
func (c *Core) makeTasks() []*task {
	o := &c.opts
	every := func(d time.Duration) func(time.Time) time.Time {
		return func(now time.Time) time.Time { return now.Add(d) }
	}
	tasks := []*task{
		{name: taskFence, run: c.topics.fenceStale, next: func(now time.Time) time.Time {
			// Exactly when the next session would run out, but no busier than Kafka's eighth of one, lest a broker that
			// heartbeats all the time makes us look all the time.
			at, ok := c.tracker.nextExpiry()
			if !ok || at.After(now.Add(o.SessionTimeout)) {
				return now.Add(o.SessionTimeout)
			}
			return at
		}},
		{name: taskProbe, run: c.suspects.run, next: func(now time.Time) time.Time {
			return c.suspects.next(now.Add(o.SessionTimeout))
		}},
		{name: "elect uncleanly", run: c.topics.electUncleanly, next: every(o.UncleanInterval)},
		{name: "register controller", run: c.registerSelf, next: every(time.Hour)},
	}
	if o.BalanceInterval > 0 {
		tasks = append(tasks, &task{name: "balance leaders", run: c.topics.balance, next: every(o.BalanceInterval)})
	}
	if o.IdleInterval > 0 {
		tasks = append(tasks, &task{name: "no-op", run: c.noOp, next: func(now time.Time) time.Time {
			return c.lastWrite.Add(o.IdleInterval)
		}})
	}
	if o.TokenSecret != "" {
		tasks = append(tasks, &task{name: "sweep tokens", run: func() (Result, bool) { return c.tokens.sweep(c.now) }, next: every(o.TokenSweepInterval)})
	}
	for _, t := range tasks {
		t.due = t.next(c.now)
		if t.name == "register controller" {
			t.due = c.now
		}
	}
	return tasks
}

// Deadline is when Tick wants to be called next; zero for never.
func (c *Core) Deadline() time.Time {
	var first time.Time
	for _, t := range c.tasks {
		if first.IsZero() || t.due.Before(first) {
			first = t.due
		}
	}
	return first
}

// Tick does what is due.
func (c *Core) Tick(now time.Time) {
	c.now = now
	// By index, and looked up anew each time: a task that loses leadership ends them all.
	for i := 0; i < len(c.tasks); i++ {
		t := c.tasks[i]
		if t.due.After(now) {
			continue
		}
		result, more := t.run()
		if len(result.Records) > 0 {
			if _, err := c.write(result); err != nil {
				return
			}
		}
		if t.due = t.next(now); more {
			t.due = now
			i--
		}
	}
}

// hurry makes the next Tick do a task.
func (c *Core) hurry(name string) {
	for _, t := range c.tasks {
		if t.name == name {
			t.due = c.now
		}
	}
}

func (c *Core) noOp() (Result, bool) {
	if c.now.Sub(c.lastWrite) < c.opts.IdleInterval {
		return Result{}, false
	}
	return Result{Records: []message.Versioned{{Message: message.NewNoOpRecord()}}}, false
}

// registerSelf writes the registration of this node if the log has none of this life of it. Other controllers send theirs
// as a request.
func (c *Core) registerSelf() (Result, bool) {
	reg := c.opts.Registration
	if len(reg.Listeners) == 0 || !c.features.level().ControllerRegistrations() {
		return Result{}, false
	}
	if known, ok := c.cluster.controllers.Get(c.opts.NodeID); ok && known.incarnation == reg.Incarnation {
		return Result{}, false
	}
	req := kmsg.NewPtrControllerRegistrationRequest()
	req.ControllerID, req.IncarnationID, req.Listeners = c.opts.NodeID, reg.Incarnation, reg.Listeners
	for _, f := range c.opts.Features {
		x := kmsg.NewControllerRegistrationRequestFeature()
		x.Name, x.MinSupportedVersion, x.MaxSupportedVersion = f.Name, f.Min, f.Max
		req.Features = append(req.Features, x)
	}
	result, err := c.cluster.registerController(req)
	if err != nil {
		return Result{}, false
	}
	return result, false
}
