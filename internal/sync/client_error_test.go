package zonesync

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestStreamErrorsReadLikeSentences(t *testing.T) {
	for message, want := range map[string]string{
		`connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"`:  "open stream: dial tcp 127.0.0.1:1: connect: connection refused",
		`connection error: desc = "transport: authentication handshake failed: connecting to a:1: not signed by \"x\""`: `open stream: connecting to a:1: not signed by "x"`,
		`zone west is not admitted: the token is for another zone`:                                                      "open stream: zone west is not admitted: the token is for another zone",
	} {
		cause := status.Error(codes.Unavailable, message)
		err := &streamError{"open stream", cause}
		require.EqualError(t, err, want)
		require.ErrorIs(t, err, cause)
		require.Equal(t, codes.Unavailable, status.Code(err), "the code is still there")
	}
	require.EqualError(t, &streamError{"receive", errors.New("the global closed the stream")}, "receive: the global closed the stream")
}
