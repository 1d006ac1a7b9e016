package api

import "strings"

// maxTopicName is the longest that the name of a topic may be: with a partition's number it has to be a file's name.
const maxTopicName = 249

// CheckTopicName refuses names that no topic can have, with INVALID_TOPIC_EXCEPTION and Kafka's words.
func CheckTopicName(name string) error {
	refuse := func(format string, args ...any) error {
		return WithMessage(ErrInvalidTopicException, "Topic name is invalid: "+format, args...)
	}
	switch {
	case name == "":
		return refuse("the empty string is not allowed")
	case name == "." || name == "..":
		return refuse("'%s' is not allowed", name)
	case len(name) > maxTopicName:
		return refuse("the length of '%s' is longer than the max allowed length %d", name, maxTopicName)
	case strings.IndexFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-')
	}) >= 0:
		return refuse("'%s' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'", name)
	}
	return nil
}
