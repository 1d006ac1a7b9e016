package controller

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"fmt"
	"hash"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/message"
	"gregor/internal/timeline"
)

// The SCRAM mechanisms, and how often a password is hashed at least and at most.
const (
	scramSHA256 int8 = 1
	scramSHA512 int8 = 2

	minScramIterations = 4096
	maxScramIterations = 16384
)

type scramKey struct {
	user      string
	mechanism int8
}

// scram manages SCRAM credentials. They are kept as the record that made them.
type scram struct {
	c    *Core
	data *timeline.Map[scramKey, *message.UserScramCredentialRecord]
}

func newSCRAM(c *Core) *scram {
	return &scram{c: c, data: timeline.NewMap[scramKey, *message.UserScramCredentialRecord](c.registry)}
}

func (m *scram) replay(r *message.UserScramCredentialRecord) {
	m.data.Set(scramKey{r.Name, r.Mechanism}, r)
}

func (m *scram) replayRemove(r *message.RemoveUserScramCredentialRecord) error {
	if _, existed := m.data.Delete(scramKey{r.Name, r.Mechanism}); !existed {
		return fmt.Errorf("user %s has no credential for SCRAM mechanism %d", r.Name, r.Mechanism)
	}
	return nil
}

func (m *scram) alter(req *kmsg.AlterUserSCRAMCredentialsRequest) (Result, error) {
	resp := req.ResponseKind().(*kmsg.AlterUserSCRAMCredentialsResponse)
	var order []string
	outcome := make(map[string]error)
	change := make(map[string]message.Message)
	note := func(user string, err error, record message.Message) {
		if _, seen := outcome[user]; !seen {
			order = append(order, user)
			outcome[user], change[user] = err, record
			return
		}
		// One change a user and request: which of two would win?
		if outcome[user] == nil {
			outcome[user] = api.WithMessage(api.ErrDuplicateResource, "A user credential cannot be altered twice in the same request")
			change[user] = nil
		}
	}
	supported := m.c.features.level().SCRAM()
	for _, d := range req.Deletions {
		err := checkSCRAM(d.Name, d.Mechanism)
		if err == nil {
			if _, exists := m.data.Get(scramKey{d.Name, d.Mechanism}); !exists {
				err = api.WithMessage(api.ErrResourceNotFound, "Attempt to delete a user credential that does not exist")
			}
		}
		if !supported {
			err = errNoSCRAM
		}
		r := message.NewRemoveUserScramCredentialRecord()
		r.Name, r.Mechanism = d.Name, d.Mechanism
		note(d.Name, err, r)
	}
	for _, u := range req.Upsertions {
		err := checkSCRAM(u.Name, u.Mechanism)
		switch {
		case err != nil:
		case u.Iterations < minScramIterations:
			err = api.WithMessage(api.ErrUnacceptableCredential, "Too few iterations")
		case u.Iterations > maxScramIterations:
			err = api.WithMessage(api.ErrUnacceptableCredential, "Too many iterations")
		}
		if !supported {
			err = errNoSCRAM
		}
		r := message.NewUserScramCredentialRecord()
		r.Name, r.Mechanism, r.Salt, r.Iterations = u.Name, u.Mechanism, slices.Clone(u.Salt), u.Iterations
		if err == nil {
			r.StoredKey, r.ServerKey = scramKeys(u.Mechanism, u.SaltedPassword)
		}
		note(u.Name, err, r)
	}
	var records []message.Versioned
	for _, user := range order {
		out := kmsg.NewAlterUserSCRAMCredentialsResponseResult()
		out.User = user
		out.ErrorCode, out.ErrorMessage = api.CodeAndMessage(outcome[user])
		resp.Results = append(resp.Results, out)
		if outcome[user] == nil {
			records = append(records, message.Versioned{Message: change[user]})
		}
	}
	return Result{Records: records, Response: resp, Atomic: true}, nil
}

var errNoSCRAM = api.WithMessage(api.ErrUnsupportedVersion, "The current metadata.version does not support SCRAM")

func checkSCRAM(user string, mechanism int8) error {
	if user == "" {
		return api.WithMessage(api.ErrUnacceptableCredential, "Username must not be empty")
	}
	if mechanism != scramSHA256 && mechanism != scramSHA512 {
		return api.WithMessage(api.ErrUnsupportedSASLMechanism, "Unknown SCRAM mechanism")
	}
	return nil
}

// scramKeys makes what a server keeps of a salted password (RFC 5802): the hash of the client's key, and its own.
func scramKeys(mechanism int8, salted []byte) (stored, server []byte) {
	h := sha256.New
	if mechanism == scramSHA512 {
		h = sha512.New
	}
	mac := func(text string) []byte {
		m := hmac.New(func() hash.Hash { return h() }, salted)
		m.Write([]byte(text))
		return m.Sum(nil)
	}
	sum := h()
	sum.Write(mac("Client Key"))
	return sum.Sum(nil), mac("Server Key")
}
