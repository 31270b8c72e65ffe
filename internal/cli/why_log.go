package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/identity"
	"meridian/internal/policy/answer"
	"meridian/internal/question"
	"meridian/internal/resource"
	"meridian/internal/texttable"
	"meridian/internal/xds"
)

// maxLogLine bounds a line of a log, in bytes.
const maxLogLine = 64 << 10

// denial is what a line of a log says of a call that was denied.
type denial struct {
	Mesh resource.MeshName `json:"mesh"`
	// Caller is the dataplane that called, and Zone its zone; empty where the line does
	// not say.
	Caller string            `json:"caller,omitempty"`
	Zone   resource.ZoneName `json:"zone,omitempty"`
	// Sets are the tag sets as which it called.
	Sets []resource.Tags `json:"tags"`
	// Callee is the dataplane that was called, and Port the inbound's; 0 where the line
	// does not say.
	Callee string `json:"callee"`
	Port   uint32 `json:"port,omitempty"`
	// By is what the proxy denied by: a kind and names, or a word of its own.
	By string `json:"deniedBy,omitempty"`
	// Kind is the kind of the policies in By; empty where there is none.
	Kind resource.Kind `json:"kind,omitempty"`
}

// envoyLine is a line of the log of denials, as an Envoy writes it.
type envoyLine struct {
	Mesh, Dataplane, Caller, Details, Termination string
	Port                                          uint32
	// Audit is set in a line of the audit log of a gRPC server.
	Audit *auditLine `json:"grpc_audit_log"`
}

// auditLine is what a gRPC server says of a call.
type auditLine struct {
	Authorized  bool   `json:"authorized"`
	Principal   string `json:"principal"`
	MatchedRule string `json:"matched_rule"`
}

// grpcDenied finds the policy in the error of a gRPC client.
var grpcDenied = regexp.MustCompile(`incoming RPC (?:matched a deny policy "((?:[^"\\]|\\.)*)"|did not match an allow policy)`)

// httpDenied finds the policy in what an Envoy answers the client of a request that it
// denied.
var httpDenied = regexp.MustCompile(`^(?:.*\s)?RBAC: access denied: ` + regexp.QuoteMeta(xds.DeniedDetails) + `([^]]*)\]`)

// jsonNames are what messages call the types of an envoyLine.
var jsonNames = map[reflect.Kind]string{reflect.String: "text", reflect.Uint32: "a number from 0 to 4294967295", reflect.Struct: "an object"}

// readDenial reads a line of a log. The error says why it is not one of a denial.
func readDenial(text string) (denial, error) {
	// A line of Envoy has what callers write, which may look like such an error: what
	// begins before it is an object.
	i := strings.IndexByte(text, '{')
	if at := grpcDenied.FindStringSubmatchIndex(text); at != nil && (i < 0 || at[0] < i) {
		m := grpcDenied.FindStringSubmatch(text)
		d := denial{By: m[1]}
		if whole, err := strconv.Unquote(`"` + m[1] + `"`); err == nil {
			d.By = whole
		}
		d.ofKind(" ")
		return d, nil
	}
	if m := httpDenied.FindStringSubmatch(text); m != nil && i < 0 {
		d := denial{By: m[1]}
		d.ofKind("_") // Envoy writes no spaces there
		return d, nil
	}
	if i < 0 {
		return denial{}, errors.New("it is neither a JSON object, as Envoy and gRPC servers log a denial, nor what a client was told that was denied (`incoming RPC matched a deny policy …` by a gRPC server, `RBAC: access denied: " + xds.DeniedDetails + "…]` by Envoy)")
	}
	var line envoyLine
	if err := json.NewDecoder(strings.NewReader(text[i:])).Decode(&line); err != nil {
		if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
			return denial{}, fmt.Errorf("`%s`: expected %s, got %s", strings.ToLower(wrong.Field), jsonNames[wrong.Type.Kind()], wrong.Value)
		}
		return denial{}, fmt.Errorf("it is no whole JSON object: %w", err)
	}
	if line.Audit != nil {
		return line.Audit.read()
	}
	by, denied := strings.CutPrefix(cmp.Or(line.Details, line.Termination), xds.DeniedDetails)
	if !denied {
		if _, by, denied = strings.Cut(line.Termination, xds.DeniedDetails); !denied {
			return denial{}, errors.New("it is not about a denial: neither `details` nor `termination` begins with " + xds.DeniedDetails)
		}
	}
	by, _, _ = strings.Cut(by, "]")
	d := denial{Mesh: resource.MeshName(line.Mesh), Callee: line.Dataplane, Port: line.Port, By: by}
	d.ofKind("_") // Envoy writes no spaces there
	return d, d.by("caller", line.Caller)
}

// read is what the line says of a call that was denied.
func (l *auditLine) read() (denial, error) {
	if l.Authorized {
		return denial{}, errors.New("it is about a call that was allowed: `authorized` is true")
	}
	d := denial{By: l.MatchedRule}
	d.ofKind(" ")
	return d, d.by("principal", l.Principal)
}

// by sets who called, from the name in a certificate, which is a field of the line.
func (d *denial) by(field, certified string) error {
	if certified == "" {
		return nil
	}
	name, err := identity.Parse(certified)
	switch {
	case err != nil:
		return fmt.Errorf("`%s`: %w", field, err)
	case d.Mesh != "" && name.Mesh != d.Mesh:
		return fmt.Errorf("`%s` is of mesh %s, and `mesh` is %s", field, name.Mesh, d.Mesh)
	}
	d.Mesh, d.Zone, d.Caller, d.Sets = name.Mesh, name.Zone, name.Dataplane, name.Sets
	return nil
}

// ofKind finds the kind that what denied begins with.
func (d *denial) ofKind(space string) {
	for _, kind := range []resource.Kind{resource.KindMeshTrafficPermission, resource.KindTrafficPermission} {
		if names, ok := strings.CutPrefix(d.By, string(kind)+space); ok {
			d.Kind, d.By = kind, string(kind)+" "+strings.ReplaceAll(names, ","+space, ", ")
		}
	}
}

// logFlag is --log of why.
type logFlag struct{ line string }

// read returns the line, which is the first of the standard input for -.
func (f logFlag) read(stdin io.Reader) (string, error) {
	line := f.line
	if line == "-" {
		input := bufio.NewReader(io.LimitReader(stdin, maxLogLine+1))
		for strings.TrimSpace(line) == "" || line == "-" {
			read, err := input.ReadString('\n')
			line = read
			if err != nil && strings.TrimSpace(read) == "" {
				return "", exit.Usagef("--log -: the standard input has no line")
			}
		}
	}
	if len(line) > maxLogLine {
		return "", exit.Usagef("--log: a line has at most %d bytes", maxLogLine)
	}
	return strings.TrimSpace(line), nil
}

// whyDenied explains the denial that --log is about.
func (a *app) whyDenied(f print.Format, log *logFlag, args, from []string, to string, mesh *meshFlag, ask asking) error {
	if to != "" {
		return exit.Usagef("--to selects outbounds, and --log is about an inbound; leave one of them out")
	}
	line, err := log.read(a.stdin)
	if err != nil {
		return err
	}
	d, err := readDenial(line)
	if err != nil {
		return exit.Usagef("--log: the line cannot be explained: %w", err)
	}
	tags, err := parseTags("--from", from)
	if err != nil {
		return err
	}
	if d, err = d.completed(args, tags, mesh); err != nil {
		return err
	}
	return a.explainDenial(f, d, ask)
}

// asking answers a question about a mesh, with how names in the answer are shown.
type asking func(q question.Question, mesh string) ([]byte, answer.Names, error)

// completed is a denial with what the line lacks and the user gave.
func (d denial) completed(args []string, from map[string]string, mesh *meshFlag) (denial, error) {
	if len(args) == 1 {
		if name := resource.ReadName(args[0]); d.Callee == "" || d.Callee == name {
			d.Callee = name
		} else {
			return d, exit.Usagef("--log: the line is about the dataplane %s, not %s", d.Callee, name)
		}
	}
	switch {
	case d.Callee == "":
		return d, exit.Usagef("--log: the line does not say who was called: name the dataplane, as in `meridian why backend-1 --log …`")
	case len(d.Sets) == 0 && len(from) == 0:
		return d, exit.Usagef("--log: the line does not say who called: give the tags of the caller, as --from TAG=VALUE,…")
	case len(d.Sets) > 0 && len(from) > 0:
		return d, exit.Usagef("--from: the line says who called")
	case d.Mesh != "" && mesh.explicit() && mesh.name != string(d.Mesh):
		return d, exit.Usagef("--mesh: the line is about mesh %s", d.Mesh)
	}
	if len(from) > 0 {
		d.Sets = []resource.Tags{from}
	}
	d.Mesh = cmp.Or(d.Mesh, resource.MeshName(mesh.name))
	return d, errors.Join(checkName("dataplane", d.Callee), checkName("mesh", string(d.Mesh)))
}

// questions are those that say why a call is denied: whether it is, and who decides.
func (d denial) questions() (question.Connection, []question.Why) {
	connection := question.Connection{To: d.Callee, Port: d.Port}
	why := question.Why{Dataplane: d.Callee}
	if len(d.Sets) == 1 {
		connection.FromTags, why.From = d.Sets[0], d.Sets[0]
	} else { // one of its sets decides
		connection.From, connection.FromZone = d.Caller, d.Zone
	}
	var all []question.Why
	for _, kind := range []resource.Kind{resource.KindMeshTrafficPermission, resource.KindTrafficPermission} {
		if d.Kind == "" || d.Kind == kind {
			why.Kind = kind
			all = append(all, why)
		}
	}
	return connection, all
}

// deniedAnswer is the document of why --log.
type deniedAnswer struct {
	Denied     denial            `json:"denied"`
	Connection json.RawMessage   `json:"connection"`
	Why        []json.RawMessage `json:"why"`
}

// explainDenial answers why a line of a log says that a call was denied.
func (a *app) explainDenial(f print.Format, d denial, ask asking) error {
	connection, reasons := d.questions()
	document, names, err := ask(connection, string(d.Mesh))
	if err != nil {
		return err
	}
	all := deniedAnswer{Denied: d, Connection: document, Why: []json.RawMessage{}}
	var page bytes.Buffer
	fmt.Fprintf(&page, "%s called %s", texttable.Escape(d.who()), texttable.Escape(d.Callee))
	if d.Port > 0 {
		fmt.Fprintf(&page, " at port %d", d.Port)
	}
	fmt.Fprintf(&page, ", and was denied by %s.\nAs policies are now:\n\n", texttable.Escape(cmp.Or(d.By, "no policy that allows it")))
	if err := connection.Render(&page, document, a.form(f, names)); err != nil {
		return err
	}
	for _, q := range reasons {
		document, names, err := ask(q, string(d.Mesh))
		if err != nil {
			return err
		}
		if document, err = atPort(document, d.Port); err != nil {
			return err
		}
		if document == nil {
			continue
		}
		all.Why = append(all.Why, document)
		page.WriteString("\n")
		if err := q.Render(&page, document, a.form(f, names)); err != nil {
			return err
		}
	}
	if f.Structured() {
		document, err := answer.Marshal(all)
		if err != nil {
			return err
		}
		return a.WriteDocument(f, document)
	}
	return a.Output(page.Bytes())
}

// who names the caller for people.
func (d denial) who() string {
	var sets []string
	for _, set := range d.Sets {
		var tags []string
		for _, tag := range slices.Sorted(maps.Keys(set)) {
			tags = append(tags, tag+"="+set[tag])
		}
		sets = append(sets, strings.Join(tags, ","))
	}
	if d.Caller == "" {
		return strings.Join(sets, "; ")
	}
	return d.Caller + " (" + strings.Join(sets, "; ") + ")"
}

// atPort leaves the entries about one port in an answer, all for port 0. nil: there is
// nothing in it.
func atPort(document []byte, port uint32) ([]byte, error) {
	var w answer.WhyAnswer
	if err := answer.Unmarshal(document, &w); err != nil {
		return nil, err
	}
	w.Entries = slices.DeleteFunc(w.Entries, func(e answer.WhyEntry) bool { return port > 0 && e.Attachment.Port != port })
	if len(w.Entries) == 0 {
		return nil, nil
	}
	return answer.Marshal(&w)
}

// bindLog adds --log to why.
func bindLog(cmd *cobra.Command) *logFlag {
	f := &logFlag{}
	cmd.Flags().StringVar(&f.line, "log", "", "explain a denial: a line of Envoy's or a gRPC server's log, or what the client was told; - reads it")
	return f
}
