package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/magiconair/properties"
)

// Properties are the settings of a server.properties file with the places where they stand.
type Properties struct {
	// File is the name for messages; "" when the settings come from elsewhere.
	File   string
	values map[string]string
	lines  map[string]int
	from   map[string]string // where a value came from when not from the file, for example "--override"
}

// NewProperties makes properties without a file.
func NewProperties(values map[string]string) *Properties {
	return &Properties{values: maps.Clone(values), lines: map[string]int{}, from: map[string]string{}}
}

// ParseProperties reads the text of a Java properties file. Values are taken as they are: ${x} is not expanded, as in Kafka.
// When a key is there twice the last one counts.
func ParseProperties(file string, text []byte) (*Properties, error) {
	l := &properties.Loader{Encoding: properties.ISO_8859_1, DisableExpansion: true}
	if isUTF8Beyond(text) {
		// Java reads the file as ISO 8859-1, but people write UTF-8; what isn't ASCII is in comments and names for humans.
		l.Encoding = properties.UTF8
	}
	p, err := l.LoadBytes(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	out := NewProperties(p.Map())
	out.File = file
	out.lines = keyLines(string(text))
	return out, nil
}

func isUTF8Beyond(b []byte) bool {
	return slices.ContainsFunc(b, func(c byte) bool { return c >= 0x80 })
}

// Set gives a key another value, saying where from ("--override").
func (p *Properties) Set(key, value, origin string) {
	p.values[key] = value
	delete(p.lines, key)
	p.from[key] = origin
}

// Get is the text of a key.
func (p *Properties) Get(key string) (string, bool) {
	v, ok := p.values[key]
	return v, ok
}

// Map is a copy of all settings.
func (p *Properties) Map() map[string]string { return maps.Clone(p.values) }

// Where names the place of a key for messages, as "server.properties:12", or the file alone.
func (p *Properties) Where(key string) string {
	if o := p.from[key]; o != "" {
		return o
	}
	if n := p.lines[key]; n > 0 {
		return fmt.Sprintf("%s:%d", p.File, n)
	}
	return p.File
}

// keyLines finds the line on which each key begins. The properties package does not tell, so this scans the same grammar:
// comments, keys up to an unescaped separator, values continued by a backslash at the end of a line.
func keyLines(text string) map[string]int {
	lines := map[string]int{}
	continued := false
	text = strings.ReplaceAll(text, "\r\n", "\n")
	text = strings.ReplaceAll(text, "\r", "\n")
	for i, line := range strings.Split(text, "\n") {
		logical := strings.TrimLeft(line, " \t\f")
		if !continued {
			if logical == "" || logical[0] == '#' || logical[0] == '!' {
				continue
			}
			lines[lineKey(logical)] = i + 1
		}
		slashes := len(line) - len(strings.TrimRight(line, `\`))
		continued = slashes%2 == 1
	}
	return lines
}

// lineKey is the unescaped key at the head of a line.
func lineKey(line string) string {
	var b strings.Builder
	for i := 0; i < len(line); i++ {
		switch c := line[i]; c {
		case '\\':
			i++
			if i < len(line) {
				b.WriteByte(line[i])
			}
		case '=', ':', ' ', '\t', '\f':
			return b.String()
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}
