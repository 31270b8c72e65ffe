package clitest

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/rpcerr"
)

// Tokens is a token service that remembers what it was asked.
type Tokens struct {
	meridianv1.UnimplementedTokenServiceServer

	User      *meridianv1.GenerateUserTokenRequest
	Dataplane *meridianv1.GenerateDataplaneTokenRequest
	Rotate    *meridianv1.RotateKeyRequest
	Revoke    *meridianv1.RevokeTokenRequest
	Listed    string
}

// GenerateUserToken records the request.
func (f *Tokens) GenerateUserToken(_ context.Context, req *meridianv1.GenerateUserTokenRequest) (*meridianv1.GenerateUserTokenResponse, error) {
	f.User = req
	return &meridianv1.GenerateUserTokenResponse{Token: "user.token", Id: "id"}, nil
}

// GenerateDataplaneToken records the request.
func (f *Tokens) GenerateDataplaneToken(_ context.Context, req *meridianv1.GenerateDataplaneTokenRequest) (*meridianv1.GenerateDataplaneTokenResponse, error) {
	f.Dataplane = req
	return &meridianv1.GenerateDataplaneTokenResponse{Token: "dataplane.token", Id: "id"}, nil
}

// ListTokens sends four tokens, and none of zones.
func (f *Tokens) ListTokens(req *meridianv1.ListTokensRequest, stream grpc.ServerStreamingServer[meridianv1.ListTokensResponse]) error {
	f.Listed = req.GetKind()
	if req.GetKind() == "zone-token" {
		return nil
	}
	return stream.Send(&meridianv1.ListTokensResponse{Tokens: []*meridianv1.IssuedToken{
		{
			Id: "b2", Kind: "dataplane-token", Subject: "default/web-1", State: "active", KeySerial: 2, Issuer: "admin",
			Issued: timestamppb.New(Epoch), Expires: timestamppb.New(Epoch.Add(time.Hour)),
			Tags: []*meridianv1.TokenTagValues{{Name: "kuma.io/service", Values: []string{"web", "api"}}},
		},
		{
			Id: "c3", Kind: "server-token", Subject: "server", State: "used", KeySerial: 1, Issuer: "admin", UsedBy: "second",
			Issued: timestamppb.New(Epoch), Expires: timestamppb.New(Epoch.Add(time.Hour)),
		},
		{
			Id: "d4", Kind: "user-token", Subject: "eve", State: "key deleted", KeySerial: 3, Issuer: "admin",
			Issued: timestamppb.New(Epoch), Expires: timestamppb.New(Epoch.Add(time.Hour)),
		},
		{Id: "a1", Kind: "user-token", Subject: "bob", State: "revoked", KeySerial: 1, Issued: timestamppb.New(Epoch), Expires: timestamppb.New(Epoch)},
	}})
}

// ListKeys returns two keys of dataplane tokens, and none of others.
func (f *Tokens) ListKeys(_ context.Context, req *meridianv1.ListKeysRequest) (*meridianv1.ListKeysResponse, error) {
	f.Listed = req.GetKind()
	if req.GetKind() != "" && req.GetKind() != "dataplane-token" {
		return &meridianv1.ListKeysResponse{}, nil
	}
	return &meridianv1.ListKeysResponse{Keys: []*meridianv1.ListedKey{
		{Id: "dataplane-token-signing-key-1", Kind: "dataplane-token", Serial: 1, State: "retired", Created: timestamppb.New(Epoch), Tokens: 12},
		{Id: "dataplane-token-signing-key-2.east", Kind: "dataplane-token", Serial: 2, Issuer: "east", State: "active", Created: timestamppb.New(Epoch)},
	}}, nil
}

// RotateKey records the request.
func (f *Tokens) RotateKey(_ context.Context, req *meridianv1.RotateKeyRequest) (*meridianv1.RotateKeyResponse, error) {
	f.Rotate = req
	return &meridianv1.RotateKeyResponse{Key: "user-token-signing-key-2", Serial: 2, Revision: 9}, nil
}

// RevokeToken records the request; the id "nope" is unknown, and "many" is of a mesh with
// more revoked tokens than servers deny.
func (f *Tokens) RevokeToken(_ context.Context, req *meridianv1.RevokeTokenRequest) (*meridianv1.RevokeTokenResponse, error) {
	f.Revoke = req
	if req.GetId() == "nope" {
		return nil, rpcerr.New(rpcerr.NotFound, "TOKEN_UNKNOWN", "no token with the id %q was issued here", req.GetId())
	}
	if req.GetId() == "many" {
		return &meridianv1.RevokeTokenResponse{
			Token: &meridianv1.IssuedToken{Id: "many", Kind: "dataplane-token", Subject: "default/web-1"}, Revision: 9, Accepted: 3, DeniedAtMost: 2000,
		}, nil
	}
	return &meridianv1.RevokeTokenResponse{
		Token: &meridianv1.IssuedToken{Id: "a1", Kind: "user-token", Subject: "bob"}, Revision: 9, AlreadyRevoked: req.GetReason() == "again",
	}, nil
}
