package batch

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
)

// recordingConn notes how a batch is sent.
type recordingConn struct {
	calls, streams []proto.Message
	closed         bool
	fails          error
}

func (c *recordingConn) Invoke(_ context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	c.calls = append(c.calls, args.(proto.Message))
	if c.fails == nil && method == meridianv1.AdminService_Apply_FullMethodName {
		reply.(*meridianv1.ApplyResponse).Revision = 7
	}
	return c.fails
}

func (c *recordingConn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return &recordingStream{conn: c}, nil
}

type recordingStream struct {
	grpc.ClientStream
	conn *recordingConn
}

func (s *recordingStream) SendMsg(m any) error {
	s.conn.streams = append(s.conn.streams, m.(proto.Message))
	if s.conn.fails != nil {
		return io.EOF
	}
	return nil
}

func (s *recordingStream) CloseSend() error {
	s.conn.closed = true
	return nil
}

func (s *recordingStream) RecvMsg(m any) error {
	if s.conn.fails == nil {
		if answer, ok := m.(*meridianv1.ApplyResponse); ok {
			answer.Revision = 8
		}
	}
	return s.conn.fails
}

func (s *recordingStream) Header() (metadata.MD, error) { return nil, nil }

// A batch of one message is one call; one of several is the stream that it would have been.
func TestBatchOfOneMessageIsOneCall(t *testing.T) {
	small := &meridianv1.ApplyRequest{RequestId: "r", Resources: []*meridianv1.Resource{{Kind: "Mesh", Name: "a", Spec: []byte("{}")}}}
	conn := &recordingConn{}
	admin := meridianv1.NewAdminServiceClient(Conn(conn))
	got, err := Apply(t.Context(), admin, small)
	require.NoError(t, err)
	require.EqualValues(t, 7, got.GetRevision())
	require.Empty(t, conn.streams)
	require.Len(t, conn.calls, 1)
	require.True(t, proto.Equal(small, conn.calls[0]))
	_, err = Delete(t.Context(), admin, &meridianv1.DeleteRequest{RequestId: "d"})
	require.NoError(t, err)
	_, err = CanI(t.Context(), meridianv1.NewAccessServiceClient(Conn(conn)), &meridianv1.CanIRequest{})
	require.NoError(t, err)
	require.Len(t, conn.calls, 3)

	conn = &recordingConn{}
	large := &meridianv1.ApplyRequest{RequestId: "r", Resources: []*meridianv1.Resource{{Kind: "Mesh", Name: "a", Spec: make([]byte, 3*MaxMessage)}}}
	got, err = Apply(t.Context(), meridianv1.NewAdminServiceClient(Conn(conn)), large)
	require.NoError(t, err)
	require.EqualValues(t, 8, got.GetRevision())
	require.Empty(t, conn.calls)
	require.True(t, conn.closed)
	require.Greater(t, len(conn.streams), 2)
	require.Equal(t, "r", conn.streams[0].(*meridianv1.ApplyRequest).GetRequestId(), "in their order")

	for _, req := range []*meridianv1.ApplyRequest{small, large} {
		conn = &recordingConn{fails: errors.New("refused")}
		_, err = Apply(t.Context(), meridianv1.NewAdminServiceClient(Conn(conn)), req)
		require.ErrorIs(t, err, conn.fails)
	}
}

// Other streams are what they were, and one without a message is a stream.
func TestOtherStreamsAreNotCalls(t *testing.T) {
	conn := &recordingConn{}
	_, err := meridianv1.NewAdminServiceClient(Conn(conn)).Watch(t.Context(), &meridianv1.WatchRequest{})
	require.NoError(t, err)
	require.Len(t, conn.streams, 1)

	conn = &recordingConn{}
	stream, err := meridianv1.NewAdminServiceClient(Conn(conn)).Apply(t.Context())
	require.NoError(t, err)
	require.ErrorIs(t, stream.RecvMsg(&meridianv1.ApplyResponse{}), errUnsent)
	_, err = stream.CloseAndRecv()
	require.NoError(t, err)
	require.True(t, conn.closed)
	require.Empty(t, conn.calls)
}
