package config

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
)

// SecurityProtocol is how a listener secures its connections.
type SecurityProtocol int8

// The security protocols, numbered as in the metadata records.
const (
	Plaintext     SecurityProtocol = 0
	SSL           SecurityProtocol = 1
	SASLPlaintext SecurityProtocol = 2
	SASLSSL       SecurityProtocol = 3
)

var protocolNames = [...]string{"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"}

// String is the name in server.properties ("SASL_SSL").
func (p SecurityProtocol) String() string {
	if int(p) < 0 || int(p) >= len(protocolNames) {
		return strconv.Itoa(int(p))
	}
	return protocolNames[p]
}

// TLS says whether connections are encrypted.
func (p SecurityProtocol) TLS() bool { return p == SSL || p == SASLSSL }

// SASL says whether clients authenticate with SASL.
func (p SecurityProtocol) SASL() bool { return p == SASLPlaintext || p == SASLSSL }

func parseProtocol(s string) (SecurityProtocol, bool) {
	i := slices.Index(protocolNames[:], strings.ToUpper(s))
	return SecurityProtocol(i), i >= 0
}

// Listener is an address that a node listens on or tells others to connect to.
type Listener struct {
	// Name is upper case, for example "PLAINTEXT".
	Name     string
	Protocol SecurityProtocol
	// Host is a name or an address without brackets; "" means every address of the machine.
	Host string
	// Port may be 0 in a listener that is bound to a port of the system's choice.
	Port int
}

// Address is host:port, with an IPv6 address in brackets.
func (l Listener) Address() string { return net.JoinHostPort(l.Host, strconv.Itoa(l.Port)) }

// String is the form in server.properties.
func (l Listener) String() string { return l.Name + "://" + l.Address() }

// Wildcard says whether the host means every address, which no client can connect to.
func (l Listener) Wildcard() bool {
	ip := net.ParseIP(l.Host)
	return l.Host == "" || ip != nil && ip.IsUnspecified()
}

// parseListener reads NAME://host:port. The host may be empty or an IPv6 address in brackets.
func parseListener(s string, protocols map[string]SecurityProtocol) (Listener, error) {
	name, rest, ok := strings.Cut(s, "://")
	if !ok {
		return Listener{}, fmt.Errorf("unable to parse %q: want NAME://host:port", s)
	}
	name = strings.ToUpper(name)
	i := strings.LastIndexByte(rest, ':')
	if i < 0 {
		return Listener{}, fmt.Errorf("unable to parse %q: no port after the last colon", s)
	}
	host := rest[:i]
	port, err := strconv.Atoi(rest[i+1:])
	if err != nil || port < 0 || port > 65535 {
		return Listener{}, fmt.Errorf("unable to parse %q: port %q is not a number from 0 to 65535", s, rest[i+1:])
	}
	if strings.HasPrefix(host, "[") != strings.HasSuffix(host, "]") {
		return Listener{}, fmt.Errorf("unable to parse %q: unbalanced brackets", s)
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	p, ok := protocols[name]
	if !ok {
		return Listener{}, &ConfigError{Text: "No security protocol defined for listener " + name}
	}
	return Listener{Name: name, Protocol: p, Host: host, Port: port}, nil
}

// parseListeners reads a list of listeners with Kafka's rules: names are unique, and so are ports (other than 0) unless one
// of two is IPv4 and the other IPv6.
func parseListeners(list []string, protocols map[string]SecurityProtocol, distinctPorts bool) ([]Listener, error) {
	var out []Listener
	for _, s := range list {
		l, err := parseListener(s, protocols)
		if err != nil {
			return nil, err
		}
		for _, o := range out {
			if o.Name == l.Name && !bothFamilies(o.Host, l.Host) {
				return nil, fmt.Errorf("each listener must have a different name, %s is there twice", l.Name)
			}
			if distinctPorts && l.Port != 0 && o.Port == l.Port && !bothFamilies(o.Host, l.Host) {
				return nil, fmt.Errorf("each listener must have a different port, %d is there twice", l.Port)
			}
		}
		out = append(out, l)
	}
	return out, nil
}

// bothFamilies says whether one host is an IPv4 and the other an IPv6 address.
func bothFamilies(a, b string) bool {
	x, y := net.ParseIP(a), net.ParseIP(b)
	return x != nil && y != nil && (x.To4() == nil) != (y.To4() == nil)
}

// QuorumVoter is one entry of controller.quorum.voters.
type QuorumVoter struct {
	ID   int32
	Host string
	Port int
}

// Address is host:port.
func (v QuorumVoter) Address() string { return net.JoinHostPort(v.Host, strconv.Itoa(v.Port)) }

// ParseQuorumVoter reads id@host:port.
func ParseQuorumVoter(s string) (QuorumVoter, error) {
	id, addr, ok := strings.Cut(s, "@")
	n, err := strconv.ParseInt(id, 10, 32)
	if !ok || err != nil || n < 0 {
		return QuorumVoter{}, fmt.Errorf("voter %q: want id@host:port", s)
	}
	host, port, err := splitHostPort(addr)
	if err != nil {
		return QuorumVoter{}, fmt.Errorf("voter %q: %w", s, err)
	}
	return QuorumVoter{int32(n), host, port}, nil
}

func splitHostPort(s string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(s)
	if err != nil {
		return "", 0, fmt.Errorf("%q is not host:port", s)
	}
	port, err = strconv.Atoi(text)
	if err != nil || port < 0 || port > 65535 || host == "" {
		return "", 0, fmt.Errorf("%q is not host:port", s)
	}
	return host, port, nil
}
