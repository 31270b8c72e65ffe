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

// fleetFindings are the warnings that only zones can give, of policies that a global has
// just written: it has no dataplanes. What is connected is asked, for the budget at
// most, whatever the batch. missing names what did not answer, or is empty where nothing
// can be known: the server is a zone, no zone is connected, the caller may not ask.
func fleetFindings(ctx context.Context, c *client.Client, budget time.Duration, revision uint64, results []*meridianv1.Result) (found []findingView, missing []string) {
	asked := make([]resource.Key, 0, fleetPolicies)
	more := 0
	for _, r := range results {
		d, ok := resource.Describe(resource.Kind(r.GetKind()))
		switch {
		case !ok || d.Class != resource.SourceDestination && d.Class != resource.TargetRef:
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
	if !connectedApplied(ctx, c, budget*2/5, revision) {
		return nil, nil
	}
	for i, key := range asked {
		warnings, absent, err := aboutFleet(ctx, c, key, revision)
		if rpcerr.CodeOf(rpcerr.FromStatus(err)) == rpcerr.Timeout || ctx.Err() != nil {
			return found, append(missing, fmt.Sprintf("no answer within %s", budget))
		}
		if err != nil {
			return found, missing
		}
		for _, w := range warnings {
			found = append(found, findingView{Severity: "warning", Kind: string(key.Kind), Mesh: string(key.Mesh), Name: key.Name, Field: w.Path, Message: w.Message})
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
// zones are asked at once: what they answer says how far they are.
func connectedApplied(ctx context.Context, c *client.Client, limit time.Duration, revision uint64) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	stream, err := c.WaitForZones(ctx, &meridianv1.WaitForZonesRequest{Revision: revision, ConnectedOnly: true})
	for err == nil {
		_, err = stream.Recv()
	}
	if errors.Is(err, io.EOF) || ctx.Err() != nil {
		return true
	}
	code := rpcerr.CodeOf(rpcerr.FromStatus(err))
	return code == rpcerr.Timeout || code == rpcerr.TooLarge
}

// aboutFleet are the warnings about a policy that rest on the dataplanes of zones, and
// the zones that did not answer or have not applied it.
func aboutFleet(ctx context.Context, c *client.Client, key resource.Key, revision uint64) (warnings []answer.Warning, absent []string, err error) {
	response, err := c.Inspect(ctx, question.Request(question.Policy{Kind: key.Kind, Name: key.Name, Brief: true}, string(key.Mesh), ""))
	if err != nil {
		return nil, nil, err
	}
	var about answer.PolicyAnswer
	if err := answer.Unmarshal(response.GetJson(), &about); err != nil {
		return nil, nil, err
	}
	answer.Names(response.GetShownNames()).Apply(&about)
	if uint64(about.AsOf) < revision {
		return nil, response.GetNotes(), nil // of what was there before
	}
	for _, w := range about.Warnings {
		if w.OfDataplanes {
			warnings = append(warnings, w)
		}
	}
	return warnings, response.GetNotes(), nil
}

// warnOfFleet prints what the zones warn of, and what that lacks.
func (a *app) warnOfFleet(found []findingView, missing []string, results []*meridianv1.Result) {
	for _, f := range found {
		name := f.Name
		for _, r := range results {
			if r.GetKind() == f.Kind && r.GetMesh() == f.Mesh && r.GetName() == f.Name {
				name = shownName(r)
			}
		}
		a.Warn(fmt.Sprintf("%s/%s: %s", f.Kind, name, answer.Warning{Path: f.Field, Message: f.Message}))
	}
	if len(missing) > 0 {
		a.Message("Note: not every zone said whether the targets select anything: %s.", strings.Join(missing, "; "))
	}
}
