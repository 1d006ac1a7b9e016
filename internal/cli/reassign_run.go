package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"gregor/client"
)

// The configs that slow moves down.
var (
	brokerThrottles = []string{"leader.replication.throttled.rate", "follower.replication.throttled.rate", "replica.alter.log.dirs.io.max.bytes.per.second"}
	topicThrottles  = []string{"leader.replication.throttled.replicas", "follower.replication.throttled.replicas"}
)

// reassigner carries out reassignments and tells of them in the words of Kafka's tool.
type reassigner struct {
	e           *Env
	cl          *client.Client
	controllers bool // the client talks to controllers
}

func (x *reassigner) say(format string, args ...any) { fmt.Fprintf(x.e.Stdout, format+"\n", args...) }

func (x *reassigner) execute(ctx context.Context, r *reassignment, additional, keepFactor bool, throttle, dirThrottle int64, wait time.Duration) error {
	proposed := r.assignment()
	running, err := x.cl.ListReassignments(ctx, nil)
	if err != nil {
		return err
	}
	if len(running) > 0 && !additional {
		return errors.New("cannot execute because there is an existing partition assignment.  Use --additional to override this and " +
			"create a new partition assignment in addition to the existing one. The --additional " +
			"flag can also be used to change the throttle by resubmitting the current reassignment")
	}
	cluster, err := x.cl.DescribeCluster(ctx, false)
	if err != nil {
		return err
	}
	for _, id := range proposed.brokers() {
		if !slices.ContainsFunc(cluster.Brokers, func(b client.ClusterBroker) bool { return b.ID == id }) {
			return fmt.Errorf("unknown broker id %d", id)
		}
	}
	current, err := x.currentOf(ctx, proposed)
	if err != nil {
		return err
	}
	x.say("Current partition replica assignment\n\n%s\n\nSave this to use as the --reassignment-json-file option during rollback", assignmentJSON(current, directoriesOf(ctx, x.cl, current)))
	if err := x.throttle(ctx, r, movesOf(running, proposed, current), throttle, dirThrottle); err != nil {
		return err
	}
	if keepFactor {
		// The cluster may be too old to watch over it.
		for tp, replicas := range proposed {
			if len(replicas) != len(current[tp]) {
				return fmt.Errorf("%v has %d replicas and would have %d, which --disallow-replication-factor-change forbids", tp, len(current[tp]), len(replicas))
			}
		}
	}
	if err := x.alter(ctx, proposed, keepFactor, "Error reassigning partition(s):\n%s"); err != nil {
		return err
	}
	x.say("Successfully started partition reassignment%s for %s", plural(len(proposed)), joined(sortedPartitions(proposed), ","))
	return x.moveDirs(ctx, r.dirs, wait)
}

func plural(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}

// currentOf is who has the partitions that others are to have.
func (x *reassigner) currentOf(ctx context.Context, proposed assignment) (assignment, error) {
	all, err := assignmentOf(ctx, x.cl, proposed.topics())
	if err != nil {
		return nil, err
	}
	out := assignment{}
	var missing []client.TopicPartition
	for _, tp := range sortedPartitions(proposed) {
		replicas, ok := all[tp]
		if !ok {
			missing = append(missing, tp)
		}
		out[tp] = replicas
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("unable to find partition: %s", joined(missing, ", "))
	}
	return out, nil
}

// directoriesOf are the directories that replicas are in, of those on brokers that can say so.
func directoriesOf(ctx context.Context, cl *client.Client, a assignment) map[client.Replica]string {
	out := map[client.Replica]string{}
	for _, id := range a.brokers() {
		ctx, cancel := context.WithTimeoutCause(ctx, askTimeout, errors.New("no answer"))
		dirs, err := cl.DescribeLogDirs(ctx, id)
		cancel()
		if err != nil {
			continue // it is down: where its replicas lie will be its own choice
		}
		for _, d := range dirs {
			for _, p := range d.Replicas {
				if !p.Future {
					out[client.Replica{TopicPartition: p.TopicPartition, Broker: id}] = d.Path
				}
			}
		}
	}
	return out
}

// alter begins moves, or cancels them where there are no replicas. failure is said with the errors of the partitions.
func (x *reassigner) alter(ctx context.Context, a assignment, keepFactor bool, failure string) error {
	results, err := x.cl.ReassignPartitions(ctx, a, keepFactor)
	if err != nil {
		return err
	}
	var bad []string
	for _, r := range results {
		if r.Err != nil {
			bad = append(bad, fmt.Sprintf("%v: %s", r.TopicPartition, said(r.Err)))
		}
	}
	if len(bad) > 0 {
		return fmt.Errorf(failure, strings.Join(bad, "\n"))
	}
	return nil
}

func (x *reassigner) throttle(ctx context.Context, r *reassignment, moves map[client.TopicPartition]move, between, inside int64) error {
	if between < 0 && inside < 0 {
		return nil
	}
	x.say("Warning: You must run --verify periodically, until the reassignment completes, to ensure the throttle is removed.")
	if between >= 0 {
		leaders, followers, brokers := throttles(moves)
		for _, topic := range sorted(leaders) {
			changes := []client.ConfigChange{{Name: topicThrottles[0], Value: leaders[topic]}, {Name: topicThrottles[1], Value: followers[topic]}}
			if err := x.configure(ctx, client.Resource{Type: client.TopicResource, Name: topic}, changes); err != nil {
				return err
			}
		}
		rate := strconv.FormatInt(between, 10)
		for _, id := range brokers {
			if err := x.configureBroker(ctx, id, []client.ConfigChange{{Name: brokerThrottles[0], Value: rate}, {Name: brokerThrottles[1], Value: rate}}); err != nil {
				return err
			}
		}
		x.say("The inter-broker throttle limit was set to %d B/s", between)
	}
	if inside >= 0 {
		brokers := map[int32]bool{}
		for replica := range r.dirs {
			brokers[replica.Broker] = true
		}
		for _, id := range sorted(brokers) {
			if err := x.configureBroker(ctx, id, []client.ConfigChange{{Name: brokerThrottles[2], Value: strconv.FormatInt(inside, 10)}}); err != nil {
				return err
			}
		}
		x.say("The replica-alter-dir throttle limit was set to %d B/s", inside)
	}
	return nil
}

func (x *reassigner) configure(ctx context.Context, r client.Resource, changes []client.ConfigChange) error {
	if err := x.cl.AlterConfigs(ctx, r, changes, false); err != nil {
		return fmt.Errorf("throttle of %s %s: %w", r.Type, r.Name, err)
	}
	return nil
}

func (x *reassigner) configureBroker(ctx context.Context, id int32, changes []client.ConfigChange) error {
	return x.configure(ctx, client.Resource{Type: client.BrokerResource, Name: strconv.Itoa(int(id))}, changes)
}

// clearThrottles takes all throttles off: which brokers a finished move took data from isn't known any more.
func (x *reassigner) clearThrottles(ctx context.Context, targets assignment) error {
	ids := map[int32]bool{}
	if !x.controllers {
		cluster, err := x.cl.DescribeCluster(ctx, false)
		if err != nil {
			return err
		}
		for _, b := range cluster.Brokers {
			ids[b.ID] = true
		}
		for _, id := range targets.brokers() {
			// A broker's config is changed by that broker, so one that is down keeps it.
			if !ids[id] {
				fmt.Fprintf(x.e.Stderr, "gregor: broker %d is not there; if it had a throttle, it keeps it\n", id)
			}
		}
	} else {
		for _, id := range targets.brokers() {
			ids[id] = true
		}
	}
	x.say("Clearing broker-level throttles on broker%s %s", plural(len(ids)), joined(sorted(ids), ","))
	for _, id := range sorted(ids) {
		if err := x.configureBroker(ctx, id, deletions(brokerThrottles)); err != nil {
			return err
		}
	}
	topics := targets.topics()
	x.say("Clearing topic-level throttles on topic%s %s", plural(len(topics)), strings.Join(topics, ","))
	for _, topic := range topics {
		if err := x.configure(ctx, client.Resource{Type: client.TopicResource, Name: topic}, deletions(topicThrottles)); err != nil {
			return err
		}
	}
	return nil
}

func deletions(keys []string) []client.ConfigChange {
	var out []client.ConfigChange
	for _, k := range keys {
		out = append(out, client.ConfigChange{Name: k, Op: client.DeleteConfig})
	}
	return out
}

// moveDirs asks brokers to move replicas between their directories. A replica that is only just being made on a broker can't
// be moved yet, so it is tried again for a while.
func (x *reassigner) moveDirs(ctx context.Context, dirs map[client.Replica]string, wait time.Duration) error {
	left := map[client.Replica]string{}
	for r, dir := range dirs {
		left[r] = dir
	}
	for deadline := time.Now().Add(wait); len(left) > 0; {
		results, err := x.cl.MoveReplicas(ctx, left)
		if err != nil {
			return err
		}
		for _, r := range results {
			switch {
			case r.Err == nil:
				x.say("Successfully started moving log directory to %s for replica %v with broker %d ", left[r.Replica], r.TopicPartition, r.Broker)
				delete(left, r.Replica)
			case !errors.Is(r.Err, client.ReplicaNotAvailable):
				return fmt.Errorf("failed to alter dir for %s: %w", replicaText(r.Replica), r.Err)
			}
		}
		if len(left) == 0 {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("timed out before log directory move%s could be started for: %s", plural(len(left)), replicasText(left))
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
	return nil
}

// replicaText is topic-partition-broker, as Kafka names a replica.
func replicaText(r client.Replica) string { return fmt.Sprintf("%v-%d", r.TopicPartition, r.Broker) }

func replicasText(m map[client.Replica]string) string {
	var parts []string
	for _, r := range sortedReplicas(m) {
		parts = append(parts, replicaText(r))
	}
	return strings.Join(parts, ",")
}

func sortedReplicas[V any](m map[client.Replica]V) []client.Replica {
	var out []client.Replica
	for r := range m {
		out = append(out, r)
	}
	slices.SortFunc(out, client.CompareReplicas)
	return out
}

func (x *reassigner) verify(ctx context.Context, r *reassignment, keep bool) error {
	targets := r.assignment()
	running, err := x.cl.ListReassignments(ctx, nil)
	if err != nil {
		return err
	}
	moving := map[client.TopicPartition]bool{}
	for _, m := range running {
		moving[m.TopicPartition] = true
	}
	lookUp := assignment{}
	for tp, replicas := range targets {
		if !moving[tp] {
			lookUp[tp] = replicas
		}
	}
	current := assignment{}
	for _, topic := range lookUp.topics() {
		some, err := assignmentOf(ctx, x.cl, []string{topic})
		if err != nil && !errors.Is(err, client.UnknownTopicOrPartition) {
			return err
		}
		for tp, replicas := range some {
			current[tp] = replicas
		}
	}
	x.say("Status of partition reassignment:")
	for _, tp := range sortedPartitions(targets) {
		switch {
		case moving[tp]:
			x.say("Reassignment of partition %v is still in progress.", tp)
		case slices.Equal(current[tp], targets[tp]):
			x.say("Reassignment of partition %v is completed.", tp)
		default:
			x.say("There is no active reassignment of partition %v, but replica set is %s rather than %s.", tp, joined(current[tp], ","), joined(targets[tp], ","))
		}
	}
	states, err := x.dirStates(ctx, r.dirs)
	if err != nil {
		return err
	}
	busy := len(running) > 0
	var lines []string
	for _, replica := range sortedReplicas(r.dirs) {
		st := states[replica]
		lines = append(lines, st.text(replica, r.dirs[replica]))
		busy = busy || st.future != ""
	}
	x.say("%s", strings.Join(lines, "\n"))
	if busy || keep {
		return nil
	}
	return x.clearThrottles(ctx, targets)
}

// dirState is where a replica is and where it is being moved to.
type dirState struct {
	known           bool // the broker answered
	current, future string
}

func (s dirState) text(r client.Replica, want string) string {
	switch {
	case !s.known:
		return fmt.Sprintf("Partition %v cannot be found in any live log directory on broker %d.", r.TopicPartition, r.Broker)
	case s.current == "":
		return fmt.Sprintf("Partition %v is not found in any live log dir on broker %d. There is likely an offline log directory on the broker.", r.TopicPartition, r.Broker)
	case s.future == want:
		return fmt.Sprintf("Reassignment of replica %s is still in progress.", replicaText(r))
	case s.future != "":
		return fmt.Sprintf("Partition %v on broker %d is being moved to log dir %s instead of %s.", r.TopicPartition, r.Broker, s.future, want)
	case s.current == want:
		return fmt.Sprintf("Reassignment of replica %s completed successfully.", replicaText(r))
	}
	return fmt.Sprintf("Partition %v on broker %d is not being moved from log dir %s to %s.", r.TopicPartition, r.Broker, s.current, want)
}

func (x *reassigner) dirStates(ctx context.Context, dirs map[client.Replica]string) (map[client.Replica]dirState, error) {
	out := map[client.Replica]dirState{}
	brokers := map[int32]bool{}
	for r := range dirs {
		brokers[r.Broker] = true
	}
	if len(brokers) == 0 {
		return out, nil
	}
	all, err := x.cl.DescribeLogDirs(ctx, sorted(brokers)...)
	if err != nil {
		return nil, err
	}
	for r := range dirs {
		out[r] = dirState{known: slices.ContainsFunc(all, func(d client.LogDir) bool { return d.Broker == r.Broker })}
	}
	for _, d := range all {
		for _, p := range d.Replicas {
			r := client.Replica{TopicPartition: p.TopicPartition, Broker: d.Broker}
			st, ok := out[r]
			if !ok {
				continue
			}
			if p.Future {
				st.future = d.Path
			} else {
				st.current = d.Path
			}
			out[r] = st
		}
	}
	return out, nil
}

func (x *reassigner) cancel(ctx context.Context, r *reassignment, keep bool, wait time.Duration) error {
	targets := r.assignment()
	if x.controllers && len(r.dirs) > 0 {
		return errors.New("moves between directories can't be taken back by controllers: use --bootstrap-server, or leave log_dirs out")
	}
	running, err := x.cl.ListReassignments(ctx, sortedPartitions(targets))
	if err != nil {
		return err
	}
	stop := assignment{}
	for _, m := range running {
		stop[m.TopicPartition] = nil
	}
	if len(stop) > 0 {
		if err := x.alter(ctx, stop, false, "Error cancelling partition reassignment"+plural(len(stop))+" for:\n%s"); err != nil {
			return err
		}
		x.say("Successfully cancelled partition reassignment%s for: %s", plural(len(stop)), joined(sortedPartitions(stop), ","))
	} else {
		x.say("None of the specified partition reassignments are active.")
	}
	back := map[client.Replica]string{}
	states, err := x.dirStates(ctx, r.dirs)
	if err != nil {
		return err
	}
	for replica, st := range states {
		// Moving it to where it is ends the move.
		if st.future != "" && st.current != "" {
			back[replica] = st.current
		}
	}
	if len(back) == 0 {
		x.say("None of the specified partition moves are active.")
	} else if err := x.moveDirs(ctx, back, wait); err != nil {
		return err
	}
	if keep {
		return nil
	}
	return x.clearThrottles(ctx, targets)
}
