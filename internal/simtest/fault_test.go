package simtest

import (
	"errors"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/metadata"
	"gregor/internal/raft"
)

// fault does one bad thing.
func (w *world) fault() {
	if w.healing {
		return
	}
	n := w.nodes[w.Rand.IntN(len(w.nodes))]
	again := func(n *node, within time.Duration) {
		lives := n.lives
		w.After(w.Between(time.Millisecond, within), func() {
			if n.lives == lives && n.proc == nil {
				n.start()
			}
		})
	}
	switch w.Rand.IntN(18) {
	case 0, 1, 2: // the leader's process dies and comes back at once
		if l := w.leader(); l != nil {
			l.n.crash("fault, leader")
			again(l.n, 40*time.Millisecond)
		}
	case 3, 4:
		n.crash("fault")
		if w.Rand.IntN(2) == 0 {
			again(n, 500*time.Millisecond)
		}
	case 5:
		n.fuse, n.fuseErr = w.Rand.IntN(30), errCrash
	case 6: // an operation fails, and the node with it
		n.fuse, n.fuseErr = w.Rand.IntN(30), syscall.EIO
	case 7, 8, 9:
		if n.proc == nil {
			n.start()
		}
	case 10:
		o := w.nodes[w.Rand.IntN(len(w.nodes))]
		w.logf("link %d to %d is cut", n.id, o.id)
		w.links.Cut(n.id, o.id)
	case 11:
		for _, o := range w.nodes {
			w.links.Cut(n.id, o.id)
			w.links.Cut(o.id, n.id)
		}
		w.logf("node %d is cut off", n.id)
	case 12:
		if l := w.leader(); l != nil { // the leader hears the others, and they don't hear it, or the other way round
			out := w.Rand.IntN(2) == 0
			for _, o := range w.nodes {
				if out {
					w.links.Cut(l.n.id, o.id)
				} else {
					w.links.Cut(o.id, l.n.id)
				}
			}
			w.logf("leader %d is cut off in one direction, outwards %v", l.n.id, out)
		}
	case 13, 14:
		w.logf("all links heal")
		w.links.Heal()
	case 15:
		if l := w.leader(); l != nil {
			l.do(func() { l.m.Resign(l.epoch()) })
		}
	case 16:
		n.stop()
	case 17:
		n.logf("disk is full")
		n.disk.SetCapacity(n.disk.Used() + int64(w.Rand.IntN(2000)))
		w.After(w.Between(time.Millisecond, 600*time.Millisecond), func() { n.disk.SetCapacity(-1) })
	}
}

// snapshot has a node write its image, and perhaps cut its log behind it.
func (w *world) snapshot() {
	procs := w.procs()
	if len(procs) == 0 {
		return
	}
	p := procs[w.Rand.IntN(len(procs))]
	p.do(func() {
		img := p.loader.Image()
		if img.Offset < 0 || !img.BatchAligned || !img.Features.MetadataVersion.Known() {
			return
		}
		err := metadata.WriteSnapshot(img, func(end int64, epoch int32, last int64) (metadata.SnapshotSink, error) {
			s, err := p.m.CreateSnapshot(raft.OffsetAndEpoch{Offset: end, Epoch: epoch}, last)
			if s == nil || err != nil {
				return nil, err
			}
			p.n.logf("makes a snapshot of everything before %d", end)
			w.stats.snapshots++
			return s, nil
		})
		p.tolerate(err)
		if w.Rand.IntN(3) > 0 && p.alive() {
			p.tolerate(p.m.Clean())
		}
	})
}

// tolerate takes an error of work beside the log: a process goes on after it, unless its disk is gone.
func (p *proc) tolerate(err error) {
	switch {
	case err == nil, errors.Is(err, syscall.EIO), errors.Is(err, syscall.ENOSPC):
	case errors.Is(err, errCrash):
		p.n.crash("power lost")
	default:
		p.w.fail("node %d: %v", p.n.id, err)
	}
}

// membership asks the leader to add or remove a voter.
func (w *world) membership() {
	l := w.leader()
	if l == nil {
		return
	}
	if l.m.Core().KRaftVersion() < 1 {
		if !w.dynamic && l.core != nil && l.core.Active() && w.Rand.IntN(2) == 0 {
			w.client.upgradeKRaft(l.n)
		}
		return
	}
	n := w.nodes[w.Rand.IntN(len(w.nodes))]
	if !n.controller {
		return
	}
	voters := l.m.Core().Voters()
	ask := func(what string, r kmsg.Request) {
		l.do(func() {
			l.m.HandleRequest(raft.RequestContext{Listener: listener}, r, func(resp kmsg.Response) {
				code := int16(-1)
				switch r := resp.(type) {
				case *kmsg.AddRaftVoterResponse:
					code = r.ErrorCode
				case *kmsg.RemoveRaftVoterResponse:
					code = r.ErrorCode
				}
				if code == 0 {
					w.stats.voterChanges++
				}
				w.logf("%s node %d: code %d", what, n.id, code)
			})
		})
	}
	if voters.Has(n.key) {
		if len(voters) < 2 {
			return
		}
		r := kmsg.NewPtrRemoveRaftVoterRequest()
		r.VoterID, r.VoterDirectoryID = n.id, n.key.DirectoryID
		ask("remove", r)
		return
	}
	r := kmsg.NewPtrAddRaftVoterRequest()
	r.Version = 1
	r.VoterID, r.VoterDirectoryID = n.id, n.key.DirectoryID
	r.AckWhenCommitted = w.Rand.IntN(2) == 0
	r.Listeners = []kmsg.AddRaftVoterRequestListener{{Name: n.ep.Name, Host: n.ep.Host, Port: n.ep.Port}}
	ask("add", r)
}
