package config

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Value is a parsed setting. The zero Value is null.
type Value struct {
	set  bool
	typ  Type
	num  int64 // Boolean (0, 1), Short, Int, Long
	real float64
	text string // String, Class, Password
	list []string
}

// Null says whether there is no value.
func (v Value) Null() bool { return !v.set }

// Bool is the value of a Boolean key.
func (v Value) Bool() bool { return v.num != 0 }

// Int64 is the value of a Short, Int or Long key; 0 when null.
func (v Value) Int64() int64 { return v.num }

// Int32 is the value of a Short or Int key; 0 when null.
func (v Value) Int32() int32 { return int32(v.num) }

// Float64 is the value of a Double key.
func (v Value) Float64() float64 { return v.real }

// Text is the value of a String, Class or Password key; "" when null.
func (v Value) Text() string { return v.text }

// List is the value of a List key; nil when null or empty. It must not be changed.
func (v Value) List() []string { return v.list }

// Millis is the value of a numeric key whose unit is milliseconds; values beyond 292 years become the longest duration.
func (v Value) Millis() time.Duration { return millis(v.num) }

func millis(ms int64) time.Duration {
	const limit = math.MaxInt64 / int64(time.Millisecond)
	switch {
	case ms > limit:
		return math.MaxInt64
	case ms < -limit:
		return math.MinInt64
	}
	return time.Duration(ms) * time.Millisecond
}

// String is the text that Kafka prints for the value: lists joined by commas, doubles as Java writes them, passwords hidden.
func (v Value) String() string {
	if !v.set {
		return "null"
	}
	switch v.typ {
	case Boolean:
		return strconv.FormatBool(v.num != 0)
	case Short, Int, Long:
		return strconv.FormatInt(v.num, 10)
	case Double:
		return JavaDouble(v.real)
	case List:
		return strings.Join(v.list, ",")
	case Password:
		return "[hidden]"
	}
	return v.text
}

// JavaDouble writes a double as Java's Double.toString: plain with at least one decimal between 1e-3 and 1e7, else in
// scientific form with an E.
func JavaDouble(f float64) string {
	a := math.Abs(f)
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	case f == 0 || a >= 1e-3 && a < 1e7:
		s := strconv.FormatFloat(f, 'f', -1, 64)
		if !strings.Contains(s, ".") {
			s += ".0"
		}
		return s
	}
	s := strconv.FormatFloat(f, 'E', -1, 64)
	mant, exp, _ := strings.Cut(s, "E")
	if !strings.Contains(mant, ".") {
		mant += ".0"
	}
	n, err := strconv.Atoi(exp)
	if err != nil {
		panic(fmt.Sprintf("config: exponent of %q: %v", s, err))
	}
	return mant + "E" + strconv.Itoa(n)
}

// ValueError is a value that a key does not allow. Its text is the one of Kafka's ConfigException, which tools match on.
type ValueError struct {
	Key     string
	Value   string // as given, or Kafka's printed form where Kafka prints the parsed one; hidden for passwords
	Problem string // as Kafka words it
	text    string // the whole message where Kafka doesn't begin it as usual
}

// Error is Kafka's message.
func (e *ValueError) Error() string {
	if e.text != "" {
		return e.text
	}
	s := "Invalid value " + e.Value + " for configuration " + e.Key
	if e.Problem != "" {
		s += ": " + e.Problem
	}
	return s
}

// Parse reads a value of the key from its text and checks it. Errors are *ValueError. A member that is twice in a list counts
// once.
func (k *Key) Parse(text string) (Value, error) {
	v, err := k.parseOnly(text)
	if err != nil {
		return Value{}, err
	}
	v.list = distinct(v.list)
	if k.Valid != nil {
		if err := k.Valid.check(k.Name, v); err != nil {
			return Value{}, err
		}
	}
	return v, nil
}

// DefaultValue is the parsed default; null when there is none.
func (k *Key) DefaultValue() Value {
	text, ok := k.DefaultText()
	if !ok {
		return Value{typ: k.Type}
	}
	v, err := k.parseOnly(text)
	if err != nil {
		panic(fmt.Sprintf("config: default of %s: %v", k.Name, err))
	}
	return v
}

// parseOnly reads the text without checking the key's rule.
func (k *Key) parseOnly(text string) (Value, error) {
	s := strings.TrimFunc(text, func(r rune) bool { return r <= ' ' }) // Java's trim
	v := Value{set: true, typ: k.Type}
	bits := 64
	switch k.Type {
	case Boolean:
		switch {
		case strings.EqualFold(s, "true"):
			v.num = 1
		case strings.EqualFold(s, "false"):
		default:
			return Value{}, &ValueError{Key: k.Name, Value: text, Problem: "Expected value to be either true or false"}
		}
		return v, nil
	case String, Class, Password:
		v.text = s
		return v, nil
	case List:
		if s != "" {
			parts := strings.Split(s, ",")
			for i := range parts {
				parts[i] = strings.TrimSpace(parts[i])
			}
			v.list = parts
		}
		return v, nil
	case Double:
		f, err := parseJavaDouble(s)
		if err != nil {
			return Value{}, &ValueError{Key: k.Name, Value: text, Problem: "Not a number of type " + k.Type.String()}
		}
		v.real = f
		return v, nil
	case Int:
		bits = 32
	case Short:
		bits = 16
	}
	if strings.ContainsRune(s, '_') {
		return Value{}, &ValueError{Key: k.Name, Value: text, Problem: "Not a number of type " + k.Type.String()}
	}
	n, err := strconv.ParseInt(s, 10, bits)
	if err != nil {
		return Value{}, &ValueError{Key: k.Name, Value: text, Problem: "Not a number of type " + k.Type.String()}
	}
	v.num = n
	return v, nil
}

// parseJavaDouble accepts what Java's Double.parseDouble does of decimal notation: also a trailing type letter.
func parseJavaDouble(s string) (float64, error) {
	if s == "" || strings.ContainsAny(s, "_") {
		return 0, strconv.ErrSyntax
	}
	switch s {
	case "NaN", "+NaN", "-NaN":
		return math.NaN(), nil
	case "Infinity", "+Infinity":
		return math.Inf(1), nil
	case "-Infinity":
		return math.Inf(-1), nil
	}
	if c := s[len(s)-1]; c == 'd' || c == 'D' || c == 'f' || c == 'F' {
		s = s[:len(s)-1]
	}
	if s == "" || strings.ContainsAny(s, "nNiIxXpP") { // Go's spellings of infinity and hexadecimal floats
		return 0, strconv.ErrSyntax
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil && !math.IsInf(f, 0) { // Java rounds what is too large to infinity
		return 0, err
	}
	return f, nil
}

// distinct keeps the first of equal members. The list may be as long as a client likes.
func distinct(list []string) []string {
	seen := make(map[string]bool, len(list))
	return slices.DeleteFunc(list, func(s string) bool {
		again := seen[s]
		seen[s] = true
		return again
	})
}
