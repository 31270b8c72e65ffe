package consensus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"

	peerv1 "meridian/api/peer/v1"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

const (
	// restoreChunk is how much of a backup one message carries, in bytes.
	restoreChunk = 256 << 10
	// restoreRecheck bounds how long an answer that got lost is looked for in the
	// state itself.
	restoreRecheck = 10 * time.Second
)

// Restore serves another server's Restore on the leader.
func (s *peerService) Restore(stream grpc.ClientStreamingServer[peerv1.RestoreRequest, peerv1.RestoreResponse]) error {
	n := s.node
	if err := n.begin(); err != nil {
		return restoreStatus(err)
	}
	defer n.requests.Done()
	first, err := stream.Recv()
	if err != nil {
		return restoreStatus(notRestored(&sourceError{err}))
	}
	restored, err := n.restorer.restoreHere(stream.Context(), NewBackupReader(first.GetData(), stream.Recv), first.GetDropTrust(), first.GetId())
	if err != nil {
		return restoreStatus(err)
	}
	return stream.SendAndClose(&peerv1.RestoreResponse{
		Revision: uint64(restored.Saved), Effective: uint64(restored.Revision), Resources: uint64(restored.Resources), //nolint:gosec // a count
		ClusterId: restored.Epoch.ClusterID, Incarnation: restored.Epoch.Incarnation,
		KeptRevocations: uint32(restored.Kept.Revocations), KeptKeys: uint32(restored.Kept.Keys), //nolint:gosec // counts
		KeptTokens: uint32(restored.Kept.Tokens), DeletedKeys: uint32(restored.Kept.DeletedKeys), //nolint:gosec // counts
	})
}

// BackupReader reads a backup that is received in messages.
type BackupReader[M interface{ GetData() []byte }] struct {
	receive func() (M, error)
	// rest is what was received and not read.
	rest []byte
}

// NewBackupReader returns a reader of a backup that begins with first and continues
// with what receive returns.
func NewBackupReader[M interface{ GetData() []byte }](first []byte, receive func() (M, error)) *BackupReader[M] {
	return &BackupReader[M]{receive: receive, rest: first}
}

// Read implements io.Reader.
func (r *BackupReader[M]) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		m, err := r.receive()
		if err != nil {
			return 0, err
		}
		r.rest = m.GetData()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// Why a backup was not restored, from one server to another.
const (
	reasonBadBackup   = "BAD_BACKUP"
	reasonNotRestored = "NOT_RESTORED"
)

// restoreStatus and restoreError carry the kind of an error between servers.
func restoreStatus(err error) error {
	switch {
	case errors.Is(err, ErrBadBackup):
		return rpcerr.New(rpcerr.Invalid, reasonBadBackup, "%w", err)
	case errors.Is(err, ErrUnknownOutcome):
		return rpcerr.New(rpcerr.Unavailable, reasonUnknownOutcome, "%w", err)
	}
	return rpcerr.New(rpcerr.Unavailable, reasonNotRestored, "%w", err)
}

func restoreError(err error) error {
	switch reasonOf(err) {
	case reasonBadBackup:
		return &peerError{ErrBadBackup, err.Error()}
	case reasonNotRestored:
		return &peerError{ErrNotRestored, err.Error()}
	}
	return unknownOutcome(fmt.Errorf("the answer of the leader got lost: %w", err))
}

// peerError is an error of another server, in its words.
type peerError struct {
	kind    error
	message string
}

func (e *peerError) Error() string { return e.message }
func (e *peerError) Unwrap() error { return e.kind }

// relayRestore has the leader restore a backup.
func (n *restorer) relayRestore(ctx context.Context, leader string, source io.Reader, dropTrust bool, id uint64) (Restored, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // a stream that was not closed brings no restore about
	stream, err := peerv1.NewRaftServiceClient(n.PeerConn(leader)).Restore(ctx)
	if err != nil {
		return Restored{}, notRestored(err)
	}
	err = sendBackup(stream, source, dropTrust, id)
	if err != nil && !errors.Is(err, io.EOF) {
		return Restored{}, notRestored(err)
	}
	sent := err == nil // else the leader has ended the stream, and says why
	response, err := stream.CloseAndRecv()
	if err != nil {
		if err = restoreError(err); !sent && errors.Is(err, ErrUnknownOutcome) {
			err = notRestored(err)
		}
		return Restored{}, err
	}
	return Restored{
		Saved: resource.Revision(response.GetRevision()), Revision: resource.Revision(response.GetEffective()),
		Epoch:     store.Epoch{ClusterID: response.GetClusterId(), Incarnation: response.GetIncarnation(), Random: id},
		Resources: int(response.GetResources()), //nolint:gosec // a count
		Kept: KeptTrust{
			Revocations: int(response.GetKeptRevocations()), Keys: int(response.GetKeptKeys()),
			Tokens: int(response.GetKeptTokens()), DeletedKeys: int(response.GetDeletedKeys()),
		},
	}, nil
}

func sendBackup(stream grpc.ClientStreamingClient[peerv1.RestoreRequest, peerv1.RestoreResponse], source io.Reader, dropTrust bool, id uint64) error {
	for buf, first := make([]byte, restoreChunk), true; ; first = false {
		n, err := io.ReadFull(source, buf)
		if n > 0 || first {
			m := &peerv1.RestoreRequest{Data: buf[:n]}
			if first {
				m.Id, m.DropTrust = id, dropTrust
			}
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil
		case err != nil:
			return &sourceError{err}
		}
	}
}

// sourceError keeps an end of the source apart from the end of the stream.
type sourceError struct{ err error }

func (e *sourceError) Error() string { return "the backup did not arrive: " + e.err.Error() }

// settle finds out what became of a restore whose answer got lost: a state of
// its epoch says that it took effect. A state of another says no more than that
// it has not yet.
func (n *restorer) settle(ctx context.Context, id uint64, lost error) (Restored, error) {
	ctx, cancel := context.WithTimeout(ctx, restoreRecheck)
	defer cancel()
	if _, err := n.reader.Read(ctx); err != nil {
		return Restored{}, lost
	}
	view := n.st.View()
	if view.Epoch().Random != id {
		return Restored{}, lost
	}
	return Restored{Revision: view.Changed(), Epoch: view.Epoch(), Resources: view.Len()}, nil
}
