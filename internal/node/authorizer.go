package node

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"gregor/internal/api"
	"gregor/internal/config"
	"gregor/internal/controller"
	"gregor/internal/metadata"
	"gregor/internal/security"
)

// The settings of the authorizer. Kafka knows them as settings of the plugin, not of the broker.
const (
	superUsersKey    = "super.users"
	allowUnspokenKey = "allow.everyone.if.no.acl.found"
)

// newAuthorizer makes the authorizer that the configuration asks for, nil when it asks for none.
func newAuthorizer(c *config.Broker, logger *slog.Logger) (*security.Authorizer, error) {
	switch class := c.Value("authorizer.class.name").Text(); class {
	case "":
		return nil, nil
	case security.StandardAuthorizer:
	default:
		return nil, fmt.Errorf("authorizer.class.name is %s: gregor can't run Java classes; it has %s built in", class, security.StandardAuthorizer)
	}
	superUsers, _ := c.Raw(superUsersKey)
	allowUnspoken, _ := c.Raw(allowUnspokenKey)
	settings, err := security.ParseSettings(superUsers, allowUnspoken)
	if err != nil {
		return nil, err
	}
	return security.NewAuthorizer(settings, logger.With("component", "authorizer")), nil
}

// aclPublisher keeps the authorizer at the state of the metadata. It goes before those by which a broker comes to serve.
type aclPublisher struct {
	authorizer *security.Authorizer
	index      *security.ACLs // nil before the first image
	image      *metadata.ACLsImage
}

// Name implements metadata.Publisher.
func (p *aclPublisher) Name() string { return "authorizer" }

// Publish implements metadata.Publisher.
func (p *aclPublisher) Publish(d *metadata.Delta, img *metadata.Image, _ metadata.Manifest) {
	switch {
	case p.index == nil:
		e := new(security.ACLs).Edit()
		for _, a := range img.ACLs.All() {
			e.Add(&a)
		}
		p.index = e.Done()
	case d.ACLs != nil:
		e := p.index.Edit()
		for id, now := range d.ACLs.Changed {
			if old, ok := p.image.Get(id); ok {
				e.Remove(&old)
			}
			if now != nil {
				e.Add(now)
			}
		}
		p.index = e.Done()
	default:
		return
	}
	p.image = img.ACLs
	p.authorizer.Load(p.index)
}

// early are the controller listeners that serve before the authorizer knows the entries: without some, no quorum could tell it
// ("early.start.listeners").
func (n *Node) early() []string {
	return slices.DeleteFunc(slices.Clone(n.cfg.ControllerListeners), func(l string) bool {
		return n.authorizer != nil && !slices.Contains(n.cfg.EarlyStartListeners, l)
	})
}

// allowed is what a client may do, for a controller's RequestContext.
func (n *Node) allowed(principal string, addr netip.Addr) func(security.Operation, security.ResourceType, string) bool {
	if n.authorizer == nil {
		return nil
	}
	who := security.Requester{Principal: principal, Addr: addr}
	return func(op security.Operation, t security.ResourceType, name string) bool {
		return n.authorizer.Allows(who, op, t, name)
	}
}

// admit finds out whether a controller may look at a request.
func (n *Node) admit(principal string, addr netip.Addr, q kmsg.Request) error {
	if n.authorizer == nil {
		return nil
	}
	if !n.authorizer.Decides(principal) {
		// As in Kafka, where an authorizer that isn't ready is an error that clients don't know.
		return api.WithMessage(api.ErrUnknownServerError, "The authorizer has not read the access control entries yet.")
	}
	rc := controller.RequestContext{Allowed: n.allowed(principal, addr)}
	return rc.Authorize(q)
}
