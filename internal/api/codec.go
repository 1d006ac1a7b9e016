package api

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// ErrUnsupported says that a request's key or version is not in the table. Kafka closes the connection on it, except for
// ApiVersions.
var ErrUnsupported = fmt.Errorf("api key or version not supported: %w", error(ErrUnsupportedVersion))

// DecodeRequest reads the body of a request. It accepts and refuses what Kafka does; on an error Kafka closes the connection.
// Bytes left over after the body are ignored.
//
// Aliasing: []byte fields of the result are slices of body, capped so that appending to one copies it; strings are copies.
func DecodeRequest(k Key, version int16, body []byte) (kmsg.Request, error) {
	min, max, ok := k.Versions()
	if !ok || version < min || version > max {
		return nil, fmt.Errorf("%s v%d: %w", k, version, ErrUnsupported)
	}
	r := kmsg.RequestForKey(int16(k))
	r.SetVersion(version)
	if err := r.ReadFrom(body); err != nil {
		return nil, fmt.Errorf("%s v%d: %w", k, version, err)
	}
	return r, nil
}

// AppendResponse writes the body of a response of the version that is set in it.
func AppendResponse(dst []byte, r kmsg.Response) []byte {
	return r.AppendTo(dst)
}
