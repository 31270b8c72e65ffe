package webhook

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// What a review calls itself.
const (
	reviewVersion = "admission.k8s.io/v1"
	reviewKind    = "AdmissionReview"
)

// Group is the API group whose objects are decided.
const Group = "kuma.io"

// operation is what is about to be done to an object.
type operation string

const (
	opCreate  operation = "CREATE"
	opUpdate  operation = "UPDATE"
	opDelete  operation = "DELETE"
	opConnect operation = "CONNECT"
)

// review is an AdmissionReview: a question with a request, an answer with a
// response. Fields that no decision needs are not read.
type review struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Request    *request  `json:"request,omitempty"`
	Response   *response `json:"response,omitempty"`
}

// request is the question.
type request struct {
	UID         string               `json:"uid"`
	Kind        groupVersionKind     `json:"kind"`
	Resource    groupVersionResource `json:"resource"`
	SubResource string               `json:"subResource"`
	Name        string               `json:"name"`
	Operation   operation            `json:"operation"`
	UserInfo    userInfo             `json:"userInfo"`
	Object      json.RawMessage      `json:"object"`
	OldObject   json.RawMessage      `json:"oldObject"`
	DryRun      bool                 `json:"dryRun"`

	// from is the address that the question came from, client what counts as one.
	from, client string
	// unclear says that the stored object cannot be identified as a resource.
	unclear bool
}

type groupVersionKind struct {
	Group   string `json:"group"`
	Version string `json:"version"`
	Kind    string `json:"kind"`
}

type groupVersionResource struct {
	Group    string `json:"group"`
	Version  string `json:"version"`
	Resource string `json:"resource"`
}

// userInfo is the user, as authenticated by the API server.
type userInfo struct {
	Username string   `json:"username"`
	Groups   []string `json:"groups"`
}

// response is the answer.
type response struct {
	UID              string            `json:"uid"`
	Allowed          bool              `json:"allowed"`
	Status           *status           `json:"status,omitempty"`
	Warnings         []string          `json:"warnings,omitempty"`
	AuditAnnotations map[string]string `json:"auditAnnotations,omitempty"`
}

// status says why not.
type status struct {
	Status  string `json:"status"`
	Message string `json:"message"`
	Reason  string `json:"reason"`
	Code    int    `json:"code"`
}

// failure is a status by itself: the answer where there is no decision.
type failure struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	status
}

// errMalformed means that a review cannot be understood. The message that it is
// wrapped in says what is wrong with it.
var errMalformed = errors.New("malformed AdmissionReview")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errMalformed, fmt.Sprintf(format, args...))
}

// decodeReview reads a question and checks that it can be answered. The error is
// errMalformed.
func decodeReview(body []byte) (*request, error) {
	var r review
	if err := json.Unmarshal(body, &r); err != nil {
		return nil, malformed("%s", jsonProblem(err))
	}
	switch {
	case r.Kind != reviewKind:
		return nil, malformed("kind is %q; expected %s", r.Kind, reviewKind)
	case r.APIVersion != reviewVersion:
		return nil, malformed("apiVersion is %q; this server speaks %s only: set admissionReviewVersions to [v1]", r.APIVersion, reviewVersion)
	case r.Request == nil:
		return nil, malformed("request is missing")
	}
	return r.Request, r.Request.check()
}

// jsonProblem says what encoding/json makes of a body, without the names of Go
// types.
func jsonProblem(err error) string {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return fmt.Sprintf("%s cannot be a JSON %s", cmp.Or(wrong.Field, "the review"), wrong.Value)
	}
	return "the body is not JSON: " + strings.TrimPrefix(err.Error(), "json: ")
}

// check refuses what no API server sends.
func (r *request) check() error {
	switch {
	case r.UID == "":
		return malformed("request.uid is missing")
	case r.Kind.Kind == "":
		return malformed("request.kind is missing")
	}
	switch r.Operation {
	case opConnect:
		return nil
	case opCreate, opUpdate, opDelete:
	case "":
		return malformed("request.operation is missing")
	default:
		return malformed("request.operation is %q; expected CREATE, UPDATE, DELETE or CONNECT", r.Operation)
	}
	if !r.ours() {
		return nil
	}
	if r.UserInfo.Username == "" {
		return malformed("request.userInfo.username is missing")
	}
	if (r.Operation == opCreate || r.Operation == opUpdate) && absent(r.Object) {
		return malformed("request.object is missing: %s is decided by the new content", r.Operation)
	}
	if (r.Operation == opUpdate || r.Operation == opDelete) && absent(r.OldObject) {
		return malformed("request.oldObject is missing: %s is decided by what is stored", r.Operation)
	}
	return nil
}

// ours reports whether the review is about an object of this product.
func (r *request) ours() bool { return r.Kind.Group == Group || r.Resource.Group == Group }

func absent(raw json.RawMessage) bool {
	return len(raw) == 0 || bytes.Equal(raw, []byte("null"))
}

// checkObject refuses an object that is not what the request says it is about:
// a decision on it would be a decision on something else.
func (r *request) checkObject(field string, raw json.RawMessage) error {
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Name string `json:"name"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return malformed("request.%s: %s", field, jsonProblem(err))
	}
	apiVersion := r.Kind.Version
	if r.Kind.Group != "" {
		apiVersion = r.Kind.Group + "/" + r.Kind.Version
	}
	switch {
	case head.Kind != r.Kind.Kind || head.APIVersion != apiVersion:
		return malformed("request.%s is a %s %s, request.kind says %s %s", field, head.APIVersion, head.Kind, apiVersion, r.Kind.Kind)
	case r.Name != "" && head.Metadata.Name != "" && head.Metadata.Name != r.Name:
		return malformed("request.%s is named %q, request.name says %q", field, head.Metadata.Name, r.Name)
	}
	return nil
}

// encodeReview writes the answer.
func encodeReview(r *response) ([]byte, error) {
	return json.Marshal(review{APIVersion: reviewVersion, Kind: reviewKind, Response: r})
}
