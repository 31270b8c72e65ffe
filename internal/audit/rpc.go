package audit

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/rpcerr"
)

// Unary is the server interceptor that records the denials of unary methods, and
// has the rules remembered that allow their writes. It stands after the
// authenticator, whose refusals it does not see: give those to Refused.
func (l *Log) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ctx = authn.CollectReasons(ctx)
	resp, err := handler(ctx, req)
	if err != nil {
		l.denial(ctx, authn.PrincipalFrom(ctx), info.FullMethod, req, err)
	}
	return resp, err
}

// Stream is the same for streaming methods. Unary methods that are served as
// streams pass it unseen: their denials are for Unary.
func (l *Log) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if !info.IsServerStream {
		if !info.IsClientStream {
			return handler(srv, stream)
		}
		return l.batch(srv, stream, info.FullMethod, handler)
	}
	err := handler(srv, stream)
	if err != nil {
		l.streamDenial(stream.Context(), info.FullMethod, err)
	}
	return err
}

// batch is Stream for a method that receives a batch and answers it.
func (l *Log) batch(srv any, stream grpc.ServerStream, method string, handler grpc.StreamHandler) error {
	b := &batchStream{ServerStream: stream, ctx: authn.CollectReasons(stream.Context())}
	err := handler(srv, b)
	if err != nil {
		l.denialOf(b.ctx, authn.PrincipalFrom(b.ctx), method, b.targets, b.request, err)
	}
	return err
}

// batchStream notes what the messages that are received are about.
type batchStream struct {
	grpc.ServerStream
	ctx     context.Context
	targets []Target
	request string
}

// Context implements grpc.ServerStream.
func (s *batchStream) Context() context.Context { return s.ctx }

// RecvMsg implements grpc.ServerStream.
func (s *batchStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	targets, request := asked(m)
	s.targets = append(s.targets, targets...)
	s.request = cmp.Or(s.request, request)
	return nil
}

// streamDenial is apart from Stream, which waits for as long as its stream lasts
// and has only what it needs on its stack.
func (l *Log) streamDenial(ctx context.Context, method string, err error) {
	l.denial(ctx, authn.PrincipalFrom(ctx), method, nil, err)
}

// Refused records a request that an authenticator has refused.
func (l *Log) Refused(ctx context.Context, p authn.Principal, method string, err error) {
	l.denial(ctx, p, method, nil, err)
}

// denial records an error that is a refusal, and no other.
func (l *Log) denial(ctx context.Context, p authn.Principal, method string, req any, err error) {
	targets, request := asked(req)
	l.denialOf(ctx, p, method, targets, request, err)
}

func (l *Log) denialOf(ctx context.Context, p authn.Principal, method string, targets []Target, request string, err error) {
	var e *rpcerr.Error
	if !errors.As(rpcerr.FromStatus(err), &e) {
		return
	}
	r := Record{Who: whoIs(p), From: from(ctx), Method: strings.TrimPrefix(method, "/"), Rule: e.Reason, Message: e.Message}
	switch e.Code {
	case rpcerr.Denied:
		r.Decision = Denied
	case rpcerr.Unauthenticated:
		r.Decision = Refused
	default:
		return
	}
	r.Targets, r.Request = targets, request
	l.Write(r)
}

// asked returns what a request is about.
func asked(req any) (targets []Target, request string) {
	switch req := req.(type) {
	case *meridianv1.ApplyRequest:
		for _, m := range req.GetResources() {
			targets = append(targets, Target{Action: "apply", Kind: clip(m.GetKind()), Mesh: clip(m.GetMesh()), Name: clip(m.GetName())})
		}
		request = req.GetRequestId()
	case *meridianv1.DeleteRequest:
		for _, k := range req.GetKeys() {
			targets = append(targets, keyTarget("delete", k))
		}
		request = req.GetRequestId()
	case *meridianv1.GetRequest:
		targets = []Target{keyTarget("read", req.GetKey())}
	case *meridianv1.GenerateUserTokenRequest:
		targets = []Target{{Action: "generate", Kind: "user-token", Name: clip(req.GetName())}}
	case *meridianv1.GenerateDataplaneTokenRequest:
		targets = []Target{{Action: "generate", Kind: "dataplane-token", Mesh: clip(req.GetMesh()), Name: clip(req.GetName())}}
	case *meridianv1.GenerateZoneTokenRequest:
		targets = []Target{{Action: "generate", Kind: "zone-token", Name: clip(req.GetZone())}}
	case *meridianv1.GenerateServerTokenRequest:
		targets = []Target{{Action: "generate", Kind: "server-token"}}
	case *meridianv1.JoinRequest:
		targets = []Target{{Action: "join", Kind: "server", Name: clip(req.GetName())}}
		request = clip(req.GetRequestId())
	case *meridianv1.TransferLeadershipRequest:
		targets = []Target{{Action: "transfer-leadership", Kind: "server", Name: clip(req.GetTo())}}
	case *meridianv1.RemoveMemberRequest:
		targets = []Target{{Action: "remove", Kind: "server", Name: clip(req.GetName())}}
	case *meridianv1.RotateKeyRequest:
		targets = []Target{{Action: "rotate", Kind: clip(req.GetKind())}}
		request = req.GetRequestId()
	case *meridianv1.RevokeTokenRequest:
		targets = []Target{{Action: "revoke", Kind: "token", Name: clip(req.GetId())}}
		request = req.GetRequestId()
	}
	return targets, request
}

func keyTarget(action string, k *meridianv1.ResourceKey) Target {
	return Target{Action: action, Kind: clip(k.GetKind()), Mesh: clip(k.GetMesh()), Name: clip(k.GetName())}
}

func whoIs(p authn.Principal) Who {
	w := Who{Name: p.Name, Groups: p.Groups, Source: string(p.Source)}
	if p.Token != nil {
		w.Token = p.Token.ID
	}
	if w.Source == "" {
		w.Source = "unknown" // a token that did not verify says nothing
	}
	return w
}

// from returns the address that a request came from.
func from(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		return p.Addr.String()
	}
	return ""
}

// RecordOperation records what a request did besides writing resources, or what
// it attempted when it failed. The caller, its address and the method are taken
// from ctx; the decision is Allowed unless r has one.
func (l *Log) RecordOperation(ctx context.Context, r Record, failed error) {
	r.Who, r.From = whoIs(authn.PrincipalFrom(ctx)), from(ctx)
	if method, ok := grpc.Method(ctx); ok {
		r.Method = strings.TrimPrefix(method, "/")
	}
	if r.Decision == "" {
		r.Decision = Allowed
	}
	if failed != nil {
		r.Message = "it failed: " + failed.Error()
	}
	l.Write(r)
}

// RecordEvent records an event of the server that no request caused.
func (l *Log) RecordEvent(message string) {
	l.Write(Record{Method: "server", Who: serverItself, Decision: Noted, Message: message})
}
