package resource

import (
	"crypto/x509"
	"encoding/base64"

	"meridian/internal/doctree"
)

// Secret is the content of a GlobalSecret and of a Secret.
type Secret struct {
	Data string `json:"data,omitzero" required:"true" doc:"The secret material in base64."`
	// Withheld stands in answers in place of Data: see token.Withheld.
	Withheld bool `json:"withheld,omitzero" doc:"Set by servers in place of the data of a signing key, which leaves them in backups only. A document with it cannot be applied."`
}

// Validate implements Spec.
func (s *Secret) Validate(at Path, r *Report) {
	if s.Withheld {
		r.Errorf(at.Field("withheld"), "marks a signing key that was read without its data: leave the document out; `meridian tokens rotate` makes a new key of tokens, an authority that is provided is applied from its own files, and a backup keeps the old ones")
		return
	}
	if _, err := base64.StdEncoding.DecodeString(s.Data); err != nil {
		r.Errorf(at.Field("data"), "is not base64; write the output of `base64 -w0`")
	}
}

// Bytes returns the secret material itself.
func (s *Secret) Bytes() []byte {
	data, err := base64.StdEncoding.DecodeString(s.Data)
	if err != nil {
		return nil // Validate has refused it
	}
	return data
}

// What a signing key or a revoked token is for (§6.8).
const (
	UseUserToken      = "user-token"
	UseDataplaneToken = "dataplane-token"
	UseZoneToken      = "zone-token"
	UseServerToken    = "server-token"
)

// SigningKey is the public half of a key that signs tokens. The private half is
// a GlobalSecret and never leaves the global (§6.8).
type SigningKey struct {
	Use       string `json:"use,omitzero" required:"true" enum:"user-token|dataplane-token|zone-token|server-token" doc:"The tokens that the key signs."`
	Serial    uint64 `json:"serial,omitzero" required:"true" doc:"Counts the keys of one use from 1; the highest signs, all verify."`
	PublicKey string `json:"publicKey,omitzero" required:"true" doc:"The public key: PKIX, DER, in base64."`
}

// Validate implements Spec.
func (k *SigningKey) Validate(at Path, r *Report) {
	if k.Serial == 0 {
		r.Errorf(at.Field("serial"), "counts from 1")
	}
	der, err := base64.StdEncoding.DecodeString(k.PublicKey)
	if err != nil {
		r.Errorf(at.Field("publicKey"), "is not base64")
		return
	}
	if _, err := x509.ParsePKIXPublicKey(der); err != nil {
		r.Errorf(at.Field("publicKey"), "is not a PKIX public key in DER")
	}
}

// TokenRevocation ends one token before it expires (§6.8). A resource
// per token lets revocations be written, synced and removed one by one.
type TokenRevocation struct {
	Use     string `json:"use,omitzero" required:"true" enum:"user-token|dataplane-token|zone-token|server-token" doc:"What kind of token it was."`
	ID      string `json:"id,omitzero" required:"true" doc:"The token's jti."`
	Expires string `json:"expires,omitzero" doc:"When the token would have expired, RFC 3339; the revocation can be removed after that."`
	Reason  string `json:"reason,omitzero" doc:"Why it was revoked, for people."`
}

// Validate implements Spec.
func (t *TokenRevocation) Validate(at Path, r *Report) {
	if t.ID == "" {
		r.Errorf(at.Field("id"), "is required")
	}
	if t.Expires != "" {
		readTime(&doctree.Node{Shape: doctree.Text, Text: t.Expires}, at.Field("expires"), r)
	}
}

// IssuedToken records a token that a control plane has issued, so that it can be
// listed and revoked. It holds nothing that could be used as one.
type IssuedToken struct {
	Use     string              `json:"use,omitzero" required:"true" enum:"user-token|dataplane-token|zone-token|server-token" doc:"What kind of token it is."`
	ID      string              `json:"id,omitzero" required:"true" doc:"The token's jti."`
	Subject string              `json:"subject,omitzero" required:"true" doc:"Who holds it: a user, a zone, MESH/NAME of a dataplane, '*' for any name, or 'server'."`
	Groups  []string            `json:"groups,omitzero" doc:"Groups of the user."`
	Tags    map[string][]string `json:"tags,omitzero" doc:"Values that the dataplane may have of each tag."`
	Scope   []string            `json:"scope,omitzero" doc:"What the zone's token is good for."`
	Serial  uint64              `json:"serial,omitzero" required:"true" doc:"Serial number of the key that signed it."`
	Issued  string              `json:"issued,omitzero" required:"true" doc:"When it was issued, RFC 3339."`
	Expires string              `json:"expires,omitzero" required:"true" doc:"When it expires, RFC 3339; the record can be removed after that."`
	Issuer  string              `json:"issuer,omitzero" doc:"The user who had it issued."`
	UsedBy  string              `json:"usedBy,omitzero" doc:"The server that joined with it: a server token is good for one."`
	UsedFor string              `json:"usedFor,omitzero" doc:"The attempt to join that used it up, which alone may be repeated."`
	Revoked bool                `json:"revoked,omitzero" doc:"That it was ended before it expires, where no TokenRevocation can say so: in a zone of a global, for the zone's own tokens."`
	Reason  string              `json:"reason,omitzero" doc:"Why it was revoked, for people."`
}

// Validate implements Spec.
func (t *IssuedToken) Validate(at Path, r *Report) {
	if t.ID == "" {
		r.Errorf(at.Field("id"), "is required")
	}
	if t.Serial == 0 {
		r.Errorf(at.Field("serial"), "counts from 1")
	}
	readTime(&doctree.Node{Shape: doctree.Text, Text: t.Issued}, at.Field("issued"), r)
	readTime(&doctree.Node{Shape: doctree.Text, Text: t.Expires}, at.Field("expires"), r)
}
