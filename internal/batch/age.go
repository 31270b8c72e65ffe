package batch

import (
	"context"
	"strconv"
	"time"

	"google.golang.org/grpc/metadata"
)

// ageHeader carries how long ago a request was first sent, in milliseconds.
const ageHeader = "meridian-request-age"

// WithAge says in a call that its request was first sent so long ago. The server
// remembers request ids for a time, and after that it can tell only by the age
// that it would not know this one any more.
func WithAge(ctx context.Context, age time.Duration) context.Context {
	return metadata.AppendToOutgoingContext(ctx, ageHeader, strconv.FormatInt(age.Milliseconds(), 10))
}

// Age returns how long ago the request of a call was first sent, 0 when this is the
// first time or the client does not say.
func Age(ctx context.Context) time.Duration {
	oldest := int64(0)
	for _, text := range metadata.ValueFromIncomingContext(ctx, ageHeader) {
		if ms, err := strconv.ParseInt(text, 10, 64); err == nil {
			oldest = max(oldest, ms)
		}
	}
	const most = 10 * 365 * 24 * time.Hour // so that it can be computed with
	return time.Duration(min(oldest, most.Milliseconds())) * time.Millisecond
}
