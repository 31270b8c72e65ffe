package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/exit"
	"meridian/internal/policy/answer"
	"meridian/internal/rpcerr"
)

// TestExitCodes holds the one mapping from errors to exit codes to the table of
// docs/contract.md.
func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
		line string
	}{
		{nil, exit.OK, ""},
		{errors.New("boom"), exit.No, "boom"},
		{exit.Usagef("wrong"), exit.Usage, "wrong"},
		{exit.Failf(exit.Conflict, "no"), exit.Conflict, "no"},
		{fmt.Errorf("dataplane %q: %w", "x", answer.ErrNotFound), exit.No, `dataplane "x": not found`},
		{fmt.Errorf("%w: no policy", answer.ErrInvalid), exit.Usage, "invalid question: no policy"},
		{context.DeadlineExceeded, exit.Timeout, "timed out"},
		{context.Canceled, exit.Interrupted, "interrupted"},
		{rpcerr.New(rpcerr.NotFound, "", "there is none"), exit.No, "there is none"},
		{rpcerr.New(rpcerr.Invalid, "", "bad"), exit.Usage, "bad"},
		{rpcerr.New(rpcerr.OutOfRange, "", "gone"), exit.Usage, "gone"},
		{rpcerr.New(rpcerr.TooLarge, "", "big"), exit.Usage, "big"},
		{rpcerr.New(rpcerr.TooLarge, "LIMIT_REACHED", "busy").WithRetry(time.Second), exit.Unavailable, "busy"},
		{rpcerr.New(rpcerr.Unsupported, "", "unknown method"), exit.Usage, ""},
		{rpcerr.New(rpcerr.Conflict, "", "changed"), exit.Conflict, "changed"},
		{rpcerr.New(rpcerr.Unauthenticated, "", "who"), exit.Denied, "who"},
		{rpcerr.New(rpcerr.Denied, "", "Access Denied"), exit.Denied, "Access Denied"},
		{rpcerr.New(rpcerr.Unavailable, "", "down"), exit.Unavailable, "down"},
		{rpcerr.New(rpcerr.Timeout, "", "slow"), exit.Timeout, "slow"},
		{rpcerr.New(rpcerr.Internal, "", "oops"), exit.No, "the control plane failed: oops"},
		{status.Error(codes.Aborted, "raced"), exit.Conflict, "raced"},
		{status.Error(codes.AlreadyExists, "there"), exit.Conflict, "there"},
		{status.Error(codes.PermissionDenied, "no"), exit.Denied, "no"},
		{status.Error(codes.ResourceExhausted, "huge"), exit.Usage, "huge"},
	} {
		r := exit.Explain(c.err)
		require.Equal(t, c.code, r.Code, "%v", c.err)
		if c.line != "" {
			require.Equal(t, []string{c.line}, r.Lines)
		}
	}
}

// What a server says is shown as it said it, further problems on lines below.
func TestServerErrors(t *testing.T) {
	h := newHarness(t)
	for _, c := range []struct {
		err  error
		code int
		want string
	}{
		{
			rpcerr.WithEffect(rpcerr.New(rpcerr.Denied, "ACCESS_DENIED", "Access Denied (user %q cannot access the resource)\nmissing: UPDATE on Mesh/default", "backend-owner/mesh-system:authenticated"), rpcerr.EffectNone),
			exit.Denied, "Error: Access Denied (user \"backend-owner/mesh-system:authenticated\" cannot access the resource)\nmissing: UPDATE on Mesh/default\n",
		},
		{rpcerr.New(rpcerr.Unauthenticated, "TOKEN_EXPIRED", "the token has expired"), exit.Denied, "Error: the token has expired\n"},
		{
			rpcerr.WithEffect(rpcerr.New(rpcerr.Invalid, "INVALID_RESOURCES", "a: bad").WithViolations(
				rpcerr.Violation{Field: "resources[0]", Description: "a: bad"}, rpcerr.Violation{Field: "resources[1]", Description: "b: worse"}), rpcerr.EffectNone),
			exit.Usage, "Error: a: bad\n  b: worse\nNothing was written.\n",
		},
		{rpcerr.New(rpcerr.Timeout, "ZONES_LAG", "zones lag"), exit.Timeout, "Error: zones lag\n"},
		{status.Error(codes.Unimplemented, "unknown method Zones"), exit.Usage, "Error: this control plane cannot answer that: unknown method Zones\n" +
			"A zone answers for its dataplanes, and one with --raft-addr for its servers; the global for its zones, its servers, its rollouts and the tokens of both. An older release may not know the question.\n"},
	} {
		h.server.Before = func(string) error { return c.err }
		require.Equal(t, outcome{c.code, "", c.want}, h.run("zones"))
	}
}

func TestUnreachable(t *testing.T) {
	h := newHarness(t)
	h.stop()
	out := h.run("get", "meshes")
	require.Equal(t, outcome{exit.Unavailable, "", "Error: the control plane at " + h.address + " cannot be reached: connection refused\n" +
		"Check that the server runs and listens there: its data directory lists the addresses in addresses.json.\n" +
		"The address comes from the control plane \"global\" in " + h.config + ".\n"}, out)

	out = h.run("--address", "no-such-host.invalid:1", "zones")
	require.Equal(t, exit.Unavailable, out.code)
	require.Contains(t, out.stderr, "The address comes from --address.")
}

func TestWrongCA(t *testing.T) {
	h, other := newHarness(t), newHarness(t)
	out := h.run("zones", "--address", h.address, "--ca-cert-file", other.caFile)
	require.Equal(t, exit.Unavailable, out.code)
	require.Equal(t, "Error: the control plane at "+h.address+" cannot be reached: the server's certificate is not signed by the CA in "+other.caFile+"\n"+
		"The CA is in the server's admin.yaml: with --address, add --config ADMIN.YAML or --ca-cert-file. A server with a new data directory has a new CA.\n"+
		"The address comes from --address.\n", out.stderr)
	out = h.run("zones", "--address", h.address)
	require.Equal(t, exit.Unavailable, out.code)
	require.Contains(t, out.stderr, "is not signed by the CA in the system's certificates")
	require.Equal(t, exit.OK, h.run("zones", "--address", h.address, "--skip-verify").code)
	require.Equal(t, exit.OK, h.run("zones", "--address", h.address, "--ca-cert-file", h.caFile).code)
	require.Equal(t, exit.Usage, h.run("zones", "--address", h.address, "--ca-cert-file", h.config+".none").code)
	require.Equal(t, exit.Usage, h.run("zones", "--address", h.address, "--ca-cert-file", h.config).code)
}

func TestNotTLS(t *testing.T) {
	h := newHarness(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
	out := h.run("zones", "--address", listener.Addr().String())
	require.Equal(t, exit.Unavailable, out.code)
	require.Contains(t, out.stderr, "the server does not speak TLS on this port\nCheck the port")
}

// A server that accepts connections and never answers is a timeout.
func TestTimeout(t *testing.T) {
	h := newHarness(t)
	release := make(chan struct{})
	h.server.Before = func(string) error {
		<-release
		return nil
	}
	t.Cleanup(func() { close(release) })
	out := h.run("zones", "--timeout", "2s") // which covers connecting, too
	require.Equal(t, outcome{exit.Timeout, "", "Error: the control plane at " + h.address + " did not finish within 2s\n" +
		"It may still be working on the request; --timeout waits longer.\n"}, out)

	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	out = h.run("zones", "--address", silent.Addr().String(), "--timeout", "50ms")
	require.Equal(t, exit.Timeout, out.code)
	require.Contains(t, out.stderr, "Error: no connection to the control plane at ")
}

// A zone that is not there is not waited for.
func TestNoZoneToAsk(t *testing.T) {
	h := newHarness(t)
	h.server.Answer = func(*meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
		return nil, rpcerr.New(rpcerr.Unavailable, "NO_ZONES", "no zone is connected")
	}
	out := h.run("dataplanes")
	require.Equal(t, outcome{exit.Unavailable, "", "Error: no zone is connected\n"}, out)
	require.Len(t, h.server.Inspected, 1)
}

func TestInterrupted(t *testing.T) {
	h := newHarness(t)
	ctx, cancel := context.WithCancel(t.Context())
	h.server.Before = func(string) error {
		cancel()
		<-ctx.Done()
		return rpcerr.New(rpcerr.Unavailable, "X", "busy")
	}
	require.Equal(t, outcome{exit.Interrupted, "", "Error: interrupted\n"}, h.runWith(ctx, "", "zones"))
}

// A second address serves when the first is down.
func TestSeveralAddresses(t *testing.T) {
	h, down := newHarness(t), newHarness(t)
	down.stop()
	require.Equal(t, exit.OK, h.run("zones", "--address", down.address+","+h.address, "--ca-cert-file", h.caFile).code)
}

// TestUsage is the list of wrong command lines: each gets one clear line, the
// help to read, and exit code 2.
func TestUsage(t *testing.T) {
	h := newHarness(t)
	policy := h.write("p.yaml", webToBackend)
	for _, c := range []struct{ args, first, help string }{
		{"gte meshes", `unknown command "gte"; did you mean "get"?`, "meridian"},
		{"--timeout 5s aply -f x", `unknown command "aply"; did you mean "apply"?`, "meridian"},
		{"inspect datplane web-1 -o json", `unknown command "datplane"; did you mean "dataplane"?`, "meridian inspect"},
		{"config control-planes ad --name x", `unknown command "ad"; did you mean "add"?`, "meridian config control-planes"},
		{"inspect --zone east", `meridian inspect requires a command: one of connection, dataplane, gateway, policy, proxy, route`, "meridian inspect"},
		{"help gte", `unknown command "gte"; did you mean "get"?`, "meridian"},
		{"help inspect polcy", `unknown command "polcy"; did you mean "policy"?`, "meridian inspect"},
		{"get", "missing KIND", "meridian get"},
		{"get traffic-permisions", `unknown kind "traffic-permisions"; did you mean "TrafficPermission"?`, "meridian get"},
		{"get zzz", "unknown kind \"zzz\"; `meridian api-resources` lists the kinds", "meridian get"},
		{"get meshes --outptu json", `unknown flag --outptu; did you mean "output"?`, "meridian get"},
		{"get meshes -o jsno", `--output "jsno": this command prints table|wide|json|yaml|name`, "meridian get"},
		{"get meshes -x", "unknown flag -x", "meridian get"},
		{"get meshes -o", "--output requires a value", "meridian get"},
		{"get meshes --timeout fast", `--timeout "fast": not a duration; write one such as 30s, 5m or 24h`, "meridian get"},
		{"get meshes --timeout 0s", "--timeout 0s: must be positive", "meridian get"},
		{"get all x", `a name needs its kind: write the kind in place of "all"`, "meridian get"},
		{"get timeout x -A", "a name needs its mesh: use -m in place of -A", "meridian get"},
		{"describe mesh", "missing NAME", "meridian describe"},
		{"delete mesh", "missing NAME: which mesh", "meridian delete"},
		{"delete", "missing KIND and NAME, or -f", "meridian delete"},
		{"delete mesh x -f " + policy, "name resources, or give documents with -f, not both", "meridian delete"},
		{"delete mesh x --dry-run=client", `--dry-run "client": only the server can tell what a deletion would do: write server`, "meridian delete"},
		{"apply", "-f is required: the file or directory to read, or - for standard input", "meridian apply"},
		{"apply " + policy, policy + " is no plan that can be applied: documents are given with -f", "meridian apply"},
		{"apply -f " + policy + " --dry-run=srv", `--dry-run "srv": write client or server`, "meridian apply"},
		{"apply -f " + policy + " --wait=all", `--wait "all": write zones or enforced`, "meridian apply"},
		{"apply -f " + policy + " --if-version -1", `--if-version "-1": write VERSION or KIND/NAME=VERSION, with a number such as 0 or 7, or 7@1842 for version 7 of revision 1842`, "meridian apply"},
		{"inspect connection --from a", "--to is required: the dataplane that is called", "meridian inspect connection"},
		{"inspect connection --to a", "give the caller either as --from DATAPLANE or as --from-tags TAG=VALUE,…", "meridian inspect connection"},
		{"inspect connection --to a --from b --from-tags x=y", "give the caller either as --from DATAPLANE or as --from-tags TAG=VALUE,…", "meridian inspect connection"},
		{"inspect connection --to a --from-tags web", `--from-tags "web": write TAG=VALUE, several separated by commas`, "meridian inspect connection"},
		{"inspect connection --to a --from-tags a=b,a=c", "--from-tags: the tag a is given twice", "meridian inspect connection"},
		{"inspect connection --to a --from b --port 70000", "--port 70000: a port is at most 65535", "meridian inspect connection"},
		{"inspect policy mesh default", "Mesh is not a policy; `meridian explain` lists the kinds", "meridian inspect policy"},
		{"why web-1", "missing KIND", "meridian why"},
		{"why web-1 Timeout --to a --from b=c", "--to selects outbounds and --from inbounds; use one of them", "meridian why"},
		{"eval dataplane web-1", "-f is required: the file or directory to read, or - for standard input", "meridian eval dataplane"},
		{"zones extra", `unexpected argument "extra": this command takes flags only`, "meridian zones"},
		{"--address http://x:1 zones", `--address "http://x:1": write HOST:PORT; the API speaks gRPC over TLS, no other scheme and no path`, "meridian zones"},
		{"--address x:1,,y:2 zones", `--address "x:1,,y:2": write HOST:PORT, several separated by commas`, "meridian zones"},
	} {
		out := h.run(strings.Fields(c.args)...)
		require.Equal(t, outcome{exit.Usage, "", "Error: " + c.first + "\nRun '" + c.help + " --help' for usage.\n"}, out, c.args)
	}
	require.Empty(t, h.server.Calls, "a wrong command line is never sent")
}

// TestInput is the list of wrong documents: each names the file, the document
// and the place, and nothing is sent.
func TestInput(t *testing.T) {
	h := newHarness(t)
	require.NoError(t, os.MkdirAll(filepath.Join(h.home, "empty"), 0o700))
	big, err := os.Create(filepath.Join(h.home, "big.yaml"))
	require.NoError(t, err)
	require.NoError(t, big.Truncate(100<<20))
	require.NoError(t, big.Close())
	for name, c := range map[string]struct{ file, content, want string }{
		"unknown kind":   {"a.yaml", "type: TraficPermission\nname: x\n", `unknown kind "TraficPermission"; did you mean "TrafficPermission"?`},
		"unknown field":  {"a.yaml", webToBackend + "sorces: []\n", "unknown field `sorces`"},
		"wrong type":     {"a.yaml", "type: Mesh\nname: [x]\n", "expected a string"},
		"not YAML":       {"a.yaml", "{{{", "not valid YAML"},
		"not JSON":       {"a.json", "type: Mesh\n", "not valid JSON"},
		"empty":          {"a.yaml", "# nothing\n", "holds no resources"},
		"same identity":  {"a.yaml", meshYAML + "---\n" + meshYAML, "Mesh/default is already defined"},
		"no tags":        {"a.yaml", strings.Replace(webToBackend, "      kuma.io/service: web\n", "      {}\n", 1), "at least one tag"},
		"long name":      {"a.yaml", "type: Mesh\nname: " + strings.Repeat("x", 300) + "\n", "name"},
		"missing file":   {"", "", "no such file or directory"},
		"100 MB":         {"big.yaml", "", "a file of documents can have 32 MiB"},
		"bare directory": {"empty", "", "the directory holds no .yaml, .yml or .json file"},
	} {
		path := filepath.Join(h.home, "missing.yaml")
		switch {
		case c.content != "":
			path = h.write(c.file, c.content)
		case c.file != "":
			path = filepath.Join(h.home, c.file)
		}
		for _, command := range []string{"apply", "validate", "delete"} {
			out := h.run(command, "-f", path)
			require.Equal(t, exit.Usage, out.code, "%s: %s", name, command)
			require.Empty(t, out.stdout)
			require.True(t, strings.HasPrefix(out.stderr, "Error: "), out.stderr)
			require.Contains(t, out.stderr, c.want, name)
			require.Contains(t, out.stderr, filepath.Base(path), name)
		}
	}
	require.Empty(t, h.server.Calls, "invalid input is never sent")
}

func TestSeveralProblemsAreCountedAndListed(t *testing.T) {
	h := newHarness(t)
	out := h.runWith(t.Context(), "type: Mesh\n---\ntype: Nope\nname: x\n", "validate", "-f", "-")
	require.Equal(t, exit.Usage, out.code)
	lines := strings.Split(out.stderr, "\n")
	require.Equal(t, "Error: 2 problems in the input; nothing was done", lines[0])
	require.Equal(t, "  stdin: document 1 (Mesh/), line 1: name: is required", lines[1])
	require.Contains(t, lines[2], `unknown kind "Nope"`)

	out = h.runWith(t.Context(), strings.Repeat("type: Mesh\n---\n", 60), "validate", "-f", "-")
	require.True(t, strings.HasSuffix(out.stderr, "\n  … and 10 more\n"), out.stderr)
	require.Equal(t, 52, strings.Count(out.stderr, "\n"))
}

func TestValidate(t *testing.T) {
	h := newHarness(t)
	require.Equal(t, "1 document is valid\n", h.ok("validate", "-f", h.write("one.yaml", meshYAML)))
	require.Equal(t, "2 documents are valid\n", h.ok("validate", "-f", h.write("two.yaml", meshYAML+"---\n"+webToBackend)))
	logging := `type: TrafficLog
mesh: default
name: log
sources: [{match: {kuma.io/service: web}}]
destinations: [{match: {kuma.io/service: backend}}]
conf: {backend: file}
`
	out := h.run("validate", "-f", h.write("log.yaml", meshYAML+"---\n"+logging))
	require.Equal(t, exit.OK, out.code)
	require.Equal(t, "2 documents are valid\n", out.stdout)
	require.Contains(t, out.stderr, "Warning: TrafficLog/default/log: conf.backend")
	require.Empty(t, h.server.Calls)
}
