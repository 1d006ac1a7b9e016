package group

import (
	"slices"
	"testing"

	"gregor/internal/message"
	"gregor/internal/metadata"
	"gregor/internal/uuid"
)

// TestRegexesShowWhatMayBeSeen: a regular expression must not tell a member of topics that it may not describe.
func TestRegexesShowWhatMayBeSeen(t *testing.T) {
	d := metadata.NewDelta(metadata.EmptyImage())
	for i, name := range []string{"logs", "logs-secret", "other"} {
		if err := d.Replay(&message.TopicRecord{Name: name, TopicID: uuid.UUID{15: byte(i + 3)}}); err != nil {
			t.Fatal(err)
		}
	}
	img := d.Apply(metadata.Provenance{})
	for _, c := range []struct {
		describes func(string) bool
		want      []string
	}{
		{nil, []string{"logs", "logs-secret"}},
		{func(topic string) bool { return topic != "logs-secret" }, []string{"logs"}},
		{func(string) bool { return false }, []string{}},
	} {
		if got := resolveRegexes(img, []string{"logs.*"}, c.describes, 0)["logs.*"].topics; !slices.Equal(got, c.want) {
			t.Errorf("%v, want %v", got, c.want)
		}
	}
}
