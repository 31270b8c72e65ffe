package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

const (
	// partBytes bounds a batch of --in-batches, unless one resource is larger. A
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

// keyed is what batches are made of: resources to write, or keys to delete.
type keyed interface{ Key() resource.Key }

// partAnswer is what the server says of a batch.
type partAnswer struct {
	results         []*meridianv1.Result
	revision        uint64
	warnings, notes []string
	findings        []*meridianv1.Finding
}

// batches is a command under way that changes more than one atomic batch holds, as several
// of them, one after the other.
type batches[T keyed] struct {
	*app
	client *client.Client
	output print.Format
	words  batchWords
	// send makes the change of one batch.
	send func(ctx context.Context, part []T) (*partAnswer, error)
	// view is a batch as JSON.
	view  func(part []T, answer *partAnswer) any
	all   [][]T
	total int // resources

	done     int // batches that are written
	written  int // resources in them
	revision uint64
	views    []any
	results  []*meridianv1.Result // for JSON
	findings []findingView
	// said are the warnings and notes that were printed.
	said map[string]bool
	more int // how many were not
	line bool
	// missing is how many resources to delete are not stored; nil where none are deleted.
	missing *int
}

// batchWords are what differs in what commands say.
type batchWords struct {
	// changed is what becomes of resources, "written" or "deleted", and heading the same at
	// the beginning of a line.
	changed, heading string
	// warning is what else to know before the first batch, or empty; again is what becomes of
	// what is changed already when the command is repeated.
	warning, again string
}

// cutParts divides an ordered list into batches of at most so many, and of at most
// partBytes by a measure unless one is larger.
func cutParts[T any](ordered []T, most int, size func(T) int) [][]T {
	var parts [][]T
	begin, bytes := 0, 0
	for i, r := range ordered {
		n := size(r)
		if i > begin && (bytes+n > partBytes || i-begin == most) {
			parts = append(parts, ordered[begin:i])
			begin, bytes = i, 0
		}
		bytes += n
	}
	if begin < len(ordered) {
		parts = append(parts, ordered[begin:])
	}
	return parts
}

// announce says that this is no atomic change, and asks about it on a terminal unless yes
// answers, or stdin is the input.
func (p *batches[T]) announce(ctx context.Context, yes, stdin bool) error {
	if len(p.all) == 1 {
		p.Message("Note: everything fits into one batch, which is %s whole or not at all.", p.words.changed)
	} else {
		p.Message("This is not one atomic change: %s are %s in %s, one after the other, and others see what is between. If one fails, those before it stay %s.%s",
			print.Plural(p.total, "resource"), p.words.changed, print.Plural(len(p.all), "batch"), p.words.changed, p.words.warning)
	}
	if yes || !p.asks(stdin) {
		return nil
	}
	return p.confirm(ctx, false, false)
}

// run makes the changes and prints what became of them.
func (p *batches[T]) run(ctx context.Context) error {
	failed := p.sendAll(ctx)
	p.endLine()
	if p.more > 0 {
		p.Message("Note: %s more of other causes.", print.Plural(p.more, "warning"))
	}
	if err := p.print(failed == nil); err != nil {
		return err
	}
	if failed != nil {
		return p.explain(failed)
	}
	return nil
}

// sendAll sends the batches that are left. The error is of the first that failed.
func (p *batches[T]) sendAll(ctx context.Context) error {
	for p.done < len(p.all) {
		if err := ctx.Err(); err != nil {
			return &notSent{err}
		}
		part := p.all[p.done]
		answer, err := p.send(ctx, part)
		if len(part) > 1 && tooLarge(err) {
			// What it removes is larger than the server lets a batch be.
			half := len(part) / 2
			p.all = slices.Replace(p.all, p.done, p.done+1, part[:half], part[half:])
			continue
		}
		if err != nil {
			return err
		}
		p.done, p.written, p.revision = p.done+1, p.written+len(part), max(p.revision, answer.revision)
		p.views = append(p.views, p.view(part, answer))
		p.tellPart(answer)
		p.progress()
		if err := p.printPart(answer.results); err != nil {
			return err
		}
	}
	return nil
}

// notSent is the end of a command between two batches.
type notSent struct{ cause error }

func (e *notSent) Error() string { return e.cause.Error() }
func (e *notSent) Unwrap() error { return e.cause }

// tellPart prints what the server says of a batch, once where it says it of several.
func (p *batches[T]) tellPart(answer *partAnswer) {
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
	for _, warning := range answer.warnings {
		tell(warning, func() { p.Warn(warning) })
	}
	for _, note := range answer.notes {
		tell(note, func() { p.Message("Note: %s", note) })
	}
	if p.output.Structured() {
		p.results = append(p.results, answer.results...)
		p.findings = append(p.findings, viewFindings(answer.findings)...)
	}
}

// progress says how far it is: on a terminal in one line, else in one of every few
// batches.
func (p *batches[T]) progress() {
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
func (p *batches[T]) endLine() {
	if p.line {
		_, _ = fmt.Fprintln(p.Stderr)
		p.line = false
	}
}

// printPart prints what became of a batch, unless it is printed at the end.
func (p *batches[T]) printPart(results []*meridianv1.Result) error {
	if p.output.Structured() {
		return nil
	}
	if print.IsTerminal(p.Stdout) {
		p.endLine()
	}
	return p.Output([]byte(resultLines(p.output, results)))
}

// print prints what is known in the end.
func (p *batches[T]) print(complete bool) error {
	f := p.output
	if f.Structured() {
		return p.WriteValue(f, struct {
			Results  []resultView  `json:"results"`
			Revision uint64        `json:"revision"`
			Complete bool          `json:"complete"`
			Batches  []any         `json:"batches"`
			Missing  *int          `json:"missing,omitempty"`
			Findings []findingView `json:"findings,omitempty"`
		}{viewResults(p.results), p.revision, complete, append([]any{}, p.views...), p.missing, p.findings})
	}
	if f == print.FormatName || p.done == 0 {
		return nil
	}
	return p.Output(fmt.Appendf(nil, "revision %d\n", p.revision))
}

// explain says what was written, what was not, and how to continue.
func (p *batches[T]) explain(err error) error {
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
		f.Details = append(f.Details, "No batch was "+p.words.changed+" before it.")
	} else {
		f.Details = append(f.Details, fmt.Sprintf("%s: %s before it, %d of %d resources, the last at revision %d.",
			p.words.heading, print.Plural(p.done, "batch"), p.written, p.total, p.revision))
	}
	part := p.all[p.done]
	what := fmt.Sprintf("%s, from %s to %s", print.Plural(len(part), "resource"), part[0].Key(), part[len(part)-1].Key())
	if unknownEffect(err, between != nil) {
		f.Details = append(f.Details, fmt.Sprintf("Not known: whether %s was %s, whole or not at all (%s).", at, p.words.changed, what))
	} else {
		f.Details = append(f.Details, fmt.Sprintf("Not %s: %s (%s).", p.words.changed, at, what))
	}
	if left := len(p.all) - p.done - 1; left > 0 {
		f.Details = append(f.Details, fmt.Sprintf("Not sent: %s after it, %s.", print.Plural(left, "batch"), print.Plural(p.total-p.written-len(part), "resource")))
	}
	f.Details = append(f.Details, "To continue, repeat the command: "+p.words.again)
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

func tooLarge(err error) bool {
	return slices.ContainsFunc(largeReasons, func(reason string) bool { return rpcerr.HasReason(err, reason) })
}

// explainTooLarge names the command that does in several batches what does not fit into one.
func explainTooLarge(err error, command string) error {
	if !tooLarge(err) {
		return err
	}
	report := exit.Explain(err)
	return &exit.Failure{Code: report.Code, Err: errors.New(firstLine(report)), Details: append(report.Lines[min(1, len(report.Lines)):],
		command+" as several batches, which are not one atomic change.")}
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
