package dataplane

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn/token"
	names "meridian/internal/identity"
	"meridian/internal/meshca"
	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/rpcerr"
)

// askForCertificates has a proxy say hello and send requests for certificates, and returns
// the identities that it gets until the stream ends, or until it has as many as requests.
func (w *world) askForCertificates(raw string, hello *meridianv1.DataplaneHello, requests ...[]byte) ([]*meridianv1.DataplaneIdentity, error) {
	w.t.Helper()
	p := w.dial(raw)
	defer p.leave()
	if hello != nil {
		p.send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Hello{Hello: hello}})
	}
	for _, der := range requests {
		p.send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_CertificateRequest{
			CertificateRequest: &meridianv1.DataplaneCertificateRequest{Csr: der},
		}})
	}
	var identities []*meridianv1.DataplaneIdentity
	for len(identities) < len(requests) {
		m, err := p.stream.Recv()
		if err != nil {
			return identities, rpcerr.FromStatus(err)
		}
		if m.GetIdentity() != nil {
			identities = append(identities, m.GetIdentity())
		}
	}
	return identities, nil
}

func helloOf(name, service string) *meridianv1.DataplaneHello {
	return &meridianv1.DataplaneHello{Mesh: "default", Name: name, Spec: []byte(dataplaneSpec(service)), RegistrationOnly: true}
}

// certificateRequest makes a request for a certificate for a key.
func certificateRequest(t *testing.T, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	require.NoError(t, err)
	return der
}

func ecdsaKey(t *testing.T, curve elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	require.NoError(t, err)
	return key
}

// A certificate is for the dataplane that the proxy has registered, by a token that covers
// it, and for a key of the one kind. Whatever else is asked for ends the stream, without a
// certificate, and before the mesh has an authority.
func TestCertificatesThatAreRefused(t *testing.T) {
	key := ecdsaKey(t, elliptic.P256())
	good := certificateRequest(t, key)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	forged := bytes.Clone(good)
	forged[len(forged)-1] ^= 1
	web := helloOf("web-1", "web")
	cases := map[string]struct {
		hello  *meridianv1.DataplaneHello
		csr    []byte
		reason string
		text   string
	}{
		"nothing":              {web, nil, ReasonBadRequest, "cannot be read"},
		"garbage":              {web, []byte("x"), ReasonBadRequest, "cannot be read"},
		"more after the end":   {web, append(bytes.Clone(good), 0), ReasonBadRequest, "cannot be read"},
		"too large":            {web, make([]byte, meshca.MaxRequestBytes+1), ReasonBadRequest, "at most 4096"},
		"RSA":                  {web, certificateRequest(t, rsaKey), ReasonBadRequest, "P-256"},
		"another curve":        {web, certificateRequest(t, ecdsaKey(t, elliptic.P384())), ReasonBadRequest, "P-256"},
		"another's key":        {web, forged, ReasonBadRequest, "not signed with its own key"},
		"another dataplane":    {helloOf("web-2", "web"), good, ReasonNotCovered, "web-2"},
		"a service not of it":  {helloOf("web-1", "backend"), good, ReasonNotCovered, "backend"},
		"before the dataplane": {nil, good, ReasonNoHello, "hello"},
	}
	inTime(t, func(t *testing.T, w *world) {
		w.global(resourcetest.Build(t, "Mesh", "", "default", `{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin"}]}}`))
		raw, id := w.tokenWithID("default", "web-1", "kuma.io/service", "web")
		for name, c := range cases {
			got, err := w.askForCertificates(raw, c.hello, c.csr)
			require.Empty(t, got, name)
			var refused *rpcerr.Error
			require.ErrorAs(t, err, &refused, name)
			require.Equal(t, c.reason, refused.Reason, name)
			require.ErrorContains(t, err, c.text, name)
			_, made := w.local.View().Get(token.MeshAuthorityKey("default"))
			require.False(t, made, name)
		}
		_, err := w.askForCertificates(raw, web, good, good, good)
		var refused *rpcerr.Error
		require.ErrorAs(t, err, &refused)
		require.Equal(t, ReasonLimit, refused.Reason)

		got, err := w.askForCertificates(raw, web, good)
		require.NoError(t, err)
		block, _ := pem.Decode(got[0].GetCertificate())
		require.NotNil(t, block, got[0].GetRefused())
		leaf, err := x509.ParseCertificate(block.Bytes)
		require.NoError(t, err)
		require.True(t, key.PublicKey.Equal(leaf.PublicKey))
		require.Len(t, leaf.URIs, 1)
		name, err := names.Parse(leaf.URIs[0].String())
		require.NoError(t, err)
		require.Equal(t, names.Credential(id), name.Credential)
		name.Credential = ""
		require.Equal(t, names.Name{
			Zone: "east", Mesh: "default", Dataplane: "web-1", Sets: []resource.Tags{{"kuma.io/service": "web", "kuma.io/zone": "east"}},
		}, name)
	})
}

// A proxy has a certificate once it acknowledges its newest identity and that has one, and
// has none once that has none.
func TestWhatAProxyAcknowledges(t *testing.T) {
	w := newWorld(t)
	w.open()
	defer w.stop()
	mesh := func(spec string) { w.global(resourcetest.Build(t, "Mesh", "", "default", spec)) }
	mesh(`{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin","mode":"PERMISSIVE"}]}}`)
	p := w.dial(w.token("web-1"))
	p.send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Hello{Hello: helloOf("web-1", "web")}})
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	p.send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_CertificateRequest{
		CertificateRequest: &meridianv1.DataplaneCertificateRequest{Csr: certificateRequest(t, key)},
	}})
	has := func() string {
		w.mu.Lock()
		defer w.mu.Unlock()
		has, told := w.has["web-1"]
		return fmt.Sprint(told, has)
	}
	// Every identity is acknowledged, as an agent does: the zone may send several of one kind.
	seen, sent := make(chan string, 64), make(chan struct{})
	defer func() { <-sent }()
	defer p.leave()
	acknowledge := make(chan struct{})
	go func() {
		defer close(sent)
		for {
			m, err := p.stream.Recv()
			if err != nil {
				return
			}
			i := m.GetIdentity()
			if i == nil {
				continue
			}
			seen <- has()
			<-acknowledge
			if p.stream.Send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_IdentityAck{IdentityAck: &meridianv1.DataplaneIdentityAck{Version: i.GetVersion()}}}) != nil {
				return
			}
		}
	}()
	is := func(want string) {
		t.Helper()
		require.Eventually(t, func() bool { return has() == want }, time.Minute, time.Millisecond)
	}
	require.Equal(t, "false false", <-seen, "it has not acknowledged what it was sent")
	close(acknowledge)
	is("true true")
	mesh("{}")
	is("true false")
}

// What a proxy acknowledges again is passed on once: it can say so as often as it likes.
func TestAnIdentityIsAcknowledgedOnce(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		w.global(resourcetest.Build(t, "Mesh", "", "default", `{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin"}]}}`))
		p := w.dial(w.token("web-1"))
		p.send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Hello{Hello: helloOf("web-1", "web")}})
		p.send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_CertificateRequest{
			CertificateRequest: &meridianv1.DataplaneCertificateRequest{Csr: certificateRequest(t, ecdsaKey(t, elliptic.P256()))},
		}})
		synctest.Wait()
		w.service.mu.Lock()
		version := w.service.proxies[policy.DataplaneKey("default", "web-1")].session.identity.version
		w.service.mu.Unlock()
		require.NotZero(t, version)
		for range 100 {
			p.send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_IdentityAck{IdentityAck: &meridianv1.DataplaneIdentityAck{Version: version}}})
		}
		synctest.Wait()
		w.mu.Lock()
		require.Equal(t, 1, w.said)
		require.True(t, w.has["web-1"])
		w.mu.Unlock()
		p.leave()
		synctest.Wait()
	})
}
