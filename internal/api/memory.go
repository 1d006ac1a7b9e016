package api

import (
	"reflect"
	"sync"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// What a string and a tag that isn't known cost beside their bytes: a header that a pointer may lead to, and a map.
const (
	stringCost = 32
	tagCost    = 400
)

// DecodedSize is an upper bound of the memory that a request takes once DecodeRequest has made a message of it, together with a
// response that answers each of its elements: a few bytes in a request can ask for a large element of a list. It is 0 for a body
// that DecodeRequest refuses, and for a key or version that isn't served.
func DecodedSize(k Key, version int16, body []byte) int64 {
	min, max, ok := k.Versions()
	if !ok || version < min || version > max {
		return 0
	}
	w := walker{rest: body, flexible: Flexible(k, version)}
	if w.walk(layoutOf(k, version), false) != nil {
		return 0
	}
	n := w.elements*elementSizes()[k] + w.text
	return n + n/4 // the allocator rounds up
}

// elementSizes is, for each key, the size of the largest element that a list in a request and one in its response can have.
var elementSizes = sync.OnceValue(func() *[maxKey + 1]int64 {
	var sizes [maxKey + 1]int64
	for k := range sizes {
		if r := kmsg.RequestForKey(int16(k)); r != nil {
			sizes[k] = largestElement(reflect.TypeOf(r)) + largestElement(reflect.TypeOf(r.ResponseKind()))
		}
	}
	return &sizes
})

// largestElement is the size of the largest value in a message that isn't part of the message's own struct.
func largestElement(t reflect.Type) int64 {
	switch t.Kind() {
	case reflect.Pointer:
		return largestElement(t.Elem())
	case reflect.Slice:
		return max(int64(t.Elem().Size()), largestElement(t.Elem()))
	case reflect.Struct:
		var n int64
		for i := range t.NumField() {
			f := t.Field(i).Type
			n = max(n, largestElement(f))
			if f.Kind() == reflect.Pointer {
				n = max(n, int64(f.Elem().Size()))
			}
		}
		return n
	}
	return 0
}
