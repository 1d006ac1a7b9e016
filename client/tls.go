package client

import (
	"context"
	"crypto/tls"
	"net"
)

// secure puts TLS around a connection, if that is wanted.
func (o *Options) secure(ctx context.Context, nc net.Conn, addr string) (net.Conn, error) {
	if o.TLS == nil {
		return nc, nil
	}
	return tlsOver(ctx, nc, addr, o.TLS)
}

// tlsOver does the handshake. The name to be proved is the address's, unless the configuration has one.
func tlsOver(ctx context.Context, nc net.Conn, addr string, config *tls.Config) (net.Conn, error) {
	if config.ServerName == "" {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		config = config.Clone()
		config.ServerName = host
	}
	t := tls.Client(nc, config)
	if err := t.HandshakeContext(ctx); err != nil {
		nc.Close()
		return nil, err
	}
	return t, nil
}
