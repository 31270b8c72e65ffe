package server

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// §6.5: which addresses are on loopback.
func TestReachBeyondLoopback(t *testing.T) {
	for addr, beyond := range map[string]bool{
		"127.0.0.1:5685":          false,
		"127.8.9.1:0":             false,
		"[::1]:5685":              false,
		"localhost:5685":          false,
		"LocalHost:5685":          false,
		"[::ffff:127.0.0.1]:5685": false,
		":5685":                   true,
		"0.0.0.0:5685":            true,
		"[::]:5685":               true,
		"10.0.0.1:5685":           true,
		"[fe80::1%eth0]:5685":     true,
		"global.example.com:5685": true,
		"localhost.example:5685":  true,
		"":                        true,
		"nonsense":                true,
	} {
		_, got := BeyondLoopback([]Reach{{"grpc-addr", "127.0.0.1:1"}, {"http-addr", addr}})
		require.Equal(t, beyond, got, addr)
	}
	o := Options{AdvertiseAddr: "global.example.com:5685"}
	at, beyond := BeyondLoopback(o.Reaches(Addresses{GRPC: "127.0.0.1:1", HTTP: "127.0.0.1:2"}))
	require.True(t, beyond)
	require.Equal(t, "--advertise-addr global.example.com:5685", at.String())
	at, _ = BeyondLoopback(new(Options).Reaches(Addresses{GRPC: "127.0.0.1:1", HTTP: "127.0.0.1:2", Webhook: "[::]:5443"}))
	require.Equal(t, "--webhook-addr [::]:5443", at.String())
	at, _ = BeyondLoopback(new(Options).Reaches(Addresses{GRPC: "127.0.0.1:1", HTTP: "0.0.0.0:2"}))
	require.Equal(t, "--http-addr 0.0.0.0:2", at.String())
	_, beyond = BeyondLoopback(new(Options).Reaches(Addresses{GRPC: "127.0.0.1:1", HTTP: "[::1]:2"}))
	require.False(t, beyond)

	o = Options{DataDir: "x", DefaultAccess: "closed"}
	require.ErrorContains(t, o.Validate(), `--default-access "closed": write auto, open or restricted`)
}
