package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

const (
	// partBytes bounds a batch of apply --in-batches, unless one resource is larger. A
	// batch holds up other writes while it is decided and applied, so it is far smaller
	// than the largest that there may be.
	partBytes = 1 << 20
	// partResources bounds its resources, by default.
	partResources = 4096
	// progressEvery is how many batches a line of progress is about, where standard error is
	// no terminal.
	progressEvery = 20
	// maxPartWarnings bounds the warnings and notes that are printed of all batches.
	maxPartWarnings = 50
)

// checkInBatches refuses what is about one batch.
func (o *applyOptions) checkInBatches() error {
	switch {
	case !o.inBatches:
		return nil
	case len(o.ifVersion) > 0:
		return exit.Usagef("--if-version is a condition on one atomic batch, and --in-batches writes several: leave one of them out")
	case o.rollout.flags.Changed("rollout"):
		return exit.Usagef("a rollout is one change, and --in-batches writes several: leave --rollout or --in-batches out")
	case o.dryRun == "server":
		return exit.Usagef("--dry-run=server decides one batch, and those of --in-batches build on each other: use --dry-run=client, which checks every document")
	}
	return nil
}

// ranks order the kinds that others refer to: a batch contains nothing that a later one
// has to be stored for. Access rules are last but one, so that the caller's rights are
// the same until everything else is written, as for one batch; tests of meshes are last,
// so that they are run on everything.
var ranks = map[resource.Kind]int{
	resource.KindMesh: 0, resource.KindNamespace: 1, resource.KindZone: 1, resource.KindSigningKey: 1,
	resource.KindGlobalSecret: 1, resource.KindSecret: 1, resource.KindDataplane: 2,
	resource.KindGateway: 2, resource.KindMeshGateway: 2,
	resource.KindHTTPRoute: 3, resource.KindGRPCRoute: 3, resource.KindMeshGatewayRoute: 3,
	resource.KindAccessRole: 5, resource.KindAccessRoleBinding: 6, resource.KindMeshTest: 7,
}

// rankOfOthers is the rank of every other kind.
const rankOfOthers = 4

func rankOf(kind resource.Kind) int {
	if rank, ok := ranks[kind]; ok {
		return rank
	}
	return rankOfOthers
}

// inParts divides resources into batches, in the order in which they can be written, and
// otherwise in their own. A batch has at most so many.
func inParts(resources []*resource.Resource, most int) [][]*resource.Resource {
	ordered := slices.Clone(resources)
	slices.SortStableFunc(ordered, func(a, b *resource.Resource) int {
		return cmp.Compare(rankOf(a.Key().Kind), rankOf(b.Key().Kind))
	})
	var parts [][]*resource.Resource
	begin, size := 0, 0
	for i, r := range ordered {
		n := proto.Size(client.Encode(r))
		if i > begin && (size+n > partBytes || i-begin == most) {
			parts = append(parts, ordered[begin:i])
			begin, size = i, 0
		}
		size += n
	}
	if begin < len(ordered) {
		parts = append(parts, ordered[begin:])
	}
	return parts
}

// partView is a batch that was written, as JSON.
type partView struct {
	Revision  uint64 `json:"revision"`
	Resources int    `json:"resources"`
	Created   int    `json:"created"`
	Updated   int    `json:"updated"`
	Unchanged int    `json:"unchanged"`
}

// parts is an apply in several batches under way.
type parts struct {
	*app
	client  *client.Client
	options *applyOptions
	all     [][]*resource.Resource
	total   int // resources

	done     int // batches that are written
	written  int // resources in them
	revision uint64
	views    []partView
	results  []*meridianv1.Result // for JSON
	findings []findingView
	// said are the warnings and notes that were printed.
	said map[string]bool
	more int // how many were not
	line bool
}

// applyInBatches writes resources as several batches, one after the other.
func (a *app) applyInBatches(ctx context.Context, o *applyOptions, resources []*resource.Resource) error {
	p := &parts{app: a, options: o, all: inParts(resources, a.partResources), total: len(resources), said: map[string]bool{}}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	p.client = c
	a.noteTimes(resources, o.keepTimes)
	if err := p.checkMeshes(ctx); err != nil {
		return err
	}
	if err := p.announce(ctx); err != nil {
		return err
	}
	failed := p.write(ctx)
	p.endLine()
	if p.more > 0 {
		a.Message("Note: %s more of other causes.", print.Plural(p.more, "warning"))
	}
	if err := p.print(failed == nil); err != nil {
		return err
	}
	if failed != nil {
		return p.explain(failed)
	}
	if o.wait == "" {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	return a.waitForZones(bounded, c, &meridianv1.WaitForZonesRequest{Revision: p.revision, ConnectedOnly: o.connectedOnly, Enforced: o.wait == "enforced"})
}

// announce says that this is no atomic change, and asks about it on a terminal.
func (p *parts) announce(ctx context.Context) error {
	if len(p.all) == 1 {
		p.Message("Note: everything fits into one batch, which is written whole or not at all.")
	} else {
		p.Message("This is not one atomic change: %s are written in %s, one after the other, and others see what is between. If one fails, those before it stay written. What it takes away is not looked at beforehand.",
			print.Plural(p.total, "resource"), print.Plural(len(p.all), "batch"))
	}
	if p.options.yes || !p.asks(p.options.files.stdin()) {
		return nil
	}
	return p.confirm(ctx, false, false)
}

// checkMeshes finds meshes that are neither in the input nor stored, before anything is
// written. A mesh that the caller may not read is left to the batch that needs it.
func (p *parts) checkMeshes(ctx context.Context) error {
	first := map[resource.MeshName]resource.Key{}
	given := map[resource.MeshName]bool{}
	for _, part := range p.all {
		for _, r := range part {
			key := r.Key()
			if key.Kind == resource.KindMesh {
				given[resource.MeshName(key.Name)] = true
			}
			if _, seen := first[key.Mesh]; !seen && key.Mesh != "" {
				first[key.Mesh] = key
			}
		}
	}
	var missing []string
	for _, mesh := range slices.Sorted(maps.Keys(first)) {
		if given[mesh] {
			continue
		}
		_, err := client.Ask(ctx, p.client, (*client.Client).Get, &meridianv1.GetRequest{Key: messageKey(resource.Key{Kind: resource.KindMesh, Name: string(mesh)})})
		switch code := rpcerr.CodeOf(err); {
		case code == rpcerr.NotFound:
			missing = append(missing, fmt.Sprintf("  mesh %q, which %s is in", mesh, first[mesh]))
		case err != nil && code != rpcerr.Denied:
			return err
		}
	}
	if len(missing) == 0 {
		return nil
	}
	f := exit.Failf(exit.Usage, "%s neither in the input nor stored; nothing was written", isOrAre(len(missing), "mesh"))
	f.Details = append(missing[:min(len(missing), maxProblemsListed):min(len(missing), maxProblemsListed)],
		"To create one, add {type: Mesh, name: NAME} to the input.")
	return f
}

func isOrAre(n int, what string) string {
	if n == 1 {
		return print.Plural(n, what) + " is"
	}
	return print.Plural(n, what) + " are"
}

// write writes the batches that are left. The error is of the first that could not be.
func (p *parts) write(ctx context.Context) error {
	for _, part := range p.all {
		if err := ctx.Err(); err != nil {
			return &notSent{err}
		}
		response, err := p.writeOne(ctx, part)
		if err != nil {
			return err
		}
		view := partView{Revision: response.GetRevision(), Resources: len(part)}
		for _, r := range response.GetResults() {
			switch r.GetOutcome() {
			case meridianv1.Outcome_OUTCOME_CREATED:
				view.Created++
			case meridianv1.Outcome_OUTCOME_UPDATED:
				view.Updated++
			default:
				view.Unchanged++
			}
		}
		p.done, p.written, p.revision = p.done+1, p.written+len(part), max(p.revision, view.Revision)
		p.views = append(p.views, view)
		p.tellPart(response)
		p.progress()
		if err := p.printPart(response.GetResults()); err != nil {
			return err
		}
	}
	return nil
}

// notSent is the end of an apply between two batches.
type notSent struct{ cause error }

func (e *notSent) Error() string { return e.cause.Error() }
func (e *notSent) Unwrap() error { return e.cause }

// writeOne writes a batch. Where documents carry versions that are not the stored ones
// any more because an earlier run has written these documents, that is no conflict.
func (p *parts) writeOne(ctx context.Context, part []*resource.Resource) (*meridianv1.ApplyResponse, error) {
	var conditions []*meridianv1.VersionCondition
	if !p.options.force {
		conditions = documentVersions(part, nil)
	}
	response, err := p.sendPart(ctx, part, conditions)
	if len(conditions) == 0 || !rpcerr.HasReason(err, "VERSION_CONFLICT") {
		return response, err
	}
	written, failed := p.writtenBefore(ctx, part)
	if failed != nil || len(written) == 0 {
		return nil, err
	}
	for _, c := range conditions {
		k := c.GetKey()
		if stored := written[resource.Key{Kind: resource.Kind(k.GetKind()), Mesh: resource.MeshName(k.GetMesh()), Name: k.GetName()}]; stored != nil {
			c.Version, c.Revision, c.OrMissing = stored.GetVersion(), stored.GetRevision(), false
		}
	}
	return p.sendPart(ctx, part, conditions)
}

func (p *parts) sendPart(ctx context.Context, part []*resource.Resource, conditions []*meridianv1.VersionCondition) (*meridianv1.ApplyResponse, error) {
	o := p.options
	request := &meridianv1.ApplyRequest{RequestId: rand.Text(), IfVersions: conditions, Force: o.force, KeepTimes: o.keepTimes, SkipTests: o.skipTests}
	for _, r := range part {
		message := client.Encode(r)
		if o.keepTimes {
			client.EncodeTimes(message, r)
		}
		request.Resources = append(request.Resources, message)
	}
	return client.Ask(ctx, p.client, (*client.Client).ApplyBatch, request)
}

// writtenBefore are the resources of a batch with a version that are stored as their
// documents have them.
func (p *parts) writtenBefore(ctx context.Context, part []*resource.Resource) (map[resource.Key]*meridianv1.Resource, error) {
	found := map[resource.Key]*meridianv1.Resource{}
	for _, r := range part {
		if r.Meta().Version == 0 {
			continue
		}
		response, err := client.Ask(ctx, p.client, (*client.Client).Get, &meridianv1.GetRequest{Key: messageKey(r.Key())})
		if rpcerr.CodeOf(err) == rpcerr.NotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		stored := response.GetResource()
		if string(stored.GetSpec()) == string(r.Canonical()) && maps.Equal(stored.GetLabels(), r.Meta().Labels) {
			found[r.Key()] = stored
		}
	}
	return found, nil
}

// tellPart prints what the server says of a batch, once where it says it of several.
func (p *parts) tellPart(response *meridianv1.ApplyResponse) {
	tell := func(text string, write func()) {
		switch {
		case p.said[text]:
		case len(p.said) == maxPartWarnings:
			p.more++
		default:
			p.said[text] = true
			p.endLine()
			write()
		}
	}
	for _, warning := range response.GetWarnings() {
		tell(warning, func() { p.Warn(warning) })
	}
	for _, note := range response.GetNotes() {
		tell(note, func() { p.Message("Note: %s", note) })
	}
	if p.options.output.Value.Structured() {
		p.results = append(p.results, response.GetResults()...)
		p.findings = append(p.findings, viewFindings(response.GetFindings())...)
	}
}

// progress says how far it is: on a terminal in one line, else in one of every few
// batches.
func (p *parts) progress() {
	if len(p.all) == 1 {
		return
	}
	text := fmt.Sprintf("%d of %d batches, %d of %d resources (%d %%), revision %d",
		p.done, len(p.all), p.written, p.total, 100*p.written/p.total, p.revision)
	switch {
	case print.IsTerminal(p.Stderr):
		_, _ = fmt.Fprintf(p.Stderr, "\r\x1b[K%s", text)
		p.line = true
	case p.done%progressEvery == 0 || p.done == len(p.all):
		p.Message("%s", text)
	}
}

// endLine ends a line of progress.
func (p *parts) endLine() {
	if p.line {
		_, _ = fmt.Fprintln(p.Stderr)
		p.line = false
	}
}

// printPart prints what became of a batch, unless it is printed at the end.
func (p *parts) printPart(results []*meridianv1.Result) error {
	if p.options.output.Value.Structured() {
		return nil
	}
	if print.IsTerminal(p.Stdout) {
		p.endLine()
	}
	return p.Output([]byte(resultLines(p.options.output.Value, results)))
}

// print prints what is known in the end.
func (p *parts) print(complete bool) error {
	f := p.options.output.Value
	if f.Structured() {
		return p.WriteValue(f, struct {
			Results  []resultView  `json:"results"`
			Revision uint64        `json:"revision"`
			Complete bool          `json:"complete"`
			Batches  []partView    `json:"batches"`
			Findings []findingView `json:"findings,omitempty"`
		}{viewResults(p.results), p.revision, complete, append([]partView{}, p.views...), p.findings})
	}
	if f == print.FormatName || p.done == 0 {
		return nil
	}
	return p.Output(fmt.Appendf(nil, "revision %d\n", p.revision))
}

// explain says what was written, what was not, and how to continue.
func (p *parts) explain(err error) error {
	var between *notSent
	report := exit.Explain(err)
	at := fmt.Sprintf("batch %d of %d", p.done+1, len(p.all))
	headline := fmt.Sprintf("%s: %s", at, firstLine(report))
	if errors.As(err, &between) || report.Code == exit.Interrupted {
		headline = "interrupted at " + at
	}
	f := &exit.Failure{Code: report.Code, Err: errors.New(headline)}
	for _, line := range report.Lines[min(1, len(report.Lines)):] {
		if !slices.Contains(effectLines, line) {
			f.Details = append(f.Details, line)
		}
	}
	if p.done == 0 {
		f.Details = append(f.Details, "No batch was written before it.")
	} else {
		f.Details = append(f.Details, fmt.Sprintf("Written: %s before it, %d of %d resources, the last at revision %d.",
			print.Plural(p.done, "batch"), p.written, p.total, p.revision))
	}
	part := p.all[p.done]
	what := fmt.Sprintf("%s, from %s to %s", print.Plural(len(part), "resource"), part[0].Key(), part[len(part)-1].Key())
	if unknownEffect(err, between != nil) {
		f.Details = append(f.Details, fmt.Sprintf("Not known: whether %s was written, whole or not at all (%s).", at, what))
	} else {
		f.Details = append(f.Details, fmt.Sprintf("Not written: %s (%s).", at, what))
	}
	if left := len(p.all) - p.done - 1; left > 0 {
		f.Details = append(f.Details, fmt.Sprintf("Not sent: %s after it, %s.", print.Plural(left, "batch"), print.Plural(p.total-p.written-len(part), "resource")))
	}
	f.Details = append(f.Details, "To continue, repeat the command: what is written already is unchanged then, and not written again.")
	return f
}

// firstLine is the message of a report.
func firstLine(r exit.Report) string { return strings.Join(r.Lines[:min(1, len(r.Lines))], "") }

// effectLines are those of exit.Effect, in place of which more is said.
var effectLines = slices.Concat(
	exit.Effect(rpcerr.WithEffect(rpcerr.New(rpcerr.Unavailable, "", ""), rpcerr.EffectUnknown)),
	exit.Effect(rpcerr.WithEffect(rpcerr.New(rpcerr.Unavailable, "", ""), rpcerr.EffectNone)),
)

// unknownEffect reports whether the batch that failed may have been written.
func unknownEffect(err error, between bool) bool {
	if between {
		return false
	}
	var f *exit.Failure
	switch code := rpcerr.CodeOf(err); {
	case rpcerr.EffectOf(err) == rpcerr.EffectNone:
		return false
	case rpcerr.EffectOf(err) == rpcerr.EffectUnknown, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return true
	case errors.As(err, &f):
		return f.Code == exit.Timeout || f.Code == exit.Unavailable || f.Code == exit.Interrupted
	default:
		return !slices.Contains([]rpcerr.Code{rpcerr.Invalid, rpcerr.Conflict, rpcerr.Denied, rpcerr.Unauthenticated, rpcerr.NotFound, rpcerr.OutOfRange, rpcerr.TooLarge, rpcerr.Unsupported}, code)
	}
}

// largeReasons are why a batch that is too large is refused, by the size of its message
// or of its resources.
var largeReasons = []string{"REQUEST_TOO_LARGE", "BATCH_TOO_LARGE"}

// explainTooLarge says how to write what does not fit into one batch.
func explainTooLarge(err error) error {
	if !slices.ContainsFunc(largeReasons, func(reason string) bool { return rpcerr.HasReason(err, reason) }) {
		return err
	}
	report := exit.Explain(err)
	return &exit.Failure{Code: report.Code, Err: errors.New(firstLine(report)), Details: append(report.Lines[min(1, len(report.Lines)):],
		"`meridian apply --in-batches` writes it as several batches, which are not one atomic change.")}
}

// resultLines are lines for people of what became of resources.
func resultLines(f print.Format, results []*meridianv1.Result) string {
	var b strings.Builder
	for _, r := range results {
		b.WriteString(r.GetKind() + "/" + shownName(r))
		if f != print.FormatName {
			b.WriteString(" " + outcomeWord(r.GetOutcome()))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func viewResults(results []*meridianv1.Result) []resultView {
	views := make([]resultView, len(results))
	for i, r := range results {
		views[i] = resultView{r.GetKind(), r.GetMesh(), r.GetName(), outcomeWord(r.GetOutcome()), r.GetVersion()}
	}
	return views
}
