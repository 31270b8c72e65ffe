package support

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/xds"
)

// leaves are the fields of a kind's spec that hold no others.
func leaves(kind resource.Kind) (paths []string) {
	fields := resource.Fields(kind)
	for i, f := range fields {
		inner := i+1 < len(fields) && strings.HasPrefix(fields[i+1].Path, f.Path) && strings.Contains(".[", fields[i+1].Path[len(f.Path):][:1])
		if !inner {
			paths = append(paths, f.Path)
		}
	}
	return paths
}

// Every field of every kind that could concern a proxy has an answer, an enforced one
// a row of its own, and every row is about a field that exists.
func TestEveryFieldHasARow(t *testing.T) {
	for _, dialect := range Dialects() {
		t.Run(string(dialect), func(t *testing.T) { everyFieldHasARow(t, dialect) })
	}
}

func everyFieldHasARow(t *testing.T, dialect xds.Dialect) {
	rowsOf := table(dialect)
	apart := []resource.Kind{resource.KindZone, resource.KindNamespace, resource.KindRollout, resource.KindMeshTest}
	for _, d := range resource.Kinds() {
		if d.Class == resource.AccessControl || slices.Contains(apart, d.Kind) || rowsOf[d.Kind] == nil && d.Class == resource.Infrastructure && secret(d.Kind) {
			require.Nil(t, rowsOf[d.Kind], "%s", d.Kind)
			continue
		}
		used, configures := map[int]bool{}, false
		for _, path := range leaves(d.Kind) {
			direction, field, configured := place(d.Kind, split(path))
			if !configured {
				continue
			}
			configures = true
			if direction != "from" {
				direction = ""
			}
			answer, ok := Field(dialect, d.Kind, path)
			if !ok {
				t.Errorf("%s %s has no row", d.Kind, path)
				continue
			}
			own := false
			for i, r := range rowsOf[d.Kind] {
				if r.direction == direction && r.covers(field) {
					used[i] = true
					own = own || len(r.field) == len(field)
				}
			}
			require.True(t, own || answer.Status != Enforced, "%s %s is enforced by a row about more than it", d.Kind, path)
			require.True(t, answer.Note != "" || answer.Status == Enforced || answer.Status == Decided, "%s %s needs a note", d.Kind, path)
		}
		for i, r := range rowsOf[d.Kind] {
			require.True(t, used[i] || !configures, "%s: the row %s is about no field", d.Kind, strings.Join(r.field, "."))
		}
	}
}

// secret reports whether a kind holds keys and tokens.
func secret(kind resource.Kind) bool {
	return slices.ContainsFunc([]string{"Secret", "Token", "Key", "Revocation"}, func(part string) bool { return strings.Contains(string(kind), part) })
}

func TestAnswers(t *testing.T) {
	for path, want := range map[string]Status{
		"conf.to[].default.connectionLimits.maxRequests":            Enforced,
		"to[].connectionLimits.maxRequests":                         Enforced,
		"overrides.to[].connectionLimits.maxRequests":               Enforced,
		"from[].connectionLimits.maxRequests":                       Unsupported,
		"defaults.from[].connectionLimits.maxRequests":              Unsupported,
		"to[].targetRef.kind":                                       Decided,
		"targetRef.name":                                            Decided,
		"defaults.when":                                             Decided,
		"to[].outlierDetection.detectors.totalFailures.consecutive": Unsupported,
	} {
		answer, ok := Field(xds.GRPC, resource.KindMeshCircuitBreaker, path)
		require.True(t, ok, path)
		require.Equal(t, want, answer.Status, path)
	}
	answer, ok := Configured(xds.GRPC, resource.KindTrafficRoute, "", []string{"http", "[]", "match", "headers", "x.y", "exact"})
	require.True(t, ok)
	require.Equal(t, Enforced, answer.Status)
	_, ok = Field(xds.GRPC, resource.KindAccessRole, "rules[].types")
	require.False(t, ok)
	_, ok = Field("other", resource.KindTimeout, "conf.connectTimeout")
	require.False(t, ok, "nothing is said of what is not served")
}

// The rows have the fields as the table writes them.
func TestRows(t *testing.T) {
	rows := map[Row]bool{}
	for r := range Rows(xds.Envoy) {
		require.False(t, rows[r], "%v is there twice", r)
		require.Equal(t, strings.Join(split(r.Field), "."), strings.ReplaceAll(r.Field, "[]", ".[]"))
		rows[r] = true
	}
	require.True(t, rows[Row{resource.KindMeshHTTPFault, true, "http[].delay.value", Answer{Enforced, byCaller}}])
	require.True(t, rows[Row{resource.KindMeshHTTPFault, false, "http[].delay.value", Answer{Enforced, ""}}])
	for range Rows("other") {
		t.Fatal("nothing is said of what is not served")
	}
}
