package admin

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/policy"
	"meridian/internal/resource"
)

// An answer has at most maxRemarks warnings and as many notes, as lines and again as
// findings, of at most maxRemarksBytes bytes each time: some clients take no message of
// more than 4 MiB.
const (
	maxRemarks      = 1000
	maxRemarksBytes = 256 << 10
)

// remarks are what the author of a batch that is accepted should know.
type remarks []policy.Advice

// warn adds a warning about the batch as a whole.
func (r *remarks) warn(message string) {
	*r = append(*r, policy.Advice{Problem: resource.Problem{Severity: resource.Warning, Message: message}})
}

// lines are the remarks as people read them: one line for each cause, and one that
// counts those that are left out.
func (r remarks) lines() (warnings, notes []string) {
	groups := policy.Groups(r)
	for i := range groups {
		if groups[i].Severity == resource.Info {
			notes = append(notes, groups[i].String())
		} else {
			warnings = append(warnings, groups[i].String())
		}
	}
	return boundLines(warnings, "warnings"), boundLines(notes, "notes")
}

func boundLines(all []string, what string) []string {
	var kept []string
	var space space
	for _, line := range all {
		if space.takes(len(line)) {
			kept = append(kept, line)
		}
	}
	if space.left == 0 {
		return all
	}
	return append(kept, space.says(what))
}

// space is what an answer has of remarks of one severity.
type space struct {
	taken, bytes int
	left         int // of those that did not fit
}

// takes reports whether one more fits, of a size in bytes, and none was left out before.
func (r *space) takes(size int) bool {
	if r.left > 0 || r.taken == maxRemarks || r.bytes+size > maxRemarksBytes {
		r.left++
		return false
	}
	r.taken++
	r.bytes += size
	return true
}

// says says how many are left out.
func (r *space) says(what string) string {
	return fmt.Sprintf("%d more %s are left out of this answer: apply fewer documents at a time to see them", r.left, what)
}

// encode returns the remarks on each resource, in their order, and then, about the
// request, how many warnings and notes are left out.
func (r remarks) encode() []*meridianv1.Finding {
	var out []*meridianv1.Finding
	var warnings, notes space
	for _, a := range r {
		f := &meridianv1.Finding{
			Severity: meridianv1.Finding_SEVERITY_WARNING, Field: string(a.Path), Message: a.Message, Cause: a.Cause,
			Code: string(a.Code.Explanation().Code),
		}
		of := &warnings
		if a.Severity == resource.Info {
			f.Severity, of = meridianv1.Finding_SEVERITY_INFO, &notes
		}
		if a.Key != (resource.Key{}) {
			f.Key = &meridianv1.ResourceKey{Kind: string(a.Key.Kind), Mesh: string(a.Key.Mesh), Name: a.Key.Name}
		}
		if of.takes(proto.Size(f)) {
			out = append(out, f)
		}
	}
	if warnings.left > 0 {
		out = append(out, &meridianv1.Finding{Severity: meridianv1.Finding_SEVERITY_WARNING, Message: warnings.says("warnings")})
	}
	if notes.left > 0 {
		out = append(out, &meridianv1.Finding{Severity: meridianv1.Finding_SEVERITY_INFO, Message: notes.says("notes")})
	}
	return out
}
