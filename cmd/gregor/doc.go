// Command gregor is a node of a Kafka cluster, and the tools for it.
//
//	gregor server [server.properties]   run a node; without a file one for trying things out, its data in ./data
//	gregor topic create orders          and so on: topics, groups, records, settings, log files
//	gregor help                         all commands
//
// Called by the name of one of Kafka's scripts it takes that script's flags. All of this lies in internal/cli; here is the
// way in and nothing else.
package main
