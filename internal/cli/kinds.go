package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/resource"
)

// shortNames are the abbreviations of kinds.
var shortNames = map[string]resource.Kind{
	"ap": resource.KindAuthPolicy, "ar": resource.KindAccessRole, "arb": resource.KindAccessRoleBinding, "cb": resource.KindCircuitBreaker, "dp": resource.KindDataplane,
	"fi": resource.KindFaultInjection, "grpc": resource.KindGRPCRoute, "gs": resource.KindGlobalSecret, "gw": resource.KindGateway, "hc": resource.KindHealthCheck,
	"http": resource.KindHTTPRoute, "it": resource.KindIssuedToken, "m": resource.KindMesh, "mcb": resource.KindMeshCircuitBreaker, "met": resource.KindMeshEnvoyTemplate,
	"mg": resource.KindMeshGateway, "mgr": resource.KindMeshGatewayRoute, "mhc": resource.KindMeshHealthCheck, "mhf": resource.KindMeshHTTPFault, "ml": resource.KindMeshLogging,
	"mm": resource.KindMeshMetrics, "mrl": resource.KindMeshRateLimit, "mrr": resource.KindMeshRequestRetry, "mt": resource.KindMeshTracing, "mtp": resource.KindMeshTrafficPermission,
	"mtest": resource.KindMeshTest, "mtr": resource.KindMeshTrafficRoute, "mut": resource.KindMeshUpstreamTimeout, "ns": resource.KindNamespace, "mvo": resource.KindMeshVirtualOutbound, "pt": resource.KindProxyTemplate,
	"ro": resource.KindRollout, "rl": resource.KindRateLimit, "rlp": resource.KindRateLimitPolicy, "rt": resource.KindRetry, "sec": resource.KindSecret, "sk": resource.KindSigningKey, "rev": resource.KindTokenRevocation,
	"tl": resource.KindTrafficLog, "to": resource.KindTimeout, "tp": resource.KindTrafficPermission, "tr": resource.KindTrafficRoute, "tt": resource.KindTrafficTrace,
	"vo": resource.KindVirtualOutbound, "z": resource.KindZone,
}

// shortName is the abbreviation of a kind.
func shortName(kind resource.Kind) string {
	for short, k := range shortNames {
		if k == kind {
			return short
		}
	}
	return ""
}

// lookupKind finds a kind by any of its spellings or by its short name.
func lookupKind(name string) (*resource.Descriptor, error) {
	if kind, ok := shortNames[strings.ToLower(name)]; ok {
		name = string(kind)
	}
	if d, ok := resource.Lookup(name); ok {
		return d, nil
	}
	if near, ok := resource.NearestKind(name); ok {
		return nil, exit.Usagef("unknown kind %q; did you mean %q?", name, near)
	}
	return nil, exit.Usagef("unknown kind %q; `meridian api-resources` lists the kinds", name)
}

// parseKinds reads KIND,KIND…; nothing where the text is not several kinds.
func parseKinds(text string) ([]*resource.Descriptor, error) {
	if !strings.Contains(text, ",") {
		return nil, nil
	}
	var kinds []*resource.Descriptor
	for name := range strings.SplitSeq(text, ",") {
		kind, err := lookupKind(name)
		if err != nil {
			return nil, err
		}
		kinds = append(kinds, kind)
	}
	return kinds, nil
}

// named is a resource named on the command line.
type named struct {
	kind *resource.Descriptor
	name string
}

// parseNames reads KIND NAME…, or KIND/NAME…, as -o name prints them. Without a
// name it is the kind alone.
func parseNames(args []string) ([]named, error) {
	var found []named
	slashed := strings.Contains(args[0], "/")
	for i, arg := range args {
		kind, name, ok := strings.Cut(arg, "/")
		switch {
		case slashed && (!ok || name == ""):
			return nil, exit.Usagef("%q: write KIND/NAME, as the argument before it", arg)
		case slashed:
		case i == 0 && len(args) > 1:
			continue
		case i == 0:
			name = ""
		default:
			kind, name = args[0], arg
		}
		d, err := lookupKind(kind)
		if err != nil {
			return nil, err
		}
		found = append(found, named{d, name})
	}
	return found, nil
}

// selector is a condition on labels: NAME=VALUE, NAME!=VALUE, NAME or !NAME, all
// of which must hold.
type selector []requirement

type requirement struct {
	name, value string
	not, exists bool
}

func parseSelector(text string) (selector, error) {
	var s selector
	if text == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		var r requirement
		switch name, value, ok := strings.Cut(part, "="); {
		case !ok && strings.HasPrefix(part, "!"):
			r = requirement{name: part[1:], exists: true, not: true}
		case !ok:
			r = requirement{name: part, exists: true}
		case strings.HasSuffix(name, "!"):
			r = requirement{name: strings.TrimSuffix(name, "!"), value: value, not: true}
		default:
			r = requirement{name: name, value: strings.TrimPrefix(value, "=")}
		}
		if r.name = strings.TrimSpace(r.name); r.name == "" || strings.ContainsAny(r.name, " ()=!") {
			return nil, exit.Usagef("--selector %q: write LABEL=VALUE, LABEL!=VALUE, LABEL or !LABEL, several separated by commas", text)
		}
		s = append(s, r)
	}
	return s, nil
}

func (s selector) matches(labels map[string]string) bool {
	return !slices.ContainsFunc(s, func(r requirement) bool {
		value, ok := labels[r.name]
		holds := ok && (r.exists || value == r.value)
		return holds == r.not
	})
}

func newAPIResourcesCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "api-resources",
		Short:   "List the kinds with their short names",
		Example: "  meridian api-resources -o name",
		Args:    exactly(),
	}
	output := print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatJSON, print.FormatYAML, print.FormatName)
	cmd.RunE = func(*cobra.Command, []string) error {
		type view struct {
			Name      string `json:"name"`
			ShortName string `json:"shortName"`
			Kind      string `json:"kind"`
			InMesh    bool   `json:"inMesh"`
			Class     string `json:"class"`
		}
		var views []view
		t := &print.Table{Header: []string{"NAME", "SHORTNAME", "KIND", "IN MESH", "CLASS"}}
		for _, d := range resource.Kinds() {
			v := view{d.Plural, shortName(d.Kind), string(d.Kind), d.Scope == resource.MeshScoped, className(d.Class)}
			views = append(views, v)
			t.Add(v.Name, v.ShortName, v.Kind, print.YesNo(v.InMesh), v.Class)
		}
		switch {
		case output.Value.Structured():
			return a.WriteValue(output.Value, map[string]any{"items": views})
		case output.Value == print.FormatName:
			return a.Println(strings.Join(kindNames(resource.Kinds()), "\n"))
		}
		return a.Table(t)
	}
	return cmd
}
