package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/doctree"
	"meridian/internal/expectation"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/question"
	"meridian/internal/rbac"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/texttable"
	"meridian/internal/version"
)

// policyTests are the flags of `meridian test`.
type policyTests struct {
	live, coverage     bool
	junit, sarif, zone string
	output             *print.FormatFlag
}

func newTestCommand(a *app) *cobra.Command {
	var o policyTests
	cmd := &cobra.Command{
		Use:   "test FILE|DIR…",
		Short: "Run the tests of policies that stand beside them",
		Long: `Run the cases of all documents of kind PolicyTest and MeshTest in files and
directories: which connections are allowed, what a setting is, what holds for every
dataplane, connection or route, and who may change what. The answers come from the
other documents there, without a server; with --live from the control plane.

The exit code is 1 when a case fails. docs/policies/tests.md describes the documents.`,
		Example: `  meridian test policies/
  meridian test policies/ --coverage --junit report.xml
  meridian test tests/ --live --zone east`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return exit.Usagef("missing FILE or DIR: the tests, and the documents that they are about")
			}
			if err := checkZone(o.zone); err != nil {
				return err
			}
			return a.testPolicies(cmd, args, &o)
		},
	}
	cmd.Flags().BoolVar(&o.live, "live", false, "ask the control plane, in place of the documents")
	cmd.Flags().BoolVar(&o.coverage, "coverage", false, "list the policies that no case depends on")
	cmd.Flags().StringVar(&o.junit, "junit", "", "write a JUnit report to this file")
	cmd.Flags().StringVar(&o.sarif, "sarif", "", "write the cases that fail as SARIF to this file")
	cmd.Flags().StringVar(&o.zone, "zone", "", "zone of dataplanes that name none (default \""+defaultZone+"\"); with --live, zone to ask through the global")
	o.output = print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatJSON, print.FormatYAML)
	return cmd
}

func (a *app) testPolicies(cmd *cobra.Command, paths []string, o *policyTests) error {
	files, documents, err := a.loadTests(&sources{files: paths, recursive: true, cmd: cmd})
	if err != nil {
		return err
	}
	offline, err := a.newOfflineTests(cmd, resourcesOf(documents), o.zone)
	if err != nil {
		return err
	}
	var source expectation.Source = offline
	ctx, stop := context.WithCancelCause(cmd.Context())
	defer stop(nil)
	var live *liveTests
	if o.live {
		live = &liveTests{offlineTests: *offline, app: a, cmd: cmd, zone: o.zone, stop: stop, complete: map[resource.MeshName]error{}}
		source = live
	}
	runner, err := expectation.New(source)
	if err != nil {
		return err
	}
	report, err := runner.Run(ctx, files)
	if err != nil {
		return err
	}
	view := func(context.Context, resource.MeshName) (policy.View, error) { return offline.stored, nil }
	if live != nil {
		view = live.view
	}
	if err := runCarried(ctx, report, documents, view); err != nil {
		return err
	}
	if o.coverage {
		report.Cover(resourcesOf(documents))
	}
	if err := a.printTests(o.output.Value, report); err != nil {
		return err
	}
	for path, write := range map[string]func(io.Writer) error{
		o.junit: report.WriteJUnit,
		o.sarif: func(w io.Writer) error { return report.WriteSARIF(w, version.String()) },
	} {
		if path == "" {
			continue
		}
		if err := writeReport(path, write); err != nil {
			return err
		}
	}
	if report.Failed > 0 {
		return exit.ErrNo
	}
	return nil
}

// loadTests reads the tests of files, and the resources beside them.
func (a *app) loadTests(from *sources) ([]*expectation.File, []resource.Document, error) {
	var files []*expectation.File
	var invalid resource.DocumentErrors
	documents, err := a.loadDocuments(from, resource.DecodeOptions{Tests: func(source string, document *doctree.Node) {
		file, problems := expectation.Parse(source, document)
		if len(problems) > 0 {
			invalid = append(invalid, &resource.DocumentError{
				Source: source, Line: document.Line, Problems: problems,
			})
			return
		}
		files = append(files, file)
	}})
	switch {
	case err != nil:
		return nil, nil, err
	case len(invalid) > 0:
		return nil, nil, inputFailure(invalid)
	case len(files) == 0 && !slices.ContainsFunc(documents, func(d resource.Document) bool { return d.Resource.Key().Kind == resource.KindMeshTest }):
		return nil, nil, exit.Usagef("there is no document of kind %s or %s in what was read", resource.PolicyTestKind, resource.KindMeshTest)
	}
	return files, documents, nil
}

// runCarried adds to a report what becomes of the tests that meshes carry, in documents of
// kind MeshTest. view returns what they run on.
func runCarried(ctx context.Context, report *expectation.Report, documents []resource.Document, view func(context.Context, resource.MeshName) (policy.View, error)) error {
	var carried *expectation.Carried
	for i := range documents {
		d := &documents[i]
		if d.Resource.Key().Kind != resource.KindMeshTest {
			continue
		}
		var err error
		if carried == nil {
			if carried, err = expectation.NewCarried(); err != nil {
				return err
			}
		}
		on, err := view(ctx, d.Resource.Key().Mesh)
		if err != nil {
			return err
		}
		of, err := carried.RunAt(ctx, on, d.Resource, d.Source, d.CaseLines)
		if err != nil {
			return err
		}
		report.Add(of)
	}
	return nil
}

// offlineTests answers from resources.
type offlineTests struct {
	expectation.Offline
	stored *policy.Snapshot
}

func (a *app) newOfflineTests(cmd *cobra.Command, resources []*resource.Resource, zone string) (*offlineTests, error) {
	matcher, in, err := matcherOf(resources, zone)
	if err != nil {
		return nil, err
	}
	stored := map[resource.Key]*resource.Resource{}
	for _, r := range resources {
		stored[r.Key()] = r
	}
	get := func(key resource.Key) (*resource.Resource, bool) { r, ok := stored[key]; return r, ok }
	rules := policy.NewSnapshot(resources...)
	set := rbac.Compile(rules)
	return &offlineTests{stored: rules, Offline: expectation.Offline{Matcher: matcher, Zone: in, Access: func(_ context.Context, test string, mesh resource.MeshName, c *expectation.AccessCase) (bool, []string, error) {
		return a.canAll(cmd, test, mesh, c, func(q rbac.Question) (rbac.Answer, error) {
			q.Stored, q.Rules = get, rules
			if old, ok := get(q.Key); ok && q.Old == nil {
				q.Old = old
			}
			return set.Ask(rbac.Subject{Name: c.As, Groups: c.Groups}, q), nil
		})
	}}}, nil
}

// canAll asks for the access of a case to every resource of its file.
func (a *app) canAll(cmd *cobra.Command, test string, mesh resource.MeshName, c *expectation.AccessCase, ask func(rbac.Question) (rbac.Answer, error)) (bool, []string, error) {
	access, err := accessNamed(c.Verb)
	if err != nil {
		return false, nil, err
	}
	if !rbac.OnResources(access) {
		return false, nil, fmt.Errorf("`verb`: %s is about no resource; write CREATE, UPDATE, DELETE or READ", access)
	}
	if c.File == "" {
		return false, nil, fmt.Errorf("`file` is required: it has the resource that is asked for")
	}
	path := c.File
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(test), path)
	}
	documents, err := a.loadDocuments(&sources{files: []string{path}, cmd: cmd}, resource.DecodeOptions{Mesh: mesh})
	if err != nil {
		// A pipeline runs the tests that a change brings, on any file that it can read: the
		// message has nothing of what is in it.
		if _, missing := os.Stat(path); missing != nil {
			return false, nil, missing
		}
		return false, nil, fmt.Errorf("%s: what is there is not valid: `meridian validate -f` says why", path)
	}
	verdict := verdictView{Allowed: true}
	for _, r := range resourcesOf(documents) {
		q := rbac.Question{Access: access, Key: r.Key(), New: r}
		answer, err := ask(q)
		if err != nil {
			return false, nil, err
		}
		verdict.add(q, answer, len(documents) > 1)
	}
	return verdict.Allowed, verdict.Reasons, nil
}

// liveTests answers from a control plane. What is over all dataplanes or routes is
// worked out of its resources, which are read once.
type liveTests struct {
	offlineTests
	app  *app
	cmd  *cobra.Command
	zone string
	// stop ends the run: no case says anything about a control plane that does not answer.
	stop context.CancelCauseFunc

	read    sync.Once
	readErr error
	// global: the control plane is a global, which asks its zones.
	global bool
	// complete is why what was read of a mesh may not be all of it; nil where it is.
	complete map[resource.MeshName]error
}

func (l *liveTests) ask(ctx context.Context, q question.Question, mesh resource.MeshName, document any) error {
	response, err := l.app.ask(ctx, question.Request(q, string(mesh), l.zone))
	if err != nil {
		return l.failed(err)
	}
	if notes := response.GetNotes(); len(notes) > 0 {
		return incompleteFailure(notes[0], len(notes)-1)
	}
	return answer.Unmarshal(response.GetJson(), document)
}

// failed ends the run where the control plane cannot be asked, and returns the error. A
// case about a zone that is away fails alone.
func (l *liveTests) failed(err error) error {
	for _, reason := range []string{"ZONE_UNAVAILABLE", "ZONE_TIMEOUT", "NO_ZONES"} {
		if rpcerr.HasReason(err, reason) {
			return err
		}
	}
	if code := exit.Explain(err).Code; code == exit.Unavailable || code == exit.Timeout || rpcerr.CodeOf(err) == rpcerr.Unauthenticated {
		l.stop(err)
	}
	return err
}

// Connection implements expectation.Source.
func (l *liveTests) Connection(ctx context.Context, mesh resource.MeshName, c *expectation.ConnectionCase) (*answer.ConnectionAnswer, error) {
	a := &answer.ConnectionAnswer{}
	return a, l.ask(ctx, question.Connection{From: c.From, FromTags: c.FromTags, To: c.To, Port: c.Port}, mesh, a)
}

// Dataplane implements expectation.Source.
func (l *liveTests) Dataplane(ctx context.Context, mesh resource.MeshName, name string) (*answer.DataplaneAnswer, error) {
	a := &answer.DataplaneAnswer{}
	return a, l.ask(ctx, question.Dataplane{Name: name}, mesh, a)
}

// CanI implements expectation.Source.
func (l *liveTests) CanI(ctx context.Context, test string, mesh resource.MeshName, c *expectation.AccessCase) (bool, []string, error) {
	o := &canIFlags{as: c.As, groups: c.Groups}
	ask, stop, err := l.app.asker(ctx, o)
	if err != nil {
		return false, nil, err
	}
	defer stop()
	return l.app.canAll(l.cmd, test, mesh, c, func(q rbac.Question) (rbac.Answer, error) {
		answer, err := ask(q)
		if err != nil {
			err = l.failed(err)
		}
		return answer, err
	})
}

// load reads all resources of the control plane, once, and fails unless its user may read
// everything that decides about a mesh: a list has what the user may read, and a case about
// every dataplane would pass for want of the others.
func (l *liveTests) load(ctx context.Context, mesh resource.MeshName) error {
	l.read.Do(func() { l.readErr = l.readAll(ctx) })
	if l.readErr != nil {
		return l.readErr
	}
	err, asked := l.complete[mesh]
	if !asked {
		err = l.readsMesh(ctx, mesh)
		l.complete[mesh] = err
	}
	return err
}

func (l *liveTests) readAll(ctx context.Context) error {
	c, err := l.app.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	info, err := client.Ask(ctx, c, (*client.Client).Info, &meridianv1.InfoRequest{})
	if err != nil {
		return l.failed(err)
	}
	l.global = info.GetRole() == "global"
	stored, _, err := c.Resources(ctx, &meridianv1.ListRequest{})
	if err != nil {
		return l.failed(err)
	}
	resources := make([]*resource.Resource, 0, len(stored))
	for _, r := range stored {
		if d, known := resource.Describe(r.Key().Kind); !known || d.Sensitive {
			continue // a control plane newer than this command, or what is not shown
		}
		built, _, err := resource.Build(r.Meta(), r.Canonical())
		if err != nil {
			return err
		}
		resources = append(resources, built)
	}
	offline, err := l.app.newOfflineTests(l.cmd, resources, l.zone)
	if err == nil {
		l.Matcher, l.Zone, l.stored = offline.Matcher, offline.Zone, offline.stored
	}
	return err
}

// readsMesh fails unless the user may read the mesh and every resource in it.
func (l *liveTests) readsMesh(ctx context.Context, mesh resource.MeshName) error {
	ask, stop, err := l.app.asker(ctx, &canIFlags{})
	if err != nil {
		return err
	}
	defer stop()
	for _, d := range resource.Kinds() {
		key := resource.Key{Kind: d.Kind, Mesh: mesh}
		switch {
		case d.Kind == resource.KindMesh:
			key = resource.Key{Kind: d.Kind, Name: string(mesh)}
		case d.Scope != resource.MeshScoped || d.Sensitive:
			continue
		}
		answer, err := ask(rbac.Question{Access: resource.AccessRead, Key: key})
		if err != nil {
			return l.failed(err)
		}
		if !answer.Allowed {
			return fmt.Errorf("you may not read every %s of mesh %s, so that what holds for all dataplanes is not known", d.Kind, mesh)
		}
	}
	return nil
}

// Judge implements expectation.Judge. A global has no dataplanes: it asks its zones.
func (l *liveTests) Judge(ctx context.Context, mesh resource.MeshName, over, expression string) (*expectation.Verdict, bool, error) {
	if err := l.load(ctx, mesh); err != nil {
		return nil, false, err
	}
	if !l.global || over == resource.OverRoutes {
		return nil, false, nil
	}
	response, err := l.app.ask(ctx, &meridianv1.InspectRequest{Mesh: string(mesh), Zone: l.zone, Question: &meridianv1.InspectRequest_Invariant{
		Invariant: &meridianv1.InvariantQuestion{Over: over, Expression: expression},
	}})
	if err != nil {
		return nil, false, l.failed(err)
	}
	v := &expectation.Verdict{}
	if err := answer.Unmarshal(response.GetJson(), v); err != nil {
		return nil, false, err
	}
	if notes := response.GetNotes(); len(notes) > 0 && v.Broken == 0 { // a counterexample needs no more
		return nil, false, incompleteFailure(notes[0], len(notes)-1)
	}
	return v, true, nil
}

// view is what the tests that a mesh carries run on.
func (l *liveTests) view(ctx context.Context, mesh resource.MeshName) (policy.View, error) {
	err := l.load(ctx, mesh)
	return l.stored, err
}

// Dataplanes implements expectation.Source.
func (l *liveTests) Dataplanes(ctx context.Context, mesh resource.MeshName) ([]expectation.Dataplane, error) {
	if err := l.load(ctx, mesh); err != nil {
		return nil, err
	}
	return l.Offline.Dataplanes(ctx, mesh)
}

// Connections implements expectation.Source.
func (l *liveTests) Connections(ctx context.Context, mesh resource.MeshName, each func(*expectation.Connection) bool) error {
	if err := l.load(ctx, mesh); err != nil {
		return err
	}
	return l.Offline.Connections(ctx, mesh, each)
}

// Routes implements expectation.Source.
func (l *liveTests) Routes(ctx context.Context, mesh resource.MeshName) ([]*answer.RouteAnswer, error) {
	if err := l.load(ctx, mesh); err != nil {
		return nil, err
	}
	return l.Offline.Routes(ctx, mesh)
}

// oneLine keeps what a test's author writes on its line: systems that run pipelines take
// lines of a log as commands to them.
func oneLine(text string) string { return strings.ReplaceAll(text, "\n", `\n`) }

func (a *app) printTests(f print.Format, report *expectation.Report) error {
	if f.Structured() {
		return a.WriteValue(f, report)
	}
	var b bytes.Buffer
	for i := range report.Cases {
		if c := &report.Cases[i]; !c.OK {
			fmt.Fprintf(&b, "FAIL  %s\n      %s:%d: %s\n", oneLine(c.Name), oneLine(c.File), c.Line, oneLine(c.Message))
		}
	}
	fmt.Fprintf(&b, "%s passed, %d failed\n", print.Plural(report.Passed, "case"), report.Failed)
	if c := report.Coverage; c != nil {
		fmt.Fprintf(&b, "%d of %d policies decide what a case expects\n", c.Tested, c.Policies)
		if len(c.Untested) > 0 {
			t := texttable.New("  ", "KIND", "MESH", "NAME")
			for _, p := range c.Untested {
				t.Add(string(p.Kind), string(p.Mesh), p.Name)
			}
			b.WriteString("not tested:\n")
			b.WriteString(t.String(0))
		}
	}
	return a.Output(b.Bytes())
}
