package batch

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/grpctest"
	"meridian/internal/rpcerr"
)

type (
	applies = grpctest.Stream[meridianv1.ApplyRequest, meridianv1.ApplyResponse]
	deletes = grpctest.Stream[meridianv1.DeleteRequest, meridianv1.DeleteResponse]

	questions = grpctest.Stream[meridianv1.CanIRequest, meridianv1.CanIResponse]
)

// Whatever a batch holds, it arrives as it was sent, in messages that a server
// takes.
func TestBatchesArriveAsTheyWereSent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		req := &meridianv1.ApplyRequest{RequestId: rapid.String().Draw(t, "id"), DryRun: rapid.Bool().Draw(t, "dry"), Force: rapid.Bool().Draw(t, "force")}
		req.SkipTests = rapid.Bool().Draw(t, "skip tests")
		req.KeepTimes = rapid.Bool().Draw(t, "keep times")
		for range rapid.SampledFrom([]int{0, 1, 5, 4000}).Draw(t, "conditions") {
			req.IfVersions = append(req.IfVersions, &meridianv1.VersionCondition{
				Key: &meridianv1.ResourceKey{Kind: "Mesh", Name: "a-name-of-some-length"}, Version: uint64(len(req.GetIfVersions())), OrMissing: true, //nolint:gosec // a count
			})
		}
		size := rapid.OneOf(rapid.IntRange(0, 200), rapid.IntRange(maxPart-200, maxPart+200), rapid.IntRange(0, 4*MaxMessage))
		for range rapid.IntRange(0, 12).Draw(t, "resources") {
			r := &meridianv1.Resource{Kind: "Mesh", Name: rapid.StringN(0, 20, -1).Draw(t, "name"), Version: rapid.Uint64().Draw(t, "v")}
			r.Labels = map[string]string{"a": rapid.StringN(0, 30, -1).Draw(t, "label")}
			r.Spec = make([]byte, size.Draw(t, "size"))
			for i := range r.Spec {
				r.Spec[i] = byte(i)
			}
			req.Resources = append(req.Resources, r)
		}
		before := proto.Clone(req)
		stream := &applies{}
		require.NoError(t, splitApply(req, func(m *meridianv1.ApplyRequest) error {
			require.LessOrEqual(t, proto.Size(m), MaxMessage)
			stream.Requests = append(stream.Requests, proto.Clone(m).(*meridianv1.ApplyRequest))
			return nil
		}))
		got, err := ReceiveApply(stream, nil)
		require.NoError(t, err)
		require.True(t, proto.Equal(before, req), "what was sent stays as it was")
		require.True(t, proto.Equal(req, got))
	})
}

func TestDeletionsArriveAsTheyWereSent(t *testing.T) {
	req := &meridianv1.DeleteRequest{RequestId: "r"}
	for range 10_000 {
		key := &meridianv1.ResourceKey{Kind: "TrafficPermission", Mesh: "default", Name: "a-name-of-some-length"}
		req.Keys = append(req.Keys, key)
		req.IfVersions = append(req.IfVersions, &meridianv1.VersionCondition{Key: key, Version: 3})
	}
	stream := &deletes{}
	require.NoError(t, splitDelete(req, func(m *meridianv1.DeleteRequest) error {
		require.LessOrEqual(t, proto.Size(m), MaxMessage)
		stream.Requests = append(stream.Requests, m)
		return nil
	}))
	require.Greater(t, len(stream.Requests), 1)
	got, err := ReceiveDelete(stream, nil)
	require.NoError(t, err)
	require.True(t, proto.Equal(req, got))
}

func TestQuestionsArriveAsTheyWereSent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.OneOf(rapid.IntRange(0, 200), rapid.IntRange(maxPart-200, maxPart+200), rapid.IntRange(0, 4*MaxMessage))
		content := func(label string) *meridianv1.Resource {
			if !rapid.Bool().Draw(t, label+" given") {
				return nil
			}
			r := &meridianv1.Resource{Kind: "Mesh", Name: label, Spec: make([]byte, size.Draw(t, label))}
			for i := range r.Spec {
				r.Spec[i] = byte(i)
			}
			return r
		}
		req := &meridianv1.CanIRequest{Access: "UPDATE", AsUser: rapid.StringN(0, 20, -1).Draw(t, "user"), Resource: content("new"), Old: content("old")}
		before := proto.CloneOf(req)
		stream := &questions{}
		require.NoError(t, splitCanI(req, func(m *meridianv1.CanIRequest) error {
			require.LessOrEqual(t, proto.Size(m), MaxMessage)
			stream.Requests = append(stream.Requests, proto.CloneOf(m))
			return nil
		}))
		got, err := ReceiveCanI(stream)
		require.NoError(t, err)
		require.True(t, proto.Equal(before, req), "what was sent stays as it was")
		require.True(t, proto.Equal(req, got))
	})
	for _, m := range []*meridianv1.CanIRequest{{ResourceContinued: []byte("x")}, {OldContinued: []byte("x")}} {
		_, err := ReceiveCanI(&questions{Requests: []*meridianv1.CanIRequest{{Access: "UPDATE"}, m}})
		require.True(t, rpcerr.HasReason(err, "NOTHING_TO_CONTINUE"), "%v", err)
	}
}

func TestStreamsThatAreNoBatch(t *testing.T) {
	_, err := ReceiveApply(&applies{}, nil)
	require.True(t, rpcerr.HasReason(err, "REQUEST_MISSING"))
	for _, all := range [][]*meridianv1.ApplyRequest{
		{{SpecContinued: []byte("x")}},
		{{RequestId: "r"}, {SpecContinued: []byte("x")}},
	} {
		_, err = ReceiveApply(&applies{Requests: all}, nil)
		require.True(t, rpcerr.HasReason(err, "NOTHING_TO_CONTINUE"), "%v", err)
	}
}
