package expectation

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/condition"
	"meridian/internal/resource"
)

// Source answers what cases ask, from files or from a control plane.
type Source interface {
	// Connection fails with answer.ErrNotFound if a dataplane or the port is not there.
	Connection(ctx context.Context, mesh resource.MeshName, c *ConnectionCase) (*answer.ConnectionAnswer, error)
	// Dataplane fails with answer.ErrNotFound if it is not there.
	Dataplane(ctx context.Context, mesh resource.MeshName, name string) (*answer.DataplaneAnswer, error)
	// Dataplanes lists those of a mesh.
	Dataplanes(ctx context.Context, mesh resource.MeshName) ([]Dataplane, error)
	// Connections calls each with every pair of a dataplane and an inbound of another
	// one, until it returns false.
	Connections(ctx context.Context, mesh resource.MeshName, each func(*Connection) bool) error
	// Routes returns what is in effect on every route of a mesh.
	Routes(ctx context.Context, mesh resource.MeshName) ([]*answer.RouteAnswer, error)
	// CanI reports whether a user has an access to every resource of a file, and why.
	// test is the file with the case.
	CanI(ctx context.Context, test string, mesh resource.MeshName, c *AccessCase) (allowed bool, reasons []string, err error)
}

// Dataplane is a dataplane as an invariant sees it.
type Dataplane struct {
	Mesh resource.MeshName `json:"mesh"`
	Name string            `json:"name"`
	Zone resource.ZoneName `json:"zone"`
	// Tags are the tag sets of its inbounds, or of its gateway.
	Tags []resource.Tags `json:"tags"`
}

// Connection is a connection as an invariant sees it. By are the names of the policies
// that allow or deny it.
type Connection struct {
	From, To *Dataplane
	Port     uint32
	Allowed  bool
	By       []string
}

// Result is what became of a case.
type Result struct {
	Name string `json:"name"`
	File string `json:"file"`
	// Line is where the case begins, from 1.
	Line int  `json:"line"`
	OK   bool `json:"ok"`
	// Message says what is otherwise than expected; empty for a case that passed.
	Message string `json:"message"`
}

// Report is what became of all cases.
type Report struct {
	Passed int      `json:"passed"`
	Failed int      `json:"failed"`
	Cases  []Result `json:"cases"`
	// Coverage is set where it was asked for.
	Coverage *Coverage `json:"coverage,omitempty"`

	// decided are the policies that decide what a case expects.
	decided map[resource.Key]bool
}

// Add adds the cases of another report.
func (r *Report) Add(other *Report) {
	r.Passed += other.Passed
	r.Failed += other.Failed
	r.Cases = append(r.Cases, other.Cases...)
	maps.Copy(r.decided, other.decided)
}

// Forgive counts the cases as passed that fail in another report as well. Both are of the
// same cases.
func (r *Report) Forgive(other *Report) {
	for i := range r.Cases {
		if !r.Cases[i].OK && !other.Cases[i].OK {
			r.Cases[i].OK = true
			r.Passed++
			r.Failed--
		}
	}
}

// Runner runs cases.
type Runner struct {
	source   Source
	compiler *condition.Compiler
	decided  map[resource.Key]bool
}

// New returns a runner of cases that a source answers.
func New(source Source) (*Runner, error) {
	options := condition.DefaultOptions()
	options.Variables = []string{"c", "d", "r"}
	compiler, err := condition.NewCompiler(options)
	if err != nil {
		return nil, err
	}
	return newRunner(source, compiler), nil
}

func newRunner(source Source, compiler *condition.Compiler) *Runner {
	return &Runner{source: source, compiler: compiler, decided: map[resource.Key]bool{}}
}

// Run runs all cases. The error is that of ctx: a case that cannot be decided has
// failed, and the others are run.
func (r *Runner) Run(ctx context.Context, files []*File) (*Report, error) {
	report := &Report{Cases: []Result{}, decided: r.decided}
	for _, f := range files {
		for i := range f.Cases {
			c := &f.Cases[i]
			message, err := r.run(ctx, f, c)
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if err != nil {
				message = err.Error()
			}
			if message == "" {
				report.Passed++
			} else {
				report.Failed++
			}
			report.Cases = append(report.Cases, Result{Name: c.Name, File: f.Source, Line: c.line, OK: message == "", Message: message})
		}
	}
	return report, nil
}

// run returns what is otherwise than a case expects; empty if nothing is.
func (r *Runner) run(ctx context.Context, f *File, c *Case) (string, error) {
	switch {
	case c.Connection != nil:
		return r.connection(ctx, f.Mesh, c)
	case c.Access != nil:
		return r.access(ctx, f, c)
	case c.Invariant != "":
		return r.invariant(ctx, f.Mesh, c)
	case c.From != "":
		return r.settingForCaller(ctx, f.Mesh, c)
	}
	return r.setting(ctx, f.Mesh, c)
}

func (r *Runner) connection(ctx context.Context, mesh resource.MeshName, c *Case) (string, error) {
	a, err := r.source.Connection(ctx, mesh, c.Connection)
	if err != nil {
		return "", err
	}
	by, verdict := a.AllowedBy, Allowed
	if !a.Allowed {
		by, verdict = deniers(a), Denied
	}
	r.decide(mesh, by, resource.KindTrafficPermission, resource.KindMeshTrafficPermission)
	if verdict == c.Word() {
		return "", nil
	}
	why := " by " + strings.Join(by, ", ")
	if len(by) == 0 {
		why = ": no permission is about this caller, and the mesh has no mutual TLS"
		if !a.Allowed {
			why = ": no permission allows it"
		}
	}
	return fmt.Sprintf("expected %s, but it is %s%s", c.Word(), verdict, why), nil
}

// deniers are the policies on whose word a connection is denied.
func deniers(a *answer.ConnectionAnswer) []string {
	var by []string
	for i := range a.Inbounds {
		by = append(by, a.Inbounds[i].DeniedBy...)
	}
	if len(a.Inbounds) == 0 {
		// An answer of a control plane does not have DeniedBy, but what denies it.
		by = slices.Concat(a.DeniedBy, a.Denying())
	}
	slices.Sort(by)
	return slices.Compact(by)
}

// setting checks a value on attachments of a dataplane.
func (r *Runner) setting(ctx context.Context, mesh resource.MeshName, c *Case) (string, error) {
	a, err := r.source.Dataplane(ctx, mesh, c.Dataplane)
	if err != nil {
		return "", err
	}
	found := false
	for i := range a.Effective {
		e := &a.Effective[i]
		outbound := e.Attachment.Type == policy.OnOutbound
		if e.Kind != c.Kind || outbound != (c.To != "") || outbound && e.Attachment.Service != c.To {
			continue
		}
		if e.Rules != nil {
			return "", fmt.Errorf("%s is set for each caller: add `from`, the dataplane that calls", c.Kind)
		}
		found = true
		if message, err := r.expected(mesh, c, e.Attachment.String(), e.Conf, e.Fields); message != "" || err != nil {
			return message, err
		}
	}
	if !found {
		return r.expected(mesh, c, "dataplane "+c.Dataplane, nil, nil)
	}
	return "", nil
}

// settingForCaller checks a value that holds for calls from a dataplane.
func (r *Runner) settingForCaller(ctx context.Context, mesh resource.MeshName, c *Case) (string, error) {
	a, err := r.source.Connection(ctx, mesh, &ConnectionCase{From: c.From, To: c.Dataplane})
	if err != nil {
		return "", err
	}
	found := false
	for i := range a.Effective {
		e := &a.Effective[i]
		if e.Kind != c.Kind || e.Side != policy.OnInbound {
			continue
		}
		found = true
		if message, err := r.expected(mesh, c, fmt.Sprintf("inbound %d", e.Port), e.Conf, e.Fields); message != "" || err != nil {
			return message, err
		}
	}
	if !found {
		return r.expected(mesh, c, "dataplane "+c.Dataplane, nil, nil)
	}
	return "", nil
}

// expected compares the field of a configuration with what a case expects.
func (r *Runner) expected(mesh resource.MeshName, c *Case, where string, conf policy.Tree, fields map[policy.Pointer]string) (string, error) {
	value := field(conf, c.Field)
	by := fields[pointer(c.Field)]
	if by != "" {
		r.decided[resource.Key{Kind: c.Kind, Mesh: mesh, Name: by}] = true
	}
	ok, err := meets(c.Expect, value)
	if err != nil {
		return "", fmt.Errorf("%s, %s: %w", where, c.Field, err)
	}
	if ok {
		return "", nil
	}
	message := fmt.Sprintf("%s: expected %s of %s to be %s, but it is %s", where, c.Field, c.Kind, c.Expect, show(value))
	if by != "" {
		message += ", by " + by
	}
	return message, nil
}

func (r *Runner) access(ctx context.Context, f *File, c *Case) (string, error) {
	allowed, reasons, err := r.source.CanI(ctx, f.Source, f.Mesh, c.Access)
	if err != nil {
		return "", err
	}
	verdict := No
	if allowed {
		verdict = Yes
	}
	if verdict == c.Word() {
		return "", nil
	}
	return fmt.Sprintf("expected %s, but it is %s: %s", c.Word(), verdict, strings.Join(reasons, "; ")), nil
}

// Verdict is what became of an invariant.
type Verdict struct {
	// Checked is how many things it is about, and Broken of how many it does not hold.
	Checked int `json:"checked"`
	Broken  int `json:"broken"`
	// Examples are the first of those.
	Examples []string `json:"examples"`
	// Incomplete are the zones that the verdict lacks, or has as they were.
	Incomplete []answer.Absence `json:"incomplete"`
}

// MaxExamples bounds the counterexamples that a failed invariant lists.
const MaxExamples = 5

// message says what is otherwise than an invariant over something demands; empty if nothing
// is.
func (v *Verdict) message(over string, mesh resource.MeshName) (string, error) {
	switch {
	case v.Checked == 0:
		return "", fmt.Errorf("there are no %s in mesh %s: the invariant says nothing", over, mesh)
	case v.Broken == 0:
		return "", nil
	}
	message := fmt.Sprintf("does not hold for %d of %d %s: %s", v.Broken, v.Checked, over, strings.Join(v.Examples, "; "))
	if more := v.Broken - len(v.Examples); more > 0 {
		message += fmt.Sprintf("; and %d more", more)
	}
	return message, nil
}

// Judge is a Source that judges invariants where it is, and does not list what they are
// about. judged is false for those that it does not.
type Judge interface {
	Judge(ctx context.Context, mesh resource.MeshName, over, expression string) (v *Verdict, judged bool, err error)
}

func (r *Runner) invariant(ctx context.Context, mesh resource.MeshName, c *Case) (string, error) {
	if elsewhere, ok := r.source.(Judge); ok {
		if v, judged, err := elsewhere.Judge(ctx, mesh, c.Over, c.Invariant); err != nil {
			return "", err
		} else if judged {
			return v.message(c.Over, mesh)
		}
	}
	v, err := r.Judge(ctx, mesh, c.Over, c.Invariant)
	if err != nil {
		return "", err
	}
	return v.message(c.Over, mesh)
}

// Judge evaluates an expression over everything that it is about: connections, dataplanes
// or routes of a mesh. It fails with the cause of ctx.
func (r *Runner) Judge(ctx context.Context, mesh resource.MeshName, over, text string) (*Verdict, error) {
	expression, err := r.compiler.Compile(text)
	if err != nil {
		return nil, fmt.Errorf("invariant: %w", err)
	}
	v := &Verdict{Examples: []string{}, Incomplete: []answer.Absence{}}
	check := func(name string, value func() (string, any, error)) error {
		label, object, err := value()
		if err != nil {
			return err
		}
		verdict := expression.EvalWith(ctx, map[string]any{name: object})
		switch verdict.Outcome {
		case condition.Matched:
			return nil
		case condition.Failed:
			return fmt.Errorf("%s: %s", label, verdict.Reason)
		}
		if v.Broken++; v.Broken <= MaxExamples {
			if verdict.Reason != "false" {
				label += " (" + verdict.Reason + ")"
			}
			v.Examples = append(v.Examples, label)
		}
		return nil
	}
	v.Checked, err = r.each(ctx, mesh, over, check)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return v, err
}

// each calls check with everything that an invariant is over, and counts it.
func (r *Runner) each(ctx context.Context, mesh resource.MeshName, over string, check func(name string, value func() (string, any, error)) error) (checked int, err error) {
	switch over {
	case resource.OverConnections:
		var failed error
		err := r.source.Connections(ctx, mesh, func(c *Connection) bool {
			checked++
			failed = check("c", func() (string, any, error) {
				verdict := Denied
				if c.Allowed {
					verdict = Allowed
				}
				from := c.From.Name
				if c.From.Zone != c.To.Zone {
					from = fmt.Sprintf("%s of zone %s", from, c.From.Zone)
				}
				return fmt.Sprintf("%s → %s:%d is %s", from, c.To.Name, c.Port, verdict), c.value(), nil
			})
			return failed == nil && ctx.Err() == nil
		})
		return checked, errors.Join(err, failed)
	case resource.OverDataplanes:
		all, err := r.source.Dataplanes(ctx, mesh)
		if err != nil {
			return 0, err
		}
		for i := range all {
			a, err := r.source.Dataplane(ctx, mesh, all[i].Name)
			if errors.Is(err, answer.ErrNotFound) {
				continue // it has gone since the list was made
			}
			checked++
			if err := check("d", func() (string, any, error) {
				if err != nil {
					return "", nil, err
				}
				object := all[i].value()
				object["effective"], err = plain(a.Effective)
				return all[i].Name, object, err
			}); err != nil {
				return checked, err
			}
		}
		return checked, nil
	}
	routes, err := r.source.Routes(ctx, mesh)
	if err != nil {
		return 0, err
	}
	for _, a := range routes {
		checked++
		if err := check("r", func() (string, any, error) {
			object, err := plain(a)
			return "route " + a.Route, object, err
		}); err != nil {
			return checked, err
		}
	}
	return checked, nil
}

// value is a dataplane as an expression sees it.
func (d *Dataplane) value() map[string]any {
	tags := make([]any, len(d.Tags))
	for i, set := range d.Tags {
		object := make(map[string]any, len(set))
		for name, value := range set {
			object[name] = value
		}
		tags[i] = object
	}
	return map[string]any{"mesh": string(d.Mesh), "name": d.Name, "zone": string(d.Zone), "tags": tags}
}

// value is a connection as an expression sees it.
func (c *Connection) value() map[string]any {
	by := make([]any, len(c.By))
	for i, name := range c.By {
		by[i] = name
	}
	return map[string]any{"from": c.From.value(), "to": c.To.value(), "port": int64(c.Port), "allowed": c.Allowed, "by": by}
}

// plain is a document as JSON would have it.
func plain(document any) (any, error) {
	data, err := answer.Marshal(document)
	if err != nil {
		return nil, err
	}
	return decoded(data)
}

// decide notes that a case depends on what policies of these names and kinds decide.
func (r *Runner) decide(mesh resource.MeshName, names []string, kinds ...resource.Kind) {
	for _, name := range names {
		for _, kind := range kinds {
			r.decided[resource.Key{Kind: kind, Mesh: mesh, Name: name}] = true
		}
	}
}

// Coverage says which policies no case depends on.
type Coverage struct {
	Policies int `json:"policies"`
	Tested   int `json:"tested"`
	// Untested are the policies that decide nothing that a case expects.
	Untested []Policy `json:"untested"`
}

// Policy is the name of a policy.
type Policy struct {
	Kind resource.Kind     `json:"kind"`
	Mesh resource.MeshName `json:"mesh"`
	Name string            `json:"name"`
}

// Cover says which of some resources' policies for dataplanes decide what a case of a
// connection or a setting expects. Invariants do not count: they look at everything.
func (r *Report) Cover(resources []*resource.Resource) {
	c := &Coverage{Untested: []Policy{}}
	for _, policy := range resources {
		key := policy.Key()
		d, known := resource.Describe(key.Kind)
		if !known || d.Class != resource.SourceDestination && d.Class != resource.TargetRef {
			continue
		}
		c.Policies++
		if r.decided[key] {
			c.Tested++
		} else {
			c.Untested = append(c.Untested, Policy{key.Kind, key.Mesh, key.Name})
		}
	}
	r.Coverage = c
}
