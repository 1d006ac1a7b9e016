package api

import (
	"strings"
	"testing"
)

func TestCheckTopicName(t *testing.T) {
	for _, name := range []string{"a", "A.b_c-9", "...", strings.Repeat("x", maxTopicName)} {
		if err := CheckTopicName(name); err != nil {
			t.Errorf("%q is refused: %v", name, err)
		}
	}
	for _, name := range []string{"", ".", "..", "a b", "ä", "a/b", "a\x00", "a\xff", strings.Repeat("x", maxTopicName+1)} {
		if err := CheckTopicName(name); CodeOf(err) != ErrInvalidTopicException.Code || !strings.HasPrefix(MessageOf(err), "Topic name is invalid: ") {
			t.Errorf("%q: %v", name, err)
		}
	}
}
