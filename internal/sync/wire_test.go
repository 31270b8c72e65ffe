package zonesync

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	syncv1 "meridian/api/sync/v1"
)

// What is sent is what protobuf makes of the message, in either direction.
func TestFramesOnTheWire(t *testing.T) {
	c := Codec()
	require.Equal(t, "proto", c.Name())
	content := make([]byte, 300)
	for name, m := range map[string]proto.Message{
		"batch":       &syncv1.GlobalFrame{Body: &syncv1.GlobalFrame_Batch{Batch: content}},
		"empty batch": &syncv1.GlobalFrame{Body: &syncv1.GlobalFrame_Batch{}},
		"chunk":       &syncv1.GlobalFrame{Body: &syncv1.GlobalFrame_Chunk{Chunk: content}},
		"bookmark":    &syncv1.GlobalFrame{Body: &syncv1.GlobalFrame_Bookmark{Bookmark: &syncv1.Bookmark{Revision: 7, Digest: content[:16]}}},
		"nothing":     &syncv1.GlobalFrame{},
		"a zone's":    &syncv1.ZoneFrame{Body: &syncv1.ZoneFrame_Ack{Ack: &syncv1.Ack{Revision: 7}}},
	} {
		t.Run(name, func(t *testing.T) {
			want, err := proto.Marshal(m)
			require.NoError(t, err)
			got, err := c.Marshal(m)
			require.NoError(t, err)
			require.Equal(t, string(want), string(got.Materialize()))
			back := m.ProtoReflect().New().Interface()
			require.NoError(t, c.Unmarshal(got, back))
			require.True(t, proto.Equal(m, back))
		})
	}
	_, err := c.Marshal("text")
	require.Error(t, err)
}

// What a zone sends is decoded where it was received, as protobuf decodes it, and its memory
// is used again unless there is much of it.
func TestWhatAZoneSendsIsDecoded(t *testing.T) {
	var r received
	for _, size := range []int{10, 5, 2 * keptMessage, 5, 0, 100} {
		want := &syncv1.ZoneFrame{Body: &syncv1.ZoneFrame_Ack{Ack: &syncv1.Ack{Error: strings.Repeat("x", size)}}}
		sent, err := Codec().Marshal(want)
		require.NoError(t, err)
		require.NoError(t, Codec().Unmarshal(sent, &r))
		got, err := r.frame()
		require.NoError(t, err)
		require.True(t, proto.Equal(want, got))
	}
	require.LessOrEqual(t, cap(r.message), keptMessage)
	small, err := Codec().Marshal(&syncv1.ZoneFrame{Body: &syncv1.ZoneFrame_Ack{Ack: &syncv1.Ack{Revision: 7, Consumed: 1 << 40}}})
	require.NoError(t, err)
	require.Zero(t, testing.AllocsPerRun(10, func() { _ = Codec().Unmarshal(small, &r) }))

	require.NoError(t, Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer("no frame")}, &r))
	_, err = r.frame()
	var fence *fenceError
	require.ErrorAs(t, err, &fence)
	require.Equal(t, syncv1.FenceReason_FENCE_REASON_PROTOCOL, fence.reason)
}

// Streams share what they are sent: of a batch, none has a copy.
func TestContentIsNotCopied(t *testing.T) {
	content := make([]byte, 300)
	f := batchFrame(content)
	for range 2 {
		message, err := Codec().Marshal(f)
		require.NoError(t, err)
		require.Same(t, &content[0], &message[len(message)-1].ReadOnlyData()[0])
	}
}
