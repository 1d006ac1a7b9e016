package security

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Requester is who wants to do something.
type Requester struct {
	Principal string // type:name
	Addr      netip.Addr
}

// HostText is an address as entries have it in their host: as Java writes it, with all eight groups of an IPv6 address.
func HostText(a netip.Addr) string {
	a = a.Unmap()
	if !a.Is6() {
		return a.String()
	}
	b := a.As16()
	var out []byte
	for i := 0; i < len(b); i += 2 {
		if i > 0 {
			out = append(out, ':')
		}
		out = strconv.AppendUint(out, uint64(b[i])<<8|uint64(b[i+1]), 16)
	}
	if a.Zone() != "" {
		out = append(append(out, '%'), a.Zone()...)
	}
	return string(out)
}

// rangeError says what is wrong with a range, in Kafka's words, which clients get to see.
type rangeError string

func (e rangeError) Error() string { return string(e) }

// ParseRange reads a range of addresses in the host of an entry, such as 10.0.0.0/8. The errors are Kafka's.
func ParseRange(text string) (netip.Prefix, error) {
	if strings.Contains(text, ":") {
		return parseRange6(text)
	}
	failed := rangeError("Could not parse [" + text + "]")
	addr, bits, ok := strings.Cut(text, "/")
	octets := strings.Split(addr, ".")
	if !ok || len(octets) != 4 || !digits(bits, 2) {
		return netip.Prefix{}, failed
	}
	var b [4]byte
	for _, o := range octets {
		if !digits(o, 3) {
			return netip.Prefix{}, failed
		}
	}
	for i, o := range octets {
		n, err := inRange(o, 255)
		if err != nil {
			return netip.Prefix{}, err
		}
		b[i] = byte(n)
	}
	n, err := inRange(bits, 32)
	if err != nil {
		return netip.Prefix{}, err
	}
	return netip.PrefixFrom(netip.AddrFrom4(b), n).Masked(), nil
}

// digits says whether s is between one and most digits.
func digits(s string, most int) bool {
	return s != "" && len(s) <= most && strings.Trim(s, "0123456789") == ""
}

func inRange(s string, most int) (int, error) {
	n, _ := strconv.Atoi(s) // digits only
	if n > most {
		return 0, rangeError(fmt.Sprintf("Value [%d] not in range [0,%d]", n, most))
	}
	return n, nil
}

func parseRange6(text string) (netip.Prefix, error) {
	failed := func(whole, why string) (netip.Prefix, error) {
		return netip.Prefix{}, rangeError("Could not parse [" + whole + "]" + why)
	}
	addr, bits, ok := strings.Cut(text, "/")
	if !ok {
		return failed(text, " - missing prefix length")
	}
	n, err := strconv.ParseInt(bits, 10, 32)
	if err != nil {
		return failed(text, " - invalid prefix length")
	}
	if n < 0 || n > 128 {
		return failed(text, " - prefix length must be between 0 and 128")
	}
	a, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(addr, "["), "]"))
	if err != nil {
		return failed(addr, "")
	}
	if a = a.Unmap(); !a.Is6() {
		return failed(addr, " - not an IPv6 address")
	}
	return netip.PrefixFrom(a.WithZone(""), int(n)).Masked(), nil
}
