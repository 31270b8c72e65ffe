package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"unicode"

	"meridian/internal/audit"
	"meridian/internal/authn"
	"meridian/internal/authz"
	"meridian/internal/rbac"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/server/limits"
)

// Reasons as Kubernetes spells them.
const (
	reasonForbidden = "Forbidden"
	reasonInvalid   = "Invalid"
	statusFailure   = "Failure"
)

// maxWarnings bounds the warnings of one answer; the API server passes on 4096
// characters in all.
const maxWarnings = 16

// auditGrantedBy is the annotation, under the webhook's name, that names the
// access rules in the audit log of Kubernetes.
const auditGrantedBy = "granted-by"

// decide answers a review that has been checked. The error is errMalformed for
// objects that contradict the request, or says why there is no decision.
func (s *Server) decide(ctx context.Context, r *request) (*response, error) {
	if !r.ours() || r.Operation == opConnect {
		return &response{UID: r.UID, Allowed: true}, nil
	}
	if _, err := s.cfg.Read(ctx); err != nil {
		return nil, fmt.Errorf("cannot read the newest access rules: %w", err)
	}
	user := authn.KubernetesPrincipal(r.UserInfo.Username, r.UserInfo.Groups)
	ctx = authn.WithPrincipal(ctx, user)
	if early, ok := r.known(); ok {
		if err := s.cfg.Access.EarlyReview(ctx, early.Access, early.Old.Key); err != nil {
			s.record(r, user, early, err)
			return refusal(r, err)
		}
	}
	done, err := s.turn(ctx, r)
	if err != nil {
		return nil, err
	}
	defer done()
	change, warnings, err := s.readChange(r)
	if err != nil {
		return refusal(r, err)
	}
	admission, err := s.cfg.Access.Admit(ctx, change)
	if err != nil {
		s.record(r, user, change, err)
		return refusal(r, err, warnings...)
	}
	warnings = append(warnings, admission.Warnings...)
	if change.New != nil {
		if err := sameIdentity(change); err != nil && !r.unclear {
			return refusal(r, err)
		}
		advice, err := s.review(ctx, change.New)
		if err != nil && !r.leavesContent() {
			return refusal(r, err)
		}
		warnings = append(warnings, advice...)
	}
	return &response{
		UID: r.UID, Allowed: true, Warnings: oneLineEach(warnings),
		AuditAnnotations: map[string]string{auditGrantedBy: strings.Join(admission.GrantedBy, "; ")},
	}, nil
}

// Decoding takes up to seventy times the memory of what is decoded. So an object is
// no larger than what an API server takes, 3 MiB, one review with large ones is
// decided at a time, and of the others, which nearly all are, a few per processor.
// One client, or one user of Kubernetes, has half of them at most, and all take turns:
// reviews that take long do not keep others from theirs.
const (
	maxObject    = 3 << 20
	smallReview  = 64 << 10
	perProcessor = 4
	// maxWaiting is how many reviews wait for their turn, waitingEach how many of one
	// client or user.
	maxWaiting, waitingEach = 512, 64
)

// LimitReviews is the name of the limit on reviews that wait, as in metrics.
const LimitReviews = "webhook_reviews"

// errBusy means that a review waited too long for its turn.
var errBusy = errors.New("too many reviews are being decided; try again")

// newTurns returns the turns of reviews of which so many are decided at a time.
func newTurns(running int) *limits.Turns {
	return limits.NewTurns(LimitReviews, limits.TurnsConfig{
		Running: running, RunningEach: max(running/2, 1), Waiting: maxWaiting, WaitingEach: waitingEach,
	})
}

// turn waits until a review may be decided, and returns what ends that. The error is
// errBusy or *limits.Exceeded.
func (s *Server) turn(ctx context.Context, r *request) (done func(), err error) {
	turns := s.small
	if len(r.Object)+len(r.OldObject) > smallReview {
		turns = s.large
	}
	// A user is as an API server says; clients that are not authenticated name whom
	// they like.
	owner := r.client
	if s.cfg.Clients != nil {
		owner = r.UserInfo.Username
	}
	done, err = turns.Wait(ctx, owner)
	var full *limits.Exceeded
	if err != nil && !errors.As(err, &full) {
		return nil, errBusy
	}
	return done, err
}

// decodeObject decodes an object that an API server can have been sent.
func decodeObject(raw json.RawMessage) (resource.Document, error) {
	if len(raw) > maxObject {
		return resource.Document{}, &resource.DocumentError{Problems: []resource.Problem{{
			Path: resource.Root, Message: fmt.Sprintf("the object takes %d bytes; an API server takes %d", len(raw), maxObject),
		}}}
	}
	return resource.DecodeObject(raw)
}

// readChange decodes what a review is about, and returns what the author should
// know about it. An UPDATE that does not change invalid content has no New: it must
// be possible to remove a finalizer of such an object, or it could never be deleted. The error is errMalformed or a *resource.DocumentError.
func (s *Server) readChange(r *request) (authz.Change, []string, error) {
	change := authz.Change{Access: resource.Access(r.Operation)}
	var warnings []string
	if r.Operation != opCreate {
		if err := r.checkObject("oldObject", r.OldObject); err != nil {
			return change, nil, err
		}
		var err error
		if change.Old, warnings, err = readStored(r); err != nil {
			return change, nil, err
		}
	}
	if r.Operation == opDelete {
		return change, warnings, nil
	}
	if err := r.checkObject("object", r.Object); err != nil {
		return change, nil, err
	}
	document, err := decodeObject(r.Object)
	if err != nil {
		if invalid := documentError(err); r.leavesContent() && (r.unclear || invalid.Identified && invalid.Key == change.Old.Key) {
			return change, warnings, nil
		}
		return change, nil, err
	}
	change.New = document.Resource
	for _, p := range document.Problems {
		warnings = append(warnings, p.String())
	}
	return change, warnings, nil
}

// readStored decodes what Kubernetes holds. It may have been stored before this
// webhook was registered, and be invalid; it must be possible to correct or delete
// it, and the namespace that it is in. Then only its identity counts, and no condition
// on its content holds. Where its mesh is unknown, or its kind is not one of this
// product, it counts as being in no mesh: rules for one mesh, or for any, do not
// cover it.
func readStored(r *request) (rbac.Object, []string, error) {
	document, err := decodeObject(r.OldObject)
	if err == nil {
		return rbac.ObjectOf(document.Resource), nil, nil
	}
	invalid := documentError(err)
	key, granting := invalid.Key, "only rules without conditions grant"
	if !invalid.Identified {
		r.unclear, key.Mesh, granting = true, "", "only rules without a mesh and without conditions grant"
	}
	if key.Kind == "" || key.Name == "" {
		return rbac.Object{}, nil, fmt.Errorf("what is stored cannot be told apart from other objects: %w", err)
	}
	first, _, _ := strings.Cut(err.Error(), "\n")
	return rbac.Object{Key: key}, []string{"what is stored is not valid, so " + granting + " access to it: " + first}, nil
}

// documentError returns what is wrong with an object, by an error of decoding it.
func documentError(err error) resource.DocumentError {
	var invalid *resource.DocumentError
	if !errors.As(err, &invalid) {
		return resource.DocumentError{}
	}
	return *invalid
}

// leavesContent reports whether a review is about an UPDATE of metadata or status
// at most. The API server writes both objects the same way, so that bytes can be
// compared; where it does not, the content counts as changed.
func (r *request) leavesContent() bool {
	if r.Operation != opUpdate {
		return false
	}
	var before, after map[string]json.RawMessage
	if json.Unmarshal(r.OldObject, &before) != nil || json.Unmarshal(r.Object, &after) != nil {
		return false
	}
	for _, field := range []string{"metadata", "status"} {
		delete(before, field)
		delete(after, field)
	}
	return maps.EqualFunc(before, after, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) })
}

// sameIdentity refuses an UPDATE that would make another resource of an object:
// the mesh is part of the identity (§1.1), although Kubernetes takes it
// for content.
func sameIdentity(c authz.Change) error {
	if c.Access != resource.AccessUpdate || c.Old.Key == c.New.Key() {
		return nil
	}
	return &resource.DocumentError{Key: c.New.Key(), Problems: []resource.Problem{{
		Path:    "mesh",
		Message: fmt.Sprintf("the stored object is %s; an object never moves to another mesh: delete it and create it anew", c.Old.Key),
	}}}
}

// record puts a denial into the audit log. The address is that of the API
// server, the request's id what it calls its question.
func (s *Server) record(r *request, user authn.Principal, c authz.Change, err error) {
	var denied *rpcerr.Error
	if s.cfg.Audit == nil || !errors.As(err, &denied) || denied.Code != rpcerr.Denied {
		return
	}
	key := c.Old.Key
	if c.New != nil {
		key = c.New.Key()
	}
	action := strings.ToLower(string(c.Access))
	if r.DryRun {
		action = "dry-run " + action
	}
	s.cfg.Audit.Write(audit.Record{
		Who:  audit.Who{Name: user.Name, Groups: user.Groups, Source: string(user.Source)},
		From: r.from, Method: reviewKind, Request: r.UID,
		Decision: audit.Denied, Rule: denied.Reason, Message: denied.Message,
		Targets: []audit.Target{{Action: action, Kind: string(key.Kind), Mesh: string(key.Mesh), Name: key.Name}},
	})
}

func (s *Server) review(ctx context.Context, r *resource.Resource) ([]string, error) {
	if s.cfg.Review == nil {
		return nil, nil
	}
	return s.cfg.Review(ctx, r)
}

// known returns what a review is about as far as it says without its objects;
// false where that is not a resource.
func (r *request) known() (authz.Change, bool) {
	d, ok := resource.Lookup(r.Kind.Kind)
	if !ok {
		return authz.Change{}, false
	}
	return authz.Change{Access: resource.Access(r.Operation), Old: rbac.Object{Key: resource.Key{Kind: d.Kind, Name: r.Name}}}, true
}

// refusal returns the negative answer for an error that is a decision.
func refusal(r *request, err error, warnings ...string) (*response, error) {
	no := &response{UID: r.UID, Status: &status{Status: statusFailure}, Warnings: oneLineEach(warnings)}
	var (
		invalid *resource.DocumentError
		denied  *rpcerr.Error
	)
	switch {
	case errors.As(err, &denied) && denied.Code == rpcerr.Denied:
		no.Status.Message, no.Status.Reason, no.Status.Code = denied.Message, reasonForbidden, http.StatusForbidden
	case errors.As(err, &invalid):
		no.Status.Message, no.Status.Reason, no.Status.Code = err.Error(), reasonInvalid, http.StatusUnprocessableEntity
	default:
		return nil, err
	}
	return no, nil
}

// oneLineEach formats warnings for the header in which the API server passes them
// on: it silently drops those with control characters.
func oneLineEach(warnings []string) []string {
	if more := len(warnings) - maxWarnings; more > 0 {
		warnings = append(warnings[:maxWarnings:maxWarnings], fmt.Sprintf("and %d more", more))
	}
	lines := make([]string, len(warnings))
	for i, w := range warnings {
		lines[i] = strings.Map(func(r rune) rune {
			if unicode.IsControl(r) {
				return ' '
			}
			return r
		}, strings.Join(strings.FieldsFunc(w, func(r rune) bool { return r == '\n' || r == '\r' }), "; "))
	}
	return lines
}
