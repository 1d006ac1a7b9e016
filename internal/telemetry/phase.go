package telemetry

import (
	"fmt"
	"sync"
	"time"
)

// Phase is a stage in the life of a node, in the order in which it goes through them.
type Phase int

// The phases of a node.
const (
	// Starting: configuration and directories are being read.
	Starting Phase = iota
	// Recovery: logs are being loaded, and checked where the last stop was not clean.
	Recovery
	// Quorum: the node looks for the leader of the metadata quorum and catches up with it.
	Quorum
	// Registration: the broker has told the controller of itself and waits to be let in.
	Registration
	// Running: the node serves.
	Running
	// Stopping: the node hands over what it leads and answers what is in flight.
	Stopping
	// Stopped: nothing is left.
	Stopped
)

var phaseNames = [...]string{"starting", "recovery", "quorum", "registration", "running", "stopping", "stopped"}

// String is the phase's name in lower case.
func (p Phase) String() string { return phaseNames[p] }

// Progress is how far a phase is.
type Progress struct {
	Phase Phase
	// Done and Total count what the phase works through; Total is 0 where it can't be counted.
	Done, Total int64
	// Unit names what is counted: "logs", "bytes".
	Unit string
	// Since is when the phase began.
	Since time.Time
}

// String is one line for people: "recovery: 17 of 2000 logs".
func (p Progress) String() string {
	if p.Total <= 0 {
		return p.Phase.String()
	}
	return fmt.Sprintf("%s: %d of %d %s", p.Phase, p.Done, p.Total, p.Unit)
}

// Phases tracks the phase of a node. The zero value is at Starting.
type Phases struct {
	mu      sync.Mutex // guards all below
	now     Progress
	lengths [Stopped + 1]time.Duration
}

// Enter begins a phase at time now and returns how long the one before it took.
func (p *Phases) Enter(phase Phase, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	var took time.Duration
	if !p.now.Since.IsZero() {
		took = now.Sub(p.now.Since)
		p.lengths[p.now.Phase] += took
	}
	p.now = Progress{Phase: phase, Since: now}
	return took
}

// Progress tells how far the current phase is.
func (p *Phases) Progress(done, total int64, unit string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now.Done, p.now.Total, p.now.Unit = done, total, unit
}

// Current is the state of this moment.
func (p *Phases) Current() Progress {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

// Lengths are the times that the completed phases took, by phase.
func (p *Phases) Lengths() [Stopped + 1]time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lengths
}

// Register shows the phases as metrics.
func (p *Phases) Register(r *Registry) {
	r.OnScrape(func(e *Emitter) {
		now, lengths := p.Current(), p.Lengths()
		for ph := Starting; ph <= Stopped; ph++ {
			v := 0.0
			if ph == now.Phase {
				v = 1
			}
			e.Gauge("gregor_phase", "1 for the phase that the node is in.", v, "phase", ph.String())
			e.Gauge("gregor_phase_seconds", "Time that each completed phase took.", lengths[ph].Seconds(), "phase", ph.String())
		}
		e.Gauge("gregor_phase_progress_done", "How much of the current phase's work is done.", float64(now.Done), "unit", now.Unit)
		e.Gauge("gregor_phase_progress_total", "How much work the current phase has; 0 when it can't be counted.", float64(now.Total), "unit", now.Unit)
	})
}
