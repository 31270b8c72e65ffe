package cli

import (
	"github.com/spf13/cobra"

	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/condition"
	"meridian/internal/policy/engines"
	"meridian/internal/question"
	"meridian/internal/resource"
	"meridian/internal/xds/world"
)

// defaultZone is the zone of dataplanes in files that name none.
const defaultZone = "default"

func newEvalCommand(a *app) *cobra.Command {
	from := map[*cobra.Command]*sources{}
	qs := &questions{
		group: "eval", source: " -f policies/ -f dataplanes/",
		ask: func(cmd *cobra.Command, q question.Question, mesh, zone string, f print.Format) error {
			document, names, err := a.evaluate(q, from[cmd], mesh, zone)
			if err != nil {
				return err
			}
			return a.printAnswer(f, q, document, names)
		},
		bind: func(cmd *cobra.Command, zone *string) {
			from[cmd] = bindSources(cmd)
			cmd.Flags().StringVar(zone, "zone", "", "zone of dataplanes that name none (default \""+defaultZone+"\")")
		},
	}
	group := newGroup("eval", "Show effective policies from files, without a server", qs.commands()...)
	group.Long = `Answer the questions of inspect from files, without a server. The matching engine
is that of the zones, so the JSON is the same byte for byte; asOf is 0.`
	group.Example = `  meridian eval dataplane web-1 -f policies/ -f dataplanes/
  meridian eval connection --from web-1 --to backend-1 -f . -o json
  meridian eval route checkout -f gateways/ -f policies/`
	return group
}

// evaluate answers a question from files. It returns the document, and how names in it
// are shown.
func (a *app) evaluate(q question.Question, from *sources, mesh, zone string) ([]byte, answer.Names, error) {
	matcher, in, err := a.loadMatcher(from, mesh, zone)
	if err != nil {
		return nil, nil, err
	}
	answered, err := question.Answer(q, question.Fixed{Matcher: matcher}, question.At{Mesh: resource.MeshName(mesh), Zone: in})
	return answered.Document, answered.Shown, err
}

// loadMatcher reads files as a zone would hold them. It returns the zone of
// dataplanes that name none.
func (a *app) loadMatcher(from *sources, mesh, zoneFlag string) (*policy.Matcher, resource.ZoneName, error) {
	// -m is about the question here; the documents may be of several meshes.
	documents, err := a.loadDocuments(from, resource.DecodeOptions{Mesh: resource.MeshName(mesh)})
	if err != nil {
		return nil, "", err
	}
	a.advise(remarksOf(documents))
	return matcherOf(resourcesOf(documents), zoneFlag)
}

// matcherOf returns a matcher of resources as a zone would hold them, and the zone of
// dataplanes that name none.
func matcherOf(resources []*resource.Resource, zoneFlag string) (*policy.Matcher, resource.ZoneName, error) {
	zone, strict := resource.ZoneName(zoneFlag), zoneFlag != ""
	if !strict {
		zone = defaultZone
	}
	view, err := policy.Offline(resources, zone, strict)
	if err != nil {
		return nil, "", &exit.Failure{Code: exit.Usage, Err: err}
	}
	compiler, err := condition.NewCompiler(condition.DefaultOptions())
	if err != nil {
		return nil, "", err
	}
	matcher := engines.NewMatcher(compiler).Following(world.New(zone))
	matcher.Reset(view)
	return matcher, zone, nil
}
