package authn

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
)

// What tells attempts under one id apart, and stands before it.
const (
	attemptMark  = "#"
	attemptBytes = 16
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
	return requestID + attemptMark + hex.EncodeToString(h.Sum(nil)[:attemptBytes]), nil
}

// RequestOf returns the id that a caller gave the request of an attempt. What is
// no attempt of a caller's is returned as it is.
func RequestOf(attempt string) string {
	at := len(attempt) - hex.EncodedLen(attemptBytes)
	if at < len(attemptMark) {
		return attempt
	}
	if _, err := hex.DecodeString(attempt[at:]); err != nil {
		return attempt
	}
	id, _ := strings.CutSuffix(attempt[:at], attemptMark)
	if len(id) == at {
		return attempt
	}
	return id
}
