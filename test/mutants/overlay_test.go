package mutants

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// root is where the module begins.
const root = "../.."

// Every mutant still fits the product: the texts that it replaces are there,
// each once.
func TestMutantsFitTheProduct(t *testing.T) {
	for _, m := range all {
		path, err := m.overlay(root, t.TempDir())
		require.NoError(t, err)
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		var description struct{ Replace map[string]string }
		require.NoError(t, json.Unmarshal(data, &description))
		require.NotEmpty(t, description.Replace, m.name)
	}
}

func TestAMutantThatDoesNotFitIsReported(t *testing.T) {
	stale := mutant{name: "stale", edits: []edit{{"this text is in no file of the product", ""}}}
	_, err := stale.overlay(root, t.TempDir())
	require.ErrorContains(t, err, "mutant stale: the product has this text 0 times, want once")

	ambiguous := mutant{name: "ambiguous", edits: []edit{{"return nil\n", ""}}}
	_, err = ambiguous.overlay(root, t.TempDir())
	require.ErrorContains(t, err, "times, want once")
}
