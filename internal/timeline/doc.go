// Package timeline holds values, maps, sets and lists that can go back in time.
//
// A state machine over a log applies records before they are committed: the quorum controller does so in order that
// the next request sees the effect of the one before it. When the log is cut back (leadership was lost, an append
// failed), memory has to follow. Everything that is made on one [Registry] goes back together.
//
// # Model
//
// Snapshot N is the state after the record at offset N. [Registry.Snapshot] costs nothing but a small struct; from
// then on the first change of each element moves its old value to the newest snapshot, where
// [Registry.Revert] finds it. [Registry.DeleteUpTo] forgets what can no longer be asked for, usually because it was
// committed. While no snapshot exists nothing is remembered and a container is as cheap as the plain Go one.
//
// # Invariants
//
//   - Snapshots are held in rising offset order; an offset below the newest is refused.
//   - A snapshot holds, for each element changed between it and the next one, the value that it had at the snapshot.
//   - Reading as of offset N therefore looks through the snapshots from N upwards and takes the first value found,
//     else the current one.
//   - Iteration order depends on the history of the container alone, never on a hash seed: the same calls give the
//     same order, in production and in a simulation that is run twice. Elements that were there before a revert may
//     come in another order afterwards.
//
// # Concurrency
//
// Nothing here locks. A registry and its containers belong to one goroutine, or to one mutex.
//
// # Where it comes from
//
// The idea is that of Kafka's org.apache.kafka.timeline (KIP-500, KIP-631), which keeps tiers of hash tables. Here a
// tier is a short list of old values, indexed only when it gets long, because nearly all tiers hold a handful.
//
// Entry points: [NewRegistry], [NewValue], [NewMap], [NewSet], [NewList], [NewCounter].
package timeline
