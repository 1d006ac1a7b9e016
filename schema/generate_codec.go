package schema

import (
	"slices"
	"strings"
)

// fixed gives the width of the types whose size doesn't depend on their value.
var fixed = map[string]int{
	"bool": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "float64": 8, "uuid": 16,
}

// minSize is the least number of bytes that an element of f takes in any version: the bound on what a count may promise.
func (g *generator) minSize(f *Field) int {
	if n, ok := fixed[f.Type]; ok {
		return n
	}
	if f.Struct == nil {
		return 1
	}
	n := 0
	for _, e := range f.Struct.Fields {
		switch {
		case e.Tagged() || !e.Versions.Covers(f.Versions.And(g.msg.Versions)):
		case e.Array || !g.pointerless(e):
			n++
		default:
			n += g.minSize(e)
		}
	}
	return max(n, 1)
}

// pointerless says whether a value of e has no null marker in front.
func (g *generator) pointerless(e *Field) bool { return e.Nullable.Empty() }

func (g *generator) tagged(s *Struct) []*Field {
	var t []*Field
	for _, f := range s.Fields {
		if f.Tagged() && !g.usable(f).Empty() {
			t = append(t, f)
		}
	}
	slices.SortFunc(t, func(a, b *Field) int { return a.Tag - b.Tag })
	return t
}

// ---- size

func (g *generator) size(s *Struct) {
	usesVersion := g.usesVersion(s)
	param := "version"
	if !usesVersion {
		param = "_"
	}
	g.pf("func (v *%s) size(%s int16) int {\nn := 0\n", g.goStruct(s), param)
	for _, f := range s.Fields {
		if f.Tagged() || g.usable(f).Empty() {
			continue
		}
		c := cond(f.Versions, g.msg.Versions)
		g.open(c)
		g.sizeValue(f, "n", "v."+goField(f.Name), false)
		g.close(c)
	}
	if !g.msg.Flexible.Empty() {
		c := cond(g.msg.Flexible, g.msg.Versions)
		g.open(c)
		tags := g.tagged(s)
		if len(tags) == 0 {
			g.pf("n += sizeUvarint(len(v.UnknownTags)) + sizeTags(v.UnknownTags)\n")
		} else {
			g.pf("tags := len(v.UnknownTags)\nn += sizeTags(v.UnknownTags)\n")
			for _, f := range tags {
				g.pf("if %s {\n", g.tagCond(f))
				g.pf("tags++\nt := 0\n")
				g.sizeValue(f, "t", "v."+goField(f.Name), true)
				g.pf("n += sizeUvarint(%d) + sizeUvarint(t) + t\n}\n", f.Tag)
			}
			g.pf("n += sizeUvarint(tags)\n")
		}
		g.close(c)
	}
	g.pf("return n\n}\n\n")
}

// usesVersion says whether the code for s looks at the version at all.
func (g *generator) usesVersion(s *Struct) bool {
	if cond(g.msg.Flexible, g.msg.Versions) != "" && !g.msg.Flexible.Empty() {
		return true
	}
	for _, f := range s.Fields {
		if f.Struct != nil || cond(f.Versions, g.msg.Versions) != "" {
			return true
		}
		if g.nullable(f) && cond(f.Nullable, g.usable(f)) != "" {
			return true
		}
	}
	return false
}

// tagCond is the condition under which the tagged field f is written in a flexible version.
func (g *generator) tagCond(f *Field) string {
	set := g.isSet(f, "v."+goField(f.Name))
	if c := cond(f.Versions, g.msg.Versions.And(g.msg.Flexible)); c != "" {
		return c + " && " + set
	}
	return set
}

func (g *generator) sizeValue(f *Field, n, x string, tagged bool) {
	flex := g.flexOf(f)
	switch {
	case f.Array:
		g.pf("%s += sizeCount(%s, len(%s), %s == nil)\n", n, flex, x, x)
		if w, ok := fixed[f.Type]; ok {
			g.pf("%s += %d * len(%s)\n", n, w, x)
			return
		}
		g.pf("for i := range %s {\n", x)
		elem := *f
		elem.Array, elem.Nullable = false, None
		g.sizeValue(&elem, n, x+"[i]", false)
		g.pf("}\n")
	case f.Struct != nil:
		if g.pointer(f) {
			// The marker is one byte in both forms.
			g.pf("%s++\nif %s != nil {\n%s += %s.size(version)\n}\n", n, x, n, x)
			return
		}
		g.pf("%s += %s.size(version)\n", n, x)
	case f.Type == "string":
		if g.pointer(f) {
			g.pf("%s += sizeNullString(%s, %s)\n", n, flex, x)
		} else {
			g.pf("%s += sizeString(%s, len(%s))\n", n, flex, x)
		}
	case f.Type == "bytes":
		g.pf("%s += sizeCount(%s, len(%s), %s == nil) + len(%s)\n", n, flex, x, x, x)
	default:
		g.pf("%s += %d\n", n, fixed[f.Type])
	}
}

// ---- write

func (g *generator) write(s *Struct) {
	param := "version"
	if !g.usesVersion(s) {
		param = "_"
	}
	g.pf("func (v *%s) write(w *writer, %s int16) {\n", g.goStruct(s), param)
	for _, f := range s.Fields {
		if g.usable(f).Empty() {
			continue
		}
		x := "v." + goField(f.Name)
		c := cond(f.Versions, g.msg.Versions)
		if !f.Tagged() {
			g.open(c)
			g.writeValue(f, x, false)
		}
		switch {
		case c == "":
		case f.Ignorable && !f.Tagged():
			g.pf("}\n")
		case f.Ignorable:
		case f.Tagged():
			g.pf("if !(%s) && %s {\nw.absent(%q, version)\n}\n", c, g.isSet(f, x), f.Name)
		default:
			g.pf("} else if %s {\nw.absent(%q, version)\n}\n", g.isSet(f, x), f.Name)
		}
	}
	if !g.msg.Flexible.Empty() {
		c := cond(g.msg.Flexible, g.msg.Versions)
		g.open(c)
		tags := g.tagged(s)
		if len(tags) == 0 {
			g.pf("w.uvarint(len(v.UnknownTags))\nw.tags(v.UnknownTags)\n")
		} else {
			g.pf("tags := len(v.UnknownTags)\n")
			for _, f := range tags {
				g.pf("if %s {\ntags++\n}\n", g.tagCond(f))
			}
			g.pf("w.uvarint(tags)\nunknown := v.UnknownTags\n")
			for _, f := range tags {
				x := "v." + goField(f.Name)
				g.pf("if %s {\nunknown = w.tagsBelow(unknown, %d)\nt := 0\n", g.tagCond(f), f.Tag)
				g.sizeValue(f, "t", x, true)
				g.pf("w.uvarint(%d)\nw.uvarint(t)\n", f.Tag)
				g.writeValue(f, x, true)
				g.pf("}\n")
			}
			g.pf("w.tags(unknown)\n")
		}
		if c != "" {
			g.pf("} else if len(v.UnknownTags) != 0 {\nw.absent(\"tagged fields\", version)\n}\n")
		}
	}
	g.pf("}\n\n")
}

// nullAllowed is a Go expression for "null is legal here".
func (g *generator) nullAllowed(f *Field) string {
	if c := cond(f.Nullable, g.usable(f)); c != "" {
		return c
	}
	return "true"
}

func (g *generator) writeValue(f *Field, x string, tagged bool) {
	flex := g.flexOf(f)
	switch {
	case f.Array:
		if g.nullable(f) {
			g.pf("w.nullCount(%s, len(%s), %s == nil, %s, %q)\n", flex, x, x, g.nullAllowed(f), f.Name)
		} else {
			g.pf("w.count(%s, len(%s))\n", flex, x)
		}
		elem := *f
		elem.Array, elem.Nullable = false, None
		g.pf("for i := range %s {\n", x)
		g.writeValue(&elem, x+"[i]", false)
		g.pf("}\n")
	case f.Struct != nil:
		switch {
		case !g.pointer(f):
			g.pf("%s.write(w, version)\n", x)
		default:
			g.pf("if w.present(%t, %s != nil, %s, %q) {\n%s.write(w, version)\n}\n", tagged, x, g.nullAllowed(f), f.Name, x)
		}
	case f.Type == "string":
		if g.pointer(f) {
			g.pf("w.nullString(%s, %s, %s, %q)\n", flex, x, g.nullAllowed(f), f.Name)
		} else {
			g.pf("w.string(%s, %s, %q)\n", flex, x, f.Name)
		}
	case f.Type == "bytes":
		if g.nullable(f) {
			g.pf("w.nullCount(%s, len(%s), %s == nil, %s, %q)\n", flex, x, x, g.nullAllowed(f), f.Name)
		} else {
			g.pf("w.count(%s, len(%s))\n", flex, x)
		}
		g.pf("w.bytes(%s)\n", x)
	default:
		g.pf("w.%s(%s)\n", f.Type, x)
	}
}

// ---- read

func (g *generator) read(s *Struct) {
	param := "version"
	if !g.usesVersion(s) {
		param = "_"
	}
	g.pf("func (v *%s) read(r *reader, %s int16) {\n", g.goStruct(s), param)
	for _, f := range s.Fields {
		if f.Tagged() || g.usable(f).Empty() {
			continue
		}
		c := cond(f.Versions, g.msg.Versions)
		g.open(c)
		g.readValue(f, "v."+goField(f.Name), "r", false)
		g.close(c)
	}
	if !g.msg.Flexible.Empty() {
		c := cond(g.msg.Flexible, g.msg.Versions)
		g.open(c)
		tags := g.tagged(s)
		if len(tags) == 0 {
			g.pf("v.UnknownTags = r.tags()\n")
		} else {
			g.pf("for n := r.uvarint(); n > 0 && r.err == nil; n-- {\ntag, t := r.tag()\nswitch {\n")
			for _, f := range tags {
				cc := cond(f.Versions, g.msg.Versions.And(g.msg.Flexible))
				if cc != "" {
					cc = " && " + cc
				}
				g.pf("case tag == %d%s:\n", f.Tag, cc)
				g.readValue(f, "v."+goField(f.Name), "t", true)
				g.pf("r.endTag(&t, tag)\n")
			}
			g.pf("default:\nv.UnknownTags = append(v.UnknownTags, t.unknown(tag))\n}\n}\n")
		}
		g.close(c)
	}
	g.pf("}\n\n")
}

func (g *generator) readValue(f *Field, x, r string, tagged bool) {
	flex := g.flexOf(f)
	switch {
	case f.Array:
		null := "false"
		if g.nullable(f) {
			null = g.nullAllowed(f)
		}
		g.pf("if n, null := %s.count(%s, %s, %d, %q); !null {\n", r, flex, null, g.minSize(f), f.Name)
		if g.nullable(f) {
			g.pf("%s = make(%s, n)\n", x, g.goType(f))
		} else {
			g.pf("%s = nil\nif n > 0 {\n%s = make(%s, n)\n}\n", x, x, g.goType(f))
		}
		elem := *f
		elem.Array, elem.Nullable = false, None
		g.pf("for i := range %s {\n", x)
		if f.Struct != nil {
			// A damaged record must not cost a pass over all the elements that its count promised.
			g.pf("if %s.err != nil {\nbreak\n}\n", r)
		}
		g.readValue(&elem, x+"[i]", r, false)
		g.pf("}\n} else {\n%s = nil\n}\n", x)
	case f.Struct != nil:
		if g.pointer(f) {
			g.pf("if %s.present(%t, %s, %q) {\n%s = new(%s)\n", r, tagged, g.nullAllowed(f), f.Name, x, g.elemType(f))
			g.resetElem(f, x)
			g.pf("%s.read(%s, version)\n} else {\n%s = nil\n}\n", x, ref(r), x)
			return
		}
		g.resetElem(f, x)
		g.pf("%s.read(%s, version)\n", x, ref(r))
	case f.Type == "string":
		if g.pointer(f) {
			g.pf("%s = %s.nullString(%s, %s, %q)\n", x, r, flex, g.nullAllowed(f), f.Name)
		} else {
			g.pf("%s = %s.string(%s, %q)\n", x, r, flex, f.Name)
		}
	case f.Type == "bytes":
		null := "false"
		if g.nullable(f) {
			null = g.nullAllowed(f)
		}
		g.pf("%s = %s.bytes(%s, %s, %q)\n", x, r, flex, null, f.Name)
	default:
		g.pf("%s = %s.%s()\n", x, r, f.Type)
	}
}

func (g *generator) resetElem(f *Field, x string) {
	if !structZeroDefault(f.Struct) {
		g.pf("%s.Reset()\n", x)
	}
}

func ref(r string) string {
	if r == "r" {
		return "r"
	}
	return "&" + r
}

// ---- JSON

func (g *generator) json(s *Struct) {
	param := "version"
	if !g.usesVersion(s) {
		param = "_"
	}
	g.pf("func (v *%s) json(dst []byte, %s int16) []byte {\ndst = append(dst, '{')\n", g.goStruct(s), param)
	for _, f := range s.Fields {
		if g.usable(f).Empty() {
			continue
		}
		x := "v." + goField(f.Name)
		c := cond(f.Versions, g.msg.Versions)
		if f.Tagged() {
			// Kafka prints a tagged field only when it would write it.
			c = strings.TrimPrefix(c+" && "+g.isSet(f, x), " && ")
		}
		g.open(c)
		g.pf("dst = append(dst, `%q:`...)\n", jsonName(f.Name))
		g.jsonValue(f, x)
		g.pf("dst = append(dst, ',')\n")
		g.close(c)
	}
	g.pf("return endJSON(dst, '}')\n}\n\n")
}

func (g *generator) jsonValue(f *Field, x string) {
	switch {
	case f.Array:
		if g.nullable(f) {
			g.pf("if %s == nil {\ndst = append(dst, \"null\"...)\n} else {\n", x)
			defer g.pf("}\n")
		}
		elem := *f
		elem.Array, elem.Nullable = false, None
		g.pf("dst = append(dst, '[')\nfor i := range %s {\n", x)
		g.jsonValue(&elem, x+"[i]")
		g.pf("dst = append(dst, ',')\n}\ndst = endJSON(dst, ']')\n")
	case f.Struct != nil:
		if g.pointer(f) {
			g.pf("if %s == nil {\ndst = append(dst, \"null\"...)\n} else {\n", x)
			defer g.pf("}\n")
		}
		g.pf("dst = %s.json(dst, version)\n", x)
	case g.pointer(f):
		g.pf("dst = jsonNullString(dst, %s)\n", x)
	case f.Type == "bytes" && g.nullable(f):
		g.pf("dst = jsonNullBytes(dst, %s)\n", x)
	default:
		g.pf("dst = json%s(dst, %s)\n", goWords(f.Type, "-"), x)
	}
}
