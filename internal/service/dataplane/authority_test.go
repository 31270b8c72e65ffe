package dataplane

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn/token"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/service/identities"
	"meridian/internal/store"
)

// issuing answers requests for certificates as a test says.
type issuing struct {
	issue func() (identities.Identity, error)
}

func (i *issuing) Issue(context.Context, resource.Key, *ecdsa.PublicKey, token.Token) (identities.Identity, error) {
	return i.issue()
}

func (*issuing) Acknowledged() {}

// identified is a proxy of web-1 that has asked for a certificate.
func identified(w *world) *proxyClient {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(w.t, err)
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	require.NoError(w.t, err)
	p := w.dial(w.token("web-1", "kuma.io/service", "web"))
	p.send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Hello{
		Hello: &meridianv1.DataplaneHello{Mesh: "default", Name: "web-1", Spec: []byte(dataplaneSpec("web"))},
	}})
	p.send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_CertificateRequest{
		CertificateRequest: &meridianv1.DataplaneCertificateRequest{Csr: csr},
	}})
	return p
}

// nextIdentity is the next identity that a proxy is sent.
func (p *proxyClient) nextIdentity() (*meridianv1.DataplaneIdentity, error) {
	for {
		m, err := p.stream.Recv()
		if err != nil || m.GetIdentity() != nil {
			return m.GetIdentity(), err
		}
	}
}

// A damaged authority keeps its mesh's dataplanes from having certificates, and not from
// being registered; they have certificates as soon as it is gone.
func TestADamagedAuthorityLeavesProxiesRegistered(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		w.global(resourcetest.Build(t, "Mesh", "", "default", `{"mtls":{"enabledBackend":"ca","backends":[{"name":"ca","type":"builtin"}]}}`))
		key := token.MeshAuthorityKey("default")
		damaged := resourcetest.Build(t, key.Kind, "", key.Name, `{"data":"`+base64.StdEncoding.EncodeToString([]byte("damaged"))+`"}`)
		_, err := w.local.Propose(t.Context(), store.Txn{Ops: []store.Op{store.Put(damaged)}})
		require.NoError(t, err)
		p := identified(w)
		defer p.leave()
		identity, err := p.nextIdentity()
		require.NoError(t, err)
		require.Empty(t, identity.GetCertificate())
		require.Contains(t, identity.GetRefused(), "cannot be used")
		_, err = w.local.Propose(t.Context(), store.Txn{Ops: []store.Op{store.Delete(key)}})
		require.NoError(t, err)
		for len(identity.GetCertificate()) == 0 {
			identity, err = p.nextIdentity()
			require.NoError(t, err)
		}
	})
}

// A write of an authority that fails is tried again, and the proxy stays registered.
func TestACertificateIsIssuedOnceAWriteSucceeds(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		failures := 2
		w.service.cfg.Identities = &issuing{issue: func() (identities.Identity, error) {
			if failures--; failures >= 0 {
				return identities.Identity{}, errors.New("no space")
			}
			return identities.Identity{Certificate: []byte("c"), Stamp: "1"}, nil
		}}
		p := identified(w)
		defer p.leave()
		identity, err := p.nextIdentity()
		require.NoError(t, err)
		require.Equal(t, "c", string(identity.GetCertificate()))
	})
}

// What a certificate names is what the token covers at that moment, also where the
// dataplane has just changed.
func TestNoCertificateNamesWhatTheTokenDoesNotCover(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		other := resourcetest.Build(t, resource.KindDataplane, "default", "web-1", dataplaneSpec("payments"))
		w.service.cfg.Identities = &issuing{issue: func() (identities.Identity, error) {
			return identities.Identity{Certificate: []byte("c"), Stamp: "1", Of: other}, nil
		}}
		p := identified(w)
		defer p.leave()
		identity, err := p.nextIdentity()
		require.Nil(t, identity)
		require.Error(t, err)
		require.Equal(t, codes.PermissionDenied, status.Code(err))
	})
}

// A proxy that was refused a certificate does not hold up the replacement of the
// authority, and one that has a certificate does until it acknowledges the next.
func TestWhoHasNoCertificateIsNotWaitedFor(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		answer := identities.Identity{Refused: "its name is too long"}
		w.service.cfg.Identities = &issuing{issue: func() (identities.Identity, error) { return answer, nil }}
		p := identified(w)
		defer p.leave()
		_, err := p.nextIdentity()
		require.NoError(t, err)
		synctest.Wait()
		require.True(t, w.service.Trust("default", "1"))
		answer = identities.Identity{Certificate: []byte("c"), Stamp: "1"}
		w.service.IdentitiesChanged("default")
		_, err = p.nextIdentity()
		require.NoError(t, err)
		synctest.Wait()
		require.False(t, w.service.Trust("default", "1"))
	})
}
