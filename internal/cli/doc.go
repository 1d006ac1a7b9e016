// Package cli is the command line: one file a command, all of them thin. What a command does lies in package node (server,
// storage) or in the public client.
//
// Main also answers to the names of some of Kafka's scripts, when the binary is called by one (kafka-storage.sh,
// kafka-reassign-partitions.sh): it then takes that script's flags. scripts.go has the list.
//
// Output for people goes to standard output and can be had as data with --output json where it is data; logs and errors go to
// standard error. A command that fails says what failed and what to do next, in one line, and exits with 1; wrong use exits
// with 2.
package cli
