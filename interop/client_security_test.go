package interop

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	gregorclient "gregor/client"
	"gregor/interop/kafka"
)

// certificate makes a certificate for 127.0.0.1 that signs itself, as PEM.
func certificate(t *testing.T) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kafka"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool = x509.NewCertPool()
	pool.AddCert(parsed)
	text := func(kind string, b []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}))
	}
	return text("CERTIFICATE", der), text("PRIVATE KEY", pkcs8), pool
}

// TestClientSecurity speaks TLS and every SASL mechanism to the real Kafka, goes on when a session is over, and is refused with
// the wrong password.
func TestClientSecurity(t *testing.T) {
	cert, key, pool := certificate(t)
	dir := t.TempDir()
	ports := kafka.FreePorts(t, 3)
	escaped := func(s string) string { return strings.ReplaceAll(strings.TrimSpace(s), "\n", `\n`) }
	const secure = "listener.name.secure."
	const login = ".sasl.jaas.config=org.apache.kafka.common.security."
	kafka.Format(t, dir, kafka.Properties(1, ports[0], ports[1], filepath.Join(dir, "data"), slices.Concat(quick, []string{
		fmt.Sprintf("listeners=PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d,SECURE://127.0.0.1:%d", ports[0], ports[1], ports[2]),
		fmt.Sprintf("advertised.listeners=PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d,SECURE://127.0.0.1:%d", ports[0], ports[1], ports[2]),
		"listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL",
		secure + "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
		secure + "plain" + login + `plain.PlainLoginModule required user_alice="secret";`,
		secure + "plain.connections.max.reauth.ms=2000",
		secure + "scram-sha-256" + login + "scram.ScramLoginModule required;",
		secure + "scram-sha-512" + login + "scram.ScramLoginModule required;",
		secure + "oauthbearer" + login + `oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";`,
		secure + "ssl.keystore.type=PEM",
		secure + "ssl.keystore.certificate.chain=" + escaped(cert),
		secure + "ssl.keystore.key=" + escaped(key),
	})...))
	n := kafka.Start(t, dir, fmt.Sprintf("127.0.0.1:%d", ports[0]))
	ctx, cancel := context.WithTimeout(t.Context(), clientPatience)
	defer cancel()
	plain := openClient(t, n.Addr)
	for _, m := range []int8{1, 2} {
		salted, err := pbkdf2.Key(sha256.New, "secret", []byte("salt"), 4096, 32)
		if m == 2 {
			salted, err = pbkdf2.Key(sha512.New, "secret", []byte("salt"), 4096, 64)
		}
		if err != nil {
			t.Fatal(err)
		}
		// A user can be named only once in a request.
		req := kmsg.NewPtrAlterUserSCRAMCredentialsRequest()
		req.Upsertions = []kmsg.AlterUserSCRAMCredentialsRequestUpsertion{{
			Name: "alice", Mechanism: m, Iterations: 4096, Salt: []byte("salt"), SaltedPassword: salted,
		}}
		resp, err := plain.Raw(ctx, nil, req)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range resp.(*kmsg.AlterUserSCRAMCredentialsResponse).Results {
			if r.ErrorCode != 0 {
				t.Fatalf("%+v", r)
			}
		}
	}
	token := func(context.Context) (string, error) {
		b64 := base64.RawURLEncoding
		now := time.Now().Unix()
		return b64.EncodeToString([]byte(`{"alg":"none"}`)) + "." + b64.EncodeToString(fmt.Appendf(nil, `{"sub":"alice","iat":%d,"exp":%d}`, now, now+3600)) + ".", nil
	}
	open := func(s gregorclient.SASL) *gregorclient.Client {
		t.Helper()
		c, err := gregorclient.New(gregorclient.Options{
			Seeds: []string{fmt.Sprintf("127.0.0.1:%d", ports[2])}, TLS: &tls.Config{RootCAs: pool}, SASL: s,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	for i, s := range []gregorclient.SASL{
		gregorclient.Plain{User: "alice", Password: "secret"}, gregorclient.SCRAM{User: "alice", Password: "secret"},
		gregorclient.SCRAM{User: "alice", Password: "secret", SHA256: true}, gregorclient.OAuthBearer{Token: token},
	} {
		c := open(s)
		topic := fmt.Sprintf("secure-%d", i)
		if res, err := c.CreateTopics(ctx, []gregorclient.TopicSpec{{Name: topic, Partitions: 1}}, false); err != nil || res[0].Err != nil {
			t.Fatal(s.Mechanism(), err, res)
		}
		p := c.NewProducer(gregorclient.ProducerOptions{Linger: -1})
		u, err := c.NewConsumer(gregorclient.ConsumerOptions{Partitions: map[gregorclient.TopicPartition]int64{{Topic: topic}: gregorclient.Earliest}})
		if err != nil {
			t.Fatal(err)
		}
		// PLAIN's sessions last two seconds.
		end := time.Now().Add(time.Second)
		if i == 0 {
			end = time.Now().Add(5 * time.Second)
		}
		for sent, got := 0, 0; time.Now().Before(end) || got < sent; {
			if time.Now().Before(end) {
				if err := p.ProduceSync(ctx, &gregorclient.Record{Topic: topic, Value: []byte("v")}); err != nil {
					t.Fatal(s.Mechanism(), err)
				}
				sent++
			}
			records, err := u.Poll(ctx)
			if err != nil {
				t.Fatal(s.Mechanism(), err)
			}
			got += len(records)
		}
		if err := errors.Join(p.Close(ctx), u.Close(ctx)); err != nil {
			t.Error(s.Mechanism(), err)
		}
	}
	for _, s := range []gregorclient.SASL{
		gregorclient.Plain{User: "alice", Password: "wrong"}, gregorclient.SCRAM{User: "alice", Password: "wrong"}, gregorclient.SCRAM{User: "nobody"},
	} {
		if err := open(s).Ping(ctx); !errors.Is(err, gregorclient.ErrorOf(58)) {
			t.Errorf("%s with the wrong password: %v", s.Mechanism(), err)
		}
	}
}
