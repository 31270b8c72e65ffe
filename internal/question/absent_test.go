package question_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/question"
	"meridian/internal/resource"
	"meridian/internal/resource/resourcetest"
)

// A question about a policy that did not exist then is answered so.
func TestAbsent(t *testing.T) {
	then := policy.NewSnapshot(resourcetest.Build(t, "Timeout", "default", "web",
		`{"sources":[{"match":{"kuma.io/service":"*"}}],"destinations":[{"match":{"kuma.io/service":"web"}}],"conf":{"connectTimeout":"1s"}}`))
	require.NoError(t, question.Absent(question.Policy{Kind: resource.KindTimeout, Name: "web"}, "default", then, 7))
	require.NoError(t, question.Absent(question.Dataplane{Name: "new"}, "default", then, 7))
	err := question.Absent(question.Policy{Kind: resource.KindTimeout, Name: "new"}, "default", then, 7)
	require.ErrorIs(t, err, answer.ErrNotFound)
	require.EqualError(t, err, "Timeout \"new\" in mesh \"default\": not found at revision 7: `meridian history Timeout new` lists its writes")
}
