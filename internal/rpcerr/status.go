package rpcerr

import (
	"context"
	"errors"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

// unnamedReason stands in ErrorInfo, which wants a reason, when there is only
// metadata to carry.
const unnamedReason = "UNSPECIFIED"

var toGRPC = map[Code]codes.Code{
	Internal:        codes.Internal,
	NotFound:        codes.NotFound,
	Invalid:         codes.InvalidArgument,
	Conflict:        codes.FailedPrecondition,
	OutOfRange:      codes.OutOfRange,
	Unauthenticated: codes.Unauthenticated,
	Denied:          codes.PermissionDenied,
	Unavailable:     codes.Unavailable,
	Timeout:         codes.DeadlineExceeded,
	Canceled:        codes.Canceled,
	TooLarge:        codes.ResourceExhausted,
	Unsupported:     codes.Unimplemented,
}

// fromGRPC also reads what other software answers.
var fromGRPC = map[codes.Code]Code{
	codes.Internal:           Internal,
	codes.Unknown:            Internal,
	codes.DataLoss:           Internal,
	codes.NotFound:           NotFound,
	codes.InvalidArgument:    Invalid,
	codes.FailedPrecondition: Conflict,
	codes.Aborted:            Conflict,
	codes.AlreadyExists:      Conflict,
	codes.OutOfRange:         OutOfRange,
	codes.Unauthenticated:    Unauthenticated,
	codes.PermissionDenied:   Denied,
	codes.Unavailable:        Unavailable,
	codes.DeadlineExceeded:   Timeout,
	codes.Canceled:           Canceled,
	codes.ResourceExhausted:  TooLarge,
	codes.Unimplemented:      Unsupported,
}

// ToStatus turns any error into the gRPC status that tells it to a caller: an
// *Error in its chain with everything it holds and the whole chain's text, a
// gRPC status as it is, the end of a context as Timeout or Canceled, anything
// else as Internal. Nil is OK.
func ToStatus(err error) *status.Status {
	var e *Error
	switch {
	case err == nil:
		return status.New(codes.OK, "")
	case errors.As(err, &e):
		out := *e
		out.Message = err.Error()
		return out.status()
	}
	if st, ok := status.FromError(err); ok {
		return st
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return status.New(codes.DeadlineExceeded, err.Error())
	case errors.Is(err, context.Canceled):
		return status.New(codes.Canceled, err.Error())
	}
	return status.New(codes.Internal, clean(err.Error()))
}

// GRPCStatus lets gRPC send the error as it is when a handler returns it.
func (e *Error) GRPCStatus() *status.Status { return e.status() }

func (e *Error) status() *status.Status {
	code, known := toGRPC[e.Code]
	if !known {
		code = codes.Internal
	}
	st := status.New(code, clean(e.Message))
	details := e.details()
	if len(details) == 0 {
		return st
	}
	detailed, err := st.WithDetails(details...)
	if err != nil {
		// Details are an addition; the code and message stand without them.
		return st
	}
	return detailed
}

func (e *Error) details() []protoadapt.MessageV1 {
	var details []protoadapt.MessageV1
	if e.Reason != "" || len(e.Metadata) > 0 {
		info := &errdetails.ErrorInfo{Domain: Domain, Reason: clean(e.Reason), Metadata: make(map[string]string, len(e.Metadata))}
		if e.Reason == "" {
			info.Reason = unnamedReason
		}
		for k, v := range e.Metadata {
			info.Metadata[clean(k)] = clean(v)
		}
		details = append(details, info)
	}
	if e.RetryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(e.RetryAfter)})
	}
	if len(e.Violations) == 0 {
		return details
	}
	switch e.Code {
	case Invalid:
		bad := &errdetails.BadRequest{}
		for _, v := range e.Violations {
			bad.FieldViolations = append(bad.FieldViolations, &errdetails.BadRequest_FieldViolation{
				Field: clean(v.Field), Description: clean(v.Description), Reason: clean(v.Reason),
			})
		}
		details = append(details, bad)
	case Conflict:
		failed := &errdetails.PreconditionFailure{}
		for _, v := range e.Violations {
			failed.Violations = append(failed.Violations, &errdetails.PreconditionFailure_Violation{
				Subject: clean(v.Field), Description: clean(v.Description), Type: clean(v.Reason),
			})
		}
		details = append(details, failed)
	}
	return details
}

// FromStatus turns what a gRPC call returned into an *Error. Nil stays nil, an
// *Error stays what it is, and an error that never was a status (the end of a
// context, io.EOF of a stream) is returned unchanged.
func FromStatus(err error) error {
	var e *Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	code, known := fromGRPC[st.Code()]
	if !known {
		code = Internal
	}
	out := &Error{Code: code, Message: st.Message(), cause: err}
	for _, detail := range st.Details() {
		out.read(detail)
	}
	return out
}

func (e *Error) read(detail any) {
	switch d := detail.(type) {
	case *errdetails.ErrorInfo:
		if d.GetReason() != unnamedReason {
			e.Reason = d.GetReason()
		}
		if len(d.GetMetadata()) > 0 {
			e.Metadata = d.GetMetadata()
		}
	case *errdetails.RetryInfo:
		e.RetryAfter = max(d.GetRetryDelay().AsDuration(), 0)
	case *errdetails.BadRequest:
		for _, v := range d.GetFieldViolations() {
			e.Violations = append(e.Violations, Violation{Field: v.GetField(), Description: v.GetDescription(), Reason: v.GetReason()})
		}
	case *errdetails.PreconditionFailure:
		for _, v := range d.GetViolations() {
			e.Violations = append(e.Violations, Violation{Field: v.GetSubject(), Description: v.GetDescription(), Reason: v.GetType()})
		}
	}
}

// clean replaces bytes that protobuf cannot encode: a message may quote
// a document that is not UTF-8.
func clean(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
