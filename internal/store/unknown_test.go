package store

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	storev1 "meridian/api/store/v1"
)

// A field of a newer release is noticed in every message that is stored, and in every
// field that holds a message.
func TestUnknownFieldsAreNoticedInEveryMessage(t *testing.T) {
	t.Parallel()
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 500, protowire.VarintType), 1)
	held := 0
	protoregistry.GlobalTypes.RangeMessages(func(mt protoreflect.MessageType) bool {
		if mt.Descriptor().ParentFile().Package() != (*storev1.Command)(nil).ProtoReflect().Descriptor().ParentFile().Package() {
			return true
		}
		m := mt.New()
		require.False(t, hasUnknown(m), mt.Descriptor().FullName())
		m.SetUnknown(unknown)
		require.True(t, hasUnknown(m), mt.Descriptor().FullName())
		for i := range mt.Descriptor().Fields().Len() {
			f := mt.Descriptor().Fields().Get(i)
			if f.Message() == nil {
				continue
			}
			require.False(t, f.IsMap(), "hasUnknown does not look into maps: %s", f.FullName())
			m := mt.New()
			if f.IsList() {
				m.Mutable(f).List().AppendMutable()
				require.False(t, hasUnknown(m), f.FullName())
				m.Mutable(f).List().AppendMutable().Message().SetUnknown(unknown)
			} else {
				m.Mutable(f)
				require.False(t, hasUnknown(m), f.FullName())
				m.Mutable(f).Message().SetUnknown(unknown)
			}
			require.True(t, hasUnknown(m), f.FullName())
			held++
		}
		return true
	})
	require.Greater(t, held, 20)
}
