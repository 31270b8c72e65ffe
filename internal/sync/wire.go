package zonesync

import (
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	syncv1 "meridian/api/sync/v1"
)

// The numbers of the fields batch and chunk in GlobalFrame.
const (
	batchField protowire.Number = 2
	chunkField protowire.Number = 3
)

// Codec encodes the messages of a gRPC server that serves zones; a Server needs it. The
// content of a Batch or Chunk frame is encoded before it is sent, and every zone is sent the
// same: it is passed on without a copy. gRPC keeps a message until it is written, which takes
// long when a zone does not read. What a zone sends is decoded by the Server (see received). All other
// messages are encoded and decoded as by gRPC's own codec.
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

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if r, ok := v.(*received); ok {
		r.take(data)
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

// received is a message as it arrived. Its receiver decodes it: gRPC decodes where its stack
// is deepest, and the stack of a goroutine that waits for messages stays as large as it ever
// had to be.
type received struct {
	// message holds it until the next arrives.
	message []byte
}

// keptMessage is how many bytes of memory a stream keeps for what its zone sends. An
// acknowledgement has fewer.
const keptMessage = 256

func (r *received) take(data mem.BufferSlice) {
	n := data.Len()
	if n > cap(r.message) || cap(r.message) > keptMessage {
		r.message = make([]byte, n, max(n, keptMessage/2))
	}
	r.message = r.message[:n]
	data.CopyTo(r.message)
}

// frame decodes it.
func (r *received) frame() (*syncv1.ZoneFrame, error) {
	f := &syncv1.ZoneFrame{}
	if err := proto.Unmarshal(r.message, f); err != nil {
		return nil, fencef(syncv1.FenceReason_FENCE_REASON_PROTOCOL, "a frame of the zone cannot be decoded: %v", err)
	}
	return f, nil
}

// encodedField is a message of one field with content that is encoded already.
func encodedField(number protowire.Number, content []byte) mem.BufferSlice {
	head := make([]byte, 0, protowire.SizeTag(number)+protowire.SizeVarint(uint64(len(content))))
	head = protowire.AppendTag(head, number, protowire.BytesType)
	head = protowire.AppendVarint(head, uint64(len(content)))
	return mem.BufferSlice{mem.SliceBuffer(head), mem.SliceBuffer(content)}
}
