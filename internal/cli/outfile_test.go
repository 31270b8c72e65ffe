package cli

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/exit"
	"meridian/internal/clientconfig"
	"meridian/internal/resource"
)

// Every command that prints a credential can write it into a file that only its
// owner reads.
func TestCredentialsAreWrittenToFiles(t *testing.T) {
	h := stocked(t)
	for name, args := range map[string][]string{
		"user":      {"generate", "user-token", "--name", "bob", "--valid-for", "24h"},
		"dataplane": {"generate", "dataplane-token", "--valid-for", "24h"},
		"zone":      {"generate", "zone-token", "--zone", "east", "--valid-for", "24h", "--bundle"},
		"server":    {"generate", "server-token", "--valid-for", "24h"},
		"export":    {"export", "--include-secrets"},
	} {
		t.Run(name, func(t *testing.T) {
			printed := h.ok(args...)
			path := filepath.Join(h.home, name+".out")
			args = append(args, "--out", path)
			out := h.run(args...)
			require.Equal(t, exit.OK, out.code, out.stderr)
			require.Empty(t, out.stdout)
			require.Contains(t, out.stderr, "Written to "+path)
			written, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, printed, string(written))
			info, err := os.Stat(path)
			require.NoError(t, err)
			require.Equal(t, fs.FileMode(0o600), info.Mode().Perm())

			calls := len(h.server.Calls)
			out = h.run(args...)
			require.Equal(t, exit.Usage, out.code)
			require.Contains(t, out.stderr, path+" exists: --overwrite replaces it")
			require.Len(t, h.server.Calls, calls, "nothing was issued")
			require.Equal(t, exit.OK, h.run(append(args, "--overwrite")...).code)
			calls = len(h.server.Calls)
			out = h.run(append(args[:len(args)-1], filepath.Join(h.home, "absent", "f"))...)
			require.Equal(t, exit.Usage, out.code)
			require.Len(t, h.server.Calls, calls, "nothing was issued")
			leftovers, err := filepath.Glob(filepath.Join(h.home, ".*"))
			require.NoError(t, err)
			require.Empty(t, leftovers)
		})
	}
	out := h.run("generate", "user-token", "--name", "bob", "--valid-for", "24h", "--overwrite")
	require.Contains(t, out.stderr, "--overwrite is about --out")
}

// A token comes from a flag, a file or the environment, in this order; what is
// given and cannot be used is an error.
func TestWhereTheTokenComesFrom(t *testing.T) {
	h := newHarness(t)
	file, empty := h.write("token", "from-file\n"), h.write("empty", "\n")
	for name, tc := range map[string]struct {
		env  []string
		args []string
		want string
		fail string
	}{
		"context":         {want: "secret"},
		"flag":            {args: []string{"--token", "from-flag"}, env: []string{"MERIDIAN_TOKEN=from-env"}, want: "from-flag"},
		"file":            {args: []string{"--token-file", file}, env: []string{"MERIDIAN_TOKEN=from-env"}, want: "from-file"},
		"variable":        {env: []string{"MERIDIAN_TOKEN=from-env"}, want: "from-env"},
		"file variable":   {env: []string{"MERIDIAN_TOKEN_FILE=" + file}, want: "from-file"},
		"two flags":       {args: []string{"--token", "a", "--token-file", file}, fail: "--token and --token-file name two tokens"},
		"two variables":   {env: []string{"MERIDIAN_TOKEN=a", "MERIDIAN_TOKEN_FILE=" + file}, fail: "name two tokens"},
		"empty flag":      {args: []string{"--token", ""}, fail: "--token is empty"},
		"empty file":      {args: []string{"--token-file", empty}, fail: "--token-file is empty"},
		"no file":         {args: []string{"--token-file", file + "x"}, fail: "--token-file: open "},
		"bad file":        {args: []string{"--token-file", h.write("two", "a\nb")}, fail: "of --token-file"},
		"not a file":      {args: []string{"--token-file", h.home}, fail: "--token-file: read "},
		"a file too long": {args: []string{"--token-file", "/dev/zero"}, fail: "longer than any token"},
	} {
		t.Run(name, func(t *testing.T) {
			before := h.env
			h.env = append(append([]string{}, before...), tc.env...)
			defer func() { h.env = before }()
			out := h.run(append([]string{"zones"}, tc.args...)...)
			if tc.fail != "" {
				require.Equal(t, exit.Usage, out.code, out.stderr)
				require.Contains(t, out.stderr, tc.fail)
				return
			}
			require.Equal(t, exit.OK, out.code, out.stderr)
			require.Equal(t, "Bearer "+tc.want, h.server.Authorizations[len(h.server.Authorizations)-1])
		})
	}
}

// The token of a flag is kept in the configuration.
func TestConfigAddKeepsTheToken(t *testing.T) {
	h := newHarness(t)
	file := h.write("token", "from-file\n")
	add := func(args ...string) outcome {
		return h.run(append([]string{"config", "control-planes", "add", "--overwrite", "--name", "x", "--address", h.address}, args...)...)
	}
	for want, args := range map[string][]string{
		"from-flag": {"--token", "from-flag"}, "from-file": {"--auth-type", "tokens", "--token-file", file},
	} {
		out := add(args...)
		require.Equal(t, exit.OK, out.code, out.stderr)
		contexts, err := clientconfig.LoadContexts(h.config)
		require.NoError(t, err)
		entry, err := contexts.Get("x")
		require.NoError(t, err)
		require.Equal(t, want, entry.Token)
	}
	for text, args := range map[string][]string{
		"without --auth-conf":    {"--token", "a", "--auth-type", "tokens", "--auth-conf", "token=b"},
		"--token is empty":       {"--token", ""},
		"the token is malformed": {"--token", "a\nb"},
	} {
		out := add(args...)
		require.Equal(t, exit.Usage, out.code, text)
		require.Contains(t, out.stderr, text)
	}
}

// An export says who is trusted only when it is asked to, and never holds keys.
func TestExportLeavesTrustOut(t *testing.T) {
	h := stocked(t)
	put := func(kind resource.Kind, name, spec string) {
		h.server.Stored[resource.Key{Kind: kind, Name: name}] = &meridianv1.Resource{Kind: string(kind), Name: name, Spec: []byte(spec)}
	}
	put("SigningKey", "user-token-signing-key-1", `{}`)
	put("IssuedToken", "abc", `{}`)
	put("TokenRevocation", "abc", `{}`)
	put("Zone", "east", `{}`)
	put("AccessRole", "admin", `{}`)
	put("AccessRoleBinding", "default", `{}`)
	put("GlobalSecret", "admin-user-token", `{"data": "AA=="}`)
	put("GlobalSecret", "user-token-signing-key-1", `{"withheld": true}`)
	trust := []string{"SigningKey/user-token-signing-key-1", "IssuedToken/abc", "TokenRevocation/abc", "Zone/east", "AccessRole/admin", "AccessRoleBinding/default"}
	requireTrust := func(want []string, args ...string) {
		t.Helper()
		got := h.ok(append([]string{"export", "-o", "name"}, args...)...)
		for _, name := range trust {
			if contains := name + "\n"; len(want) > 0 && want[0] == name {
				require.Contains(t, got, contains)
				want = want[1:]
			} else {
				require.NotContains(t, got, contains)
			}
		}
		require.NotContains(t, got, "GlobalSecret/admin-user-token")
		require.NotContains(t, got, "GlobalSecret/user-token-signing-key-1")
	}
	requireTrust(nil)
	requireTrust(nil, "--include-secrets")
	requireTrust(trust, "--include=all", "--include-secrets")
	requireTrust(trust[:1], "--include=keys")
	requireTrust(trust[1:3], "--include=tokens")
	requireTrust(trust[3:], "--include=zones,access")
	requireTrust(trust[3:4], "zones")
	out := h.run("export", "--include=passwords")
	require.Equal(t, exit.Usage, out.code)
	require.Contains(t, out.stderr, "write keys, tokens, zones, access or all")
}
