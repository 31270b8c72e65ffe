package dataplane

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn/token"
	"meridian/internal/policy"
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
		require.Zero(t, w.service.Unacknowledged("default", "1"))
		answer = identities.Identity{Certificate: []byte("c"), Stamp: "1", Until: w.service.cfg.Now().Add(time.Hour)}
		w.service.IdentitiesChanged("default")
		_, err = p.nextIdentity()
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, identities.Waiting{Connected: 1}, w.service.Unacknowledged("default", "1"))

		// Its certificate of before is valid, whatever it is refused now.
		answer = identities.Identity{Refused: "its name is too long"}
		w.service.IdentitiesChanged("default")
		_, err = p.nextIdentity()
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, identities.Waiting{Connected: 1}, w.service.Unacknowledged("default", "1"))
	})
}

// A dataplane that has gone is waited for until its certificate has ended, also when its
// registration is gone, unless it has acknowledged before, or comes back and does.
func TestWhoIsAwayWithACertificateIsWaitedFor(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		stamp := "1"
		w.service.cfg.Identities = &issuing{issue: func() (identities.Identity, error) {
			return identities.Identity{Certificate: []byte("c"), Stamp: stamp, Until: w.service.cfg.Now().Add(time.Hour)}, nil
		}}
		obtain := func() *proxyClient {
			p := identified(w)
			identity, err := p.nextIdentity()
			require.NoError(t, err)
			p.send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_IdentityAck{
				IdentityAck: &meridianv1.DataplaneIdentityAck{Version: identity.GetVersion()},
			}})
			synctest.Wait()
			require.Zero(t, w.service.Unacknowledged("default", stamp))
			return p
		}
		obtain().leave()
		<-time.After(10 * time.Minute) // the registration is gone
		synctest.Wait()
		require.Empty(t, w.service.proxies)
		require.Zero(t, w.service.Unacknowledged("default", "1"), "it has acknowledged that")
		require.Equal(t, identities.Waiting{Away: 1}, w.service.Unacknowledged("default", "2"))
		require.Zero(t, w.service.Unacknowledged("other", "2"))
		stamp = "2"
		obtain().leave()
		<-time.After(10 * time.Minute)
		synctest.Wait()
		require.Zero(t, w.service.Unacknowledged("default", "2"), "it came back")
		require.Equal(t, identities.Waiting{Away: 1}, w.service.Unacknowledged("default", "3"))
		<-time.After(time.Hour)
		synctest.Wait()
		require.Zero(t, w.service.Unacknowledged("default", "3"), "its certificate has ended")
		require.Empty(t, w.service.holders)
	})
}

// Dataplanes beyond those that are remembered one by one are waited for together, until
// the last of their certificates has ended.
func TestManyHolders(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	h := holders{}
	key := func(i int) resource.Key { return policy.DataplaneKey("default", fmt.Sprint("web-", i)) }
	for i := range maxHolders + 100 {
		h.issued(key(i), now.Add(time.Hour))
		h.acknowledged(key(i), "1")
	}
	h.issued(key(maxHolders+1), now.Add(2*time.Hour))
	h.issued(key(0), now.Add(time.Minute)) // a shorter one: the last ends later
	require.Len(t, h, maxHolders+1)
	count := func(stamp string, at time.Time) int { return len(slices.Collect(h.without("default", stamp, at))) }
	require.Equal(t, 1, count("1", now))
	require.Equal(t, maxHolders+1, count("2", now.Add(59*time.Minute)))
	require.Equal(t, 1, count("1", now.Add(119*time.Minute)))
	require.Zero(t, count("2", now.Add(2*time.Hour)))
	require.Empty(t, h)
}
