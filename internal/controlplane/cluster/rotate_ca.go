package cluster

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	meridianv1 "meridian/api/meridian/v1"
	peerv1 "meridian/api/peer/v1"
	"meridian/internal/authn/token"
	"meridian/internal/clientconfig"
	"meridian/internal/commit"
	"meridian/internal/pki"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/server"
	"meridian/internal/store"
)

// Why a rotation of the certificate authority does not continue, for programs.
const (
	reasonRotation      = "ROTATION_PHASE"
	reasonNotEverywhere = "ROTATION_INCOMPLETE"
)

const (
	// rotationPatience is how long a phase that begins is waited for, so that the
	// answer says who takes longer.
	rotationPatience = 5 * time.Second
	rotationPause    = 100 * time.Millisecond
	// rotationRetry is how long a server waits before it tries again to follow.
	rotationRetry = 5 * time.Second
)

// storedRotation returns the rotation that a view holds; nil when there was none. It
// is kept like a signing key: no client reads it.
func storedRotation(view *store.View) (*pki.Rotation, *resource.Resource, error) {
	stored, ok := view.Get(token.AuthorityKey)
	if !ok {
		return nil, nil, nil
	}
	secret, ok := stored.Spec().(*resource.Secret)
	if !ok {
		return nil, nil, fmt.Errorf("%s is not a secret", token.AuthorityKey)
	}
	r, err := pki.DecodeRotation(secret.Bytes())
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", token.AuthorityKey, err)
	}
	return &r, stored, nil
}

// currentRotation returns the rotation that the store holds, and how it is stored
// there. A store without one may have lost it: then it is the one that this server
// takes part in.
func (c *Server) currentRotation() (*pki.Rotation, *resource.Resource, error) {
	r, stored, err := storedRotation(c.Store.View())
	if err == nil && stored == nil {
		r = c.peers.Rotation()
	}
	return r, stored, err
}

// RotateCA begins a phase of the replacement of the authority that signs servers'
// certificates, or says how far it is.
func (s *clusterService) RotateCA(ctx context.Context, req *meridianv1.RotateCARequest) (*meridianv1.RotateCAResponse, error) {
	c := s.server
	if err := c.Authorizer.RequireAdmin(ctx); err != nil {
		return nil, err
	}
	if err := c.checkCanIssueCerts(); err != nil {
		return nil, err
	}
	phase := pki.Phase(req.GetPhase())
	if phase == "" {
		if err := commit.Newest(ctx, c.Writer); err != nil {
			return nil, err
		}
		return c.rotationStatus(ctx)
	}
	if !slices.Contains([]pki.Phase{pki.PhaseTrust, pki.PhaseSwitch, pki.PhaseFinish}, phase) {
		return nil, rpcerr.New(rpcerr.Invalid, reasonRotation, "%q is no phase of a rotation: it is trust, switch or finish", req.GetPhase())
	}
	changed := false
	_, err := commit.WriteNewest(ctx, c.Writer, func() (commit.Batch, error) {
		batch, err := c.nextPhase(ctx, phase, req.GetForce())
		changed = len(batch.Ops) > 0
		return batch, err
	})
	if changed {
		c.Audit.RecordOperation(ctx, operation("rotate-ca-"+string(phase), "all"), err)
	}
	if err != nil {
		return nil, err
	}
	return c.awaitPhase(ctx)
}

// nextPhase decides that a phase begins: a batch without operations where it has
// begun already.
func (c *Server) nextPhase(ctx context.Context, phase pki.Phase, force bool) (commit.Batch, error) {
	now, stored, err := c.currentRotation()
	if err != nil {
		return commit.Batch{}, err
	}
	if now != nil && now.Phase == phase {
		if stored == nil { // it was lost
			return rotationBatch(*now, nil, c.Now())
		}
		return commit.Batch{}, nil
	}
	before := map[pki.Phase]pki.Phase{pki.PhaseTrust: pki.PhaseFinish, pki.PhaseSwitch: pki.PhaseTrust, pki.PhaseFinish: pki.PhaseSwitch}[phase]
	if now == nil && phase != pki.PhaseTrust || now != nil && now.Phase != before {
		return commit.Batch{}, rpcerr.New(rpcerr.Conflict, reasonRotation, "the rotation of the certificate authority %s, so %s cannot begin now; see `meridian cluster rotate-ca status`", describePhase(now), commandOf(phase))
	}
	if now != nil && !force {
		if missing := c.rotationMissing(ctx, *now); len(missing) > 0 {
			return commit.Batch{}, rpcerr.New(rpcerr.Conflict, reasonNotEverywhere,
				"the rotation of the certificate authority %s, and that is not complete: %s; bring them back, remove them, or leave them behind with --force: they have to join again then", describePhase(now), describeMissing(missing))
		}
	}
	if phase != pki.PhaseTrust {
		return rotationBatch(now.Next(), stored, c.Now())
	}
	next, err := pki.NewRotation(c.peers.CA(), c.Now())
	if err != nil {
		return commit.Batch{}, err
	}
	batch, err := rotationBatch(next, stored, c.Now())
	if err != nil {
		return commit.Batch{}, err
	}
	return c.registerAuthority(batch, pki.Digest([]byte(next.New)))
}

// registerAuthority has a batch that makes an authority say who cannot know its key.
// Where no server was removed, there is nothing to say.
func (c *Server) registerAuthority(batch commit.Batch, digest string) (commit.Batch, error) {
	reg, stored, err := c.servers.in(c.Store.View())
	if err != nil {
		return commit.Batch{}, err
	}
	next := reg.clone()
	for _, server := range c.Node.Gone() {
		next.gone(server)
	}
	if len(next.Removed) == 0 {
		return batch, nil
	}
	next.makeAuthority(digest, c.memberIDs())
	more, err := next.batch(stored, c.Now())
	if err != nil {
		return commit.Batch{}, err
	}
	batch.Ops = append(batch.Ops, more.Ops...)
	batch.Preconditions = append(batch.Preconditions, more.Preconditions...)
	return batch, nil
}

// rotationBatch stores a rotation in place of what is there.
func rotationBatch(r pki.Rotation, stored *resource.Resource, now time.Time) (commit.Batch, error) {
	data, err := r.Encode()
	if err != nil {
		return commit.Batch{}, err
	}
	spec, err := json.Marshal(resource.Secret{Data: base64.StdEncoding.EncodeToString(data)})
	if err != nil {
		return commit.Batch{}, fmt.Errorf("encode %s: %w", token.AuthorityKey, err)
	}
	secret, _, err := resource.Build(resource.Meta{Key: token.AuthorityKey}, spec)
	if err != nil {
		return commit.Batch{}, fmt.Errorf("build %s: %w", token.AuthorityKey, err)
	}
	precondition := store.Precondition{Key: token.AuthorityKey}
	if stored != nil {
		precondition.Version, precondition.Revision = stored.Meta().Version, stored.Meta().Revision
	}
	return commit.Batch{Txn: store.Txn{Time: now, Ops: []store.Op{store.Put(secret)}, Preconditions: []store.Precondition{precondition}}}, nil
}

func describePhase(r *pki.Rotation) string {
	if r == nil {
		return "has not begun"
	}
	return map[pki.Phase]string{
		pki.PhaseTrust:  "has every server, zone and client trust both authorities",
		pki.PhaseSwitch: "has the new authority sign",
		pki.PhaseFinish: "has finished and has the old authority forgotten",
	}[r.Phase]
}

func commandOf(phase pki.Phase) string {
	if phase == pki.PhaseTrust {
		return "`meridian cluster rotate-ca start`"
	}
	return "`meridian cluster rotate-ca " + string(phase) + "`"
}

// maxMissing is how many of those that a phase waits for a message names.
const maxMissing = 5

func describeMissing(missing []*meridianv1.RotateCAMissing) string {
	var names []string
	for _, m := range missing[:min(maxMissing, len(missing))] {
		names = append(names, fmt.Sprintf("%s %s (%s)", m.GetKind(), m.GetName(), m.GetReason()))
	}
	if more := len(missing) - maxMissing; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

// awaitPhase waits a moment for a phase to be complete everywhere, and says how far
// it is.
func (c *Server) awaitPhase(ctx context.Context) (*meridianv1.RotateCAResponse, error) {
	patience, cancel := context.WithTimeout(ctx, rotationPatience)
	defer cancel()
	for {
		status, err := c.rotationStatus(ctx)
		if err != nil || len(status.GetMissing()) == 0 {
			return status, err
		}
		select {
		case <-patience.Done():
			return status, nil
		case <-time.After(rotationPause):
		}
	}
}

// rotationStatus says how far the rotation is.
func (c *Server) rotationStatus(ctx context.Context) (*meridianv1.RotateCAResponse, error) {
	r, _, err := c.currentRotation()
	switch {
	case err != nil:
		return nil, err
	case r == nil:
		return &meridianv1.RotateCAResponse{Old: pki.Digest(c.peers.CAPEM()), AuthorityKnownTo: c.knowAuthority()}, nil
	}
	out := &meridianv1.RotateCAResponse{
		Phase: string(r.Phase), Old: pki.Digest([]byte(r.Old)), New: pki.Digest([]byte(r.New)), Missing: c.rotationMissing(ctx, *r), AuthorityKnownTo: c.knowAuthority(),
	}
	if r.Phase != pki.PhaseFinish {
		out.Notes = append(out.Notes, "a client learns the new authority when it calls a server before the end of the rotation; one that does not needs a new admin.yaml, bundle or CA file")
		if base := c.peers.Base(); base != nil && !base.MayCross() {
			out.Notes = append(out.Notes, "the old authority is of a release that did not allow cross-signing: from the switch on, only clients that have called a server since the start accept the servers")
		}
	}
	if c.PKI != c.peers {
		out.Notes = append(out.Notes, "clients and zones see a certificate that was given (--cert-file): the rotation is only about servers among each other")
	}
	return out, nil
}

// rotationMissing lists the servers and zones that have not completed the phase of
// a rotation.
func (c *Server) rotationMissing(ctx context.Context, r pki.Rotation) []*meridianv1.RotateCAMissing {
	trusted, signer := pki.Digest(r.Trusted()), pki.Digest(r.Signer())
	ctx, cancel := context.WithTimeout(ctx, 2*AnswerTimeout)
	defer cancel()
	var asking sync.WaitGroup
	peers := c.Others()
	missing := make([]*meridianv1.RotateCAMissing, len(peers), len(peers)+1)
	for i, p := range peers {
		asking.Go(func() {
			asked, cancel := context.WithTimeout(ctx, AnswerTimeout)
			defer cancel()
			answer, err := c.hooks.Authorities(asked, p)
			var reason string
			if err != nil {
				reason = "it does not answer: " + DescribeError(err)
			} else {
				reason = lacks(answer, trusted, signer)
			}
			if reason != "" {
				missing[i] = &meridianv1.RotateCAMissing{Kind: "server", Name: p.Name, Reason: reason}
			}
		})
	}
	asking.Wait()
	missing = slices.DeleteFunc(missing, func(m *meridianv1.RotateCAMissing) bool { return m == nil })
	if reason := lacks(c.authorities(), trusted, signer); reason != "" {
		missing = append(missing, &meridianv1.RotateCAMissing{Kind: "server", Name: c.cfg.Name, Reason: reason})
	}
	if c.PKI != c.peers {
		return missing // zones verify another certificate
	}
	return append(missing, c.hooks.Unconfirmed(ctx, trusted)...)
}

// lacks says what a server lacks to have completed a phase, "" when it is complete.
func lacks(answer *peerv1.AuthoritiesResponse, trusted, signer string) string {
	switch {
	case answer.GetTrusted() != trusted:
		return "it does not trust the authorities of this phase yet"
	case answer.GetSigner() != signer:
		return "its certificate is signed by the other authority"
	}
	return ""
}

// authorities says by which authorities this server verifies others and is
// verified.
func (c *Server) authorities() *peerv1.AuthoritiesResponse {
	out := &peerv1.AuthoritiesResponse{Trusted: pki.Digest(c.peers.CAPEM())}
	if ca := c.peers.CA(); ca != nil {
		out.Signer = pki.Digest(ca.CertificatePEM())
	}
	return out
}

// followAuthority takes this server through the phases of a rotation as the log
// tells of them, until ctx ends. What fails is tried again.
func (c *Server) followAuthority(ctx context.Context) error {
	for told := ""; ctx.Err() == nil; {
		view, now := c.Store.View(), ""
		if err := c.applyRotation(view); err != nil {
			now = err.Error()
			if now != told {
				c.Log.Error("this server does not follow the rotation of the certificate authority", "error", err)
			}
		}
		told = now
		c.awaitSecrets(ctx, view, told != "")
	}
	return nil
}

// awaitSecrets returns when there are other secrets than in a view, after
// rotationRetry if something is to be tried again, or when ctx ends.
func (c *Server) awaitSecrets(ctx context.Context, view *store.View, again bool) {
	if again {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, rotationRetry)
		defer cancel()
	}
	_, _ = c.Store.AwaitKinds(ctx, view, resource.KindGlobalSecret) // the caller looks at ctx itself
}

// applyRotation takes this server to the phase that a view holds, and completes
// what was left undone of it.
func (c *Server) applyRotation(view *store.View) error {
	r, _, err := storedRotation(view)
	if err != nil || r == nil {
		return err
	}
	changed, err := c.peers.Follow(*r)
	if errors.Is(err, pki.ErrNotRotatable) {
		return nil
	}
	if err != nil {
		return err
	}
	c.rotated.Store(true)
	if changed {
		c.Log.Info("the rotation of the certificate authority continues", "phase", r.Phase, "new", pki.Digest([]byte(r.New)))
	}
	c.Node.Recheck() // the old authority may be trusted no more
	return c.refreshAdminContext()
}

// refreshAdminContext writes the client context again if it has other authorities
// than those that clients are to trust now. One that is not there is left to the
// end of the start.
func (c *Server) refreshAdminContext() error {
	if c.PKI != c.peers || c.Keys.AdminToken() == "" {
		return nil
	}
	contexts, err := clientconfig.LoadContexts(filepath.Join(c.Options.DataDir, server.AdminContextFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		entry, err := contexts.Get(c.Name)
		if err == nil && pki.Digest([]byte(entry.CA)) == pki.Digest(c.PKI.CAPEM()) {
			return nil
		}
	}
	return c.WriteAdminContext()
}

// announcedAuthorities are the authorities that clients are told of: once there has
// been a rotation.
func (c *Server) announcedAuthorities() []byte {
	if !c.rotated.Load() || c.PKI != c.peers {
		return nil
	}
	return c.PKI.CAPEM()
}
