package webhook

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"meridian/internal/audit"
	"meridian/internal/authn"
	"meridian/internal/authz"
	"meridian/internal/policy"
	"meridian/internal/policy/condition"
	"meridian/internal/policy/specificity"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/service/admin"
	"meridian/internal/store"
)

// world is a store with the roles of testdata.
func world(t testing.TB) *store.Store {
	t.Helper()
	text, err := os.ReadFile("testdata/roles.yaml")
	require.NoError(t, err)
	documents, err := resource.Decode("roles.yaml", text, resource.DecodeOptions{})
	require.NoError(t, err)
	txn := store.Txn{Time: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	for _, d := range documents {
		txn.Ops = append(txn.Ops, store.Put(d.Resource))
	}
	s := store.New(store.DefaultOptions())
	require.NoError(t, s.Apply(1, txn).Err)
	return s
}

// config is that of a global which holds the world.
func config(t testing.TB, s *store.Store) Config {
	t.Helper()
	conditions, err := condition.NewCompiler(condition.DefaultOptions())
	require.NoError(t, err)
	reviewer := admin.New(admin.Config{
		Access:    authz.New(s.View),
		Preview:   admin.PreviewOf(s),
		View:      func() store.Reader { return s.View() },
		Stores:    func() []*store.Store { return []*store.Store{s} },
		Owns:      func(*resource.Descriptor) error { return nil },
		Check:     conditions.Check,
		Surveyors: []policy.Surveyor{specificity.Engine{}},
		Now:       time.Now,
	})
	return Config{
		Access: authz.New(s.View),
		Read:   func(context.Context) (resource.Revision, error) { return s.Revision(), nil },
		Review: reviewer.Review,
		Log:    slog.New(slog.DiscardHandler),
	}
}

func recorded(t testing.TB, name string) []byte {
	t.Helper()
	body, err := os.ReadFile(filepath.Join("testdata", "reviews", name+".json"))
	require.NoError(t, err)
	return body
}

func post(s *Server, body []byte) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, Path+"?timeout=10s", bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w
}

// answerTo posts a question and checks the shape of the answer.
func answerTo(t testing.TB, s *Server, body []byte) *response {
	t.Helper()
	w := post(s, body)
	require.Equal(t, http.StatusOK, w.Code, w.Body.String())
	require.Equal(t, "application/json", w.Header().Get("Content-Type"))
	var question, answer review
	require.NoError(t, json.Unmarshal(body, &question))
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
	require.Equal(t, reviewVersion, answer.APIVersion)
	require.Equal(t, reviewKind, answer.Kind)
	require.Nil(t, answer.Request)
	require.Equal(t, question.Request.UID, answer.Response.UID, "the answer says what it is to")
	require.Equal(t, answer.Response.Allowed, answer.Response.Status == nil)
	return answer.Response
}

// noAnswer is what an API server is told instead of an answer, and passes on.
func noAnswer(t testing.TB, w *httptest.ResponseRecorder, code int) string {
	t.Helper()
	require.Equal(t, code, w.Code, w.Body.String())
	require.Equal(t, "application/json", w.Header().Get("Content-Type"))
	var status struct {
		APIVersion, Kind, Status, Message, Reason string
		Code                                      int
	}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &status))
	require.Equal(t, "v1 Status Failure", status.APIVersion+" "+status.Kind+" "+status.Status)
	require.Equal(t, code, status.Code)
	reasons := map[int]string{400: "BadRequest", 413: "RequestEntityTooLarge", 415: "UnsupportedMediaType", 503: "ServiceUnavailable"}
	require.Equal(t, reasons[code], status.Reason)
	return status.Message
}

const walkThroughDenial = `Access Denied (user "backend-owner/system:authenticated" cannot access the resource)`

// §6.9, by the rule that decides each recorded review.
func TestRecordedReviews(t *testing.T) {
	tests := []struct {
		review, rule string
		code         int // 0: allowed
		message      []string
		warning      string
	}{
		// The walk-through of §6.11.
		{review: "default-binding", rule: "§6.11: an administrator changes the default"},
		{review: "create", rule: "§6.11: the backend's owner may"},
		{review: "create-denied", rule: "§6.7: the owner may not grant access to others", code: 403, message: []string{
			walkThroughDenial + "\n", `missing: CREATE on TrafficPermission "web-to-backend" in mesh "default"`,
			`nearest rule: rules[0] of AccessRole "backend-owner", through AccessRoleBinding "backend-owners" to user "backend-owner"`,
		}},
		{review: "update", rule: "§6.4: both contents are the owner's"},
		{review: "delete", rule: "§6.3: what is stored is the owner's"},
		{review: "delete-denied", rule: "§6.3: DELETE checks the stored resource", code: 403, message: []string{walkThroughDenial, "missing: DELETE on"}},

		{review: "create-server-side", rule: "§6.9: server-side apply is a CREATE"},
		{review: "create-generated-name", rule: "§6.9: the name is there by the time it is asked about"},
		{review: "create-without-spec", rule: "§1.2: the spec of a Mesh may be absent"},
		{review: "update-server-side", rule: "§6.9: server-side apply is an UPDATE"},
		{review: "update-replace", rule: "§6.9: whatever the verb"},
		{review: "update-finalizer", rule: "§6.9: metadata, too"},
		{review: "delete-held", rule: "§6.9: decided when it is asked for"},
		{review: "update-while-deleted", rule: "§6.9: and once more when the finalizer goes"},

		{review: "update-denied-new", rule: "§6.4: the new content is not", code: 403, message: []string{walkThroughDenial, "missing: UPDATE on"}},
		{review: "update-denied-old", rule: "§6.4: the stored content is not", code: 403, message: []string{walkThroughDenial, "as it is stored"}},
		{review: "create-other-mesh", rule: "§6.1: a rule for one mesh", code: 403, message: []string{`in mesh "demo"`}},
		{review: "create-anonymous", rule: "§6.9: not even authenticated", code: 403, message: []string{
			`user "system:anonymous/system:unauthenticated" cannot`, "nearest rule: none",
		}},

		// Users and groups verbatim.
		{review: "create-group-not-added", rule: "§6.9: mesh-system:authenticated is not added", code: 403, message: []string{
			`user "alice/dev,system:authenticated" cannot`,
		}},
		{review: "create-group-verbatim", rule: "§6.9: whom Kubernetes puts there is there", warning: "nowhere"},
		{review: "create-by-service-account", rule: "§6.9: the groups of a service account", code: 403, message: []string{
			`user "system:serviceaccount:web:deployer/system:serviceaccounts,system:serviceaccounts:web,system:authenticated" cannot`,
		}},
		{review: "create-impersonated", rule: "§6.9: who is impersonated asks"},
		{review: "delete-by-controller", rule: "§6.5: controllers are in system:serviceaccounts:kube-system"},
		{review: "mesh-of-operator", rule: "§6.2: the Mesh itself by its name", warning: "denies every connection"},
		{review: "mesh-of-others", rule: "§6.2: and no other Mesh", code: 403, message: []string{`user "oidc:dana@example.com/oidc:staff,oidc:demo-operators,system:authenticated" cannot`}},

		// Kubernetes form.
		{review: "create-mesh-by-label", rule: "§1.2: the mesh in a label"},
		{review: "create-default-mesh", rule: "§1.2: no mesh is default"},
		{review: "create-in-namespace", rule: "§1.1: a namespace is no part of the identity"},
		{review: "create-invalid", rule: "§1.2: strict", code: 422, message: []string{"TrafficPermission/default/web", "unknown field `destination`; did you mean `destinations`?"}},
		{review: "create-invalid-without-access", rule: "§6: who may write none of the kind is told before anything is decoded", code: 403, message: []string{`missing: CREATE on TrafficPermission "web"`}},
		{review: "create-unknown-kind", rule: "§1.2: a kind of this group that is not ours", code: 422, message: []string{`unknown kind "ZoneIngress"`}},
		{review: "update-moves-mesh", rule: "§1.1: the mesh is part of the identity", code: 422, message: []string{"TrafficPermission/default/web-to-backend", "delete it and create it anew"}},
		{review: "update-moves-mesh-denied", rule: "§6.4: access goes before that", code: 403, message: []string{"as it is stored"}},
		{review: "update-status", rule: "§6.9: decided like any other UPDATE"},

		// What was stored before the webhook was there.
		{review: "update-fixes-stored", rule: "§6.3: by its identity alone", warning: "only rules without conditions grant access"},
		{review: "update-fixes-stored-denied", rule: "§6.3: no condition holds on it", code: 403, message: []string{"as it is stored"}, warning: "only rules without conditions grant access"},
		{review: "delete-invalid", rule: "§6.3: and it can be deleted", warning: "unknown field `source`"},
		{review: "update-frees-invalid", rule: "§6.3: and a finalizer be taken off it", warning: "unknown field `source`"},
		{review: "update-frees-invalid-denied", rule: "§6.3: no condition holds on it", code: 403, message: []string{"as it is stored"}, warning: "unknown field `source`"},
		{review: "delete-unclear", rule: "§1.2: in two meshes, so in none", warning: "only rules without a mesh and without conditions grant access"},
		{review: "delete-unclear-denied", rule: "§6.1: a rule for one mesh", code: 403, message: []string{"missing: DELETE on TrafficPermission"}, warning: "keep one of them"},
		{review: "delete-unknown-kind", rule: "§6.1: every access is every access", warning: `unknown kind "ZoneIngress"`},
		{review: "delete-one-of-a-collection", rule: "§6.9: the request itself has no name then"},

		// A dry run has the same answer.
		{review: "create-dry-run", rule: "§6.9"},
		{review: "create-dry-run-denied", rule: "§6.9", code: 403, message: []string{walkThroughDenial}},
		{review: "delete-dry-run", rule: "§6.9"},

		// Rights cannot grow, nor be lost.
		{review: "escalation", rule: "§6: rights cannot be escalated", code: 403, message: []string{
			`Access Denied (user "role-manager/system:authenticated" cannot access the resource)`, "users cannot grant rights beyond their own",
		}},
		{review: "last-admin", rule: "§6: the last admin stays", code: 403, message: []string{`no subject would have the role "admin" with every access any more`}},
		{review: "binding-to-missing-role", rule: "§6.2: accepted with a warning", warning: `there is no AccessRole "not-yet"`},
		{review: "create-advice", rule: "§1.4: a backend that is not there is a warning", warning: "nowhere"},

		// None of our business.
		{review: "other-group", rule: "§6.9: another API group"},
		{review: "core-group", rule: "§6.9: the group without a name"},
		{review: "connect", rule: "§6.9: CREATE, UPDATE and DELETE only"},
		{review: "connect-ours", rule: "§6.9: CREATE, UPDATE and DELETE only"},
		{review: "update-scale", rule: "§6.9: nothing of ours has a scale", code: 422, message: []string{`unknown kind "Scale"`}},
	}
	for _, tt := range tests {
		t.Run(tt.review, func(t *testing.T) {
			state := world(t)
			before := state.View()
			answer := answerTo(t, New(config(t, state)), recorded(t, tt.review))
			require.Equal(t, before.Changed(), state.View().Changed(), "a review changes nothing")
			if tt.warning == "" {
				require.Empty(t, answer.Warnings)
			} else {
				require.NotEmpty(t, answer.Warnings)
				require.Contains(t, answer.Warnings[0], tt.warning)
			}
			if tt.code == 0 {
				require.True(t, answer.Allowed, "%s: %+v", tt.rule, answer.Status)
				return
			}
			require.False(t, answer.Allowed, tt.rule)
			require.Equal(t, tt.code, answer.Status.Code, answer.Status.Message)
			require.Equal(t, statusFailure, answer.Status.Status)
			require.Equal(t, map[int]string{403: reasonForbidden, 422: reasonInvalid}[tt.code], answer.Status.Reason)
			for _, text := range tt.message {
				require.Contains(t, answer.Status.Message, text, tt.rule)
			}
		})
	}
	files, err := os.ReadDir("testdata/reviews")
	require.NoError(t, err)
	require.Len(t, files, len(tests), "every recorded review is decided")
}

// §6.7: what kubectl prints begins as the denial of the command does.
func TestADenialBeginsWithItsFixedText(t *testing.T) {
	answer := answerTo(t, New(config(t, world(t))), recorded(t, "create-denied"))
	require.True(t, strings.HasPrefix(answer.Status.Message, walkThroughDenial), answer.Status.Message)
}

func TestAnAllowedChangeSaysByWhichRule(t *testing.T) {
	answer := answerTo(t, New(config(t, world(t))), recorded(t, "update"))
	require.Equal(t, `rules[0] of AccessRole "backend-owner", through AccessRoleBinding "backend-owners" to user "backend-owner"`,
		answer.AuditAnnotations[auditGrantedBy])
}

// A review without a decision is an HTTP error that says why.
func TestMalformedReviews(t *testing.T) {
	tests := map[string]struct {
		review, old, with, want string
	}{
		"not JSON":           {with: "kind: AdmissionReview", want: "the body is not JSON"},
		"empty":              {with: "", want: "the body is not JSON"},
		"cut off":            {with: `{"kind": "AdmissionReview", "request": {`, want: "the body is not JSON"},
		"a list":             {with: "[]", want: "the review cannot be a JSON array"},
		"something else":     {with: `{"apiVersion": "v1", "kind": "Status"}`, want: `kind is "Status"; expected AdmissionReview`},
		"no request":         {with: `{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}`, want: "request is missing"},
		"an older version":   {review: "create", old: "admission.k8s.io/v1", with: "admission.k8s.io/v1beta1", want: "set admissionReviewVersions to [v1]"},
		"no uid":             {review: "create", old: `"uid": "`, with: `"id": "`, want: "request.uid is missing"},
		"uid of no type":     {review: "create", old: `"uid": "`, with: `"uid": 7, "was": "`, want: "request.uid cannot be a JSON number"},
		"no operation":       {review: "create", old: `"CREATE"`, with: `""`, want: "request.operation is missing"},
		"unknown operation":  {review: "create", old: `"CREATE"`, with: `"PATCH"`, want: `request.operation is "PATCH"`},
		"no user":            {review: "create", old: `"backend-owner"`, with: `""`, want: "request.userInfo.username is missing"},
		"no object":          {review: "delete", old: `"DELETE"`, with: `"CREATE"`, want: "request.object is missing"},
		"no old object":      {review: "create", old: `"CREATE"`, with: `"DELETE"`, want: "request.oldObject is missing"},
		"update without old": {review: "create", old: `"CREATE"`, with: `"UPDATE"`, want: "request.oldObject is missing"},
		"another kind": {
			review: "create", old: "\"apiVersion\": \"kuma.io/v1alpha1\",\n      \"kind\": \"TrafficPermission\"",
			with: `"apiVersion": "kuma.io/v1alpha1", "kind": "TrafficLog"`, want: "request.object is a kuma.io/v1alpha1 TrafficLog, request.kind says kuma.io/v1alpha1 TrafficPermission",
		},
		"another version": {review: "create", old: "\"apiVersion\": \"kuma.io/v1alpha1\",\n      \"kind\"", with: `"apiVersion": "kuma.io/v1", "kind"`, want: "request.kind says kuma.io/v1alpha1"},
		"another name":    {review: "create", old: `"name": "web-to-backend",`, with: `"name": "other",`, want: `request.object is named "web-to-backend", request.name says "other"`},
		"object of text":  {review: "create", old: "\"object\": {", with: `"object": "x", "was": {`, want: "request.object: the review cannot be a JSON string"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			body := []byte(tt.with)
			if tt.review != "" {
				original := string(recorded(t, tt.review))
				require.Contains(t, original, tt.old)
				body = []byte(strings.Replace(original, tt.old, tt.with, 1))
			}
			message := noAnswer(t, post(New(config(t, world(t))), body), http.StatusBadRequest)
			require.Contains(t, message, "malformed AdmissionReview: ")
			require.Contains(t, message, tt.want)
		})
	}
}

func TestOnlyReviewsArePosted(t *testing.T) {
	s := New(config(t, world(t)))
	do := func(method, path, contentType string, body io.Reader) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, path, body)
		r.Header.Set("Content-Type", contentType)
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		return w
	}
	require.Equal(t, http.StatusMethodNotAllowed, do(http.MethodGet, Path, "", nil).Code)
	require.Equal(t, http.StatusNotFound, do(http.MethodPost, "/", "application/json", nil).Code)
	w := do(http.MethodPost, Path, "application/yaml", strings.NewReader("{}"))
	require.Contains(t, noAnswer(t, w, http.StatusUnsupportedMediaType), `"application/yaml"; expected application/json`)
	require.Equal(t, http.StatusOK, do(http.MethodPost, Path, "application/json; charset=utf-8", bytes.NewReader(recorded(t, "create"))).Code)
}

func TestReviewsAreBounded(t *testing.T) {
	s := New(config(t, world(t)))
	padded := func(size int) []byte {
		body := recorded(t, "create")
		return append(body, bytes.Repeat([]byte(" "), size-len(body))...)
	}
	require.True(t, answerTo(t, s, padded(MaxBodyBytes)).Allowed)
	require.Contains(t, noAnswer(t, post(s, padded(MaxBodyBytes+1)), http.StatusRequestEntityTooLarge), "larger than 8 MiB")
	require.True(t, answerTo(t, s, recorded(t, "create")).Allowed, "and the server is as well as before")
}

// An object that no API server takes is none, whatever it costs to find out more.
func TestObjectsAreBounded(t *testing.T) {
	s := New(config(t, world(t)))
	const object = `{"apiVersion": "kuma.io/v1alpha1", "kind": "AuthPolicy", "metadata": {"name": "n"}, "spec": {"x": "`
	answer := answerTo(t, s, question("CREATE", "system:masters", "null", object+strings.Repeat("x", maxObject)+`"}}`))
	require.False(t, answer.Allowed)
	require.Equal(t, http.StatusUnprocessableEntity, answer.Status.Code)
	require.Contains(t, answer.Status.Message, "an API server takes 3145728")
}

// One large review is decoded at a time, and small ones do not wait for it.
func TestLargeReviewsTakeTurns(t *testing.T) {
	large := question("CREATE", "system:masters", "null", `{"apiVersion": "kuma.io/v1alpha1", "kind": "AuthPolicy", "metadata": {"name": "n"}, "spec": {
		"targetRef": {"kind": "Gateway", "name": "g"}, "rules": {"authentication": {"a": "`+strings.Repeat("x", smallReview)+`"}}}}`)
	synctest.Test(t, func(t *testing.T) {
		s := New(config(t, world(t)))
		began := time.Now()
		done, err := s.large.Wait(t.Context(), "other")
		require.NoError(t, err)
		require.Contains(t, noAnswer(t, post(s, large), http.StatusServiceUnavailable), "try again")
		require.Equal(t, decideTimeout, time.Since(began))
		require.True(t, answerTo(t, s, recorded(t, "create")).Allowed)
		done()
		for range 2 {
			require.True(t, answerTo(t, s, large).Allowed, "and each gives its turn back")
		}
	})
}

// slow takes as long as the test lets it to decide what one client asks.
type slow struct {
	Access
	release chan struct{}
}

func (a slow) Admit(ctx context.Context, c authz.Change) (authz.Admission, error) {
	if authn.PrincipalFrom(ctx).Name == "flood" {
		<-a.release
	}
	return a.Access.Admit(ctx, c)
}

// Reviews that take long, however many of them one client has, do not keep those of
// others from being decided; what is too many is refused with when to retry.
func TestSlowReviewsOfOneClient(t *testing.T) {
	for name, test := range map[string]struct {
		clients     func() (*x509.CertPool, error)
		from, other string
	}{
		"of one address, where every client may ask": {nil, "10.0.0.1:1", "10.0.0.2:1"},
		"of one user, where API servers ask":         {func() (*x509.CertPool, error) { return x509.NewCertPool(), nil }, "10.0.0.1:1", "10.0.0.1:1"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				refused := 0
				c := config(t, world(t))
				access := slow{c.Access, make(chan struct{})}
				c.Access, c.Clients, c.Refused = access, test.clients, func(limit string) {
					require.Equal(t, LimitReviews, limit)
					refused++
				}
				s := New(c)
				ask := func(user, from string) *httptest.ResponseRecorder {
					body := bytes.ReplaceAll(question("DELETE", "system:masters", `{"apiVersion": "kuma.io/v1alpha1", "kind": "AuthPolicy", "metadata": {"name": "n"}, "spec": {
						"targetRef": {"kind": "Gateway", "name": "g"}, "rules": {"authentication": {"a": 1}}}}`, "null"), []byte("some-user"), []byte(user))
					r := httptest.NewRequest(http.MethodPost, Path, bytes.NewReader(body))
					r.RemoteAddr = from
					r.Header.Set("Content-Type", "application/json")
					w := httptest.NewRecorder()
					s.Handler().ServeHTTP(w, r)
					return w
				}
				var mu sync.Mutex
				codes := map[int]int{} // guarded by mu
				const flood = 2 * waitingEach
				for range flood {
					go func() {
						code := ask("flood", test.from).Code
						mu.Lock()
						defer mu.Unlock()
						codes[code]++
					}()
					synctest.Wait()
				}
				require.Equal(t, flood-waitingEach-perProcessor*runtime.GOMAXPROCS(0)/2, codes[http.StatusTooManyRequests])
				require.Equal(t, refused, codes[http.StatusTooManyRequests])
				require.Equal(t, "1", ask("flood", test.from).Header().Get("Retry-After"))
				began := time.Now()
				require.Equal(t, http.StatusOK, ask("other", test.other).Code)
				require.Equal(t, began, time.Now(), "it waits for nothing")
				close(access.release)
				synctest.Wait()
				require.Equal(t, flood, codes[http.StatusOK]+codes[http.StatusTooManyRequests])
			})
		})
	}
}

// Without the newest rules there is no decision, neither yes nor no.
func TestNoDecisionOnOldRules(t *testing.T) {
	c := config(t, world(t))
	c.Read = func(context.Context) (resource.Revision, error) { return 0, errors.New("no leader") }
	s := New(c)
	require.Contains(t, noAnswer(t, post(s, recorded(t, "create")), http.StatusServiceUnavailable), "cannot read the newest access rules: no leader")
	require.True(t, answerTo(t, s, recorded(t, "other-group")).Allowed, "what is not ours needs no rules")
}

type failing struct{ err error }

func (f failing) Admit(context.Context, authz.Change) (authz.Admission, error) {
	return authz.Admission{}, f.err
}

func (failing) EarlyReview(context.Context, resource.Access, resource.Key) error { return nil }

func TestAFailureIsNoDenial(t *testing.T) {
	c := config(t, world(t))
	c.Access = failing{rpcerr.New(rpcerr.Unavailable, "X", "later")}
	require.Equal(t, http.StatusServiceUnavailable, post(New(c), recorded(t, "create")).Code)
}

// records keeps what it is given.
type records struct{ written []audit.Record }

func (r *records) Write(record audit.Record) { r.written = append(r.written, record) }

// Denials, and nothing else, are in the audit log: the objects themselves are
// written elsewhere.
func TestDenialsAreRecorded(t *testing.T) {
	c := config(t, world(t))
	kept := &records{}
	c.Audit = kept
	s := New(c)
	for _, name := range []string{"create", "create-invalid", "other-group", "delete-denied", "create-dry-run-denied"} {
		answerTo(t, s, recorded(t, name))
	}
	require.Len(t, kept.written, 2)
	r := kept.written[0]
	require.Equal(t, audit.Who{Name: "backend-owner", Groups: []string{"system:authenticated"}, Source: "kubernetes"}, r.Who)
	require.Equal(t, audit.Denied, r.Decision)
	require.Equal(t, authz.ReasonDenied, r.Rule)
	require.Contains(t, r.Message, walkThroughDenial)
	require.Equal(t, []audit.Target{{Action: "delete", Kind: "TrafficPermission", Mesh: "default", Name: "web-to-backend"}}, r.Targets)
	require.Equal(t, "192.0.2.1:1234", r.From)
	require.NotEmpty(t, r.Request)
	require.Equal(t, "dry-run create", kept.written[1].Targets[0].Action)
}

// A rule that was written is in force for the next review, and one that was
// taken away is not.
func TestDecisionsFollowTheRules(t *testing.T) {
	state := world(t)
	s := New(config(t, state))
	require.True(t, answerTo(t, s, recorded(t, "create")).Allowed)
	key := resource.Key{Kind: "AccessRoleBinding", Name: "backend-owners"}
	require.NoError(t, state.Apply(2, store.Txn{Ops: []store.Op{store.Delete(key)}}).Err)
	answer := answerTo(t, s, recorded(t, "create"))
	require.False(t, answer.Allowed)
	require.Contains(t, answer.Status.Message, "no role is bound to this user or its groups")
}

// §5.6: a condition that does not compile is refused when it is written.
func TestConditionsThatCannotBeUsedAreInvalid(t *testing.T) {
	question := func(when string) []byte {
		return question("CREATE", "system:masters", "null", `{"apiVersion": "kuma.io/v1alpha1", "kind": "AuthPolicy", "metadata": {"name": "capped"}, "spec": {
			"targetRef": {"kind": "Gateway", "name": "g"},
			"overrides": {"when": "`+when+`", "rules": {"authentication": {"a": 1}}}}}`)
	}
	s := New(config(t, world(t)))
	require.True(t, answerTo(t, s, question("spec.rules.authentication.a > 1")).Allowed)
	answer := answerTo(t, s, question("spec.a >"))
	require.False(t, answer.Allowed)
	require.Equal(t, http.StatusUnprocessableEntity, answer.Status.Code)
	require.Contains(t, answer.Status.Message, "overrides.when")
}

// What is stored may have been stored before it was asked about, and a user who takes a
// finalizer off it says nothing about its content.
func TestContentThatStaysIsNotJudged(t *testing.T) {
	policy := func(metadata, spec string) string {
		return `{"apiVersion": "kuma.io/v1alpha1", "kind": "AuthPolicy", "metadata": {"name": "capped"` + metadata + `}, "spec": {
			"targetRef": {"kind": "Gateway", "name": "g"}, ` + spec + `}}`
	}
	s := New(config(t, world(t)))
	const held, moved = `, "finalizers": ["example.com/hold"]`, `, "labels": {"kuma.io/mesh": "other"}`
	for _, spec := range []string{
		`"overrides": {"when": "spec.a >", "rules": {"authentication": {"a": 1}}}`, // does not compile
		`"override": {"rules": {"authentication": {"a": 1}}}`,
	} {
		old := policy(held, spec)
		require.True(t, answerTo(t, s, question("UPDATE", "system:masters", old, policy("", spec))).Allowed)
		for _, to := range []string{policy("", spec+`, "x": 1`), policy(moved, spec)} {
			answer := answerTo(t, s, question("UPDATE", "system:masters", old, to))
			require.False(t, answer.Allowed)
			require.Equal(t, http.StatusUnprocessableEntity, answer.Status.Code)
		}
	}
}

// A stored object that is not what it should be counts as being in no mesh, even if
// one is named.
func TestAnUnclearObjectIsInNoMesh(t *testing.T) {
	const unclear = `{"apiVersion": "kuma.io/v1alpha1", "kind": "AuthPolicy", "mesh": "demo", "metadata": {"name": "capped"}, "what": "is this"}`
	s := New(config(t, world(t)))
	require.False(t, answerTo(t, s, question("DELETE", "oidc:demo-operators", unclear, "null")).Allowed)
	require.True(t, answerTo(t, s, question("DELETE", "system:masters", unclear, "null")).Allowed)
	fixed := strings.Replace(unclear, `"what": "is this"`, `"spec": {"targetRef": {"kind": "Gateway", "name": "g"}, "rules": {"authentication": {"a": 1}}}`, 1)
	require.False(t, answerTo(t, s, question("UPDATE", "oidc:demo-operators", unclear, fixed)).Allowed)
	require.True(t, answerTo(t, s, question("UPDATE", "system:masters", unclear, fixed)).Allowed)
}

// question is what a member of a group would make an API server ask about an
// AuthPolicy.
func question(op operation, group, old, object string) []byte {
	return []byte(`{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
		"uid": "1", "operation": "` + string(op) + `", "userInfo": {"username": "some-user", "groups": ["` + group + `"]},
		"kind": {"group": "kuma.io", "version": "v1alpha1", "kind": "AuthPolicy"},
		"oldObject": ` + old + `, "object": ` + object + `}}`)
}

func TestWarningsFitOnALine(t *testing.T) {
	many := make([]string, maxWarnings+3)
	many[0] = "first\n  second\r\n"
	many[1] = "a\ttab and a \x1b[31mbell\a\u0085"
	lines := oneLineEach(many)
	require.Len(t, lines, maxWarnings+1)
	require.Equal(t, "first;   second", lines[0])
	require.Equal(t, "a tab and a  [31mbell  ", lines[1], "or the API server drops it")
	require.Equal(t, "and 3 more", lines[maxWarnings])
}

func TestReviewsAreCounted(t *testing.T) {
	s := New(config(t, world(t)))
	for _, name := range []string{"create", "create-denied", "create-invalid", "other-group"} {
		post(s, recorded(t, name))
	}
	post(s, []byte("{}"))
	const want = `
# HELP meridian_webhook_reviews_total Requests to the admission webhook, by operation and outcome (allowed, denied, invalid, ignored, refused, failed).
# TYPE meridian_webhook_reviews_total counter
meridian_webhook_reviews_total{operation="",outcome="refused"} 1
meridian_webhook_reviews_total{operation="CREATE",outcome="allowed"} 1
meridian_webhook_reviews_total{operation="CREATE",outcome="denied"} 1
meridian_webhook_reviews_total{operation="CREATE",outcome="ignored"} 1
meridian_webhook_reviews_total{operation="CREATE",outcome="invalid"} 1
`
	require.NoError(t, testutil.CollectAndCompare(s.Collector(), strings.NewReader(want)))
}

// Access rules are in force where they are applied (docs/kubernetes.md), and who
// writes them elsewhere is told.
func TestAccessRulesThatAreNotInForce(t *testing.T) {
	state := world(t)
	s := New(config(t, state))
	require.Empty(t, answerTo(t, s, recorded(t, "default-binding")).Warnings, "the control plane has the same")
	changed := bytes.ReplaceAll(recorded(t, "default-binding"), []byte(`"name": "system:masters"`), []byte(`"name": "others"`))
	require.Equal(t, []string{"AccessRoleBinding/default: it is not in force until it is applied to the control plane, too"},
		answerTo(t, s, changed).Warnings)
	require.Equal(t, []string{
		`AccessRoleBinding/early: there is no AccessRole "not-yet": until there is, it grants nothing`,
		"AccessRoleBinding/early: it is not in force until it is applied to the control plane, too",
	}, answerTo(t, s, recorded(t, "binding-to-missing-role")).Warnings)
	gone := bytes.ReplaceAll(recorded(t, "last-admin"), []byte(`"name": "default"`), []byte(`"name": "all-log"`))
	require.Equal(t, []string{"AccessRoleBinding/all-log: the control plane still has it, and it stays in force: delete it there, too"},
		answerTo(t, s, gone).Warnings)
	require.NoError(t, state.Apply(2, store.Txn{Ops: []store.Op{store.Delete(resource.Key{Kind: "AccessRoleBinding", Name: "all-log"})}}).Err)
	require.Empty(t, answerTo(t, s, gone).Warnings)
}

// Whatever arrives, the answer is an answer: a decision with the uid of the
// question, or an error of the caller's.
func FuzzReview(f *testing.F) {
	files, err := filepath.Glob("testdata/reviews/*.json")
	require.NoError(f, err)
	for _, name := range files {
		body, err := os.ReadFile(name)
		require.NoError(f, err)
		f.Add(body)
	}
	s := New(config(f, world(f)))
	f.Fuzz(func(t *testing.T, body []byte) {
		w := post(s, body)
		req, err := decodeReview(body)
		if err != nil {
			require.ErrorIs(t, err, errMalformed)
			require.Equal(t, http.StatusBadRequest, w.Code)
			return
		}
		if w.Code == http.StatusBadRequest {
			require.Contains(t, w.Body.String(), "malformed AdmissionReview: ")
			return
		}
		require.Equal(t, http.StatusOK, w.Code, w.Body.String())
		var answer review
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
		require.Equal(t, req.UID, answer.Response.UID)
		if req.ours() && req.Operation != opConnect && answer.Response.Allowed {
			require.NotEmpty(t, answer.Response.AuditAnnotations[auditGrantedBy], "nothing is allowed but by a rule")
		}
	})
}
