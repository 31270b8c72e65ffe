package cli

import (
	"context"
	"slices"
	"strings"

	"meridian/internal/cli/print"
	"meridian/internal/policy/answer"
	"meridian/internal/policy/inherit"
	"meridian/internal/question"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

// statusColumns asks the server, which works it out, in what condition the
// resources of a kind are (§5.8), and returns a column for every type
// of condition that occurs, in the server's order: of policies on dataplanes, how many
// proxies obey them, where some use one. Kinds without conditions have
// no columns. Where the server cannot tell, a message says why and the resources
// are shown all the same.
func (a *app) statusColumns(ctx context.Context, kind *resource.Descriptor, mesh string, resources []*resource.Resource) []print.StatusColumn {
	if kind == nil || len(resources) == 0 {
		return nil
	}
	attaches := kind.Class == resource.SourceDestination || kind.Class == resource.TargetRef
	if !attaches && !inherit.Follows(kind.Kind) {
		return nil
	}
	response, err := a.ask(ctx, question.Request(question.Conditions{Kind: kind.Kind}, mesh, ""))
	var about answer.ConditionsAnswer
	if err == nil {
		err = answer.Unmarshal(response.GetJson(), &about)
	}
	if attaches && rpcerr.HasReason(err, "NO_ZONES") {
		return nil // there is no proxy to obey anything
	}
	if err != nil {
		a.Message("The status is not known: %v", err)
		return nil
	}
	for _, absent := range about.Incomplete {
		a.Message("Note: ENFORCED is without %s.", absent)
	}
	shown := make(map[resource.Key]bool, len(resources))
	for _, r := range resources {
		shown[r.Key()] = true
	}
	var columns []print.StatusColumn
	for _, item := range about.Items {
		key := resource.Key{Kind: kind.Kind, Mesh: item.Mesh, Name: item.Name}
		if !shown[key] {
			continue
		}
		for _, c := range item.Conditions {
			at := slices.IndexFunc(columns, func(known print.StatusColumn) bool { return known.Condition == c.Type })
			if at < 0 {
				at = len(columns)
				columns = append(columns, print.StatusColumn{Condition: c.Type, Reasons: map[resource.Key]string{}})
			}
			// A route has a condition for every parent: one that is not True is shown.
			if shown, again := columns[at].Reasons[key]; !again || strings.HasPrefix(shown, "True") {
				columns[at].Reasons[key] = c.Status + " (" + c.Reason + ")"
				if len(c.Proxies) > 0 {
					columns[at].Reasons[key] = c.ProxiesText()
				}
			}
		}
	}
	return columns
}
