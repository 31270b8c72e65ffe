package authn

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
)

// What separates a caller's request id from its scope, and the scope's length.
const (
	scopeMark  = "#"
	scopeBytes = 16
)

// ScopedRequestID returns the id by which the store recognizes a repeated write:
// the caller's request id together with a hash of the principal and the request.
// The same principal that repeats a request, on any server, gets the answer of the
// first one. Another principal, or another request, with the same id does not: that
// answer was decided on other rights and other content. An empty id stays empty.
func ScopedRequestID(ctx context.Context, requestID string, request proto.Message) (string, error) {
	if requestID == "" {
		return "", nil
	}
	what, err := proto.MarshalOptions{Deterministic: true}.Marshal(request)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	h.Write(strconv.AppendQuote(nil, PrincipalFrom(ctx).String())) // quoting marks its end
	h.Write(what)
	return requestID + scopeMark + hex.EncodeToString(h.Sum(nil)[:scopeBytes]), nil
}

// CallerRequestID returns the request id that the caller gave, from a scoped one.
// An id without a scope is returned unchanged.
func CallerRequestID(scoped string) string {
	at := len(scoped) - hex.EncodedLen(scopeBytes)
	if at < len(scopeMark) {
		return scoped
	}
	if _, err := hex.DecodeString(scoped[at:]); err != nil {
		return scoped
	}
	id, _ := strings.CutSuffix(scoped[:at], scopeMark)
	if len(id) == at {
		return scoped
	}
	return id
}
