package auth

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strconv"

	"google.golang.org/protobuf/proto"
)

// AttemptID names what a caller asks for, for the store to do once: it is the same
// whenever the same caller repeats the same request under the same id, on
// whichever server. Whoever else uses that id, or for something else, makes
// another attempt: they get neither the first one's answer, which was decided for
// others, nor an answer in place of their own write. An empty id stays empty.
func AttemptID(ctx context.Context, requestID string, request proto.Message) (string, error) {
	if requestID == "" {
		return "", nil
	}
	what, err := proto.MarshalOptions{Deterministic: true}.Marshal(request)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	h.Write(strconv.AppendQuote(nil, PrincipalFrom(ctx).String())) // which says where it ends
	h.Write(what)
	return requestID + "/" + hex.EncodeToString(h.Sum(nil)[:16]), nil
}
