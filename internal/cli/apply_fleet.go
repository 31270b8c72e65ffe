package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/client"
	"meridian/internal/cli/print"
	"meridian/internal/policy"
	"meridian/internal/policy/answer"
	"meridian/internal/question"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

const (
	// fleetBudget is how long apply asks the zones about what it has written; they
	// have 2/5 of that to apply it.
	fleetBudget = time.Second
	// fleetPolicies bounds the policies of a batch that the zones are asked about.
	fleetPolicies = 16
)

// maxFleetWarnings bounds the lines of warnings that are printed.
const maxFleetWarnings = 20

// fleetFindings are the warnings that only zones can give, of policies that were just
// written: a global has no dataplanes and no proxies, and what proxies obey a zone says
// when it is asked. What is connected is asked, for the budget at most, whatever the
// batch. missing names what did not answer, or is empty where nothing can be known: no
// zone is connected, the caller may not ask.
func fleetFindings(ctx context.Context, c *client.Client, budget time.Duration, revision uint64, results []*meridianv1.Result) (found []policy.Advice, missing []string) {
	asked := make([]resource.Key, 0, fleetPolicies)
	more := 0
	for _, r := range results {
		d, ok := resource.Describe(resource.Kind(r.GetKind()))
		switch {
		case !ok || !question.AsksProxies(d.Kind):
		case len(asked) == fleetPolicies:
			more++
		default:
			asked = append(asked, resource.Key{Kind: d.Kind, Mesh: resource.MeshName(r.GetMesh()), Name: r.GetName()})
		}
	}
	if len(asked) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	applied, zone := connectedApplied(ctx, c, budget*2/5, revision)
	if !applied {
		return nil, nil
	}
	for i, key := range asked {
		warnings, absent, err := aboutFleet(ctx, c, key, revision, zone)
		if rpcerr.CodeOf(rpcerr.FromStatus(err)) == rpcerr.Timeout || ctx.Err() != nil {
			return found, append(missing, fmt.Sprintf("no answer within %s", budget))
		}
		if err != nil {
			return found, missing
		}
		for _, w := range warnings {
			problem := resource.Problem{Path: resource.Path(w.Path), Message: w.Message, Severity: resource.Warning}
			if w.Unenforced != nil {
				problem.Cause = w.Unenforced.Cause()
			}
			found = append(found, policy.Advice{Key: key, Problem: problem})
		}
		if i == 0 || len(missing) == 0 {
			missing = absent
		}
	}
	if more > 0 {
		missing = append(missing, fmt.Sprintf("the zones were asked about the first %d policies, not about %d more; `meridian describe` asks about one", fleetPolicies, more))
	}
	return found, missing
}

// connectedApplied waits for the zones that are connected to apply a revision, for
// some time at most. It is false where there is no zone to ask. Where too many wait, the
// zones are asked at once: what they answer says how far they are. zone: the server is a
// zone, which has applied what it has written.
func connectedApplied(ctx context.Context, c *client.Client, limit time.Duration, revision uint64) (applied, zone bool) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	stream, err := c.WaitForZones(ctx, &meridianv1.WaitForZonesRequest{Revision: revision, ConnectedOnly: true})
	for err == nil {
		_, err = stream.Recv()
	}
	if rpcerr.HasReason(rpcerr.FromStatus(err), reasonNoZonesHere) {
		return true, true
	}
	if errors.Is(err, io.EOF) || ctx.Err() != nil {
		return true, false
	}
	code := rpcerr.CodeOf(rpcerr.FromStatus(err))
	return code == rpcerr.Timeout || code == rpcerr.TooLarge, false
}

// reasonNoZonesHere is why a zone does not wait for zones.
const reasonNoZonesHere = "NO_ZONES_HERE"

// aboutFleet are the warnings about a policy that rest on the dataplanes of zones, and
// the zones that did not answer or have not applied it. A zone that has written it has
// applied it, whatever the revision of what it has from the global, and has warned of
// its targets.
func aboutFleet(ctx context.Context, c *client.Client, key resource.Key, revision uint64, zone bool) (warnings []answer.Warning, absent []string, err error) {
	response, err := c.Inspect(ctx, question.Request(question.Policy{Kind: key.Kind, Name: key.Name, Brief: true}, string(key.Mesh), ""))
	if err != nil {
		return nil, nil, err
	}
	var about answer.PolicyAnswer
	if err := answer.Unmarshal(response.GetJson(), &about); err != nil {
		return nil, nil, err
	}
	answer.Names(response.GetShownNames()).Apply(&about)
	if !zone && uint64(about.AsOf) < revision {
		return nil, response.GetNotes(), nil // of what was there before
	}
	for _, w := range about.Warnings {
		if w.Unenforced != nil || w.OfDataplanes && !zone {
			warnings = append(warnings, w)
		}
	}
	return warnings, response.GetNotes(), nil
}

// warnOfFleet prints what the zones warn of, and what that lacks: one line for each
// cause, and a bounded number of them.
func (a *app) warnOfFleet(found []policy.Advice, missing []string, results []*meridianv1.Result) {
	name := func(key resource.Key) string {
		for _, r := range results {
			if r.GetKind() == string(key.Kind) && r.GetMesh() == string(key.Mesh) && r.GetName() == key.Name {
				return string(key.Kind) + "/" + shownName(r)
			}
		}
		return string(key.Kind) + "/" + key.Name
	}
	groups := policy.Groups(found)
	for i := range groups[:min(len(groups), maxFleetWarnings)] {
		a.Warn(groups[i].Where(name) + ": " + groups[i].Problem.String())
	}
	if more := len(groups) - maxFleetWarnings; more > 0 {
		a.Message("Note: %s more; `meridian describe` has those of one policy, -o json all.", print.Plural(more, "warning"))
	}
	if len(missing) > 0 {
		a.Message("Note: not every zone said whether the targets select anything and proxies obey it: %s.", strings.Join(missing, "; "))
	}
}
