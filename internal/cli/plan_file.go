package cli

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/atomicfile"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/past"
	"meridian/internal/plan"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
)

const (
	planKind = "MeridianPlan"
	// planFormat is the format of the file; another one is refused.
	planFormat = 1
	// maxPlanFile bounds a plan file, in bytes: a batch and what is around it.
	maxPlanFile = 64 << 20
)

// planFile is a plan as it is kept: the change, what it rests on, and its effect.
type planFile struct {
	Kind   string `json:"kind"`
	Format int    `json:"format"`
	// Written are documents in universal form, Deleted keys; of these and Rollback one is
	// there.
	Written  []json.RawMessage `json:"written,omitempty"`
	Deleted  []plannedKey      `json:"deleted,omitempty"`
	Rollback *keptRollback     `json:"rollback,omitempty"`
	Force    bool              `json:"force,omitempty"`
	// Stored is what was stored of each resource of the change.
	Stored []plannedKey `json:"stored"`
	// Effect is the digest of what the change was to do.
	Effect string `json:"effect"`
}

// keptRollback says to which revision, and of what.
type keptRollback struct {
	To    uint64   `json:"to"`
	Kinds []string `json:"kinds,omitempty"`
	Mesh  string   `json:"mesh,omitempty"`
	Names []string `json:"names,omitempty"`
}

// plannedKey is a resource and its stored version, 0 for none.
type plannedKey struct {
	Kind     resource.Kind     `json:"kind"`
	Mesh     resource.MeshName `json:"mesh,omitempty"`
	Name     string            `json:"name"`
	Version  uint64            `json:"version"`
	Revision uint64            `json:"revision,omitempty"`
}

// keepPlan writes a plan to a file that only its owner can read: documents may hold
// secrets.
func (a *app) keepPlan(path string, change *proposal, p *plan.Plan) error {
	effect, err := p.Digest()
	if err != nil {
		return err
	}
	file := planFile{Kind: planKind, Format: planFormat, Force: change.force, Effect: effect, Stored: []plannedKey{}}
	for _, r := range change.written {
		var b bytes.Buffer
		if err := resource.Encode(&b, resource.FormatJSON, r); err != nil {
			return err
		}
		file.Written = append(file.Written, b.Bytes())
	}
	for _, key := range change.deleted {
		file.Deleted = append(file.Deleted, plannedKey{Kind: key.Kind, Mesh: key.Mesh, Name: key.Name})
	}
	if r := change.rollback; r != nil {
		if r.GetTo().GetRevision() == 0 {
			return exit.Failf(exit.Unavailable, "the control plane does not say to which revision it goes back: it is of an older release")
		}
		file.Rollback = &keptRollback{r.GetTo().GetRevision(), r.GetKinds(), r.GetMesh(), r.GetNames()}
	}
	for _, c := range p.Changes {
		file.Stored = append(file.Stored, plannedKey{c.Kind, c.Mesh, c.Name, c.Version, c.Revision})
	}
	data, err := json.MarshalIndent(&file, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the plan: %w", err)
	}
	if err := atomicfile.Write(path, append(data, '\n'), 0o600); err != nil {
		return exit.Failf(exit.Usage, "keep the plan: %w", err)
	}
	a.Message("The plan is kept in %s: `meridian apply %s` makes the change if it still does the same.", path, path)
	return nil
}

// readPlan reads a plan file.
func readPlan(path string) (*proposal, string, error) {
	wrong := func(format string, args ...any) error {
		return exit.Usagef("%s is no plan that can be applied: %w", path, fmt.Errorf(format, args...))
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, "", exit.Usagef("%s does not exist: documents are given with -f, a plan is a file of `meridian plan --out`", path)
	case err != nil:
		return nil, "", fmt.Errorf("read %s: %w", path, err)
	case info.Size() > maxPlanFile:
		return nil, "", wrong("it has %d bytes, more than %d", info.Size(), maxPlanFile)
	}
	opened, err := os.Open(path)
	if err != nil {
		return nil, "", fmt.Errorf("read %s: %w", path, err)
	}
	defer opened.Close()
	data, err := io.ReadAll(io.LimitReader(opened, maxPlanFile+1)) // a device has no size
	switch {
	case err != nil:
		return nil, "", fmt.Errorf("read %s: %w", path, err)
	case len(data) > maxPlanFile:
		return nil, "", wrong("it has more than %d bytes", maxPlanFile)
	}
	var file planFile
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	err = decoder.Decode(&file)
	switch {
	case err != nil:
		return nil, "", wrong("documents are given with -f")
	case file.Kind != planKind:
		return nil, "", wrong("its kind is %q, not %s; documents are given with -f", file.Kind, planKind)
	case file.Format != planFormat:
		return nil, "", wrong("it has format %d, and this release reads %d", file.Format, planFormat)
	case !file.one():
		return nil, "", wrong("it either writes resources, deletes resources or is a rollback")
	}
	change := &proposal{force: file.Force}
	if r := file.Rollback; r != nil {
		change.rollback = &meridianv1.RollbackRequest{
			To: past.PointOf(resource.Revision(r.To)), Kinds: r.Kinds, Mesh: r.Mesh, Names: r.Names, Force: file.Force,
		}
	}
	for _, document := range file.Written {
		documents, err := resource.Decode(path, document, resource.DecodeOptions{})
		if err != nil {
			return nil, "", inputFailure(err)
		}
		for _, r := range resourcesOf(documents) {
			m := r.Meta()
			m.Version, m.Revision = 0, 0 // what is stored is under Stored
			change.written = append(change.written, r.WithMeta(m))
		}
	}
	for _, k := range file.Deleted {
		change.deleted = append(change.deleted, resource.Key{Kind: k.Kind, Mesh: k.Mesh, Name: k.Name})
	}
	for _, k := range file.Stored {
		change.conditions = append(change.conditions, &meridianv1.VersionCondition{
			Key: messageKey(resource.Key{Kind: k.Kind, Mesh: k.Mesh, Name: k.Name}), Version: k.Version, Revision: k.Revision,
		})
	}
	return change, file.Effect, nil
}

// one reports whether the file has one change.
func (f *planFile) one() bool {
	changes := 0
	for _, has := range []bool{len(f.Written) > 0, len(f.Deleted) > 0, f.Rollback != nil && f.Rollback.To > 0} {
		if has {
			changes++
		}
	}
	return changes == 1
}

func planAgain(path string) string { return "Plan it again: `meridian plan … --out " + path + "`." }

// explainStale refuses a plan because what is stored is not what it was, and shows what the
// change would do by now, where it could still be made.
func (a *app) explainStale(ctx context.Context, c *client.Client, change *proposal, path string, cause error) error {
	refused := exit.Failf(exit.Conflict, "what is stored is not what it was when the change was planned; nothing was written: %w", cause)
	unconditioned := *change
	unconditioned.conditions = nil
	now, err := planned(ctx, c, &unconditioned)
	if err != nil {
		return refused.With(planAgain(path))
	}
	if err := now.Render(a.Stderr); err != nil {
		return err
	}
	return refused.With("What it would do now is above. " + planAgain(path))
}

// stale reports whether a change was refused because what is stored is not what it was.
func (p *proposal) stale(err error) bool {
	return rpcerr.HasReason(err, "VERSION_CONFLICT") || len(p.deleted) > 0 && rpcerr.CodeOf(err) == rpcerr.NotFound
}

// applyPlan makes the change of a plan file, if it still does what the plan said.
func (a *app) applyPlan(ctx context.Context, path string, o *applyOptions) error {
	change, effect, err := readPlan(path)
	if err != nil {
		return err
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	now, err := planned(ctx, c, change)
	if change.stale(err) {
		return a.explainStale(ctx, c, change, path, err)
	}
	if err != nil {
		return err
	}
	digest, err := now.Digest()
	if err != nil {
		return err
	}
	if digest != effect {
		if err := now.Render(a.Stderr); err != nil {
			return err
		}
		return exit.Failf(exit.Conflict, "the change would do something else by now than when it was planned; nothing was written").
			With("What it would do now is above. " + planAgain(path))
	}
	if o.dryRun != "" {
		a.Message("Dry run: the plan still holds; nothing was written.")
		return nil
	}
	if err := a.confirmLoss(ctx, now, o.yes, false); err != nil {
		return err
	}
	// The conditions hold until it is written, or it is not.
	err = a.sendPlanned(ctx, c, change, o, now.Findings)
	if change.stale(err) {
		return a.explainStale(ctx, c, change, path, err)
	}
	return err
}

// sendPlanned makes the change of a plan file.
func (a *app) sendPlanned(ctx context.Context, c *client.Client, change *proposal, o *applyOptions, caused []findingView) error {
	switch {
	case change.rollback != nil:
		if len(change.conditions) == 0 {
			a.Message("Nothing differs from revision %d.", change.rollback.GetTo().GetRevision())
			return nil
		}
		request := proto.CloneOf(change.rollback)
		request.IfVersions, request.RequestId, request.SkipTests = change.conditions, rand.Text(), o.skipTests
		return a.sendRollback(ctx, c, request, o.output.Value, caused)
	case len(change.deleted) > 0:
		request := change.deletion(false)
		request.SkipTests = o.skipTests
		request.RequestId = rand.Text()
		response, err := client.Ask(ctx, c, (*client.Client).DeleteBatch, request)
		if err != nil {
			return explainInterrupt(err, false)
		}
		a.warnOfFindings(caused)
		return a.printResults(o.output.Value, response.GetResults(), response.GetRevision(), caused)
	}
	request := change.write(false)
	request.SkipTests = o.skipTests
	request.RequestId = rand.Text()
	return a.sendApply(ctx, c, request, o, caused)
}
