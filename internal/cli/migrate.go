package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/atomicfile"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/migrate"
	"meridian/internal/resource"
)

// migration are the flags of `meridian migrate`.
type migration struct {
	to, out, zone  string
	live, unproven bool
	output         *print.FormatFlag
}

// toTargetRef is what policies are translated into by default.
const toTargetRef = "targetref"

func newMigrateCommand(a *app) *cobra.Command {
	var o migration
	cmd := &cobra.Command{
		Use:   "migrate -f FILE|DIR",
		Short: "Translate policies, and prove that nothing changes",
		Long: `Translate source/destination policies into those with a targetRef, or a mesh from
FirstWins to LastWins and back (--to), and prove on every dataplane and connection
of the documents, or of the control plane with --live, that the effective
configuration stays the same. The first place that differs is shown, with the
reasons of both sides. The translated documents go to standard output, or with
--out to a directory.

What cannot be translated is named, and stays as it is. Unless everything is
translated and proven, the exit code is 1 and nothing is written without
--write-anyway. docs/policies/migrate.md tells how it is done.`,
		Example: `  meridian migrate -f policies/ -f dataplanes/ --out translated/
  meridian migrate -f policies/ --live --to LastWins`,
		Args: exactly(),
	}
	from := bindSources(cmd)
	mesh := bindMesh(cmd)
	cmd.Flags().StringVar(&o.to, "to", toTargetRef, "what to translate into: "+toTargetRef+", "+resource.FirstWins+" or "+resource.LastWins)
	cmd.Flags().StringVar(&o.out, "out", "", "directory to write the documents to, a file for each that was read; it must not exist or be empty")
	cmd.Flags().StringVar(&o.zone, "zone", "", "zone of dataplanes that name none (default \""+defaultZone+"\")")
	cmd.Flags().BoolVar(&o.live, "live", false, "compare on the dataplanes of the control plane, which is a zone")
	cmd.Flags().BoolVar(&o.unproven, "write-anyway", false, "write also what is not proven, or not completely translated")
	o.output = print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatJSON, print.FormatYAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkZone(o.zone); err != nil {
			return err
		}
		if o.to != toTargetRef && o.to != resource.FirstWins && o.to != resource.LastWins {
			return exit.Usagef("--to %q: write %s, %s or %s", o.to, toTargetRef, resource.FirstWins, resource.LastWins)
		}
		documents, err := a.load(from, mesh)
		if err == nil {
			err = checkConditions(documents)
		}
		if err != nil {
			return err
		}
		return a.migrate(cmd, documents, &o)
	}
	return cmd
}

// migratedView is what became of one document, as JSON.
type migratedView struct {
	Source string   `json:"source"`
	Line   int      `json:"line"`
	Kind   string   `json:"kind"`
	Mesh   string   `json:"mesh,omitempty"`
	Name   string   `json:"name"`
	Result string   `json:"result"` // "unchanged", "translated" or "refused"
	Into   []string `json:"into,omitempty"`
	Field  string   `json:"field,omitempty"`
	Reason string   `json:"reason,omitempty"`
}

func (a *app) migrate(cmd *cobra.Command, documents []resource.Document, o *migration) error {
	all := resourcesOf(documents)
	var m *migrate.Migration
	if o.to == toTargetRef {
		m = migrate.ToTargetRef(all)
	} else {
		m = migrate.Reorder(all, o.to)
	}
	before, after := all, m.After
	if o.live {
		dataplanes, err := a.liveDataplanes(cmd)
		if err != nil {
			return err
		}
		before, after = onDataplanes(before, dataplanes), onDataplanes(after, dataplanes)
	}
	proof, err := migrate.Prove(cmd.Context(), zoneOr(o.zone), before, after)
	if err != nil {
		return &exit.Failure{Code: exit.Usage, Err: err}
	}
	views := []migratedView{}
	for i, r := range m.Results {
		key := r.Resource.Key()
		v := migratedView{Source: documents[i].Source, Line: documents[i].Line, Kind: string(key.Kind), Mesh: string(key.Mesh), Name: key.Name, Result: "unchanged"}
		switch {
		case r.Reason != "":
			v.Result, v.Field, v.Reason = "refused", string(r.Path), r.Reason
		case len(r.Into) != 1 || r.Into[0] != r.Resource:
			v.Result = "translated"
			for _, into := range r.Into {
				v.Into = append(v.Into, into.Key().String())
			}
		}
		views = append(views, v)
	}
	proven := proof.Counterexample == nil && proof.Dataplanes > 0 && len(m.Refused()) == 0
	if (proven || o.unproven) && o.out != "" {
		if err := writeMigrated(o.out, documents, m); err != nil {
			return err
		}
	}
	if err := a.printMigration(views, proof, m, documents, o, proven); err != nil {
		return err
	}
	if !proven {
		return exit.ErrNo
	}
	return nil
}

func (a *app) printMigration(views []migratedView, proof *migrate.Proof, m *migrate.Migration, documents []resource.Document, o *migration, proven bool) error {
	if o.output.Value.Structured() {
		return a.WriteValue(o.output.Value, struct {
			Documents []migratedView `json:"documents"`
			Proof     *migrate.Proof `json:"proof"`
		}{views, proof})
	}
	translated := 0
	for i := range views {
		v := &views[i]
		switch v.Result {
		case "translated":
			translated++
		case "refused":
			a.Warn(fmt.Sprintf("%s:%d: %s: not translated: %s", v.Source, v.Line,
				resource.Key{Kind: resource.Kind(v.Kind), Mesh: resource.MeshName(v.Mesh), Name: v.Name}, resource.Problem{Path: resource.Path(v.Field), Message: v.Reason}))
		}
	}
	a.Message("%s translated, %d refused", print.Plural(translated, "document"), len(m.Refused()))
	compared := fmt.Sprintf("%s and %s compared", print.Plural(proof.Dataplanes, "dataplane"), print.Plural(proof.Connections, "connection"))
	switch {
	case proof.Counterexample != nil:
		a.Message("not equal: %s", proof.Counterexample)
	case proof.Dataplanes == 0:
		a.Message("nothing is proven: there are no dataplanes to compare on")
	default:
		a.Message("equal: %s", compared)
	}
	if !proven && !o.unproven {
		a.Message("nothing is written; --write-anyway writes what there is")
		return nil
	}
	if o.out != "" {
		return nil
	}
	text, err := migrated(documents, m, "")
	if err != nil {
		return err
	}
	return a.Output(text)
}

// migrated are the documents that came of those of one source, or of all, as YAML: each
// with where it comes from.
func migrated(documents []resource.Document, m *migrate.Migration, source string) ([]byte, error) {
	var b bytes.Buffer
	for i, r := range m.Results {
		d := &documents[i]
		if source != "" && d.Source != source {
			continue
		}
		for _, into := range r.Into {
			if b.Len() > 0 {
				b.WriteString("---\n")
			}
			if into != r.Resource {
				fmt.Fprintf(&b, "# from %s, %s line %d\n", r.Resource.Key(), filepath.Base(d.Source), d.Line)
			}
			if err := resource.Encode(&b, resource.FormatYAML, into); err != nil {
				return nil, err
			}
		}
	}
	return b.Bytes(), nil
}

// migratedFile is what came of a file: the file as it is, with its comments, where none of
// its documents is translated.
func migratedFile(documents []resource.Document, m *migrate.Migration, source string) ([]byte, error) {
	for i, r := range m.Results {
		if documents[i].Source == source && (len(r.Into) != 1 || r.Into[0] != r.Resource) {
			return migrated(documents, m, source)
		}
	}
	if text, err := os.ReadFile(source); err == nil {
		return text, nil
	}
	return migrated(documents, m, source) // it came from elsewhere
}

// writeMigrated writes a file for each source into a directory that is empty.
func writeMigrated(dir string, documents []resource.Document, m *migrate.Migration) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // as the files that were read
		return fmt.Errorf("write --out: %w", err)
	}
	if there, err := os.ReadDir(dir); err != nil || len(there) > 0 {
		return exit.Usagef("--out %s: the directory is not empty", dir)
	}
	written, names := map[string]bool{}, map[string]bool{}
	for i := range documents {
		source := documents[i].Source
		if written[source] {
			continue
		}
		written[source] = true
		text, err := migratedFile(documents, m, source)
		if err != nil {
			return err
		}
		name := filepath.Base(source)
		if ext := filepath.Ext(name); ext != ".yaml" && ext != ".yml" {
			name += ".yaml"
		}
		if names[name] {
			name = fmt.Sprintf("%d-%s", len(names), name)
		}
		names[name] = true
		if err := atomicfile.Write(filepath.Join(dir, name), text, 0o644); err != nil {
			return fmt.Errorf("write --out: %w", err)
		}
	}
	return nil
}

// liveDataplanes reads the dataplanes of the control plane.
func (a *app) liveDataplanes(cmd *cobra.Command) ([]*resource.Resource, error) {
	c, err := a.connect()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	stored, _, err := c.Resources(cmd.Context(), &meridianv1.ListRequest{Kinds: []string{string(resource.KindDataplane)}})
	if err != nil {
		return nil, err
	}
	var all []*resource.Resource
	for _, r := range stored {
		built, _, err := resource.Build(r.Meta(), r.Canonical())
		if err != nil {
			return nil, err
		}
		all = append(all, built)
	}
	return all, nil
}

// onDataplanes replaces the dataplanes of a list.
func onDataplanes(all, dataplanes []*resource.Resource) []*resource.Resource {
	out := make([]*resource.Resource, 0, len(all)+len(dataplanes))
	for _, r := range all {
		if r.Key().Kind != resource.KindDataplane {
			out = append(out, r)
		}
	}
	return append(out, dataplanes...)
}
