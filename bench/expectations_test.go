package bench

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// expectations is how many cases are run.
const expectations = 1_000

// BenchmarkExpectations runs `meridian test` over files with 1,000 policies, 200 dataplanes
// and 1,000 cases, half about connections and half about settings, from the start of the
// command to its end.
func BenchmarkExpectations(b *testing.B) {
	system(b)
	program, err := programs.Path("meridian")
	require.NoError(b, err)
	dir := b.TempDir()
	var text bytes.Buffer
	text.WriteString("type: Mesh\nname: default\nmtls: {enabledBackend: ca, backends: [{name: ca, type: builtin}]}\n")
	for _, r := range append(policies(few), callers(services)...) {
		fmt.Fprintf(&text, "---\n{\"type\":%q,\"mesh\":\"default\",\"name\":%q,%s\n", r.GetKind(), r.GetName(), r.GetSpec()[1:])
	}
	text.WriteString("---\n" + `{"type":"Timeout","mesh":"default","name":"all","sources":[{"match":{"kuma.io/service":"*"}}],"destinations":[{"match":{"kuma.io/service":"service-7"}}],"conf":{"connectTimeout":"5s"}}` + "\n")
	require.NoError(b, os.WriteFile(filepath.Join(dir, "mesh.yaml"), text.Bytes(), 0o600))
	text.Reset()
	text.WriteString("kind: PolicyTest\nmesh: default\ncases:\n")
	for i := range expectations / 2 {
		from := i % services
		fmt.Fprintf(&text, "- {name: connection %d, connection: {from: caller-%05d, to: caller-%05d}, expect: denied}\n", i, from, (from+2+i/services)%services)
		fmt.Fprintf(&text, "- {name: setting %d, dataplane: caller-%05d, kind: Timeout, to: service-7, field: connectTimeout, expect: <= 1h}\n", i, from)
	}
	require.NoError(b, os.WriteFile(filepath.Join(dir, "tests.yaml"), text.Bytes(), 0o600))
	var times samples
	for b.Loop() {
		for range 5 {
			begun := time.Now()
			output, err := exec.CommandContext(b.Context(), program, "test", dir).CombinedOutput()
			times.add(time.Since(begun))
			require.NoError(b, err, "%s", output)
			require.Contains(b, string(output), fmt.Sprint(expectations))
		}
	}
	report(b, "p50-ms", times.p50())
	target(b, "max-ms", times.worst(), 1000)
}
