package schema

import (
	"bufio"
	"embed"
	"fmt"
	"io/fs"
	"math"
	"path"
	"strconv"
	"strings"
)

// Files holds the schema files of this directory.
//
//go:embed *.schema
var Files embed.FS

// Range is a closed range of versions. The notation "A+" ends at the largest int16.
type Range struct {
	Low, High int16
}

// None is the empty range.
var None = Range{Low: 0, High: -1}

// Empty says whether no version is in r.
func (r Range) Empty() bool { return r.High < r.Low }

// Has says whether version v is in r.
func (r Range) Has(v int16) bool { return v >= r.Low && v <= r.High }

// Covers says whether every version of o is in r.
func (r Range) Covers(o Range) bool { return o.Empty() || r.Low <= o.Low && r.High >= o.High }

// And is the versions that are in both.
func (r Range) And(o Range) Range { return Range{max(r.Low, o.Low), min(r.High, o.High)} }

// String is the notation's form of r.
func (r Range) String() string {
	switch {
	case r.Empty():
		return "none"
	case r.High == math.MaxInt16:
		return fmt.Sprintf("%d+", r.Low)
	case r.Low == r.High:
		return strconv.Itoa(int(r.Low))
	default:
		return fmt.Sprintf("%d-%d", r.Low, r.High)
	}
}

// File is one schema file.
type File struct {
	Name     string // without directory and extension
	Messages []*Message
}

// Message is one msg item with what belongs to it.
type Message struct {
	Name     string
	Kind     string // metadata, control, group-key, group-value, txn-key, ...
	Key      int16  // record type, -1 when there is none
	Versions Range
	Flexible Range
	Doc      string
	Root     *Struct
	Structs  []*Struct // in the order of the file, without Root
}

// Struct is the fields of a message or of one of its structs.
type Struct struct {
	Name     string
	Versions Range
	Doc      string
	Fields   []*Field
}

// Field is one field item.
type Field struct {
	Name      string
	Type      string // base type or struct name
	Array     bool
	Struct    *Struct // when Type names one
	Versions  Range
	Nullable  Range
	Tag       int // -1 when the field is not tagged
	Default   string
	HasDef    bool
	Ignorable bool
	SetKey    bool
	FlexNone  bool
	Doc       string
}

// Tagged says whether the field is a tagged one.
func (f *Field) Tagged() bool { return f.Tag >= 0 }

// ParseAll reads every .schema file at the top of fsys, in the order of their names.
func ParseAll(fsys fs.FS) ([]*File, error) {
	names, err := fs.Glob(fsys, "*.schema")
	if err != nil {
		return nil, fmt.Errorf("schema: list files: %w", err)
	}
	var files []*File
	seen := map[string]string{}
	for _, name := range names {
		src, err := fs.ReadFile(fsys, name)
		if err != nil {
			return nil, fmt.Errorf("schema: %w", err)
		}
		f, err := Parse(name, string(src))
		if err != nil {
			return nil, err
		}
		for _, m := range f.Messages {
			if prev, ok := seen[m.Name]; ok {
				return nil, fmt.Errorf("schema: %s: message %s is also in %s", name, m.Name, prev)
			}
			seen[m.Name] = name
		}
		files = append(files, f)
	}
	return files, nil
}

// Parse reads one schema file. Errors name the line.
func Parse(name, src string) (*File, error) {
	p := &parser{file: &File{Name: strings.TrimSuffix(path.Base(name), ".schema")}}
	sc := bufio.NewScanner(strings.NewReader(src))
	line := 0
	for sc.Scan() {
		line++
		if err := p.line(sc.Text()); err != nil {
			return nil, fmt.Errorf("schema: %s:%d: %w", name, line, err)
		}
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("schema: %s: %w", name, err)
	}
	if err := p.endMessage(); err != nil {
		return nil, fmt.Errorf("schema: %s:%d: %w", name, line, err)
	}
	return p.file, nil
}

type parser struct {
	file *File
	msg  *Message
	cur  *Struct
	doc  *string // where the next doc line goes
}

func (p *parser) line(s string) error {
	words := strings.Fields(s)
	if len(words) == 0 || strings.HasPrefix(words[0], "#") {
		return nil
	}
	switch words[0] {
	case "msg":
		if err := p.endMessage(); err != nil {
			return err
		}
		return p.message(words[1:])
	case "struct":
		return p.structure(words[1:])
	case "field":
		return p.field(words[1:])
	case "doc":
		if p.doc == nil {
			return fmt.Errorf("doc line without an item before it")
		}
		text := strings.Join(words[1:], " ")
		if *p.doc != "" {
			text = *p.doc + " " + text
		}
		*p.doc = text
		return nil
	}
	return fmt.Errorf("unknown item %q", words[0])
}

func (p *parser) message(words []string) error {
	if len(words) == 0 {
		return fmt.Errorf("msg without a name")
	}
	m := &Message{Name: words[0], Key: -1, Versions: None, Flexible: None}
	for _, w := range words[1:] {
		k, v, _ := strings.Cut(w, "=")
		var err error
		switch k {
		case "kind":
			m.Kind = v
		case "key":
			if v != "-" {
				var n int64
				n, err = strconv.ParseInt(v, 10, 16)
				m.Key = int16(n)
			}
		case "v":
			m.Versions, err = parseRange(v)
		case "flex":
			m.Flexible, err = parseRange(v)
		default:
			err = fmt.Errorf("unknown attribute")
		}
		if err != nil {
			return fmt.Errorf("msg %s: %q: %w", m.Name, w, err)
		}
	}
	if m.Kind == "" || m.Versions.Empty() || m.Versions.High == math.MaxInt16 {
		return fmt.Errorf("msg %s needs kind= and a closed v=", m.Name)
	}
	m.Root = &Struct{Name: m.Name, Versions: m.Versions}
	p.msg, p.cur, p.doc = m, m.Root, &m.Doc
	p.file.Messages = append(p.file.Messages, m)
	return nil
}

func (p *parser) structure(words []string) error {
	if p.msg == nil {
		return fmt.Errorf("struct before any msg")
	}
	if len(words) != 2 || !strings.HasPrefix(words[1], "v=") {
		return fmt.Errorf("struct wants a name and v=")
	}
	r, err := parseRange(words[1][2:])
	if err != nil {
		return fmt.Errorf("struct %s: %w", words[0], err)
	}
	for _, s := range p.msg.Structs {
		if s.Name == words[0] {
			return fmt.Errorf("struct %s is there twice in %s", s.Name, p.msg.Name)
		}
	}
	p.cur = &Struct{Name: words[0], Versions: r}
	p.msg.Structs = append(p.msg.Structs, p.cur)
	p.doc = &p.cur.Doc
	return nil
}

func (p *parser) field(words []string) error {
	if p.cur == nil {
		return fmt.Errorf("field before any msg")
	}
	if len(words) < 3 {
		return fmt.Errorf("field wants a name, a type and v=")
	}
	f := &Field{Name: words[0], Type: words[1], Tag: -1, Versions: None, Nullable: None}
	if t, ok := strings.CutPrefix(f.Type, "[]"); ok {
		f.Type, f.Array = t, true
	}
	for _, w := range words[2:] {
		k, v, _ := strings.Cut(w, "=")
		var err error
		switch k {
		case "v":
			f.Versions, err = parseRange(v)
		case "null":
			f.Nullable, err = parseRange(v)
		case "tag":
			num, vers, _ := strings.Cut(v, "/")
			var r Range
			if r, err = parseRange(vers); err == nil {
				f.Tag, err = strconv.Atoi(num)
			}
			if err == nil && r != f.Versions {
				err = fmt.Errorf("tagged in %v but present in %v", r, f.Versions)
			}
		case "def":
			f.Default, f.HasDef = v, true
		case "ign":
			f.Ignorable = true
		case "key":
			f.SetKey = true
		case "flex":
			f.FlexNone = v == "none"
		default:
			err = fmt.Errorf("unknown attribute")
		}
		if err != nil {
			return fmt.Errorf("field %s: %q: %w", f.Name, w, err)
		}
	}
	if f.Versions.Empty() {
		return fmt.Errorf("field %s has no versions", f.Name)
	}
	for _, o := range p.cur.Fields {
		if strings.EqualFold(o.Name, f.Name) {
			return fmt.Errorf("field %s is there twice", f.Name)
		}
		if f.Tagged() && o.Tag == f.Tag {
			return fmt.Errorf("fields %s and %s share tag %d", o.Name, f.Name, f.Tag)
		}
	}
	p.cur.Fields = append(p.cur.Fields, f)
	p.doc = &f.Doc
	return nil
}

var baseTypes = map[string]bool{
	"bool": true, "int8": true, "int16": true, "uint16": true, "int32": true, "uint32": true, "int64": true, "float64": true,
	"uuid": true, "string": true, "bytes": true,
}

// endMessage resolves struct names and checks what only the whole message shows.
func (p *parser) endMessage() error {
	m := p.msg
	if m == nil {
		return nil
	}
	byName := map[string]*Struct{}
	for _, s := range m.Structs {
		byName[s.Name] = s
	}
	used := map[string]bool{}
	for _, s := range append([]*Struct{m.Root}, m.Structs...) {
		for _, f := range s.Fields {
			if !baseTypes[f.Type] {
				if f.Struct = byName[f.Type]; f.Struct == nil {
					return fmt.Errorf("%s: field %s has unknown type %q", m.Name, f.Name, f.Type)
				}
				used[f.Type] = true
			}
			canBeNull := f.Array || f.Struct != nil || f.Type == "string" || f.Type == "bytes"
			if !f.Nullable.Empty() && !canBeNull {
				return fmt.Errorf("%s: field %s of type %s can't be null", m.Name, f.Name, f.Type)
			}
			if f.HasDef && f.Default == "null" && !f.Nullable.Covers(f.Versions.And(m.Versions)) {
				return fmt.Errorf("%s: field %s has null as default but may not be null in all its versions", m.Name, f.Name)
			}
			if f.Tagged() && !m.Flexible.Covers(f.Versions.And(m.Versions)) {
				return fmt.Errorf("%s: field %s is tagged in a version that is not flexible", m.Name, f.Name)
			}
		}
	}
	for _, s := range m.Structs {
		if !used[s.Name] {
			return fmt.Errorf("%s: struct %s is not used", m.Name, s.Name)
		}
	}
	return nil
}

func parseRange(s string) (Range, error) {
	if s == "none" {
		return None, nil
	}
	num := func(s string) (int16, error) {
		n, err := strconv.ParseInt(s, 10, 16)
		if err != nil || n < 0 {
			return 0, fmt.Errorf("bad version %q", s)
		}
		return int16(n), nil
	}
	if t, ok := strings.CutSuffix(s, "+"); ok {
		low, err := num(t)
		return Range{low, math.MaxInt16}, err
	}
	lo, hi, ok := strings.Cut(s, "-")
	if !ok {
		hi = lo
	}
	low, err := num(lo)
	if err != nil {
		return None, err
	}
	high, err := num(hi)
	if err != nil {
		return None, err
	}
	if high < low {
		return None, fmt.Errorf("range %q is backwards", s)
	}
	return Range{low, high}, nil
}
