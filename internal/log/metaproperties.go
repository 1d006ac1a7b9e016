package log

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"

	"gregor/internal/uuid"
	"gregor/internal/vfs"
)

// MetaPropertiesFile is the name of the file that says which node and cluster a log dir belongs to.
const MetaPropertiesFile = "meta.properties"

// MetaProperties is what a meta.properties file says.
type MetaProperties struct {
	// Version is 1; 0 is the older form that calls the node id broker.id.
	Version int
	// ClusterID is "" when the file has none.
	ClusterID string
	// NodeID is -1 when the file has none.
	NodeID int32
	// DirectoryID is Zero when the file has none.
	DirectoryID uuid.UUID
}

// DecodeMetaProperties reads the contents of a meta.properties file: Java properties. Keys that it doesn't know are ignored.
func DecodeMetaProperties(data []byte) (MetaProperties, error) {
	p, err := decodeProperties(data)
	if err != nil {
		return MetaProperties{}, err
	}
	m := MetaProperties{NodeID: -1, ClusterID: p["cluster.id"]}
	if v, ok := p["version"]; ok {
		if m.Version, err = strconv.Atoi(v); err != nil || m.Version < 0 || m.Version > 1 {
			return m, fmt.Errorf("version %.20q, want 0 or 1", v)
		}
	}
	key := "node.id"
	if m.Version == 0 {
		key = "broker.id"
	}
	if v, ok := p[key]; ok {
		n, err := strconv.ParseInt(v, 10, 32)
		if err != nil || n < 0 {
			return m, fmt.Errorf("%s %.20q is no node id", key, v)
		}
		m.NodeID = int32(n)
	}
	if m.Version == 1 && m.NodeID < 0 {
		return m, fmt.Errorf("node.id is missing")
	}
	if m.Version == 1 && m.ClusterID == "" {
		return m, fmt.Errorf("cluster.id is missing")
	}
	if v, ok := p["directory.id"]; ok {
		if m.DirectoryID, err = uuid.Parse(v); err != nil {
			return m, fmt.Errorf("directory.id: %w", err)
		}
		if m.DirectoryID.Reserved() {
			return m, fmt.Errorf("directory.id %s is reserved", m.DirectoryID)
		}
	}
	return m, nil
}

// Encode is the file as Java's Properties writes it: an empty comment, the date, the keys.
func (m MetaProperties) Encode(now time.Time) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "#\n#%s\n", now.UTC().Format("Mon Jan 02 15:04:05 MST 2006"))
	key := "node.id"
	if m.Version == 0 {
		key = "broker.id"
	}
	if m.NodeID >= 0 {
		fmt.Fprintf(&b, "%s=%d\n", key, m.NodeID)
	}
	if m.DirectoryID != uuid.Zero {
		fmt.Fprintf(&b, "directory.id=%s\n", m.DirectoryID)
	}
	fmt.Fprintf(&b, "version=%d\n", m.Version)
	if m.ClusterID != "" {
		fmt.Fprintf(&b, "cluster.id=%s\n", escapeProperty(m.ClusterID))
	}
	return b.Bytes()
}

// ReadMetaProperties reads dir's meta.properties. A missing file is fs.ErrNotExist.
func ReadMetaProperties(fsys vfs.FS, dir string) (MetaProperties, error) {
	name := dir + "/" + MetaPropertiesFile
	data, err := readFile(fsys, name)
	if err != nil {
		return MetaProperties{}, err
	}
	m, err := DecodeMetaProperties(data)
	if err != nil {
		return m, fmt.Errorf("%s: %w", name, err)
	}
	return m, nil
}

// WriteMetaProperties writes dir's meta.properties, durably.
func WriteMetaProperties(fsys vfs.FS, dir string, m MetaProperties, now time.Time) error {
	return replaceFile(fsys, dir+"/"+MetaPropertiesFile, m.Encode(now), syncAll)
}

// Java reads the file as ISO 8859-1 and \u escapes as UTF-16; ids and numbers are ASCII anyway, so bytes are taken as they are.

// decodeProperties reads the subset of Java's properties format that can occur: comments, key and value separated by = or : or
// blanks, backslash escapes, continued lines.
func decodeProperties(data []byte) (map[string]string, error) {
	out := make(map[string]string)
	lines := strings.FieldsFunc(string(data), func(r rune) bool { return r == '\n' || r == '\r' })
	for i := 0; i < len(lines); i++ {
		line := strings.TrimLeft(lines[i], " \t\f")
		if line == "" || line[0] == '#' || line[0] == '!' {
			continue
		}
		for oddBackslashes(line) {
			line = line[:len(line)-1]
			if i++; i < len(lines) {
				line += strings.TrimLeft(lines[i], " \t\f")
			}
		}
		key, rest, err := propertyToken(line, true)
		if err != nil {
			return nil, err
		}
		rest = strings.TrimLeft(rest, " \t\f")
		if rest != "" && (rest[0] == '=' || rest[0] == ':') {
			rest = strings.TrimLeft(rest[1:], " \t\f")
		}
		value, _, err := propertyToken(rest, false)
		if err != nil {
			return nil, err
		}
		out[key] = value
	}
	return out, nil
}

func oddBackslashes(s string) bool {
	n := 0
	for n < len(s) && s[len(s)-1-n] == '\\' {
		n++
	}
	return n%2 == 1
}

// propertyToken takes a key, up to an unescaped separator, or a value, up to the end, off s and resolves its escapes.
func propertyToken(s string, key bool) (token, rest string, err error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		c := s[i]
		if key && strings.IndexByte("=: \t\f", c) >= 0 {
			return b.String(), s[i:], nil
		}
		if c != '\\' || i+1 == len(s) {
			b.WriteByte(c)
			continue
		}
		i++
		switch s[i] {
		case 't':
			b.WriteByte('\t')
		case 'n':
			b.WriteByte('\n')
		case 'r':
			b.WriteByte('\r')
		case 'f':
			b.WriteByte('\f')
		case 'u':
			if i+4 >= len(s) {
				return "", "", fmt.Errorf("malformed \\u escape in %.60q", s)
			}
			n, err := strconv.ParseUint(s[i+1:i+5], 16, 16)
			if err != nil {
				return "", "", fmt.Errorf("malformed \\u escape in %.60q", s)
			}
			b.WriteRune(rune(n))
			i += 4
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String(), "", nil
}

// escapeProperty escapes a value as Java does, as far as can be needed.
func escapeProperty(s string) string {
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == ' ' && i == 0, strings.ContainsRune(`\=:#!`, r):
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < ' ' || r > '~':
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
