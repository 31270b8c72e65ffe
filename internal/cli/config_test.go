package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/clientconfig"
	"meridian/internal/rpcerr"
)

// The walk through the control planes of a user, as in the access-control
// document: add two, switch back, remove.
func TestConfigControlPlanes(t *testing.T) {
	h := newHarness(t)
	h.env = []string{"HOME=" + h.home}
	path := filepath.Join(h.home, ".config", "meridian", "config.yaml")

	out := h.run("config", "control-planes", "list")
	require.Equal(t, outcome{exit.OK, "", "There is no control plane in " + path + ".\n"}, out)

	out = h.run("config", "control-planes", "add", "--name=cp-admin", "--address=https://"+h.address, "--skip-verify=true",
		"--auth-type=tokens", "--auth-conf", "token=admin-token")
	require.Equal(t, outcome{exit.OK, "", "Added control plane \"cp-admin\" to " + path + " and switched to it.\n"}, out)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	h.ok("zones")
	require.Equal(t, "Bearer admin-token", h.server.Authorizations[0])

	h.ok("config", "control-planes", "add", "--name", "cp-owner", "--address", h.address, "--ca-cert-file", h.caFile,
		"--auth-type=tokens", "--auth-conf", "token=owner-token")
	h.ok("zones")
	require.Equal(t, "Bearer owner-token", h.server.Authorizations[1])
	require.Equal(t, columns("CURRENT NAME ADDRESS LEARNED AUTH\n- cp-admin "+h.address+" - tokens\n* cp-owner "+h.address+" - tokens\n"),
		columns(h.ok("config", "control-planes", "list")))

	h.ok("config", "control-planes", "switch", "--name", "cp-admin")
	h.ok("zones")
	require.Equal(t, "Bearer admin-token", h.server.Authorizations[2])
	h.ok("zones", "--context", "cp-owner")
	require.Equal(t, "Bearer owner-token", h.server.Authorizations[3])
	h.ok("zones", "--token", "other")
	require.Equal(t, "Bearer other", h.server.Authorizations[4])

	out = h.run("config", "control-planes", "add", "--name", "cp-owner", "--address", h.address)
	require.Equal(t, exit.Conflict, out.code)
	h.ok("config", "control-planes", "add", "--name", "cp-owner", "--address", h.address, "--overwrite")

	h.ok("config", "control-planes", "remove", "cp-owner")
	out = h.run("zones")
	require.Equal(t, exit.Usage, out.code)
	require.Contains(t, out.stderr, "has several control planes and none is chosen")
	require.Equal(t, "cp-admin\n", h.ok("config", "control-planes", "list", "-o", "name"))
	require.NotContains(t, h.ok("config", "control-planes", "list", "-o", "json"), "admin-token", "a list shows no secret")
	out = h.run("config", "control-planes", "remove", "--name", "cp-admn")
	require.Equal(t, outcome{exit.No, "", "Error: there is no control plane \"cp-admn\" in " + path + "; did you mean \"cp-admin\"?\n"}, out)
}

func TestConfigAddRefuses(t *testing.T) {
	h := newHarness(t)
	before, err := os.ReadFile(h.config)
	require.NoError(t, err)
	for args, want := range map[string]string{
		"--address a:1":          "--name is required",
		"--name x":               "--address is required: HOST:PORT of the control plane's servers",
		"--name x --address a/b": `--address "a/b": write HOST:PORT`,
		"--name x --address a:1 --auth-type=certs":                                                  `--auth-type "certs": the only type is tokens`,
		"--name x --address a:1 --auth-type=tokens":                                                 "--auth-conf token=TOKEN is required with --auth-type=tokens; the token is empty",
		"--name x --address a:1 --auth-type=tokens --auth-conf eyJhbGci":                            "--auth-conf: the only setting of tokens is token=TOKEN",
		"--name x --address a:1 --ca-cert-file /none":                                               "--ca-cert-file: open /none: no such file or directory",
		"--name x --address a:1 --ca-cert-file " + h.config:                                         "--ca-cert-file: there is no certificate in " + h.config,
		"--name x --address a:1 --auth-conf token=eyJhbGci":                                         "--auth-conf goes with --auth-type=tokens",
		"--name x --address a:1 --auth-type=tokens --auth-conf token=eyJhbGci.é":                    "--auth-conf: the token is malformed: it has a 'é' at position 10, and a token is one line of letters, digits, dots, dashes and underscores",
		"--name x --address a:1 --auth-type=tokens --auth-conf token=" + strings.Repeat("A", 20000): "--auth-conf: the token is malformed: it has 20000 bytes",
	} {
		out := h.run(append([]string{"config", "control-planes", "add"}, strings.Fields(args)...)...)
		require.Equal(t, exit.Usage, out.code, args)
		require.Contains(t, out.stderr, want)
		require.True(t, strings.HasPrefix(out.stderr, "Error: "))
		require.NotContains(t, out.stderr, "eyJhbGci", "what may be a token is not repeated")
	}
	after, err := os.ReadFile(h.config)
	require.NoError(t, err)
	require.Equal(t, before, after, "a refused addition leaves no trace")
}

func TestNotConfigured(t *testing.T) {
	h := newHarness(t)
	h.env = []string{"HOME=" + t.TempDir()}
	out := h.run("get", "meshes")
	require.Equal(t, exit.Usage, out.code)
	require.True(t, strings.HasPrefix(out.stderr, "Error: no control plane is configured\n"), out.stderr)
	require.Contains(t, out.stderr, "--config DIR/admin.yaml")

	out = h.run("get", "meshes", "--config", "/none/admin.yaml")
	require.Equal(t, exit.Usage, out.code)
	require.Contains(t, out.stderr, "Error: there is no configuration file /none/admin.yaml\n")

	out = h.run("get", "meshes", "--config", h.config, "--context", "globl")
	require.Equal(t, exit.Usage, out.code)
	require.Contains(t, out.stderr, `Error: there is no control plane "globl" in `+h.config+`; did you mean "global"?`)

	out = h.run("get", "meshes", "--config", h.write("broken.yaml", "current: 3: 4"))
	require.Equal(t, exit.Usage, out.code)
	require.Contains(t, out.stderr, "broken.yaml")
}

// The token of a configured control plane goes to that control plane only.
func TestAddressAloneSendsNoToken(t *testing.T) {
	h := newHarness(t)
	h.ok("zones", "--address", h.address, "--ca-cert-file", h.caFile)
	require.Equal(t, []string{""}, h.server.Authorizations)
	h.ok("zones", "--context", "global", "--address", h.address)
	require.Equal(t, "Bearer secret", h.server.Authorizations[1])
}

// An empty --token is not the same as none: it would act with other rights.
func TestEmptyTokenIsRefused(t *testing.T) {
	h := newHarness(t)
	out := h.run("zones", "--token", "")
	require.Equal(t, exit.Usage, out.code)
	require.Contains(t, out.stderr, "--token is empty")
	require.Empty(t, h.server.Calls)
}

func TestParseAddresses(t *testing.T) {
	for list, want := range map[string][]string{
		"cp:1":                   {"cp:1"},
		"cp":                     {"cp:5685"},
		"https://cp:5682/":       {"cp:5682"},
		"a:1, b:2":               {"a:1", "b:2"},
		"[::1]:7,::1,[fe80::1]":  {"[::1]:7", "[::1]:5685", "[fe80::1]:5685"},
		"127.0.0.1,example.com:": nil,
		":5685":                  nil,
		"cp:grpc":                nil,
		"cp:0":                   nil,
		"cp:65536":               nil,
		"a:b:c":                  nil,
		"":                       nil,
	} {
		got, err := client.ParseAddresses(list)
		require.Equal(t, want == nil, err != nil, list)
		require.Equal(t, want, got)
	}
}

// Agents call a zone: without a port, its own.
func TestParseZoneAddresses(t *testing.T) {
	got, err := client.ParseZoneAddresses("--zone-address", "east, west:7")
	require.NoError(t, err)
	require.Equal(t, []string{"east:5678", "west:7"}, got)
	_, err = client.ParseZoneAddresses("--zone-address", "east:grpc")
	require.EqualError(t, err, `--zone-address "east:grpc": write HOST:PORT, with a port between 1 and 65535`)
}

func TestShellsAreOfferedTheValuesOfFlags(t *testing.T) {
	h := newHarness(t)
	require.Contains(t, h.ok("__complete", "get", "meshes", "-o", ""), "table\nwide\njson\nyaml\nname\n")
	require.Contains(t, h.ok("__complete", "export", "--output", ""), "yaml\njson\nname\n")
	require.Contains(t, h.ok("__complete", "zones", "--context", ""), "global\n")
	require.NotContains(t, h.ok("__complete", "--config", "/nowhere", "zones", "--context", ""), "global\n")
}

// A token that a server refuses, or that no server could answer, is found by the
// user where it stands.
func TestWhoseTokenWasRefused(t *testing.T) {
	h := newHarness(t)
	h.server.Answer = func(*meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
		return nil, rpcerr.New(rpcerr.Unauthenticated, authn.ReasonBadToken, "not authenticated: the token has expired on Monday").GRPCStatus().Err()
	}
	h.ok("config", "control-planes", "add", "--name", "mine", "--address", h.address, "--skip-verify", "--auth-type=tokens", "--auth-conf", "token=a.b.c")
	const refused, fix = "Error: not authenticated: the token has expired on Monday\n", "A user with the access GENERATE_USER_TOKEN can issue another with `meridian generate user-token`.\n"
	for args, where := range map[string]string{
		"--context mine":                       `The token is that of the control plane "mine" in ` + h.config + ".\n" + fix,
		"--context mine --token d.e.f":         "The token is that of --token.\n" + fix,
		"--skip-verify --address " + h.address: "",
	} {
		out := h.run(append([]string{"inspect", "dataplane", "web-1"}, strings.Fields(args)...)...)
		require.Equal(t, outcome{exit.Denied, "", refused + where}, out, args)
	}
	out := h.run("inspect", "dataplane", "web-1", "--context", "mine", "--token", "a.b.c\nd")
	require.Equal(t, exit.Usage, out.code)
	require.Contains(t, out.stderr, `the token is malformed: it has a '\n' at position 6, and a token is one line of letters, digits, dots, dashes and underscores (of --token)`)
}

func TestSkippingVerificationBeatsACertificate(t *testing.T) {
	h := newHarness(t)
	contexts, err := clientconfig.LoadContexts(h.config)
	require.NoError(t, err)
	ca := h.write("ca.pem", contexts.ControlPlanes[0].CA)
	out := h.run("config", "control-planes", "add", "--name", "both", "--address", h.address, "--skip-verify", "--ca-cert-file", ca)
	require.Zero(t, out.code, out.stderr)
	require.Contains(t, out.stderr, "With --skip-verify the server's certificate is not looked at: --ca-cert-file has no effect.")
}

// A configuration that cannot be kept is one error, and nothing says that it was.
func TestAConfigurationThatCannotBeKept(t *testing.T) {
	h := newHarness(t)
	link := filepath.Join(h.home, "link") // a directory that is not there and cannot be made
	require.NoError(t, os.Symlink(filepath.Join(h.home, "absent"), link))
	out := h.run("config", "control-planes", "add", "--name", "mine", "--address", h.address, "--skip-verify", "--config", filepath.Join(link, "config.yaml"))
	require.Equal(t, exit.Usage, out.code)
	require.Contains(t, out.stderr, "the configuration cannot be kept")
	require.NotContains(t, out.stdout+out.stderr, "Added")
}
