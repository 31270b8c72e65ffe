package admin

import (
	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/policy"
	"meridian/internal/resource"
)

// remarks are what the author of a batch that is accepted should know.
type remarks []policy.Advice

// lines are the remarks as people read them: one line for each cause.
func (r remarks) lines() (warnings, notes []string) {
	groups := policy.Groups(r)
	for i := range groups {
		if groups[i].Severity == resource.Info {
			notes = append(notes, groups[i].String())
		} else {
			warnings = append(warnings, groups[i].String())
		}
	}
	return warnings, notes
}

func (r remarks) encode() []*meridianv1.Finding {
	out := make([]*meridianv1.Finding, len(r))
	for i, a := range r {
		f := &meridianv1.Finding{
			Severity: meridianv1.Finding_SEVERITY_WARNING, Field: string(a.Path), Message: a.Message, Cause: a.Cause,
		}
		if a.Severity == resource.Info {
			f.Severity = meridianv1.Finding_SEVERITY_INFO
		}
		if a.Key != (resource.Key{}) {
			f.Key = &meridianv1.ResourceKey{Kind: string(a.Key.Kind), Mesh: string(a.Key.Mesh), Name: a.Key.Name}
		}
		out[i] = f
	}
	return out
}
