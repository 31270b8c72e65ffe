package client

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// headers hears the headers of answers.
type headers struct {
	grpc.ClientConnInterface

	mu sync.Mutex
	// heard are the headers of the last calls, filled when each has ended.
	heard []*metadata.MD // guarded by mu
}

// maxHeard bounds the headers that are kept: those of the newest calls.
const maxHeard = 16

// next returns where the header of a call goes.
func (h *headers) next() grpc.CallOption {
	md := &metadata.MD{}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.heard = append(h.heard, md)
	h.heard = h.heard[max(0, len(h.heard)-maxHeard):]
	return grpc.Header(md)
}

// last returns the value of a header that a server has sent last. No call may be in
// progress.
func (h *headers) last(name string) []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	var last []byte
	for _, md := range h.heard {
		for _, value := range md.Get(name) {
			last = []byte(value)
		}
	}
	return last
}

// Invoke implements grpc.ClientConnInterface.
func (h *headers) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return h.ClientConnInterface.Invoke(ctx, method, args, reply, append(opts, h.next())...)
}

// NewStream implements grpc.ClientConnInterface.
func (h *headers) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return h.ClientConnInterface.NewStream(ctx, desc, method, append(opts, h.next())...)
}
