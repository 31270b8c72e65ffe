package resource

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"meridian/internal/doctree"
)

// Mesh is the content of a Mesh (§1.4).
type Mesh struct {
	MTLS        *MeshMTLS        `json:"mtls,omitzero" doc:"Mutual TLS between the mesh's dataplanes."`
	Logging     *MeshBackends    `json:"logging,omitzero" doc:"Where TrafficLog policies may send access logs."`
	Tracing     *MeshBackends    `json:"tracing,omitzero" doc:"Where TrafficTrace policies may send spans."`
	Metrics     *MeshMetricsConf `json:"metrics,omitzero" doc:"How the dataplanes' metrics are exposed."`
	Networking  *MeshNetworking  `json:"networking,omitzero" doc:"Network settings of every dataplane."`
	Routing     *MeshRouting     `json:"routing,omitzero" doc:"How traffic is routed between zones."`
	Constraints *MeshConstraints `json:"constraints,omitzero" doc:"Which dataplanes may join the mesh."`
	Matching    *MeshMatching    `json:"matching,omitzero" doc:"The rules by which policies are matched."`
}

// MeshMTLS is mutual TLS between dataplanes.
type MeshMTLS struct {
	EnabledBackend string        `json:"enabledBackend,omitzero" doc:"The backend that issues certificates; mutual TLS is off without one."`
	SkipValidation bool          `json:"skipValidation,omitzero" doc:"Do not check that the backend works before it is enabled."`
	Backends       []MTLSBackend `json:"backends,omitzero" doc:"Certificate authorities to choose from."`
}

// The types of the backends with which zones issue certificates.
const (
	// BuiltinCA: with an authority that the zone makes.
	BuiltinCA = "builtin"
	// ProvidedCA: with one that its operator makes.
	ProvidedCA = "provided"
)

// ZonesIssue reports whether zones issue certificates with a type of backend.
func ZonesIssue(backendType string) bool {
	return backendType == BuiltinCA || backendType == ProvidedCA
}

// ProvidedAuthorityPrefix begins the names of the Secrets that hold a certificate authority
// for a backend of type ProvidedCA. Their data is shown to no client.
const ProvidedAuthorityPrefix = "certificate-authority."

// HoldsProvidedAuthority reports whether a resource is such a Secret.
func HoldsProvidedAuthority(key Key) bool {
	return key.Kind == KindSecret && strings.HasPrefix(key.Name, ProvidedAuthorityPrefix)
}

// ProvidedSecret returns the name of the Secret with the authority of a backend of type
// ProvidedCA, which has the certificate and its key, so that both are replaced together.
func (b *MTLSBackend) ProvidedSecret() (string, error) {
	var conf struct {
		Cert, Key struct{ Secret string }
	}
	if len(b.Conf) > 0 && json.Unmarshal(b.Conf, &conf) != nil || conf.Cert.Secret == "" || conf.Cert.Secret != conf.Key.Secret || !strings.HasPrefix(conf.Cert.Secret, ProvidedAuthorityPrefix) {
		return "", fmt.Errorf("cert.secret and key.secret of type %s name one Secret with the certificate and its key, whose name begins with %s", ProvidedCA, ProvidedAuthorityPrefix)
	}
	return conf.Cert.Secret, nil
}

// MTLSBackend is one certificate authority.
type MTLSBackend struct {
	Name      string          `json:"name,omitzero" required:"true" doc:"The backend's name in this mesh."`
	Type      string          `json:"type,omitzero" required:"true" doc:"What issues the certificates, such as builtin or provided."`
	Mode      string          `json:"mode,omitzero" enum:"STRICT|PERMISSIVE" doc:"Whether plaintext is refused (STRICT, the default) or accepted beside TLS."`
	DPCert    *DPCert         `json:"dpCert,omitzero" doc:"The certificates of dataplanes."`
	Conf      json.RawMessage `json:"conf,omitzero" doc:"Settings of the backend's type."`
	RootChain *RootChain      `json:"rootChain,omitzero" doc:"How the CA is asked for."`
}

// DPCert is how dataplane certificates are made.
type DPCert struct {
	Rotation       *CertRotation `json:"rotation,omitzero" doc:"When certificates are renewed."`
	RequestTimeout *Duration     `json:"requestTimeout,omitzero" doc:"How long to wait for a certificate."`
}

// CertRotation is when dataplane certificates are renewed.
type CertRotation struct {
	Expiration *Duration `json:"expiration,omitzero" doc:"How long a certificate is valid."`
}

// RootChain is how the CA's own certificate is asked for.
type RootChain struct {
	RequestTimeout *Duration `json:"requestTimeout,omitzero" doc:"How long to wait for the CA."`
}

// MeshBackends is a list of named backends with a default.
type MeshBackends struct {
	DefaultBackend string    `json:"defaultBackend,omitzero" doc:"The backend of policies that name none."`
	Backends       []Backend `json:"backends,omitzero" doc:"The backends that policies may name."`
}

// Backend is one logging or tracing backend.
type Backend struct {
	Name     string          `json:"name,omitzero" required:"true" doc:"The backend's name in this mesh."`
	Type     string          `json:"type,omitzero" required:"true" doc:"What kind of backend it is, such as file, tcp or zipkin."`
	Format   string          `json:"format,omitzero" doc:"The format of a log entry."`
	Sampling *Percentage     `json:"sampling,omitzero" doc:"The share of requests that are traced."`
	Conf     json.RawMessage `json:"conf,omitzero" doc:"Settings of the backend's type."`
}

// MeshMetricsConf is how the dataplanes' metrics are exposed.
type MeshMetricsConf struct {
	EnabledBackend string    `json:"enabledBackend,omitzero" doc:"The backend in use; metrics are off without one."`
	Backends       []Backend `json:"backends,omitzero" doc:"The backends to choose from."`
}

// MeshNetworking is the network settings of every dataplane.
type MeshNetworking struct {
	Outbound *MeshOutbound `json:"outbound,omitzero" doc:"Traffic that leaves a dataplane."`
}

// MeshOutbound is about traffic that leaves a dataplane.
type MeshOutbound struct {
	Passthrough *bool `json:"passthrough,omitzero" doc:"Whether traffic to destinations outside the mesh passes; true when absent."`
}

// MeshRouting is how traffic is routed between zones.
type MeshRouting struct {
	LocalityAwareLoadBalancing        *bool `json:"localityAwareLoadBalancing,omitzero" doc:"Prefer endpoints of the own zone."`
	ZoneEgress                        *bool `json:"zoneEgress,omitzero" doc:"Leave the zone through its egress."`
	DefaultForbidMeshExternalServices *bool `json:"defaultForbidMeshExternalServices,omitzero" doc:"Forbid external services unless a policy allows them."`
}

// MeshConstraints is which dataplanes may join the mesh.
type MeshConstraints struct {
	DataplaneProxy *DataplaneConstraints `json:"dataplaneProxy,omitzero" doc:"Rules on the tags of dataplanes."`
}

// DataplaneConstraints accepts a dataplane that meets one of the requirements
// and none of the restrictions.
type DataplaneConstraints struct {
	Requirements []TagConstraint `json:"requirements,omitzero" doc:"Tags a dataplane needs; one entry suffices."`
	Restrictions []TagConstraint `json:"restrictions,omitzero" doc:"Tags a dataplane cannot have."`
}

// TagConstraint is one set of tags.
type TagConstraint struct {
	Tags TagSelector `json:"tags,omitzero" required:"true" doc:"Tags and values; * is any value."`
}

// Settings of Mesh.matching.
const (
	// KongMesh breaks ties by time and picks one policy per attachment.
	KongMesh = "KongMesh"
	// Kuma2020 breaks ties by name and adds permissions up.
	Kuma2020 = "Kuma2020"
	// FirstWins lets the first of several targetRef items set a field.
	FirstWins = "FirstWins"
	// LastWins lets the last of several targetRef items set a field.
	LastWins = "LastWins"
	// UnsetAllowed lets inherited policies unset defaults.
	UnsetAllowed = "Allowed"
	// UnsetForbidden refuses that.
	UnsetForbidden = "Forbidden"
)

// MeshMatching chooses among the rules of §1.4. Empty fields stand for
// the defaults that Mesh.EffectiveMatching fills in.
type MeshMatching struct {
	SourceDestination string `json:"sourceDestination,omitzero" enum:"KongMesh|Kuma2020" doc:"How source/destination policies are chosen: KongMesh (default) or Kuma2020."`
	TargetRef         string `json:"targetRef,omitzero" enum:"FirstWins|LastWins" doc:"Which of several targetRef items sets a field: FirstWins (default) or LastWins."`
	Unset             string `json:"unset,omitzero" enum:"Allowed|Forbidden" doc:"Whether inherited policies may unset defaults: Allowed (default) or Forbidden."`
}

// MTLSEnabled reports whether the mesh has mutual TLS.
func (m *Mesh) MTLSEnabled() bool { return m.MTLS != nil && m.MTLS.EnabledBackend != "" }

// EffectiveMatching returns the matching settings with defaults filled in
// (§1.4).
func (m *Mesh) EffectiveMatching() MeshMatching {
	matching := MeshMatching{SourceDestination: KongMesh, TargetRef: FirstWins, Unset: UnsetAllowed}
	if m.Matching == nil {
		return matching
	}
	if m.Matching.SourceDestination != "" {
		matching.SourceDestination = m.Matching.SourceDestination
	}
	if m.Matching.TargetRef != "" {
		matching.TargetRef = m.Matching.TargetRef
	}
	if m.Matching.Unset != "" {
		matching.Unset = m.Matching.Unset
	}
	return matching
}

// HasLoggingBackend reports whether a TrafficLog may name the backend.
func (m *Mesh) HasLoggingBackend(name string) bool { return m.Logging.has(name) }

// HasTracingBackend reports whether a TrafficTrace may name the backend.
func (m *Mesh) HasTracingBackend(name string) bool { return m.Tracing.has(name) }

func (b *MeshBackends) has(name string) bool {
	return b != nil && slices.ContainsFunc(b.Backends, func(x Backend) bool { return x.Name == name })
}

// Validate implements Spec: backends have distinct names, and what refers to
// one finds it.
func (m *Mesh) Validate(at Path, r *Report) {
	if m.MTLS != nil {
		names := make([]string, len(m.MTLS.Backends))
		for i, b := range m.MTLS.Backends {
			names[i] = b.Name
			if b.Name != m.MTLS.EnabledBackend || b.Name == "" || b.Type == "" {
				continue
			}
			if !ZonesIssue(b.Type) {
				r.Warnf(at.Field("mtls").Field("backends").Index(i).Field("type"),
					"zones issue certificates with types %s and %s only: dataplanes of this mesh get none, and in mode STRICT their proxies are sent nothing",
					BuiltinCA, ProvidedCA)
			}
			if b.Type == ProvidedCA {
				if _, err := m.MTLS.Backends[i].ProvidedSecret(); err != nil {
					r.Warnf(at.Field("mtls").Field("backends").Index(i).Field("conf"), "dataplanes of this mesh get no certificates: %v", err)
				}
			}
		}
		checkBackends(at.Field("mtls"), names, "enabledBackend", m.MTLS.EnabledBackend, r)
	}
	if m.Logging != nil {
		checkBackends(at.Field("logging"), backendNames(m.Logging.Backends), "defaultBackend", m.Logging.DefaultBackend, r)
	}
	if m.Tracing != nil {
		checkBackends(at.Field("tracing"), backendNames(m.Tracing.Backends), "defaultBackend", m.Tracing.DefaultBackend, r)
	}
	if m.Metrics != nil {
		checkBackends(at.Field("metrics"), backendNames(m.Metrics.Backends), "enabledBackend", m.Metrics.EnabledBackend, r)
	}
	if m.Constraints != nil && m.Constraints.DataplaneProxy != nil {
		proxy := at.Field("constraints").Field("dataplaneProxy")
		checkConstraints(proxy.Field("requirements"), m.Constraints.DataplaneProxy.Requirements, r)
		checkConstraints(proxy.Field("restrictions"), m.Constraints.DataplaneProxy.Restrictions, r)
	}
}

func backendNames(backends []Backend) []string {
	names := make([]string, len(backends))
	for i, b := range backends {
		names[i] = b.Name
	}
	return names
}

// checkBackends reports nameless and repeated backends, and a reference to one
// that is not there.
func checkBackends(at Path, names []string, field, reference string, r *Report) {
	for i, name := range names {
		path := at.Field("backends").Index(i).Field("name")
		if name == "" {
			r.Errorf(path, "is required")
		} else if slices.Contains(names[:i], name) {
			r.Errorf(path, "%q is the name of an earlier backend; each needs its own", doctree.Clip(name))
		}
	}
	if reference == "" || slices.Contains(names, reference) {
		return
	}
	hint := didYouMean(reference, names)
	if hint == "" && len(names) > 0 {
		hint = "; there are " + strings.Join(names, ", ")
	}
	r.Errorf(at.Field(field), "there is no backend %q in `backends`%s", doctree.Clip(reference), hint)
}

func checkConstraints(at Path, constraints []TagConstraint, r *Report) {
	for i, c := range constraints {
		if len(c.Tags) == 0 {
			r.Errorf(at.Index(i).Field("tags"), "needs at least one tag")
		}
	}
}
