// Package node builds a running process out of a configuration: it is where the parts meet the machine's clock, disk, network
// and randomness, and where the order of start and stop is written down.
//
// # Start
//
//	lock the directories, read their meta.properties          phase starting
//	bind the listeners, so that a taken port fails at once
//	open the metadata log; a lone voter leads at once         phase quorum
//	controller and metadata loader follow the log
//	register the broker, catch up with the registration       phase registration
//	open the log directories, recover what needs it           phase recovery
//	replicas, coordinators and handlers get the image
//	ask to be unfenced; serve                                 phase running
//
// The log directories are opened after the metadata, as in Kafka, because it says which replicas belong here and how their
// topics are configured.
//
// # Stop
//
// In reverse: hand over leaderships (controlled shutdown), stop accepting and drain, close coordinators, replicas and logs with
// the marker of a clean stop, controller, metadata log, locks.
//
// Format makes directories ready for a first start, file for file as Kafka's storage tool does.
//
// Start and Format are safe to call for different directories at the same time; the methods of Node are safe for concurrent use.
package node
