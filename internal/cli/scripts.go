package cli

import (
	"path/filepath"
	"slices"
	"strings"
)

// script says how the call of one of Kafka's scripts becomes that of a command.
type script struct {
	command []string
	// flags are those of the script that the command has under another name.
	flags map[string]string
	// actions are flags of the script that are commands here.
	actions []string
	// millis are flags whose value is a number of milliseconds there and a duration here.
	millis []string
}

// scripts maps the names of Kafka's scripts to the commands that stand for them and take their flags.
var scripts = map[string]script{
	"kafka-cluster": {
		command: []string{"cluster"},
		flags:   map[string]string{"--config": "--command-config", "-c": "--command-config", "-C": "--bootstrap-controller"},
	},
	"kafka-dump-log":        {command: []string{"dump-log"}},
	"kafka-features":        {command: []string{"feature"}},
	"kafka-leader-election": {command: []string{"leader", "elect"}, flags: map[string]string{"--admin.config": "--command-config"}},
	"kafka-metadata-quorum": {command: []string{"quorum"}},
	"kafka-metadata-shell":  {command: []string{"metadata", "shell"}},
	"kafka-reassign-partitions": {
		command: []string{"reassign"},
		actions: []string{"--generate", "--execute", "--verify", "--list", "--cancel"},
		flags:   map[string]string{"--timeout": "--move-timeout"},
		millis:  []string{"--timeout"},
	},
	"kafka-server-start": {command: []string{"server"}},
	"kafka-storage":      {command: []string{"storage"}},
}

// commandLine turns the call of one of Kafka's scripts into that of a command.
func commandLine(args []string) []string {
	name := strings.TrimSuffix(filepath.Base(args[0]), ".sh")
	s, ok := scripts[name]
	if !ok {
		return args[1:]
	}
	command := append([]string{}, s.command...)
	var rest []string
	for i := 1; i < len(args); i++ {
		flag, value, joint := strings.Cut(args[i], "=")
		if action := strings.TrimPrefix(flag, "--"); !joint && slices.Contains(s.actions, flag) {
			command = append(command, action)
			continue
		}
		if slices.Contains(s.millis, flag) {
			if !joint && i+1 < len(args) {
				i++
				value, joint = args[i], true
			}
			if joint {
				value += "ms"
			}
		}
		if to, ok := s.flags[flag]; ok {
			flag = to
		}
		if joint {
			flag += "=" + value
		}
		rest = append(rest, flag)
	}
	return append(command, rest...)
}
