package raft

import (
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/uuid"
)

// kraftVersionFeature is the feature whose level says how voters are kept.
const kraftVersionFeature = "kraft.version"

// A change of the voters is a record. It counts from the moment that it is in a log, committed or not. That is safe as long as
// voters change one at a time and only after the previous change is committed, so that any majority before shares a voter
// with any majority after (Ongaro's thesis, 4.1); and only after the leader has committed a record of its own epoch, so that
// no change that an earlier leader left behind is still under way.

// addVoter is an AddRaftVoter request under way. The new voter is first asked for its versions.
type addVoter struct {
	ev          Requested
	voter       Voter
	ackEarly    bool // answer once the record is in the log, not when it's committed
	correlation uint64
	offset      int64 // of the record, -1 before it is written
	until       time.Time
}

// removeVoter is a RemoveRaftVoter request under way.
type removeVoter struct {
	ev     Requested
	offset int64
	until  time.Time
}

// updateVoter is an UpdateRaftVoter request under way.
type updateVoter struct {
	ev     Requested
	offset int64
	until  time.Time
}

// changePending says why no change of the voters can begin now, "" when one can.
func (c *Core) changePending() string {
	l := c.lead
	if l.add != nil || l.remove != nil || l.update != nil || l.changing {
		return "Request timed out waiting for leader to handle previous voter change request"
	}
	if c.hw < 0 {
		return "Request timed out waiting for leader to establish HWM and fence previous voter changes"
	}
	return ""
}

// uncommittedVoters says why a set in the log stands in the way of a change.
func (c *Core) uncommittedVoters() string {
	at, ok := c.view.lastVotersOffset()
	if !ok || at >= c.hw {
		where := "Optional.empty"
		if ok {
			where = fmt.Sprintf("Optional[%d]", at)
		}
		return fmt.Sprintf("Request timed out waiting for voters to commit the latest voter change at %s with HWM %d", where, c.hw)
	}
	return ""
}

func (c *Core) handleAddVoter(now time.Time, ev Requested, r *kmsg.AddRaftVoterRequest) {
	if !c.validCluster(r.ClusterID) {
		c.answerChange(ev, codeInconsistentClusterID, c.clusterMismatch(r.ClusterID))
		return
	}
	if code := c.validateLeaderRequest(c.epoch); code != 0 {
		c.answerChange(ev, code, "")
		return
	}
	key := ReplicaKey{r.VoterID, r.VoterDirectoryID}
	if key.ID < 0 || key.DirectoryID == uuid.Zero {
		c.answerChange(ev, codeInvalidRequest, "Add voter request didn't include a valid voter")
		return
	}
	v := Voter{ReplicaKey: key}
	for _, l := range r.Listeners {
		v.Endpoints = append(v.Endpoints, Endpoint{l.Name, l.Host, l.Port})
	}
	e, ok := endpoint(v.Endpoints, c.cfg.Listener)
	if !ok {
		c.answerChange(ev, codeInvalidRequest, fmt.Sprintf("Add voter request didn't include the endpoint (%v) for the default listener %s", v.Endpoints, c.cfg.Listener))
		return
	}
	if why := c.changePending(); why != "" {
		c.answerChange(ev, codeRequestTimedOut, why)
		return
	}
	if version := c.view.lastVersion(); version < 1 {
		c.answerChange(ev, codeUnsupportedVersion, fmt.Sprintf("Cluster doesn't support adding voter because the %s feature is %d", kraftVersionFeature, version))
		return
	}
	if why := c.uncommittedVoters(); why != "" {
		c.answerChange(ev, codeRequestTimedOut, why)
		return
	}
	if _, dup := c.view.lastVoters().Get(key.ID); dup {
		c.answerChange(ev, codeDuplicateVoter, fmt.Sprintf("The voter id for %s is already part of the set of voters %s.", kafkaKey(key), kafkaKeys(c.view.lastVoters())))
		return
	}
	p := c.peerFor(key.ID, e)
	if !c.trySend(now, p, func() kmsg.Request {
		q := kmsg.NewPtrApiVersionsRequest()
		q.Version = 4
		q.ClientSoftwareName, q.ClientSoftwareVersion = "gregor", "1"
		return q
	}) {
		c.answerChange(ev, codeRequestTimedOut, fmt.Sprintf("New voter %s is not ready to receive requests", kafkaKey(key)))
		return
	}
	c.lead.add = &addVoter{
		ev: ev, voter: v, ackEarly: r.Version >= 1 && !r.AckWhenCommitted,
		correlation: p.inflight, offset: -1, until: now.Add(c.cfg.RequestTimeout),
	}
}

// kafkaKey and kafkaKeys write replicas into messages for clients as Kafka does.
func kafkaKey(k ReplicaKey) string {
	dir := "<undefined>"
	if k.DirectoryID != uuid.Zero {
		dir = k.DirectoryID.String()
	}
	return fmt.Sprintf("ReplicaKey(id=%d, directoryId=%s)", k.ID, dir)
}

func kafkaKeys(s VoterSet) string {
	keys := make([]string, len(s))
	for i, v := range s {
		keys[i] = kafkaKey(v.ReplicaKey)
	}
	return "[" + strings.Join(keys, ", ") + "]"
}

func (c *Core) clusterMismatch(id *string) string {
	return fmt.Sprintf("The given id %q doesn't match the cluster id %q", *id, c.cfg.ClusterID)
}

// apiVersionsAnswered hears from the voter to be added.
func (c *Core) apiVersionsAnswered(now time.Time, p *peer, r *kmsg.ApiVersionsResponse) bool {
	if c.role != Leader || c.lead.add == nil || c.lead.add.voter.ID != p.ID || c.lead.add.correlation != p.inflight || c.lead.add.offset >= 0 {
		return true
	}
	add := c.lead.add
	if r.ErrorCode != 0 {
		c.addVoterFailed(codeRequestTimedOut, fmt.Sprintf("Aborted add voter operation for since API_VERSIONS returned an error %s", api.ErrorFor(r.ErrorCode).Name))
		return false
	}
	supported, said := VersionRange{}, "(min: 0, max: 0"
	for _, f := range r.SupportedFeatures {
		if f.Name == kraftVersionFeature {
			supported = VersionRange{f.MinVersion, f.MaxVersion}
			said = fmt.Sprintf("(min: %d, max: %d", f.MinVersion, f.MaxVersion)
		}
	}
	version := c.view.lastVersion()
	if version < supported.Min || version > supported.Max {
		c.addVoterFailed(codeInvalidRequest, fmt.Sprintf("Aborted add voter operation for %s since the %s range %s) doesn't support the finalized version %d",
			kafkaKey(add.voter.ReplicaKey), kraftVersionFeature, said, version))
		return true
	}
	o := c.lead.observers[add.voter.ReplicaKey]
	if o == nil || o.lastCaughtUp.IsZero() || o.lastFetch.IsZero() || now.Sub(o.lastFetch) >= caughtUpWindow {
		c.addVoterFailed(codeRequestTimedOut, fmt.Sprintf("Aborted add voter operation for %s since it is lagging behind", kafkaKey(add.voter.ReplicaKey)))
		return true
	}
	add.voter.KRaftVersions = supported
	voters, ok := c.view.lastVoters().With(add.voter)
	if !ok {
		c.addVoterFailed(codeDuplicateVoter, "")
		return true
	}
	c.lead.changing = true
	c.emit(AppendControl{Control: []message.Message{votersRecord(voters)}})
	return true
}

func (c *Core) addVoterFailed(code int16, why string) {
	if add := c.lead.add; add != nil {
		c.lead.add = nil
		c.answerChange(add.ev, code, why)
	}
}

func (c *Core) handleRemoveVoter(now time.Time, ev Requested, r *kmsg.RemoveRaftVoterRequest) {
	if !c.validCluster(r.ClusterID) {
		c.answerChange(ev, codeInconsistentClusterID, c.clusterMismatch(r.ClusterID))
		return
	}
	if code := c.validateLeaderRequest(c.epoch); code != 0 {
		c.answerChange(ev, code, "")
		return
	}
	key := ReplicaKey{r.VoterID, r.VoterDirectoryID}
	if key.ID < 0 || key.DirectoryID == uuid.Zero {
		c.answerChange(ev, codeInvalidRequest, "Remove voter request didn't include a valid voter")
		return
	}
	if why := c.changePending(); why != "" {
		c.answerChange(ev, codeRequestTimedOut, why)
		return
	}
	if version := c.view.lastVersion(); version < 1 {
		c.answerChange(ev, codeUnsupportedVersion, fmt.Sprintf("Cluster doesn't support removing voter because the %s feature is %d", kraftVersionFeature, version))
		return
	}
	if why := c.uncommittedVoters(); why != "" {
		c.answerChange(ev, codeRequestTimedOut, why)
		return
	}
	voters, ok := c.view.lastVoters().Without(key)
	if !ok {
		c.answerChange(ev, codeVoterNotFound, fmt.Sprintf("Cannot remove voter %s from the set of voters %s", kafkaKey(key), kafkaKeys(c.view.lastVoters())))
		return
	}
	c.lead.changing = true
	c.lead.remove = &removeVoter{ev: ev, offset: -1, until: now.Add(c.cfg.RequestTimeout)}
	c.emit(AppendControl{Control: []message.Message{votersRecord(voters)}})
}

// handleUpdateVoter takes what a voter says about its endpoints and versions. At kraft.version 0 there is no record for it; the
// leader remembers it in case of an upgrade.
func (c *Core) handleUpdateVoter(now time.Time, ev Requested, r *kmsg.UpdateRaftVoterRequest) {
	if !c.validCluster(r.ClusterID) {
		c.answerChange(ev, codeInconsistentClusterID, "")
		return
	}
	if code := c.validateLeaderRequest(r.CurrentLeaderEpoch); code != 0 {
		c.answerChange(ev, code, "")
		return
	}
	v := Voter{
		ReplicaKey:    ReplicaKey{r.VoterID, r.VoterDirectoryID},
		KRaftVersions: VersionRange{r.KRaftVersionFeature.MinSupportedVersion, r.KRaftVersionFeature.MaxSupportedVersion},
	}
	for _, l := range r.Listeners {
		v.Endpoints = append(v.Endpoints, Endpoint{l.Name, l.Host, l.Port})
	}
	_, reachable := endpoint(v.Endpoints, c.cfg.Listener)
	if v.ID < 0 || v.DirectoryID == uuid.Zero || !reachable ||
		v.KRaftVersions.Min < 0 || v.KRaftVersions.Max < v.KRaftVersions.Min {
		c.answerChange(ev, codeInvalidRequest, "")
		return
	}
	if c.changePending() != "" {
		c.answerChange(ev, codeRequestTimedOut, "")
		return
	}
	version := c.view.lastVersion()
	if version < 1 {
		if _, ok := c.view.lastVoters().Get(v.ID); !ok {
			c.answerChange(ev, codeVoterNotFound, "")
			return
		}
		c.lead.known[v.ID] = v
		c.answerChange(ev, 0, "")
		return
	}
	if c.uncommittedVoters() != "" {
		c.answerChange(ev, codeRequestTimedOut, "")
		return
	}
	if version < v.KRaftVersions.Min || version > v.KRaftVersions.Max {
		c.answerChange(ev, codeInvalidRequest, "")
		return
	}
	voters, ok := c.view.lastVoters().Updated(v)
	if !ok {
		c.answerChange(ev, codeVoterNotFound, "")
		return
	}
	c.lead.changing = true
	c.lead.update = &updateVoter{ev: ev, offset: -1, until: now.Add(c.cfg.RequestTimeout)}
	c.emit(AppendControl{Control: []message.Message{votersRecord(voters)}})
}

// upgrade raises kraft.version from 0 to 1: voters move from the configuration into the log. The leader needs to know every
// voter's directory id and versions for that; voters have told it in UpdateRaftVoter.
func (c *Core) upgrade(now time.Time, ev UpgradeAsked) {
	fail := func(e *api.Error, format string, args ...any) {
		ev.Done(-1, api.WithMessage(e, format, args...))
	}
	version := c.view.lastVersion()
	switch {
	case c.role != Leader || c.epoch != ev.Epoch:
		fail(api.ErrNotLeaderOrFollower, "Upgrade kraft version failed because the replica is not the current leader")
		return
	case ev.Version == version:
		ev.Done(-1, nil)
		return
	case ev.Version < version:
		fail(api.ErrInvalidUpdateVersion, "Invalid upgrade from kraft.version %d to lower version %d", version, ev.Version)
		return
	case ev.Version > c.cfg.KRaftVersions.Max:
		fail(api.ErrInvalidUpdateVersion, "kraft.version %d is not supported", ev.Version)
		return
	case c.hw < 0 || c.lead.changing:
		fail(api.ErrInvalidUpdateVersion, "Invalid upgrade of kraft.version to %d while a change of the voters is in progress", ev.Version)
		return
	}
	voters := make(VoterSet, 0, len(c.view.lastVoters()))
	for _, v := range c.view.lastVoters() {
		switch k, ok := c.lead.known[v.ID]; {
		case v.ID == c.cfg.NodeID:
			v = c.selfVoter()
		case ok:
			v = k
		default:
			fail(api.ErrInvalidUpdateVersion, "Cannot upgrade kraft.version to %d: voter %d has not told its directory id and supported versions to the leader yet", ev.Version, v.ID)
			return
		}
		voters = append(voters, v)
	}
	if !voters.SupportsKRaftVersion(ev.Version) {
		fail(api.ErrInvalidUpdateVersion, "Cannot upgrade kraft.version to %d: not all voters support it: %v", ev.Version, voters)
		return
	}
	if ev.ValidateOnly {
		ev.Done(-1, nil)
		return
	}
	c.lead.changing = true
	c.emit(AppendControl{Control: []message.Message{kraftVersionRecord(ev.Version), votersRecord(voters)}, Done: ev.Done})
}

// voterChangeWritten is called when new voters are in the log.
func (c *Core) voterChangeWritten() {
	at, ok := c.view.lastVotersOffset()
	if !ok {
		return
	}
	l := c.lead
	if l.add != nil && l.add.offset < 0 {
		if got, found := c.view.lastVoters().Get(l.add.voter.ID); found && got.DirectoryID == l.add.voter.DirectoryID {
			l.add.offset = at
			if l.add.ackEarly {
				c.addVoterFailed(0, "")
			}
		}
	}
	if l.remove != nil && l.remove.offset < 0 {
		l.remove.offset = at
	}
	if l.update != nil && l.update.offset < 0 {
		// A voter may go on working while its new endpoints are being committed; Kafka answers now, too.
		c.answerChange(l.update.ev, 0, "")
		l.update.offset = at
	}
	clear(l.known)
}

// voterChangeCommitted is called when the high watermark rose.
func (c *Core) voterChangeCommitted(now time.Time) {
	l := c.lead
	if l.add != nil && l.add.offset >= 0 && c.hw > l.add.offset {
		c.addVoterFailed(0, "")
	}
	if l.update != nil && l.update.offset >= 0 && c.hw > l.update.offset {
		l.update = nil
	}
	if l.remove != nil && l.remove.offset >= 0 && c.hw > l.remove.offset {
		r := l.remove
		l.remove = nil
		c.answerChange(r.ev, 0, "")
	}
	if at, ok := c.view.lastVotersOffset(); ok && c.hw > at && !c.view.lastVoters().Has(c.cfg.ReplicaKey) && !l.resign {
		c.log.Info("this leader is no voter any more, resigning", "leader_epoch", c.epoch, "voters", c.view.lastVoters().String())
		l.resign = true
	}
}

func (c *Core) expireVoterChanges(now time.Time) {
	l := c.lead
	if l.add != nil {
		if !now.Before(l.add.until) {
			c.addVoterFailed(codeRequestTimedOut, "")
		} else {
			c.wakeAt(l.add.until)
		}
	}
	if l.remove != nil {
		if !now.Before(l.remove.until) {
			r := l.remove
			l.remove = nil
			c.answerChange(r.ev, codeRequestTimedOut, "")
		} else {
			c.wakeAt(l.remove.until)
		}
	}
	if l.update != nil && l.update.offset < 0 {
		if !now.Before(l.update.until) {
			u := l.update
			l.update = nil
			c.answerChange(u.ev, codeRequestTimedOut, "")
		} else {
			c.wakeAt(l.update.until)
		}
	}
}

// failVoterChanges answers what is under way when the leader stops leading. Whether the change was made is then not known.
func (c *Core) failVoterChanges(code int16) {
	l := c.lead
	c.addVoterFailed(code, "")
	if l.remove != nil {
		c.answerChange(l.remove.ev, code, "")
	}
	if l.update != nil && l.update.offset < 0 {
		c.answerChange(l.update.ev, code, "")
	}
	l.remove, l.update = nil, nil
}

// answerChange answers AddRaftVoter, RemoveRaftVoter or UpdateRaftVoter.
func (c *Core) answerChange(ev Requested, code int16, why string) {
	var text *string
	if why != "" {
		text = &why
	} else {
		m := "NONE" // what Kafka says when all is well
		if code != 0 {
			m = api.ErrorFor(code).Message
		}
		text = &m
	}
	resp := ev.Request.ResponseKind()
	resp.SetVersion(ev.Request.GetVersion())
	switch r := resp.(type) {
	case *kmsg.AddRaftVoterResponse:
		r.ErrorCode, r.ErrorMessage = code, text
	case *kmsg.RemoveRaftVoterResponse:
		r.ErrorCode, r.ErrorMessage = code, text
	case *kmsg.UpdateRaftVoterResponse:
		r.ErrorCode = code
		r.CurrentLeader.LeaderID, r.CurrentLeader.LeaderEpoch = c.leader, c.epoch
		if e, ok := c.leaderEndpointFor(ev.Listener); ok {
			r.CurrentLeader.Host, r.CurrentLeader.Port = e.Host, int32(e.Port)
		}
	}
	c.emit(Reply{ev.ID, resp})
}

// maybeUpdateVoter tells the leader about this voter: at kraft.version 1 when the voter set has something else, at 0 once to
// each leader. It is false when there was nothing to send.
func (c *Core) maybeUpdateVoter(now time.Time) bool {
	f := &c.follow
	self := c.selfVoter()
	need := !f.toldLeader
	if c.view.lastVersion() >= 1 {
		old, ok := c.view.lastVoters().Get(self.ID)
		need = ok && !old.equal(self)
	}
	if !need {
		f.updateDeadline = now.Add(c.cfg.FetchTimeout)
		return false
	}
	p := c.leaderPeer()
	if p == nil {
		return false
	}
	if c.trySend(now, p, func() kmsg.Request {
		r := kmsg.NewPtrUpdateRaftVoterRequest()
		r.ClusterID = &c.cfg.ClusterID
		r.CurrentLeaderEpoch = c.epoch
		r.VoterID, r.VoterDirectoryID = self.ID, self.DirectoryID
		for _, e := range self.Endpoints {
			r.Listeners = append(r.Listeners, kmsg.UpdateRaftVoterRequestListener{Name: e.Name, Host: e.Host, Port: e.Port})
		}
		r.KRaftVersionFeature.MinSupportedVersion = self.KRaftVersions.Min
		r.KRaftVersionFeature.MaxSupportedVersion = self.KRaftVersions.Max
		return r
	}) {
		f.updateDeadline = now.Add(c.cfg.FetchTimeout)
	}
	return true
}

func (c *Core) updateVoterAnswered(now time.Time, p *peer, r *kmsg.UpdateRaftVoterResponse) bool {
	var endpoints []Endpoint
	if l := r.CurrentLeader; l.Host != "" && l.Port > 0 && l.Port < 1<<16 {
		endpoints = []Endpoint{{c.cfg.Listener, l.Host, uint16(l.Port)}}
	}
	if done, ok := c.common(now, r.ErrorCode, r.CurrentLeader.LeaderID, r.CurrentLeader.LeaderEpoch, endpoints); done {
		return ok
	}
	if r.ErrorCode != 0 && r.ErrorCode != codeUnsupportedVersion {
		return c.unexpected(p, "UpdateRaftVoter", r.ErrorCode)
	}
	if c.role == Follower {
		c.follow.toldLeader = true
		c.fetchSucceeded(now)
	}
	return true
}

// maybeJoin has a controller that is no voter ask to become one, if it is configured to ("controller.quorum.auto.join.enable").
// When the voter set has this node with another directory, as after a replaced disk, that entry is removed first.
func (c *Core) maybeJoin(now time.Time) bool {
	if !c.cfg.AutoJoin || !c.cfg.CanVote || c.view.lastVersion() < 1 {
		return false
	}
	p := c.leaderPeer()
	if p == nil {
		return false
	}
	old, there := c.view.lastVoters().Get(c.cfg.NodeID)
	if c.trySend(now, p, func() kmsg.Request {
		if there {
			r := kmsg.NewPtrRemoveRaftVoterRequest()
			r.ClusterID = &c.cfg.ClusterID
			r.VoterID, r.VoterDirectoryID = old.ID, old.DirectoryID
			return r
		}
		r := kmsg.NewPtrAddRaftVoterRequest()
		r.Version = 1
		r.ClusterID = &c.cfg.ClusterID
		r.TimeoutMillis = int32(c.cfg.RequestTimeout / time.Millisecond)
		r.VoterID, r.VoterDirectoryID = c.cfg.NodeID, c.cfg.ReplicaKey.DirectoryID
		for _, e := range c.cfg.Endpoints {
			r.Listeners = append(r.Listeners, kmsg.AddRaftVoterRequestListener{Name: e.Name, Host: e.Host, Port: e.Port})
		}
		// The answer must not wait for the commit: until then this node counts, and has to fetch.
		r.AckWhenCommitted = false
		return r
	}) {
		c.follow.updateDeadline = now.Add(c.cfg.FetchTimeout)
	}
	return true
}

// joinAnswered hears how an attempt to join went. Whatever came of it, the next one waits for its time.
func (c *Core) joinAnswered(now time.Time, p *peer, what string, code, harmless int16) bool {
	if c.role == Follower {
		c.follow.updateDeadline = now.Add(c.cfg.FetchTimeout)
	}
	if code == 0 || code == codeRequestTimedOut || code == harmless {
		return true
	}
	return c.unexpected(p, what, code)
}
