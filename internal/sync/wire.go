package zonesync

import (
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	syncv1 "meridian/api/sync/v1"
)

// The numbers of the fields batch and chunk in GlobalFrame.
const (
	batchField protowire.Number = 2
	chunkField protowire.Number = 3
)

// Codec encodes the messages of a gRPC server that serves zones. The content of a Batch or
// Chunk frame is encoded before it is sent, and every zone is sent the same: it is passed
// on without a copy. gRPC keeps a message until it is written, which takes long when a zone
// does not read. All other messages are encoded as by gRPC's own codec.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2(protocodec.Name)} }

type codec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	f, _ := v.(*syncv1.GlobalFrame)
	switch body := f.GetBody().(type) {
	case *syncv1.GlobalFrame_Batch:
		return encodedField(batchField, body.Batch), nil
	case *syncv1.GlobalFrame_Chunk:
		return encodedField(chunkField, body.Chunk), nil
	}
	return c.CodecV2.Marshal(v)
}

// encodedField is a message of one field with content that is encoded already.
func encodedField(number protowire.Number, content []byte) mem.BufferSlice {
	head := make([]byte, 0, protowire.SizeTag(number)+protowire.SizeVarint(uint64(len(content))))
	head = protowire.AppendTag(head, number, protowire.BytesType)
	head = protowire.AppendVarint(head, uint64(len(content)))
	return mem.BufferSlice{mem.SliceBuffer(head), mem.SliceBuffer(content)}
}
