//go:build multizone

package multizone

import (
	"bytes"
	"crypto/x509"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// With certificates of an operator's authority, which name no server, that of a removed
// server is of no use under another name and with a new disk, also once the cluster has
// restarted. A renewed certificate is recognized, and a new key lets the host come back.
func TestACertificateOfARemovedServerDoesNotComeBack(t *testing.T) {
	t.Parallel()
	const asServer, asClient = x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth
	own := newAuthority(t)
	server := func(name string, certificate []string, args ...string) *process {
		return newProcess(t, "meridian-global", name, slices.Concat(loopback(name), certificate, args)...)
	}
	first := server("one", own.flags("one", asServer, asClient)).start().ready()
	join := []string{"--join", first.addresses()["raft"]}
	second := server("two", own.flags("two", asServer, asClient), join...).start().ready()
	stolen := own.flags("three", asServer, asClient)
	third := server("three", stolen, join...).start().ready()

	// Its disk is lost: the same certificate serves on.
	require.Zero(t, third.stop())
	require.NoError(t, os.RemoveAll(third.dir))
	third.start().ready()
	first.awaitVoters("one", "two", "three")

	first.must("cluster", "remove", "three", "--force")
	require.Equal(t, 1, third.wait())
	first.await("the warning about the key that it knows", func() bool {
		return strings.Contains(first.log.String(), "replace the key") && strings.Contains(second.log.String(), "replace the key")
	})
	for _, p := range []*process{first, second} {
		require.Zero(t, p.stop())
	}
	first.start()
	second.start().ready()
	first.ready()
	again := server("four", stolen, join...).start()
	require.NotZero(t, again.wait())
	require.Contains(t, again.log.String(), "the certificate of four is that of three, which was removed from this cluster: give it a certificate with another key")
	require.Len(t, first.members(), 2)
	server("three", own.flags("three-again", asServer, asClient), join...).start().ready()

	// No client sees what is registered.
	require.Contains(t, first.must("get", "global-secret", "cluster-servers", "-o", "yaml"), "withheld: true")
	require.NotContains(t, first.must("export", "--include-secrets"), "cluster-servers")
}

// The generated gossip key is replaced once a server was removed: everywhere, without
// losing sight of any server, and on disk. That the key of the authority is not is said
// until it is.
func TestTheGossipKeyOfARemovedServerIsReplaced(t *testing.T) {
	t.Parallel()
	servers := newCluster(t)
	old := servers[0].file("pki/gossip.key")
	gone := servers[2]
	gone.kill()
	left := servers[:2]
	require.JSONEq(t, `{"removed": "three", "knowsAuthority": true, "next": "meridian cluster rotate-ca start"}`,
		left[0].must("cluster", "remove", "three", "--force", "-o", "json"))
	var now []byte
	for _, p := range left {
		p.await("another gossip key alone", func() bool {
			now = p.file("pki/gossip.key")
			return !bytes.Contains(now, bytes.TrimSpace(old)) && bytes.Count(now, []byte("\n")) == 1
		})
	}
	require.Equal(t, now, left[0].file("pki/gossip.key"))
	for _, p := range left {
		require.NotContains(t, p.log.String(), "encrypted with another key")
		p.await("both to be seen", func() bool { return strings.Contains(p.scrape(), "\nmeridian_gossip_members 2\n") })
		require.NotContains(t, string(p.file("peers.json")), `"three"`)
	}
	// One that joins is given it.
	fourth := newServer(t, left[1], "four").start().ready()
	require.Equal(t, now, fourth.file("pki/gossip.key"))

	// The key of the authority is replaced by the operator, who is told until then.
	const known = "removed servers that have the key of the certificate authority: three"
	for _, phase := range []string{"start", "switch", "finish"} {
		for _, p := range left {
			require.Contains(t, p.command("status").stdout, known, "before %s", phase)
		}
		left[0].await("every server to have followed, for "+phase, func() bool { return left[0].command("cluster", "rotate-ca", phase).code == 0 })
	}
	for _, p := range append(left, fourth) {
		p.await("the new authority alone", func() bool { return !strings.Contains(p.command("status").stdout, known) })
		require.NotContains(t, p.command("cluster", "members").stderr, "certificate authority")
	}
}
