//go:build multizone

package multizone

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/audit"
	"meridian/internal/batch"
)

// audited returns what a server's audit log says was written, and fails when the
// log does not verify.
func (p *process) audited() []audit.Record {
	p.t.Helper()
	dir := filepath.Join(p.dir, "audit")
	files, checkpoints, err := audit.Files(dir)
	require.NoError(p.t, err)
	report, err := audit.Verify(files, checkpoints...)
	require.NoError(p.t, err)
	require.Empty(p.t, report.Problems, p.name)
	var written []audit.Record
	for _, file := range files {
		for line := range strings.Lines(string(p.fileAt(file))) {
			var r audit.Record
			if strings.HasSuffix(line, "\n") && json.Unmarshal([]byte(line), &r) == nil && r.Decision == audit.Allowed {
				written = append(written, r)
			}
		}
	}
	return written
}

// A server that is killed has written what it did not live to record: it records
// that when it is back, once, with who asked for it.
func TestNoWriteEscapesTheAuditLog(t *testing.T) {
	const clients = 24
	global := newGlobal(t).start().ready()
	global.pin()
	revisions := map[string]uint64{} // by request: those that came together share one
	for round := range 8 {
		ctx, cancel := context.WithCancel(t.Context())
		var writers sync.WaitGroup
		begun := make(chan struct{}, clients)
		for c := range clients {
			server := global.connect()
			writers.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					id := fmt.Sprintf("r%d-c%d-%d", round, c, n)
					_, err := batch.Apply(ctx, server, &meridianv1.ApplyRequest{RequestId: id, Resources: []*meridianv1.Resource{
						{Kind: watched, Mesh: "default", Name: fmt.Sprintf("r%d.c%d.n%d", round, c, n), Spec: spec("1")},
					}})
					if n == 5 {
						begun <- struct{}{}
					}
					if err != nil {
						return // the outcome is unknown, as far as this client knows
					}
				}
			})
		}
		for range clients {
			<-begun
		}
		global.kill()
		cancel()
		writers.Wait()

		global.start().ready()
		require.Zero(t, global.stop(), "%s", tail(global.log.String(), 20))
		clear(revisions)
		for _, r := range global.audited() {
			if r.Request == "" {
				continue
			}
			require.NotContains(t, revisions, r.Request, "request %s is recorded twice", r.Request)
			revisions[r.Request] = r.Revision
			require.Equal(t, "admin", r.Who.Name)
			require.NotEmpty(t, r.Rule)
		}
		global.start().ready()
		found := items(t, global.must("get", watched, "-o", "json"))
		for _, r := range found {
			rev := uint64(r["revision"].(float64))
			id := strings.NewReplacer(".c", "-c", ".n", "-").Replace(r["name"].(string))
			require.Equal(t, rev, revisions[id], "round %d: who wrote %s at revision %d?", round, r["name"], rev)
		}
		require.Greater(t, len(found), round*clients)
	}
}
