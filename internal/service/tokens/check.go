package tokens

import (
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/authn/token"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

const (
	// maxText bounds names, groups, tags and their values, in bytes.
	maxText = 253
	// maxEntries bounds the groups of a token, and the values of its tags
	// together, so that no token outgrows what verifiers read.
	maxEntries = 64
	// reserved begins the names that the system gives out itself (§6.5).
	reserved = "mesh-system:"
)

func invalid(format string, args ...any) error {
	return rpcerr.New(rpcerr.Invalid, "BAD_TOKEN_REQUEST", format, args...)
}

// validity turns seconds into a duration within what an issuer allows.
func validity(seconds int64) (time.Duration, error) {
	const longest = int64(token.MaxValidity / time.Second)
	if seconds < 1 || seconds > longest {
		return 0, invalid("a token is valid for at least a second and at most %d days", longest/(24*60*60))
	}
	return time.Duration(seconds) * time.Second, nil
}

func checkUser(name string, groups []string) error {
	if err := checkText("the name of the user", name); err != nil {
		return err
	}
	if strings.HasPrefix(name, reserved) {
		return invalid("the name of the user: %q is reserved: users have no names that begin with %s", name, reserved)
	}
	if len(groups) > maxEntries {
		return invalid("a token carries at most %d groups, not %d", maxEntries, len(groups))
	}
	for _, group := range groups {
		if err := checkText("a group", group); err != nil {
			return err
		}
		if group == authn.UnauthenticatedGroup {
			return invalid("a group: %s is for clients without a token", group)
		}
	}
	return nil
}

// checkDataplane checks a request and returns its tags.
func checkDataplane(req *meridianv1.GenerateDataplaneTokenRequest) (map[string][]string, error) {
	if req.GetMesh() == "" {
		return nil, invalid("the mesh is required: a dataplane token is for one mesh")
	}
	if req.GetName() != "" {
		if err := resource.CheckName(req.GetName()); err != nil {
			return nil, invalid("the name of the dataplane: %w", err)
		}
	}
	tags, n := map[string][]string{}, 0
	for _, tag := range req.GetTags() {
		if err := checkText("the name of a tag", tag.GetName()); err != nil {
			return nil, err
		}
		if len(tag.GetValues()) == 0 {
			return nil, invalid("tag %s has no value", tag.GetName())
		}
		for _, value := range tag.GetValues() {
			if err := checkText("a value of tag "+tag.GetName(), value); err != nil {
				return nil, err
			}
			if value == resource.AnyValue {
				return nil, invalid("tag %s: a token lists the values that it allows; leave the tag out to allow any", tag.GetName())
			}
			if !slices.Contains(tags[tag.GetName()], value) {
				tags[tag.GetName()] = append(tags[tag.GetName()], value)
				n++
			}
			if n > maxEntries {
				return nil, invalid("a token carries at most %d values of tags", maxEntries)
			}
		}
	}
	return tags, nil
}

// checkMesh refuses a mesh that does not exist.
func (s *Service) checkMesh(mesh string) error {
	if _, ok := s.cfg.View().Get(resource.Key{Kind: resource.KindMesh, Name: mesh}); !ok {
		return rpcerr.New(rpcerr.Invalid, "MESH_MISSING", "mesh %q does not exist: create it first", clip(mesh))
	}
	return nil
}

// checkScope reads the scopes of a zone token, the control plane's when there is
// none.
func checkScope(scope []string) ([]string, error) {
	if len(scope) == 0 {
		return []string{token.ScopeControlPlane}, nil
	}
	var out []string
	for _, s := range scope {
		if s != token.ScopeControlPlane && s != token.ScopeIngress && s != token.ScopeEgress {
			return nil, invalid("scope %q: the scopes are %s, %s and %s", clip(s), token.ScopeControlPlane, token.ScopeIngress, token.ScopeEgress)
		}
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out, nil
}

func checkText(what, text string) error {
	switch {
	case text == "":
		return invalid("%s is required", what)
	case len(text) > maxText:
		return invalid("%s has %d bytes; at most %d are allowed", what, len(text), maxText)
	case !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }):
		return invalid("%s has characters that do not print", what)
	}
	return nil
}

// clip keeps what a caller wrote from flooding an error message.
func clip(text string) string {
	if len(text) > 64 {
		return text[:64] + "…"
	}
	return text
}

func encodeTags(tags map[string][]string) []*meridianv1.TokenTagValues {
	var out []*meridianv1.TokenTagValues
	for _, name := range slices.Sorted(maps.Keys(tags)) {
		out = append(out, &meridianv1.TokenTagValues{Name: name, Values: tags[name]})
	}
	return out
}
