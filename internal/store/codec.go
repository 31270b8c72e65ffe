package store

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "meridian/api/store/v1"
	"meridian/internal/resource"
)

// Unreadable is resource.Unreadable.
type Unreadable = resource.Unreadable

// Restore makes a resource from stored bytes (see resource.Stored).
func Restore(meta resource.Meta, canonical []byte) *resource.Resource {
	return resource.Stored(meta, canonical)
}

func keyToProto(k resource.Key) *storev1.Key {
	return &storev1.Key{Kind: string(k.Kind), Mesh: string(k.Mesh), Name: k.Name}
}

func keyFromProto(k *storev1.Key) (resource.Key, error) {
	key := resource.Key{Kind: resource.Kind(k.GetKind()), Mesh: resource.MeshName(k.GetMesh()), Name: k.GetName()}
	if key.Kind == "" || key.Name == "" {
		return key, errors.New("a key without kind or name")
	}
	return resource.SharedKey(key), nil
}

// timeToProto writes the zero time as absent.
func timeToProto(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func timeFromProto(t *timestamppb.Timestamp) (time.Time, error) {
	if t == nil {
		return time.Time{}, nil
	}
	return t.AsTime(), t.CheckValid()
}

func labelsToProto(labels map[string]string) []*storev1.Label {
	var out []*storev1.Label
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		out = append(out, &storev1.Label{Name: name, Value: labels[name]})
	}
	return out
}

func labelsFromProto(in []*storev1.Label) (map[string]string, error) {
	if len(in) == 0 {
		return nil, nil
	}
	labels := make(map[string]string, len(in))
	for _, l := range in {
		if _, twice := labels[l.GetName()]; twice {
			return nil, fmt.Errorf("label %q twice", l.GetName())
		}
		labels[l.GetName()] = l.GetValue()
	}
	return resource.SharedLabels(labels), nil
}

func resourceToProto(r *resource.Resource) *storev1.Resource {
	m := r.Meta()
	return &storev1.Resource{
		Key:              keyToProto(m.Key),
		Labels:           labelsToProto(m.Labels),
		CreationTime:     timeToProto(m.CreationTime),
		ModificationTime: timeToProto(m.ModificationTime),
		Version:          m.Version,
		Revision:         uint64(m.Revision),
		Spec:             r.Canonical(),
	}
}

func resourceFromProto(in *storev1.Resource) (*resource.Resource, error) {
	meta, err := metaFromProto(in)
	if err != nil {
		return nil, err
	}
	return Restore(meta, in.GetSpec()), nil
}

func metaFromProto(in *storev1.Resource) (resource.Meta, error) {
	key, err := keyFromProto(in.GetKey())
	if err != nil {
		return resource.Meta{}, err
	}
	labels, err := labelsFromProto(in.GetLabels())
	if err != nil {
		return resource.Meta{}, fmt.Errorf("%s: %w", key, err)
	}
	created, err := timeFromProto(in.GetCreationTime())
	if err != nil {
		return resource.Meta{}, fmt.Errorf("%s: creation time: %w", key, err)
	}
	modified, err := timeFromProto(in.GetModificationTime())
	if err != nil {
		return resource.Meta{}, fmt.Errorf("%s: modification time: %w", key, err)
	}
	return resource.Meta{
		Key: key, Labels: labels, CreationTime: created, ModificationTime: modified,
		Version: in.GetVersion(), Revision: resource.Revision(in.GetRevision()),
	}, nil
}

// epochToProto writes the zero epoch as an empty message, which is not absent.
func epochToProto(e Epoch) *storev1.Epoch {
	return &storev1.Epoch{ClusterId: e.ClusterID, Incarnation: e.Incarnation, Random: e.Random}
}

func epochFromProto(e *storev1.Epoch) Epoch {
	return Epoch{ClusterID: e.GetClusterId(), Incarnation: e.GetIncarnation(), Random: e.GetRandom()}
}

// deterministic encodes a message the same way every time.
var deterministic = proto.MarshalOptions{Deterministic: true}

// marshal encodes a message the same way every time.
func marshal(m proto.Message) ([]byte, error) { return deterministic.Marshal(m) }

// unmarshal decodes a message and refuses fields that this release does not
// know: they were written by a newer one, and ignoring them would make servers
// of one cluster disagree.
func unmarshal(data []byte, m proto.Message) error {
	if err := proto.Unmarshal(data, m); err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if hasUnknown(m.ProtoReflect()) {
		return fmt.Errorf("%w: %s has a field of a newer release", ErrUnknownFormat, m.ProtoReflect().Descriptor().Name())
	}
	return nil
}

// hasUnknown looks at the fields that hold messages only: to visit all fields of every
// message took as long as decoding it.
func hasUnknown(m protoreflect.Message) bool {
	if len(m.GetUnknown()) > 0 {
		return true
	}
	for _, f := range holdMessages[m.Descriptor()] {
		switch {
		case !m.Has(f):
		case f.IsList():
			list := m.Get(f).List()
			for i := range list.Len() {
				if hasUnknown(list.Get(i).Message()) {
					return true
				}
			}
		case hasUnknown(m.Get(f).Message()):
			return true
		}
	}
	return false
}

// holdMessages are the fields that hold messages, by the message that has them: those of
// commands and snapshots, and of what these hold.
var holdMessages = messageFields(storev1.File_store_v1_command_proto, storev1.File_store_v1_snapshot_proto)

// messageFields finds the fields that hold messages, in all messages of files.
func messageFields(files ...protoreflect.FileDescriptor) map[protoreflect.MessageDescriptor][]protoreflect.FieldDescriptor {
	out := map[protoreflect.MessageDescriptor][]protoreflect.FieldDescriptor{}
	for _, file := range files {
		for i := range file.Messages().Len() {
			d := file.Messages().Get(i)
			for j := range d.Fields().Len() {
				if f := d.Fields().Get(j); f.Message() != nil {
					out[d] = append(out[d], f)
				}
			}
		}
	}
	return out
}
