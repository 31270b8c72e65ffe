// Package batch sends requests that contain specs (the batches of AdminService, and
// CanI) in messages of a bounded size and puts them together again.
//
// It guarantees that a request arrives as it was sent, whatever the sizes of its
// resources, and that no message of it is larger than MaxMessage.
//
// Non-goals: limits on the batch as a whole, and deciding anything about it.
package batch

import (
	"context"
	"errors"
	"io"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/rpcerr"
)

const (
	// MaxMessage bounds one message of a batch, in bytes: what a server accepts.
	MaxMessage = 64 << 10
	// overhead is reserved in a message for all but its largest field.
	overhead = 8 << 10
	// maxPart is what a message is filled up to.
	maxPart = MaxMessage - overhead
)

// Apply sends a batch of resources and returns the answer.
func Apply(ctx context.Context, c meridianv1.AdminServiceClient, req *meridianv1.ApplyRequest, opts ...grpc.CallOption) (*meridianv1.ApplyResponse, error) {
	return send(ctx, req, splitApply, c.Apply, opts)
}

// Delete sends a batch of keys and returns the answer.
func Delete(ctx context.Context, c meridianv1.AdminServiceClient, req *meridianv1.DeleteRequest, opts ...grpc.CallOption) (*meridianv1.DeleteResponse, error) {
	return send(ctx, req, splitDelete, c.Delete, opts)
}

// CanI sends a question about an access and returns the answer.
func CanI(ctx context.Context, c meridianv1.AccessServiceClient, req *meridianv1.CanIRequest, opts ...grpc.CallOption) (*meridianv1.CanIResponse, error) {
	return send(ctx, req, splitCanI, c.CanI, opts)
}

func send[Q, R any](ctx context.Context, req *Q, split func(*Q, func(*Q) error) error,
	open func(context.Context, ...grpc.CallOption) (grpc.ClientStreamingClient[Q, R], error), opts []grpc.CallOption,
) (*R, error) {
	ctx, cancel := context.WithCancel(ctx) // of what is left of the stream when an error ends it
	defer cancel()
	stream, err := open(ctx, opts...)
	if err != nil {
		return nil, err
	}
	if err := split(req, stream.Send); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return stream.CloseAndRecv() // its error is the reason why sending ended, if it did
}

// splitApply calls send with the messages of a batch, in order.
func splitApply(req *meridianv1.ApplyRequest, send func(*meridianv1.ApplyRequest) error) error {
	next := &meridianv1.ApplyRequest{RequestId: req.GetRequestId(), DryRun: req.GetDryRun(), Force: req.GetForce(), KeepTimes: req.GetKeepTimes(), Plan: req.GetPlan(), SkipTests: req.GetSkipTests(), Rollout: req.GetRollout()}
	size := proto.Size(req.GetRollout())
	flush := func() error {
		out := next
		next, size = &meridianv1.ApplyRequest{}, 0
		return send(out)
	}
	for _, r := range req.GetResources() {
		n, rest := proto.Size(r), []byte(nil)
		if size > 0 && size+n > maxPart {
			if err := flush(); err != nil {
				return err
			}
		}
		if around := n - len(r.GetSpec()); n > maxPart && around < maxPart {
			head := &meridianv1.Resource{
				Kind: r.GetKind(), Mesh: r.GetMesh(), Name: r.GetName(), Labels: r.GetLabels(),
				CreationTime: r.GetCreationTime(), ModificationTime: r.GetModificationTime(), Version: r.GetVersion(), Revision: r.GetRevision(),
			}
			head.Spec, rest = r.GetSpec()[:maxPart-around], r.GetSpec()[maxPart-around:]
			r, n = head, maxPart
		}
		next.Resources, size = append(next.Resources, r), size+n
		for len(rest) > 0 {
			if err := flush(); err != nil {
				return err
			}
			n := min(len(rest), maxPart)
			next.SpecContinued, rest, size = rest[:n], rest[n:], n
		}
	}
	return splitConditions(req.GetIfVersions(), size, flush, func(c *meridianv1.VersionCondition) { next.IfVersions = append(next.IfVersions, c) })
}

// splitConditions adds conditions to the message that has size bytes, and to
// further ones, and sends the last.
func splitConditions(conditions []*meridianv1.VersionCondition, size int, flush func() error, add func(*meridianv1.VersionCondition)) error {
	for _, c := range conditions {
		n := proto.Size(c)
		if size > 0 && size+n > maxPart {
			if err := flush(); err != nil {
				return err
			}
			size = 0
		}
		add(c)
		size += n
	}
	return flush()
}

// splitDelete calls send with the messages of a batch, in order.
func splitDelete(req *meridianv1.DeleteRequest, send func(*meridianv1.DeleteRequest) error) error {
	next := &meridianv1.DeleteRequest{RequestId: req.GetRequestId(), DryRun: req.GetDryRun(), Force: req.GetForce(), Plan: req.GetPlan(), SkipTests: req.GetSkipTests(), Rollout: req.GetRollout()}
	size := proto.Size(req.GetRollout())
	flush := func() error {
		out := next
		next, size = &meridianv1.DeleteRequest{}, 0
		return send(out)
	}
	for _, k := range req.GetKeys() {
		n := proto.Size(k)
		if size > 0 && size+n > maxPart {
			if err := flush(); err != nil {
				return err
			}
		}
		next.Keys, size = append(next.Keys, k), size+n
	}
	return splitConditions(req.GetIfVersions(), size, flush, func(c *meridianv1.VersionCondition) { next.IfVersions = append(next.IfVersions, c) })
}

// splitCanI calls send with the messages of a question, in order.
func splitCanI(req *meridianv1.CanIRequest, send func(*meridianv1.CanIRequest) error) error {
	if proto.Size(req) <= maxPart {
		return send(req)
	}
	first := proto.CloneOf(req)
	for _, r := range []*meridianv1.Resource{first.GetResource(), first.GetOld()} {
		if r != nil {
			r.Spec = nil
		}
	}
	err := send(first)
	for part := range slices.Chunk(req.GetResource().GetSpec(), maxPart) {
		if err == nil {
			err = send(&meridianv1.CanIRequest{ResourceContinued: part})
		}
	}
	for part := range slices.Chunk(req.GetOld().GetSpec(), maxPart) {
		if err == nil {
			err = send(&meridianv1.CanIRequest{OldContinued: part})
		}
	}
	return err
}

// ReceiveApply receives a batch of resources. authorize, unless nil, is called with
// each message before another one is received: its error refuses the batch.
//
// Error: *rpcerr.Error of code Invalid for a stream without a message and for the
// continuation of no resource; the one of authorize; else the stream's. A batch that
// authorize refused with its last message is returned with the error.
func ReceiveApply(stream grpc.ClientStreamingServer[meridianv1.ApplyRequest, meridianv1.ApplyResponse], authorize func(*meridianv1.ApplyRequest) error) (*meridianv1.ApplyRequest, error) {
	return receive(stream.Recv, authorize, func(all, m *meridianv1.ApplyRequest) error {
		var last *meridianv1.Resource
		if n := len(all.GetResources()); n > 0 {
			last = all.Resources[n-1]
		}
		if err := continueSpec("spec_continued", last, m.GetSpecContinued()); err != nil {
			return err
		}
		all.Resources = append(all.Resources, m.GetResources()...)
		all.IfVersions = append(all.IfVersions, m.GetIfVersions()...)
		return nil
	})
}

// ReceiveDelete receives a batch of keys. authorize and errors are those of
// ReceiveApply.
func ReceiveDelete(stream grpc.ClientStreamingServer[meridianv1.DeleteRequest, meridianv1.DeleteResponse], authorize func(*meridianv1.DeleteRequest) error) (*meridianv1.DeleteRequest, error) {
	return receive(stream.Recv, authorize, func(all, m *meridianv1.DeleteRequest) error {
		all.Keys = append(all.Keys, m.GetKeys()...)
		all.IfVersions = append(all.IfVersions, m.GetIfVersions()...)
		return nil
	})
}

// ReceiveCanI receives a question about an access. Errors are those of ReceiveApply.
func ReceiveCanI(stream grpc.ClientStreamingServer[meridianv1.CanIRequest, meridianv1.CanIResponse]) (*meridianv1.CanIRequest, error) {
	return receive(stream.Recv, nil, func(all, m *meridianv1.CanIRequest) error {
		if err := continueSpec("resource_continued", all.GetResource(), m.GetResourceContinued()); err != nil {
			return err
		}
		return continueSpec("old_continued", all.GetOld(), m.GetOldContinued())
	})
}

// continueSpec appends to the spec of a resource what a field of a later message
// continues it by.
func continueSpec(field string, r *meridianv1.Resource, more []byte) error {
	switch {
	case len(more) == 0:
		return nil
	case r == nil:
		return rpcerr.New(rpcerr.Invalid, "NOTHING_TO_CONTINUE", "%s continues the spec of a resource of an earlier message: there is none", field)
	}
	r.Spec = append(r.Spec, more...)
	return nil
}

// receive joins the messages of a request. A refused one is not kept, and nothing
// after it.
func receive[Q any](next func() (*Q, error), authorize func(*Q) error, join func(all, m *Q) error) (*Q, error) {
	all, err := next()
	if errors.Is(err, io.EOF) {
		return nil, rpcerr.New(rpcerr.Invalid, "REQUEST_MISSING", "the call has no request")
	}
	if err == nil {
		err = join(new(Q), all)
	}
	if err != nil {
		return nil, err
	}
	if authorize == nil {
		authorize = func(*Q) error { return nil }
	}
	refused := authorize(all)
	for {
		m, err := next()
		switch {
		case errors.Is(err, io.EOF):
			return all, refused
		case refused != nil:
			return nil, refused
		case err == nil:
			err = join(all, m)
		}
		if err != nil {
			return nil, err
		}
		refused = authorize(m)
	}
}
