package xds

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"sort"

	"meridian/internal/resource"
)

// Dialect is the kind of client that resources are for: what one enforces, another
// ignores or refuses.
type Dialect string

// The dialects.
const (
	GRPC  Dialect = "grpc"
	Envoy Dialect = "envoy"
)

var (
	// ErrNoDataplane means that a mesh has no dataplane of a name.
	ErrNoDataplane = errors.New("there is no such dataplane")
	// ErrDialect means that a Source makes nothing for a dialect.
	ErrDialect = errors.New("this zone serves no proxies of this kind")
)

// Source makes the resources of proxies. Its methods are safe for concurrent use.
type Source interface {
	// Resources returns everything that a dataplane's proxy may be sent, on the
	// state of now: it includes every change that was applied before the call. An
	// unchanged resource is the same pointer as before where that is cheap to have.
	// The error wraps ErrNoDataplane or ErrDialect, or is a failure of this proxy
	// alone.
	Resources(dataplane resource.Key, dialect Dialect) (*Set, error)
	// OnTouch has f called, change by change, with the dataplanes that are followed and
	// whose set may differ from now on, each once; others may be among them. f is quick
	// and calls nothing of the Source. Called once, before the first Resources.
	OnTouch(f func(touched []resource.Key))
	// Follow has the source keep what it makes for a dataplane, and hear of changes to
	// what that is made of, until unfollow was called for every Follow. For a dataplane
	// that is not followed, resources are made with each call, and nothing is kept.
	// Both functions may wait for the f of OnTouch.
	Follow(dataplane resource.Key) (unfollow func())
	// Listening says whether a dataplane's Envoy is connected, and whether it has accepted
	// listeners with TLS for all inbounds that it was sent, at least one. It may wait for
	// the f of OnTouch.
	Listening(dataplane resource.Key, envoy, secure bool)
}

// Set is everything that one proxy may be sent. It is immutable.
type Set struct {
	// AsOf is the revision that the set holds at.
	AsOf resource.Revision
	// Withheld says why the proxy is sent nothing, in a sentence for its operator;
	// empty when it is not so. The set is empty then, so that what the proxy had
	// is removed from it.
	Withheld string

	// Omitted is what is not in the set as policies say, and fails instead.
	Omitted []Omission
	// Unmade is what policies say and the proxy does not do.
	Unmade []Omission

	all []*Resource // by type, then name
}

// Omission is something about a part of a dataplane that a proxy is not sent.
type Omission struct {
	// Attachment is the part, as policy.Attachment prints it.
	Attachment string
	// Sources are the policies, and other resources, of which it was made, in order.
	Sources []resource.Key
	// Why is a sentence for operators.
	Why string
}

// NewSet returns a set. It fails when two resources share a type and a name, or
// when a resource refers to one that is not in the set.
func NewSet(asOf resource.Revision, resources ...*Resource) (*Set, error) {
	s := &Set{AsOf: asOf, all: slices.Clone(resources)}
	slices.SortFunc(s.all, func(a, b *Resource) int { return a.Ref().Compare(b.Ref()) })
	for i, r := range s.all {
		if i > 0 && s.all[i-1].Ref() == r.Ref() {
			return nil, fmt.Errorf("%s is in the set twice", r.Ref())
		}
	}
	for _, r := range s.all {
		for _, used := range r.Uses {
			if s.Get(used) == nil {
				return nil, fmt.Errorf("%s refers to %s, which is not in the set", r.Ref(), used)
			}
		}
	}
	return s, nil
}

// WithheldSet returns the set of a proxy that is sent nothing, for the reason given.
func WithheldSet(asOf resource.Revision, reason string) *Set {
	return &Set{AsOf: asOf, Withheld: reason}
}

// Get returns a resource of the set; nil when it is not in it.
func (s *Set) Get(ref Ref) *Resource {
	i := s.search(ref)
	if i == len(s.all) || s.all[i].Ref() != ref {
		return nil
	}
	return s.all[i]
}

// search returns the index of the first resource that is not before ref.
func (s *Set) search(ref Ref) int {
	return sort.Search(len(s.all), func(i int) bool { return s.all[i].Ref().Compare(ref) >= 0 })
}

// Of returns the resources of a type, by name.
func (s *Set) Of(t Type) []*Resource {
	from, to := s.search(Ref{Type: t}), s.search(Ref{Type: t + 1})
	return s.all[from:to:to]
}

// All returns every resource, by type in the order of Types, then by name.
func (s *Set) All() iter.Seq[*Resource] { return slices.Values(s.all) }

// Len returns the number of resources.
func (s *Set) Len() int { return len(s.all) }

// CertificateProvider is the instance of certificate providers, in a gRPC client's
// bootstrap file, that has the dataplane's certificate and what it trusts.
const CertificateProvider = "meridian"

// AgentCluster is the cluster, in the configuration with which the agent starts an Envoy,
// of the agent itself.
const AgentCluster = "meridian_agent"

// What an Envoy's agent is sent with log entries, as attributes of their resource: the
// address, HOST:PORT, that takes them over TCP, and whether members without a value are
// left out of entries that are objects ("true").
const (
	LogReceiver   = "meridian.io/log-receiver"
	LogOmitsEmpty = "meridian.io/log-omits-empty"
)

// Collector is the metadata of a call with log entries or spans that an Envoy's agent is to
// pass on, as they are otherwise: the address, HOST:PORT, of an OpenTelemetry collector.
const Collector = "meridian-collector"

// What an Envoy's agent is sent of calls about which permissions that are tried would decide
// otherwise than those in effect. An attribute of the resource is the inbound's port, in
// decimal. Members of the body are the name in the caller's certificate, what became of the
// call (see DeniedDetails), the stamp of what is tried, and, for each list of permissions
// from 0 on, the number appended, what it would decide and on whose word.
const (
	TrialPort    = "meridian.io/trial-port"
	TrialCaller  = "caller"
	TrialDetails = "details"
	TrialStamp   = "stamp"
	TrialResult  = "result"
	TrialPolicy  = "policy"
	// TrialAllowed is the result of a list that would allow.
	TrialAllowed = "allowed"
)

// DeniedDetails begins what Envoy says of a request or connection that a permission
// denied; the name of the permission follows, and a closing bracket.
const DeniedDetails = "rbac_access_denied_matched_policy["

// EnvoyInbound begins the names of an Envoy's listeners for inbounds.
const EnvoyInbound = "in_"

// Where an Envoy reads its dataplane's certificate with its key, and what it trusts: a
// response of secret discovery with one secret of that name each, in files relative to
// the directory in which it runs. They are replaced at once, by another directory in the
// place of the last: what refers to them never changes.
const (
	EnvoyIdentity    = "identity"
	EnvoyCertificate = EnvoyIdentity + "/current/certificate.json"
	EnvoyRoots       = EnvoyIdentity + "/current/roots.json"
	// CertificateSecret is the name of the secret with the certificate and its key.
	CertificateSecret = "certificate"
	// RootsSecret is the name of the secret with what is trusted.
	RootsSecret = "roots"
)

// InstanceField is the field of a node's metadata by which a proxy names its process:
// streams with the same value belong together.
const InstanceField = "meridian.io/instance"
