package cli

import (
	"github.com/spf13/cobra"

	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/condition"
	"meridian/internal/policy/engines"
	"meridian/internal/resource"
)

// defaultZone is the zone of dataplanes in files that name none.
const defaultZone = "default"

// offline is where eval and why find resources when no server is asked.
type offline struct {
	files []string
	zone  string
}

func newEvalCommand(a *app) *cobra.Command {
	files := &offline{}
	ask := func(cmd *cobra.Command, q *question, f print.Format) error {
		files.zone = q.zone
		matcher, zone, err := a.loadMatcher(files, q.mesh)
		if err != nil {
			return err
		}
		document, err := q.answer(matcher, zone)
		if err != nil {
			return err
		}
		return a.printOffline(f, q.subject, document)
	}
	extend := func(cmd *cobra.Command, q *question) {
		bindFiles(cmd, &files.files)
		cmd.Flags().StringVar(&q.zone, "zone", "", "the zone of dataplanes that name none (default \""+defaultZone+"\")")
	}
	group := newGroup("eval", "Answer the same questions from files, without any server", questionCommands(ask, extend)...)
	group.Long = `Answer the same questions as inspect from files, without any server. Matching is
the zones' own, so the answer is the same to the byte; asOf is 0.`
	group.Example = `  meridian eval dataplane web-1 -f policies/ -f dataplanes/
  meridian eval connection --from web-1 --to backend-1 -f . -o json
  meridian eval route checkout -f gateways/ -f policies/`
	return group
}

// loadMatcher reads files as a zone would hold them. It returns the zone of
// dataplanes that name none.
func (a *app) loadMatcher(o *offline, mesh string) (*policy.Matcher, resource.ZoneName, error) {
	if len(o.files) == 0 {
		return nil, "", exit.Usagef("-f is required: the file or directory to read, or - for standard input")
	}
	// -m is about the question here; the documents may be of several meshes.
	documents, err := a.loadDocuments(o.files, resource.DecodeOptions{Mesh: resource.MeshName(mesh)})
	if err != nil {
		return nil, "", err
	}
	a.warnAbout(documents)
	zone, strict := resource.ZoneName(o.zone), o.zone != ""
	if !strict {
		zone = defaultZone
	}
	view, err := policy.Offline(resourcesOf(documents), zone, strict)
	if err != nil {
		return nil, "", &exit.Failure{Code: exit.Usage, Err: err}
	}
	compiler, err := condition.NewCompiler(condition.DefaultOptions())
	if err != nil {
		return nil, "", err
	}
	matcher := engines.NewMatcher(compiler)
	matcher.Reset(view)
	return matcher, zone, nil
}

// answer answers the question from a matcher.
func (q *question) answer(m *policy.Matcher, zone resource.ZoneName) (any, error) {
	mesh := resource.MeshName(q.mesh)
	switch q.subject {
	case aboutConnection:
		return answer.Connection(m, answer.ConnectionQuestion{
			Mesh: mesh, From: q.from, FromTags: q.fromTags, To: q.to, Port: q.port,
		}, 0)
	case aboutRoute:
		return answer.Route(m, mesh, q.name, 0)
	case aboutRules:
		return answer.PolicyRules(m, q.kind.Kind, mesh, q.name, q.rule, zone, 0)
	case aboutPolicy:
		return answer.Policy(m, q.kind.Kind, mesh, q.name, zone, 0)
	default:
		return answer.Dataplane(m, mesh, q.name, zone, 0)
	}
}

// printOffline prints a document as a server would have sent it.
func (a *app) printOffline(f print.Format, about subject, document any) error {
	text, err := answer.Marshal(document)
	if err != nil {
		return err
	}
	return a.printAnswer(f, about, text)
}
