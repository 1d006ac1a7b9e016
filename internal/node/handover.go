package node

import (
	"context"
	"errors"
	"time"

	"gregor/internal/controller"
)

const (
	// controlledShutdownTimeout bounds how long a stop waits for the controller to move leaderships away.
	controlledShutdownTimeout = 30 * time.Second
	// quorumCheckInterval is how often a stopping broker looks whether the quorum is still there, and quorumGoneAfter after how
	// many looks in a row that say no it doesn't wait any longer.
	quorumCheckInterval = 100 * time.Millisecond
	quorumGoneAfter     = 3
)

var errQuorumGone = errors.New("so many voters refuse connections that there can't be an active controller")

// handOver asks the controller to move away what this broker leads, and waits for it as long as there may be a controller: when
// a whole cluster is stopped, the last brokers have nobody to hand over to.
//
// Differs from Kafka, which waits for a controller until its shutdown has taken five minutes.
func (n *Node) handOver(ctx context.Context) error {
	bound, cancel := context.WithTimeout(ctx, controlledShutdownTimeout)
	defer cancel()
	bound, giveUp := context.WithCancelCause(bound)
	defer giveUp(nil)
	n.bg.Go(func() {
		for misses := 0; misses < quorumGoneAfter; {
			select {
			case <-bound.Done():
				return
			case <-time.After(quorumCheckInterval):
			}
			misses++
			if n.quorumMayLead(bound) {
				misses = 0
			}
		}
		giveUp(errQuorumGone)
	})
	err := n.lifecycle.ControlledShutdown(bound)
	if err != nil && errors.Is(context.Cause(bound), errQuorumGone) {
		return errQuorumGone
	}
	return err
}

// quorumMayLead says whether enough voters may be alive to have a leader. Only a refusal says that one isn't.
func (n *Node) quorumMayLead(ctx context.Context) bool {
	voters := n.raft.Voters()
	alive := 0
	for _, v := range voters {
		gone := false
		for _, e := range v.Endpoints {
			if e.Name == n.cfg.ControllerListeners[0] && v.ID != n.cfg.NodeID {
				gone = n.connect(ctx, hostPort(e.Host, e.Port)) == controller.Refusing
			}
		}
		if !gone {
			alive++
		}
	}
	return alive > len(voters)/2
}
