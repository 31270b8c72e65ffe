package xdstest

import (
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"meridian/internal/xds"
)

// RequireValid requires that every message of a set obeys its rules, that no resource
// refers to one that is not in the set, and that the set is the same as when it is made
// again.
func RequireValid(t require.TestingT, set, again *xds.Set) {
	require.Equal(t, set.Len(), again.Len())
	for r := range set.All() {
		other := again.Get(r.Ref())
		require.NotNil(t, other, "%s is made once only", r.Ref())
		require.Equal(t, r.Version, other.Version, "%s differs when it is made again", r.Ref())
		m, err := r.Message()
		require.NoError(t, err)
		RequireRules(t, m)
		for _, used := range r.Uses {
			require.NotNil(t, set.Get(used), "%s refers to %s", r.Ref(), used)
		}
	}
}

// RequireRules requires that a message, and every one that is packed into it, obeys the
// rules of its definition.
func RequireRules(t require.TestingT, m proto.Message) {
	if v, ok := m.(interface{ ValidateAll() error }); ok {
		require.NoError(t, v.ValidateAll(), "%v", m)
	}
	var walk func(protoreflect.Message)
	walk = func(r protoreflect.Message) {
		if packed, ok := r.Interface().(*anypb.Any); ok {
			inner, err := packed.UnmarshalNew()
			require.NoError(t, err)
			RequireRules(t, inner)
			return
		}
		r.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			switch {
			case f.IsMap() && f.MapValue().Message() != nil:
				v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool { walk(v.Message()); return true })
			case f.IsList() && f.Message() != nil:
				for i := range v.List().Len() {
					walk(v.List().Get(i).Message())
				}
			case f.Message() != nil && !f.IsMap():
				walk(v.Message())
			}
			return true
		})
	}
	walk(m.ProtoReflect())
}
