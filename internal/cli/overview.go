package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/inherit"
	"meridian/internal/question"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

// overview is the state of a control plane, as JSON.
type overview struct {
	OK       bool         `json:"ok"`
	Role     string       `json:"role"`
	Revision uint64       `json:"revision"`
	Servers  []memberView `json:"servers"`
	Zones    []zoneView   `json:"zones"`
	Proxies  proxyCounts  `json:"proxies"`
	// Problems need attention, one line each.
	Problems []string `json:"problems"`
}

type proxyCounts struct {
	Total   int `json:"total"`
	Offline int `json:"offline"`
	Failed  int `json:"failed"`
	// unknown: no zone could be asked.
	unknown bool
}

func newStatusCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what needs attention",
		Long: `Show the servers, the zones, the proxies and the policies of a control plane, and
what of them needs attention: unreachable servers, removed ones that still have the
key of the certificate authority, zones that are not in sync, rollouts that have
halted, proxies that are offline or rejected their configuration, conditions that are
False. The exit code is 1 when there is anything.`,
		Example: "  meridian status",
		Args:    exactly(),
	}
	output := print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatJSON, print.FormatYAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o, err := a.survey(cmd.Context())
		if err != nil {
			return err
		}
		if output.Value.Structured() {
			err = a.WriteValue(output.Value, o)
		} else {
			err = a.Output([]byte(o.String()))
		}
		if err == nil && !o.OK {
			err = exit.ErrNo
		}
		return err
	}
	return cmd
}

func (a *app) survey(ctx context.Context) (*overview, error) {
	// One connection for all questions: a server that hangs costs its patience once.
	c, err := a.connect()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	info, err := client.Ask(ctx, c, (*client.Client).Info, &meridianv1.InfoRequest{})
	if err != nil {
		return nil, err
	}
	o := &overview{
		Role: info.GetRole(), Revision: info.GetRevision(),
		Servers: []memberView{}, Zones: []zoneView{}, Problems: []string{},
	}
	err = o.surveyServers(ctx, c)
	if o.Role == "global" {
		err = errors.Join(err, o.surveyZones(ctx, c), o.surveyRollouts(ctx, c))
	}
	if err != nil {
		return nil, err
	}
	if err := o.surveyPolicies(ctx, c); err != nil {
		return nil, err
	}
	if o.Role != "global" || len(o.Zones) > 0 {
		o.surveyProxies(ctx, c)
	}
	o.OK = len(o.Problems) == 0
	return o, nil
}

func (o *overview) problem(format string, args ...any) {
	o.Problems = append(o.Problems, fmt.Sprintf(format, args...))
}

// note adds the notes of an answer; several answers have the same ones.
func (o *overview) note(notes []string) {
	for _, n := range notes {
		if !slices.Contains(o.Problems, n) {
			o.Problems = append(o.Problems, n)
		}
	}
}

// surveyServers reports the servers of a global, or of a zone that has several. A zone
// of one server has no members, and its callers may not be allowed to read them.
func (o *overview) surveyServers(ctx context.Context, c *client.Client) error {
	members, err := client.Ask(ctx, c, (*client.Client).Members, &meridianv1.MembersRequest{})
	if err != nil {
		if code := rpcerr.CodeOf(err); o.Role != "global" && (code == rpcerr.Unsupported || code == rpcerr.Denied) {
			return nil
		}
		return err
	}
	if members.GetLeader() == "" {
		o.problem("there is no leader: writes are refused")
	}
	if knows := members.GetAuthorityKnownTo(); len(knows) > 0 {
		o.problem("%s", knowAuthority(knows))
	}
	for _, m := range members.GetMembers() {
		o.Servers = append(o.Servers, viewMember(m))
		if m.GetState() == client.StateUnreachable {
			o.problem("server %s is unreachable: %s", m.GetName(), m.GetProblem())
		}
	}
	return nil
}

func (o *overview) surveyZones(ctx context.Context, c *client.Client) error {
	zones, err := client.Ask(ctx, c, (*client.Client).Zones, &meridianv1.ZonesRequest{})
	if err != nil {
		return err
	}
	o.note(zones.GetNotes())
	for _, z := range zones.GetZones() {
		o.Zones = append(o.Zones, viewZone(z))
		if n := away(z); n > 0 && z.GetState() != "disabled" {
			o.problem("zone %s has %s, of which the global reaches %d: `meridian cluster members`, asked of a server of the zone, shows how they stand",
				z.GetName(), print.Plural(n+len(z.GetInstances()), "server"), len(z.GetInstances()))
		}
		switch n := len(z.GetQuarantined()); {
		case z.GetState() == "disabled":
		case z.GetState() != "in-sync" && z.GetState() != stateDraining:
			o.problem("zone %s is %s, %s behind", z.GetName(), zoneState(z), print.Plural(int(z.GetLag()), "change")) //nolint:gosec // a count
		case n > 0:
			o.problem("zone %s has %s in quarantine", z.GetName(), print.Plural(n, "resource"))
		}
	}
	return nil
}

// surveyRollouts reports the rollouts that have halted. A global of an older release has
// none, and a caller who may read none is told of none.
func (o *overview) surveyRollouts(ctx context.Context, c *client.Client) error {
	listed, err := client.Ask(ctx, c, (*client.Client).ListRollouts, &meridianv1.ListRolloutsRequest{})
	if err != nil {
		if code := rpcerr.CodeOf(err); code == rpcerr.Unsupported || code == rpcerr.Denied {
			return nil
		}
		return err
	}
	o.note(listed.GetNotes())
	for _, r := range listed.GetRollouts() {
		if r.GetPhase() == string(resource.RolloutHalted) {
			o.problem("rollout %s has halted: %s", r.GetOptions().GetName(), haltReason(r))
		}
	}
	return nil
}

// surveyPolicies reports the conditions that are False, of every mesh.
func (o *overview) surveyPolicies(ctx context.Context, c *client.Client) error {
	for _, d := range resource.Kinds() {
		if !inherit.Follows(d.Kind) {
			continue
		}
		response, err := client.Ask(ctx, c, (*client.Client).Inspect, question.Request(question.Conditions{Kind: d.Kind}, "", ""))
		var about answer.ConditionsAnswer
		if err == nil {
			err = answer.Unmarshal(response.GetJson(), &about)
		}
		if err != nil {
			return err
		}
		answer.Names(response.GetShownNames()).Apply(&about)
		o.note(response.GetNotes())
		for _, item := range about.Items {
			for _, condition := range item.Conditions {
				if condition.Status == "False" {
					o.problem("%s/%s in mesh %s: %s is False (%s)", d.Kind, item.Name, item.Mesh, condition.Type, condition.Reason)
				}
			}
		}
	}
	return nil
}

// surveyProxies counts the proxies of all zones that answer.
func (o *overview) surveyProxies(ctx context.Context, c *client.Client) {
	response, err := client.Ask(ctx, c, (*client.Client).Inspect, question.Request(question.Dataplanes{}, "", ""))
	var list answer.DataplanesAnswer
	if err == nil {
		err = answer.Unmarshal(response.GetJson(), &list)
		answer.Names(response.GetShownNames()).Apply(&list)
	}
	if err != nil {
		o.Proxies.unknown = true
		o.problem("the dataplanes are not known: %v", err)
		return
	}
	o.note(response.GetNotes()[min(len(list.Incomplete), len(response.GetNotes())):])
	for _, absent := range list.Incomplete {
		// Silent servers, and zones that are not in sync, are named already.
		known := slices.ContainsFunc(o.Zones, func(z zoneView) bool {
			return z.Name == string(absent.Zone) && z.State != "in-sync" && z.State != stateDraining
		})
		if absent.Zone != "" && !known {
			o.problem("the dataplanes of zone %s are not known: %s", absent.Zone, absent.Reason)
		}
	}
	for _, d := range list.Items {
		o.Proxies.Total++
		switch {
		case d.ProxyState == nil:
		case d.State == answer.ProxyOffline:
			o.Proxies.Offline++
			o.problem("proxy %s in mesh %s is offline", d.Name, d.Mesh)
		case d.LastError != "":
			o.Proxies.Failed++
			o.problem("proxy %s in mesh %s rejected its configuration: %s", d.Name, d.Mesh, d.LastError)
		}
	}
}

// String is the page for people.
func (o *overview) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s at revision %d\n", o.Role, o.Revision)
	if o.Role == "global" {
		fmt.Fprintf(&b, "%s, %s\n", print.Plural(len(o.Servers), "server"), print.Plural(len(o.Zones), "zone"))
		for _, z := range o.Zones {
			if z.State == stateDraining {
				fmt.Fprintf(&b, "zone %s is draining%s\n", z.Name, z.Drain.progress())
			}
		}
	} else if len(o.Servers) > 0 {
		fmt.Fprintf(&b, "%s\n", print.Plural(len(o.Servers), "server"))
	}
	if !o.Proxies.unknown {
		fmt.Fprintf(&b, "%s\n", print.Plural(o.Proxies.Total, "dataplane"))
	}
	if o.OK {
		b.WriteString("Nothing needs attention.\n")
		return b.String()
	}
	b.WriteString("Needs attention:\n")
	for _, p := range o.Problems {
		b.WriteString("  " + p + "\n")
	}
	return b.String()
}
