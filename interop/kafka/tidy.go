package kafka

import (
	"regexp"
	"slices"
	"strings"
)

var (
	tidyID        = regexp.MustCompile(`\b[A-Za-z0-9_-]{22}\b`)
	tidyUUID      = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|id-\d+`)
	tidyConsole   = regexp.MustCompile(`console-consumer-\d+`)
	tidyTimestamp = regexp.MustCompile(`\b1[78]\d{11}\b`)
	tidyNumber    = regexp.MustCompile(`\d+`)
	tidyRate      = regexp.MustCompile(`\d+\.\d+`)
	tidyStack     = regexp.MustCompile(`(?m)^\s+at .*\n|^\s+\.\.\. \d+ more\n`)
	tidySpaces    = regexp.MustCompile(` +`)
	tidyRule      = regexp.MustCompile(`--+`)
)

// Tidy replaces in what one of Tools printed what differs between two clusters: ids, times, rates, the width of columns, with
// numbers all numbers. With sorted the lines may come in any order.
func Tidy(text string, sorted, numbers bool) string {
	text = tidyStack.ReplaceAllString(text, "")
	text = tidyUUID.ReplaceAllString(text, "UUID")
	text = tidyConsole.ReplaceAllString(text, "console-consumer-N")
	text = tidyID.ReplaceAllStringFunc(text, func(word string) string {
		if strings.HasSuffix(word, "Exception") {
			return word
		}
		return "ID"
	})
	text = tidyTimestamp.ReplaceAllString(text, "TIME")
	text = tidyRate.ReplaceAllString(text, "RATE")
	if numbers {
		text = tidyNumber.ReplaceAllString(text, "N")
	}
	var lines []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(tidySpaces.ReplaceAllString(tidyRule.ReplaceAllString(line, "--"), " "))
		if strings.HasPrefix(line, "gregor.") {
			continue // a setting that Kafka does not have
		}
		lines = append(lines, line)
	}
	if sorted {
		slices.Sort(lines)
	}
	return strings.Join(lines, "\n")
}
