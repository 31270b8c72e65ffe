package consensus

import (
	"errors"
	"fmt"

	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	peerv1 "meridian/api/peer/v1"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// reasonOf returns what another server named as the reason, "" when the error is
// not its answer: the request may not have reached it, or its answer not us.
func reasonOf(err error) string {
	var said *rpcerr.Error
	if errors.As(err, &said) {
		return said.Reason
	}
	return ""
}

func peerKey(k resource.Key) *peerv1.Key {
	return &peerv1.Key{Kind: string(k.Kind), Mesh: string(k.Mesh), Name: k.Name}
}

func keyOfPeer(k *peerv1.Key) resource.Key {
	return resource.Key{Kind: resource.Kind(k.GetKind()), Mesh: resource.MeshName(k.GetMesh()), Name: k.GetName()}
}

// resultToPeer is the answer that resultFromPeer reads. index is that of the entry, which is
// committed, and term the current one since.
func resultToPeer(result store.Result, index, term uint64) (*peerv1.ProposeResponse, error) {
	response := &peerv1.ProposeResponse{
		Revision: uint64(result.Revision), Duplicate: result.Duplicate, Index: index, Term: term,
		Results: make([]*peerv1.OpResult, len(result.Results)),
	}
	for i, r := range result.Results {
		response.Results[i] = &peerv1.OpResult{Key: peerKey(r.Key), Outcome: uint32(r.Outcome), Version: r.Version} //nolint:gosec // five values
	}
	if result.Err == nil {
		return response, nil
	}
	refusal, err := refusalToPeer(result.Err)
	response.Refusal = refusal
	return response, err
}

// outcomeToPeer is what outcomeFromPeer reads.
func outcomeToPeer(response *peerv1.ProposeResponse, err error) *peerv1.ProposeOutcome {
	if err == nil {
		return &peerv1.ProposeOutcome{Outcome: &peerv1.ProposeOutcome_Response{Response: response}}
	}
	encoded, err := proto.Marshal(rpcerr.ToStatus(err).Proto())
	if err != nil {
		encoded = nil // an outcome without either is unknown
	}
	return &peerv1.ProposeOutcome{Outcome: &peerv1.ProposeOutcome_Status{Status: encoded}}
}

// outcomeFromPeer reads what became of one of several batches. An error is that of a call
// to propose it alone.
func outcomeFromPeer(outcome *peerv1.ProposeOutcome) (*peerv1.ProposeResponse, error) {
	if response := outcome.GetResponse(); response != nil {
		return response, nil
	}
	var encoded statuspb.Status
	if err := proto.Unmarshal(outcome.GetStatus(), &encoded); err != nil || encoded.GetCode() == 0 {
		return nil, errors.New("the leader does not say what became of it")
	}
	return nil, rpcerr.FromStatus(status.ErrorProto(&encoded))
}

func refusalToPeer(err error) (*peerv1.Refusal, error) {
	var (
		conflict *store.ConflictError
		access   *store.AccessChangedError
		missing  *store.MeshMissingError
		notEmpty *store.MeshNotEmptyError
		invalid  *store.InvalidOpError
		changed  *store.ChangedError
		part     *store.PartChangedError
		held     *store.HeldError
		rollouts *store.RolloutsError
	)
	switch {
	case errors.As(err, &conflict):
		return &peerv1.Refusal{Reason: &peerv1.Refusal_Conflict{Conflict: &peerv1.Conflict{
			Key: peerKey(conflict.Key), Want: conflict.Want, Have: conflict.Have,
			WantRevision: uint64(conflict.WantRevision), HaveRevision: uint64(conflict.HaveRevision),
		}}}, nil
	case errors.As(err, &access):
		return &peerv1.Refusal{Reason: &peerv1.Refusal_AccessChanged{AccessChanged: &peerv1.AccessChanged{
			Decided: uint64(access.Decided), Current: uint64(access.Current),
		}}}, nil
	case errors.As(err, &missing):
		return &peerv1.Refusal{Reason: &peerv1.Refusal_MeshMissing{MeshMissing: &peerv1.MeshMissing{Key: peerKey(missing.Key)}}}, nil
	case errors.As(err, &notEmpty):
		return &peerv1.Refusal{Reason: &peerv1.Refusal_MeshNotEmpty{MeshNotEmpty: &peerv1.MeshNotEmpty{
			Mesh: string(notEmpty.Mesh), Example: peerKey(notEmpty.Example), Count: uint64(notEmpty.Count), //nolint:gosec // a count
		}}}, nil
	case errors.As(err, &invalid):
		return &peerv1.Refusal{Reason: &peerv1.Refusal_InvalidOp{InvalidOp: &peerv1.InvalidOp{
			Key: peerKey(invalid.Key), Reason: invalid.Reason,
		}}}, nil
	case errors.As(err, &changed):
		return &peerv1.Refusal{Reason: &peerv1.Refusal_Changed{Changed: &peerv1.Changed{
			Decided: uint64(changed.Decided), Current: uint64(changed.Current),
		}}}, nil
	case errors.As(err, &part):
		return &peerv1.Refusal{Reason: &peerv1.Refusal_PartChanged{PartChanged: &peerv1.PartChanged{Mesh: string(part.Mesh)}}}, nil
	case errors.As(err, &held):
		return &peerv1.Refusal{Reason: &peerv1.Refusal_Held{Held: &peerv1.Held{Key: peerKey(held.Key), Rollout: held.Rollout}}}, nil
	case errors.As(err, &rollouts):
		return &peerv1.Refusal{Reason: &peerv1.Refusal_TooManyRollouts{TooManyRollouts: &peerv1.TooManyRollouts{}}}, nil
	}
	return nil, fmt.Errorf("encode a refusal for another server: %w", err)
}

// resultFromPeer reads the leader's answer. A refusal arrives as the error that
// the leader's store returned.
func resultFromPeer(response *peerv1.ProposeResponse) (store.Result, error) {
	result := store.Result{Revision: resource.Revision(response.GetRevision()), Duplicate: response.GetDuplicate()}
	if len(response.GetResults()) > 0 {
		result.Results = make([]store.OpResult, len(response.GetResults()))
	}
	for i, r := range response.GetResults() {
		result.Results[i] = store.OpResult{Key: keyOfPeer(r.GetKey()), Outcome: store.Outcome(r.GetOutcome()), Version: r.GetVersion()}
	}
	if response.GetRefusal() != nil {
		result.Err = refusalFromPeer(response.GetRefusal())
	}
	return result, result.Err
}

func refusalFromPeer(refusal *peerv1.Refusal) error {
	switch r := refusal.GetReason().(type) {
	case *peerv1.Refusal_Conflict:
		return &store.ConflictError{
			Key: keyOfPeer(r.Conflict.GetKey()), Want: r.Conflict.GetWant(), Have: r.Conflict.GetHave(),
			WantRevision: resource.Revision(r.Conflict.GetWantRevision()), HaveRevision: resource.Revision(r.Conflict.GetHaveRevision()),
		}
	case *peerv1.Refusal_AccessChanged:
		return &store.AccessChangedError{
			Decided: resource.Revision(r.AccessChanged.GetDecided()), Current: resource.Revision(r.AccessChanged.GetCurrent()),
		}
	case *peerv1.Refusal_MeshMissing:
		return &store.MeshMissingError{Key: keyOfPeer(r.MeshMissing.GetKey())}
	case *peerv1.Refusal_MeshNotEmpty:
		return &store.MeshNotEmptyError{
			Mesh: resource.MeshName(r.MeshNotEmpty.GetMesh()), Example: keyOfPeer(r.MeshNotEmpty.GetExample()), Count: int(r.MeshNotEmpty.GetCount()), //nolint:gosec // a count
		}
	case *peerv1.Refusal_InvalidOp:
		return &store.InvalidOpError{Key: keyOfPeer(r.InvalidOp.GetKey()), Reason: r.InvalidOp.GetReason()}
	case *peerv1.Refusal_Changed:
		return &store.ChangedError{Decided: resource.Revision(r.Changed.GetDecided()), Current: resource.Revision(r.Changed.GetCurrent())}
	case *peerv1.Refusal_PartChanged:
		return &store.PartChangedError{Mesh: resource.MeshName(r.PartChanged.GetMesh())}
	case *peerv1.Refusal_Held:
		return &store.HeldError{Key: keyOfPeer(r.Held.GetKey()), Rollout: r.Held.GetRollout()}
	case *peerv1.Refusal_TooManyRollouts:
		return &store.RolloutsError{}
	}
	return errors.New("the leader refused the batch for a reason that this release does not know")
}
