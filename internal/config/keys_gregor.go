package config

// gregorKeys: our own keys. They are outside Kafka's name space, so that Kafka reads the same file and ignores them.
var gregorKeys = []Key{
	{"gregor.acks.flush", Boolean, "false", nil, High, ClusterWide | Honoured,
		"Whether a produce request with acks=1 or acks=all is answered only after its records are synced to disk; concurrent requests share one sync."},
	{"gregor.log.format", String, "text", in("text", "json"), Low, Honoured,
		"Form of the process's own log: lines for people, or one JSON object an event."},
	{"gregor.log.level", String, "info", inFold("debug", "info", "warn", "error"), Low, Honoured,
		"Least severe level of the process's own log that is written."},
	{"gregor.metrics.address", String, "", nonNull{}, Medium, Honoured,
		"Address (host:port) of the HTTP server with /metrics, /healthz and /readyz; empty for none."},
	{"gregor.pprof.enable", Boolean, "false", nil, Low, Honoured,
		"Whether the HTTP server of gregor.metrics.address also serves Go's profiler under /debug/pprof/."},
	{"gregor.produce.validation", String, "strict", in("strict", "header"), Medium, ClusterWide | Honoured,
		"How much of a produced batch is checked: every record in it as Kafka does (strict), or the batch's header and checksum only (header), which costs less for compressed batches."},
	{"gregor.request.memory.bytes", Long, "67108864", atLeast(1048576), Medium, Honoured,
		"Most bytes of requests that the node holds in memory at once, and as much again for what large ones become when they are decoded; connections wait for room."},
}
