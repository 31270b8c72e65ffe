package admin

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// What an answer says of a batch is bounded in number and in bytes, warnings and notes
// apart, and it says how much it leaves out.
func TestRemarksAreBounded(t *testing.T) {
	remark := func(severity resource.Severity, i, size int) resource.Problem {
		return resource.Problem{Severity: severity, Path: "conf", Message: fmt.Sprintf("%d %s", i, strings.Repeat("x", size))}
	}
	for _, tc := range []struct {
		name                 string
		warnings, notes      int
		size                 int
		keptWarnings, atMost int // atMost of notes
	}{
		{"few", 3, 5, 10, 3, 5},
		{"many notes leave all warnings", 7, 20_000, 10, 7, maxRemarks},
		{"many warnings", 1500, 2, 10, maxRemarks, 2},
		{"large ones", 1, 100, 10_000, 1, maxRemarksBytes / 10_000},
		{"one that is too large", 1, 1, maxRemarksBytes + 1, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var said remarks
			key := func(i int) resource.Key {
				return resource.Key{Kind: "Timeout", Mesh: "m", Name: fmt.Sprintf("t%d", i)}
			}
			for i := range max(tc.warnings, tc.notes) {
				if i < tc.notes {
					said = append(said, adviceOn(key(i), remark(resource.Info, i, tc.size)))
				}
				if i < tc.warnings {
					said = append(said, adviceOn(key(i), remark(resource.Warning, i, tc.size)))
				}
			}
			response := applyResponse(store.Result{}, said)
			require.Less(t, proto.Size(response), 5*maxRemarksBytes)
			count := map[meridianv1.Finding_Severity]int{}
			last := map[meridianv1.Finding_Severity]string{}
			for _, f := range response.GetFindings() {
				if f.GetKey() == nil {
					last[f.GetSeverity()] = f.GetMessage()
					continue
				}
				require.Empty(t, last, "what is left out is said at the end")
				count[f.GetSeverity()]++
			}
			for _, s := range []struct {
				severity meridianv1.Finding_Severity
				what     string
				lines    []string
				all      int
				most     int
			}{
				{meridianv1.Finding_SEVERITY_WARNING, "warnings", response.GetWarnings(), tc.warnings, tc.keptWarnings},
				{meridianv1.Finding_SEVERITY_INFO, "notes", response.GetNotes(), tc.notes, tc.atMost},
			} {
				kept := count[s.severity]
				require.LessOrEqual(t, kept, s.most)
				if s.most == s.all {
					require.Equal(t, s.all, kept)
					require.Len(t, s.lines, s.all)
					require.Empty(t, last[s.severity])
					continue
				}
				require.Equal(t, fmt.Sprintf("%d more %s are left out of this answer: apply fewer documents at a time to see them", s.all-kept, s.what), last[s.severity])
				require.Contains(t, s.lines[len(s.lines)-1], " more "+s.what+" are left out of this answer")
				require.LessOrEqual(t, len(s.lines), s.most+1)
			}
		})
	}
}

func adviceOn(key resource.Key, problem resource.Problem) policy.Advice {
	return policy.Advice{Key: key, Problem: problem}
}
