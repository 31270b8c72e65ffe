package cli

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	storev1 "meridian/api/store/v1"
	"meridian/internal/authz"
	"meridian/internal/cli/exit"
	"meridian/internal/commit/committest"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
	"meridian/internal/service/admin"
	"meridian/internal/store"
)

// historyOf has a control plane with a history answer the harness: bob writes a timeout
// and eve changes it, from revision 102 on.
func historyOf(t *testing.T) (*harness, *committest.Log) {
	t.Helper()
	h := newHarness(t)
	log := committest.New(store.New(store.DefaultOptions()))
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	require.NoError(t, authz.Defaults{}.Ensure(t.Context(), log.View, log, func() time.Time { return noon }))
	retention := store.DefaultRetention()
	write := func(rev resource.Revision, user string, txn store.Txn) {
		var err error
		txn.Time = noon.Add(time.Duration(rev) * time.Minute)
		if user != "" {
			txn.Note, err = proto.Marshal(&storev1.Note{Name: user, Method: "meridian.v1.AdminService/Apply", Request: "batch-of-" + user})
			require.NoError(t, err)
		}
		require.NoError(t, log.Apply(rev, txn).Err)
	}
	timeout := func(conf string) store.Op {
		return store.Put(resourcetest.Build(t, "Timeout", "default", "web",
			`{"sources":[{"match":{"kuma.io/service":"*"}}],"destinations":[{"match":{"kuma.io/service":"web"}}],"conf":`+conf+`}`))
	}
	write(100, "", store.Txn{Ops: []store.Op{store.Put(resourcetest.Build(t, "Mesh", "", "default", "{}")), timeout(`{"connectTimeout":"1s"}`)}})
	write(101, "", store.Txn{Retention: &retention})
	write(102, "bob", store.Txn{Ops: []store.Op{timeout(`{"connectTimeout":"1s","tcp":{"idleTimeout":"1h"}}`)}})
	write(103, "eve", store.Txn{Ops: []store.Op{timeout(`{"connectTimeout":"9s","tcp":{"idleTimeout":"1h"}}`)}})
	h.server.Past = admin.New(admin.Config{
		Writer: log, Access: authz.New(log.View), Applied: log.Applied, Remembers: log.Remembers,
		Preview: admin.PreviewOf(log),
		View:    func() store.Reader { return log.View() },
		Stores:  func() []*store.Store { return []*store.Store{log.Store} },
		Source:  func(*resource.Descriptor) admin.Source { return log.Store },
		Owns:    func(*resource.Descriptor) error { return nil },
		Now:     func() time.Time { return noon.Add(110 * time.Minute) },
	})
	return h, log
}

// TestHistoryTranscripts: what the commands about the past print, to the byte.
func TestHistoryTranscripts(t *testing.T) {
	h, log := historyOf(t)
	for _, tc := range []struct {
		args []string
		code int
		out  string
		err  string
	}{
		{[]string{"history", "timeout", "web"}, exit.OK, `REVISION  TIME                  VERSION  OUTCOME  USER  BATCH
103       2026-03-01T13:43:00Z  3        updated  eve   batch-of-eve
102       2026-03-01T13:42:00Z  2        updated  bob   batch-of-bob
`, "Version 1 was written at revision 100; contents are kept from revision 100 on.\n"},
		{[]string{"history", "Timeout/web", "-o", "yaml", "--limit", "1"}, exit.OK, `items:
- revision: 103
  time: "2026-03-01T13:43:00Z"
  version: 3
  user: eve
  outcome: updated
  batch: batch-of-eve
  method: meridian.v1.AdminService/Apply
  spec:
    conf:
      connectTimeout: 9s
      tcp:
        idleTimeout: 1h
    destinations:
    - match:
        kuma.io/service: web
    sources:
    - match:
        kuma.io/service: "*"
oldest: 100
`, ""},
		{[]string{"blame", "timeout", "web"}, exit.OK, `FIELD                                   REVISION  TIME                  USER  BATCH
/conf/connectTimeout                    103       2026-03-01T13:43:00Z  eve   batch-of-eve
/conf/tcp/idleTimeout                   102       2026-03-01T13:42:00Z  bob   batch-of-bob
/destinations/0/match/kuma.io~1service  -         -                     -     -
/sources/0/match/kuma.io~1service       -         -                     -     -
`, "Fields without a revision were set earlier; contents are kept from revision 100 on.\n"},
		{[]string{"blame", "mesh", "default"}, exit.OK, "", "It has no fields.\n"},
		{[]string{"diff", "--from", "100", "--to", "102"}, exit.No, `--- 100/Timeout/default/web
+++ 102/Timeout/default/web
@@ -3,6 +3,8 @@
 name: web
 conf:
   connectTimeout: 1s
+  tcp:
+    idleTimeout: 1h
 destinations:
 - match:
     kuma.io/service: web
`, ""},
		{[]string{"diff", "--from", "100", "--to", "102", "-o", "json"}, exit.No, `{
  "from": 100,
  "to": 102,
  "items": [
    {
      "kind": "Timeout",
      "mesh": "default",
      "name": "web",
      "outcome": "updated",
      "fields": [
        {
          "field": "/conf/tcp/idleTimeout",
          "after": "1h"
        }
      ]
    }
  ]
}
`, ""},
		{[]string{"diff", "--from", "102", "-o", "yaml"}, exit.No, `from: 102
to: 103
items:
- kind: Timeout
  mesh: default
  name: web
  outcome: updated
  fields:
  - field: /conf/connectTimeout
    before: 1s
    after: 9s
`, ""},
		{[]string{"diff", "--from", "5m", "-o", "json"}, exit.OK, "{\n  \"from\": 103,\n  \"to\": 103,\n  \"items\": []\n}\n", ""},
		{[]string{"diff", "--from", "5m"}, exit.OK, "", ""},
		{[]string{"diff", "--from", "103", "-m", "other"}, exit.OK, "", ""},
		{[]string{"get", "timeout", "web", "--at", "102", "-o", "jsonpath={.conf.connectTimeout}"}, exit.OK, "1s\n", ""},
		{[]string{"get", "timeouts", "--at", "7m", "-o", "jsonpath={.items[*].conf.connectTimeout}"}, exit.OK, "9s\n", ""},
		{[]string{"get", "retries", "--at", "102"}, exit.OK, "", "There was none at revision 102.\n"},
		{[]string{"rollback", "--to", "102", "--dry-run"}, exit.OK, "Timeout/web updated\nrevision 103\n", "Dry run: nothing was written. This would go back to revision 102.\n"},
		{[]string{"rollback", "--to", "102", "Timeout", "web"}, exit.OK, "Timeout/web updated\nrevision 104\n", "Back to revision 102.\n"},
		{[]string{"rollback", "--to", "102"}, exit.OK, "revision 104\n", "Nothing differs from revision 102.\n"},
		{[]string{"rollback", "--to", "102", "-m", "default", "--kind", "timeouts", "-o", "name"}, exit.OK, "", "Nothing differs from revision 102.\n"},
	} {
		r := h.run(tc.args...)
		require.Equal(t, tc.code, r.code, "%v: %s", tc.args, r.stderr)
		require.Equal(t, tc.out, r.stdout, "%v", tc.args)
		require.Equal(t, tc.err, r.stderr, "%v", tc.args)
	}
	require.Equal(t, resource.Revision(104), log.Revision())
}

// TestPastIsRefused: what cannot be read, and what was asked wrongly.
func TestPastIsRefused(t *testing.T) {
	h, log := historyOf(t)
	for _, tc := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"get", "timeouts", "--at", "99"}, exit.Usage, "revision 99 is no longer retained; the oldest is 100"},
		{[]string{"get", "timeouts", "--at", "2h"}, exit.Usage, "the oldest revision is 100"},
		{[]string{"get", "timeouts", "--at", "999"}, exit.Usage, "revision 999 has not been written yet; the newest is 103"},
		{[]string{"get", "timeouts", "--at", "yesterday"}, exit.Usage, "write a revision, such as 1841"},
		{[]string{"get", "timeouts", "--at", "102", "-w"}, exit.Usage, "leave --at out"},
		{[]string{"get", "timeout", "nothing", "--at", "102"}, exit.No, "did not exist at revision 102"},
		{[]string{"history", "timeout", "nothing"}, exit.No, "does not exist"},
		{[]string{"history", "timeout"}, exit.Usage, "missing NAME"},
		{[]string{"history", "nonsense", "web"}, exit.Usage, "unknown kind"},
		{[]string{"blame", "global-secret", "a"}, exit.Usage, "are not kept"},
		{[]string{"diff", "--to", "102"}, exit.Usage, "--to goes with --from"},
		{[]string{"diff", "--from", "102", "-f", "x"}, exit.Usage, "leave -f out"},
		{[]string{"rollback"}, exit.Usage, "--to is required"},
		{[]string{"rollback", "--to", "102", "Zone", "east"}, exit.Usage, "never rolled back"},
		{[]string{"rollback", "--to", "102", "--kind", "Timeout", "Timeout", "web"}, exit.Usage, "not both"},
		{[]string{"auth", "can-i", "UPDATE", "timeout/web", "--at", "102", "--offline", "--roles", "x", "--as", "bob"}, exit.Usage, "leave --offline out"},
	} {
		r := h.run(tc.args...)
		require.Equal(t, tc.code, r.code, "%v: %s", tc.args, r.stderr)
		require.Contains(t, r.stderr, tc.says, "%v", tc.args)
	}
	require.Equal(t, resource.Revision(103), log.Revision())
	h.server.Past = nil
	h.server.Stored[resource.Key{Kind: "Mesh", Name: "m"}] = nil
	r := h.run("get", "mesh", "m", "--at", "102")
	require.Contains(t, r.stderr, "upgrade it", "a server of an earlier release answers with what is stored now")
	require.Empty(t, r.stdout)
	r = h.run("get", "meshes", "--at", "102")
	require.Contains(t, r.stderr, "upgrade it")
}
