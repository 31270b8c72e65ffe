package rpcerr

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhatGRPCPutsAroundADialIsTakenAway(t *testing.T) {
	for said, want := range map[string]string{
		`connection error: desc = "transport: Error while dialing: dial tcp 10.0.0.2:5690: connect: connection refused"`: "dial tcp 10.0.0.2:5690: connect: connection refused",
		`asked: connection error: desc = "transport: Error while dialing: no route"`:                                     "asked: no route",
		`the disk is "full"`: `the disk is "full"`,
	} {
		require.Equal(t, want, WithoutDialing(said))
	}
}
