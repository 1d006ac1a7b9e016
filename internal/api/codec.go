package api

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// ErrUnsupported says that a request's key or version is not in the table. Kafka closes the connection on it, except for
// ApiVersions.
var ErrUnsupported = fmt.Errorf("api key or version not supported: %w", error(ErrUnsupportedVersion))

// DecodeRequest reads the body of a request. It accepts and refuses what Kafka does; on an error Kafka closes the connection.
// Bytes left over after the body are ignored. Fields that the version does not have get Kafka's defaults.
//
// Aliasing: []byte fields of the result are slices of body, capped so that appending to one copies it; strings are copies.
func DecodeRequest(k Key, version int16, body []byte) (kmsg.Request, error) {
	r, err := decodeMessage(k, version, body)
	if err == nil {
		err = checkValues(r)
	}
	if err != nil {
		return nil, fmt.Errorf("%s v%d: %w", k, version, err)
	}
	setAbsentFields(r, version)
	return r, nil
}

// decodeMessage reads what the schema of a request allows.
func decodeMessage(k Key, version int16, body []byte) (kmsg.Request, error) {
	min, max, ok := k.Versions()
	if !ok || version < min || version > max {
		return nil, ErrUnsupported
	}
	if err := checkRequest(k, version, body); err != nil {
		return nil, err
	}
	r := kmsg.RequestForKey(int16(k))
	r.SetVersion(version)
	if err := r.ReadFrom(body); err != nil {
		return nil, err
	}
	return r, nil
}

// errUnknownElement is that of a request about ACLs with a zero where it must say what it means.
var errUnknownElement = errors.New("a resource type, pattern type, operation or permission is 0, unknown")

// checkValues refuses what Kafka refuses when it makes a request of a message, before any handler sees it.
func checkValues(r kmsg.Request) error {
	unknown := func(resource kmsg.ACLResourceType, pattern kmsg.ACLResourcePatternType, op kmsg.ACLOperation, permission kmsg.ACLPermissionType) bool {
		return resource == 0 || pattern == 0 || op == 0 || permission == 0
	}
	bad := false
	switch r := r.(type) {
	case *kmsg.DescribeACLsRequest:
		bad = unknown(r.ResourceType, r.ResourcePatternType, r.Operation, r.PermissionType)
	case *kmsg.CreateACLsRequest:
		for _, c := range r.Creations {
			bad = bad || unknown(c.ResourceType, c.ResourcePatternType, c.Operation, c.PermissionType)
		}
	case *kmsg.DeleteACLsRequest:
		for _, f := range r.Filters {
			bad = bad || unknown(f.ResourceType, f.ResourcePatternType, f.Operation, f.PermissionType)
		}
	}
	if bad {
		return errUnknownElement
	}
	return nil
}

// setAbsentFields gives fields that the version does not have Kafka's default where that of kmsg is another.
func setAbsentFields(r kmsg.Request, version int16) {
	switch r := r.(type) {
	case *kmsg.MetadataRequest:
		if version < 4 {
			r.AllowAutoTopicCreation = true
		}
	case *kmsg.ListOffsetsRequest:
		if version < 10 {
			r.TimeoutMillis = 0
		}
	case *kmsg.UpdateFeaturesRequest:
		if version < 1 {
			for i := range r.FeatureUpdates {
				r.FeatureUpdates[i].UpgradeType = 1
			}
		}
	}
}
