package zonesync

import (
	"testing"

	"github.com/stretchr/testify/require"
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
