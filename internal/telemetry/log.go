package telemetry

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"
)

// NewLogger writes events at or above level to w: as one JSON object a line when format is "json", else as text for people.
func NewLogger(w io.Writer, format string, level slog.Leveler) *slog.Logger {
	o := &slog.HandlerOptions{Level: level, ReplaceAttr: replace}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// replace writes times in UTC with milliseconds: enough to order events, and the same width on every line. Durations are
// written as text in JSON too, where slog would write nanoseconds.
func replace(_ []string, a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindTime:
		a.Value = slog.StringValue(a.Value.Time().UTC().Format("2006-01-02T15:04:05.000Z"))
	case slog.KindDuration:
		a.Value = slog.StringValue(a.Value.Duration().Round(time.Microsecond).String())
	}
	return a
}

// ParseLevel reads a level's name ("debug", "info", "warn", "error"), in any case.
func ParseLevel(s string) (slog.Level, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(strings.ToUpper(s))); err != nil {
		return 0, fmt.Errorf("log level %q: want debug, info, warn or error", s)
	}
	return l, nil
}
