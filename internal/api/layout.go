package api

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// kmsg reads leniently: a null is an empty array to it wherever an array may stand, and a tag is taken in versions that do not
// have it. Kafka refuses both. checkRequest closes the gap: it walks the bytes of a request along its layout before kmsg makes
// a struct of them. The layouts are data (requests.layout), because neither kmsg nor the bytes tell what may be null.

//go:embed requests.layout
var layoutText string

// kind is a type of the protocol.
type kind uint8

const (
	kindStruct kind = iota
	kindArray
	kindString
	kindBytes
	kindFixed
)

// node is a type in a layout.
type node struct {
	kind     kind
	nullable bool
	size     int     // of kindFixed
	elem     *node   // of kindArray
	fields   []field // of kindStruct, in order
	tags     []field // of kindStruct, by tag
	// others are tags that the struct has in other versions of the request.
	others []uint32
}

type field struct {
	name string
	tag  uint32
	node *node
}

// layouts holds the request layouts by key and version.
var layouts = sync.OnceValue(func() *[maxKey + 1][]*node {
	var all [maxKey + 1][]*node
	for line := range strings.Lines(layoutText) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		k, from, to, n := parseLayout(strings.TrimSpace(line))
		for len(all[k]) <= to {
			all[k] = append(all[k], nil)
		}
		for v := from; v <= to; v++ {
			all[k][v] = n
		}
	}
	for _, versions := range all {
		known := make(map[string]map[uint32]bool)
		for _, n := range versions {
			n.collectTags("", known)
		}
		for _, n := range versions {
			n.markOthers("", known)
		}
	}
	return &all
})

// layoutOf is the layout of a request that is in the table of keys.
func layoutOf(k Key, version int16) *node { return layouts()[k][version] }

var fixedSizes = map[string]int{
	"bool": 1, "i8": 1, "i16": 2, "u16": 2, "i32": 4, "u32": 4, "i64": 8, "f64": 8, "uuid": 16,
}

// parseLayout reads a line. The text is part of the program, so an error in it is a panic, which any test meets.
func parseLayout(line string) (k Key, from, to int, n *node) {
	head, rest, _ := strings.Cut(line, " ")
	versions, rest, _ := strings.Cut(rest, " ")
	lo, hi, _ := strings.Cut(versions, "-")
	key, err1 := strconv.Atoi(head)
	from, err2 := strconv.Atoi(lo)
	to, err3 := strconv.Atoi(hi)
	p := layoutParser{rest}
	n = p.node()
	if err := errors.Join(err1, err2, err3); err != nil || p.s != "" {
		panic(fmt.Sprintf("api: bad layout %q: %v", line, err))
	}
	return Key(key), from, to, n
}

type layoutParser struct{ s string }

func (p *layoutParser) accept(token string) bool {
	rest, ok := strings.CutPrefix(p.s, token)
	if ok {
		p.s = rest
	}
	return ok
}

func (p *layoutParser) until(stop string) string {
	i := strings.IndexAny(p.s, stop)
	if i < 0 {
		i = len(p.s)
	}
	word := p.s[:i]
	p.s = p.s[i:]
	return word
}

func (p *layoutParser) node() *node {
	n := &node{}
	switch {
	case p.accept("["):
		n.kind = kindArray
		n.elem = p.node()
		p.accept("]")
	case p.accept("{"):
		n.kind = kindStruct
		tagged := false
		for !p.accept("}") {
			p.accept(" ")
			if p.accept("| ") {
				tagged = true
			}
			if p.accept("}") {
				break
			}
			var f field
			if tagged {
				tag, err := strconv.Atoi(p.until("="))
				if err != nil {
					panic(fmt.Sprintf("api: bad tag before %q", p.s))
				}
				p.accept("=")
				f.tag = uint32(tag)
			}
			f.name = p.until(":")
			if !p.accept(":") {
				panic("api: layout ends within a struct")
			}
			f.node = p.node()
			if tagged {
				n.tags = append(n.tags, f)
			} else {
				n.fields = append(n.fields, f)
			}
		}
	default:
		word := p.until(" ?]}")
		switch word {
		case "str":
			n.kind = kindString
		case "bytes", "records":
			n.kind = kindBytes
		default:
			size, ok := fixedSizes[word]
			if !ok {
				panic(fmt.Sprintf("api: unknown type %q in a layout", word))
			}
			n.kind, n.size = kindFixed, size
		}
	}
	n.nullable = p.accept("?")
	return n
}

func (n *node) collectTags(path string, known map[string]map[uint32]bool) {
	if n == nil {
		return
	}
	n.elem.collectTags(path, known)
	for _, f := range n.fields {
		f.node.collectTags(path+"."+f.name, known)
	}
	for _, f := range n.tags {
		if known[path] == nil {
			known[path] = make(map[uint32]bool)
		}
		known[path][f.tag] = true
		f.node.collectTags(path+"."+f.name, known)
	}
}

func (n *node) markOthers(path string, known map[string]map[uint32]bool) {
	if n == nil {
		return
	}
	n.elem.markOthers(path, known)
	for _, f := range n.fields {
		f.node.markOthers(path+"."+f.name, known)
	}
	own := make(map[uint32]bool)
	for _, f := range n.tags {
		own[f.tag] = true
		f.node.markOthers(path+"."+f.name, known)
	}
	if n.kind != kindStruct || n.others != nil {
		return
	}
	n.others = []uint32{}
	for tag := range known[path] {
		if !own[tag] {
			n.others = append(n.others, tag)
		}
	}
}

var (
	errNull = errors.New("null in a field that is not nullable")
	errTag  = errors.New("tag is not valid for this version")
)

// checkRequest says whether body begins with a request that Kafka would accept. It allocates nothing unless it refuses.
func checkRequest(k Key, version int16, body []byte) error {
	w := walker{rest: body, flexible: Flexible(k, version)}
	return w.walk(layoutOf(k, version), false)
}

// walker steps over the bytes of a message.
type walker struct {
	rest     []byte
	flexible bool
	// What was stepped over: elements of lists, and the memory for strings and tags.
	elements, text int64
}

func (w *walker) skip(n int) error {
	if n > len(w.rest) {
		return fmt.Errorf("%d bytes wanted, %d left: %w", n, len(w.rest), ErrShort)
	}
	w.rest = w.rest[n:]
	return nil
}

func (w *walker) uvarint() (uint32, error) {
	v, n := uvarint(w.rest)
	if n == 0 {
		return 0, fmt.Errorf("varint: %w", ErrShort)
	}
	w.rest = w.rest[n:]
	return v, nil
}

// length reads the length of a string (wide false), or of bytes or an array. Below zero is null.
func (w *walker) length(wide bool) (int, error) {
	if w.flexible {
		v, err := w.uvarint()
		return int(int32(v - 1)), err
	}
	if wide {
		if len(w.rest) < 4 {
			return 0, fmt.Errorf("length: %w", ErrShort)
		}
		n := int(int32(binary.BigEndian.Uint32(w.rest)))
		w.rest = w.rest[4:]
		return n, nil
	}
	if len(w.rest) < 2 {
		return 0, fmt.Errorf("length: %w", ErrShort)
	}
	n := int(int16(binary.BigEndian.Uint16(w.rest)))
	w.rest = w.rest[2:]
	return n, nil
}

// maxString is the longest string; compact lengths could say more.
const maxString = 1<<15 - 1

// walk steps over one value. tagged says that it is the whole of a tagged field.
func (w *walker) walk(n *node, tagged bool) error {
	switch n.kind {
	case kindFixed:
		return w.skip(n.size)
	case kindString, kindBytes:
		size, err := w.length(n.kind == kindBytes)
		switch {
		case err != nil:
			return err
		case size < 0 && !n.nullable:
			return errNull
		case size < 0:
			return nil
		case n.kind == kindString && size > maxString:
			return fmt.Errorf("string of %d bytes", size)
		}
		w.text += int64(size) + stringCost
		return w.skip(size)
	case kindArray:
		return w.array(n)
	}
	if n.nullable {
		if len(w.rest) == 0 {
			return fmt.Errorf("struct: %w", ErrShort)
		}
		present := int8(w.rest[0])
		w.rest = w.rest[1:]
		if present < 0 || tagged && present == 0 {
			return nil
		}
	}
	for i := range n.fields {
		if err := w.walk(n.fields[i].node, false); err != nil {
			return wrapField(n.fields[i].name, err)
		}
	}
	if w.flexible {
		return w.tags(n)
	}
	return nil
}

func (w *walker) array(n *node) error {
	count, err := w.length(true)
	switch {
	case err != nil:
		return err
	case count < 0 && !n.nullable:
		return errNull
	case count < 0:
		return nil
	case count > len(w.rest):
		// An element has at least a byte. Without this a count of two thousand million would keep us busy until the bytes end.
		return fmt.Errorf("array of %d elements in %d bytes: %w", count, len(w.rest), ErrShort)
	}
	w.elements += int64(count)
	if n.elem.kind == kindFixed {
		return w.skip(count * n.elem.size)
	}
	for range count {
		if err := w.walk(n.elem, false); err != nil {
			return err
		}
	}
	return nil
}

// tags steps over the tagged fields of a struct. Unknown tags, and known ones in whatever order and however often, are fine.
//
// Differs from Kafka: Kafka reads a known field without looking at the size that is given with its tag, and goes on behind the
// field. We refuse a size that isn't that of the field: no client sends such, and the two readings of the rest would part.
func (w *walker) tags(n *node) error {
	count, err := w.uvarint()
	if err != nil {
		return err
	}
	for range count {
		tag, err := w.uvarint()
		if err != nil {
			return err
		}
		size, err := w.uvarint()
		if err != nil {
			return err
		}
		if int64(size) > int64(len(w.rest)) {
			return fmt.Errorf("tag %d of %d bytes, %d left: %w", tag, size, len(w.rest), ErrShort)
		}
		w.text += tagCost
		after := w.rest[size:]
		for i := range n.tags {
			if f := &n.tags[i]; f.tag == tag {
				w.rest = w.rest[:size]
				if err := w.walk(f.node, true); err != nil {
					return wrapField(f.name, err)
				}
				if len(w.rest) > 0 {
					return wrapField(f.name, fmt.Errorf("%d bytes left over in tag %d", len(w.rest), tag))
				}
			}
		}
		for _, other := range n.others {
			if other == tag {
				return fmt.Errorf("tag %d: %w", tag, errTag)
			}
		}
		w.rest = after
	}
	return nil
}

// fieldError says in which field a message went wrong.
type fieldError struct {
	path string
	err  error
}

func (e *fieldError) Error() string { return e.path + ": " + e.err.Error() }
func (e *fieldError) Unwrap() error { return e.err }

func wrapField(name string, err error) error {
	if f, ok := err.(*fieldError); ok {
		f.path = name + "." + f.path
		return f
	}
	return &fieldError{name, err}
}
