package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/doctree"
	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

// maxViolations bounds the problems of a batch that are reported: more are not
// read at once, and the search for more costs time.
const maxViolations = 100

// problems collects what is wrong with a batch.
type problems struct {
	found []policy.Advice
	// at has the place of each resource in the batch.
	at map[resource.Key]int
}

// full reports whether no more problems are looked for.
func (p *problems) full() bool { return len(p.found) >= maxViolations }

// add adds what is wrong with a resource.
func (p *problems) add(i int, key resource.Key, err error) {
	if p.at == nil {
		p.at = map[resource.Key]int{}
	}
	p.at[key] = i
	var document *resource.DocumentError
	if !errors.As(err, &document) {
		p.found = append(p.found, policy.Advice{Key: key, Problem: resource.Problem{Message: err.Error()}})
		return
	}
	for _, problem := range document.Problems {
		if problem.Severity == resource.Error {
			p.found = append(p.found, policy.Advice{Key: key, Problem: problem})
		}
	}
}

// err returns the problems, those of one cause as one.
func (p *problems) err() error {
	if len(p.found) == 0 {
		return nil
	}
	var violations []rpcerr.Violation
	groups := policy.Groups(p.found[:min(maxViolations, len(p.found))])
	for i := range groups {
		g := &groups[i]
		violations = append(violations, rpcerr.Violation{Field: p.field(g), Description: g.Where(describeKey) + ": " + g.Problem.String()})
	}
	if len(p.found) > maxViolations {
		violations = append(violations, rpcerr.Violation{Field: "resources", Description: "there are more problems; fix these first"})
	}
	return rpcerr.New(rpcerr.Invalid, "INVALID_RESOURCES", "%s", violations[0].Description).WithViolations(violations...)
}

// field is the place in the request of the first resource of a group.
func (p *problems) field(g *policy.Group) string {
	field := "resources[" + strconv.Itoa(p.at[g.Key]) + "]"
	if g.Path != resource.Root {
		field += ".spec." + string(g.Path)
	}
	return field
}

// keyOfMessage is the identity that a message claims, which may be none.
func keyOfMessage(m *meridianv1.Resource) resource.Key {
	return resource.Key{
		Kind: resource.Kind(doctree.Clip(m.GetKind())), Mesh: resource.MeshName(doctree.Clip(m.GetMesh())), Name: clipName(m.GetName()),
	}
}

// clipName shortens a name that cannot be one.
func clipName(name string) string {
	if resource.CheckName(name) == nil {
		return name
	}
	return doctree.Clip(name)
}

// missingMeshes says of a batch that is refused for want of a mesh which meshes there
// are not, once each: with how many of its resources, and what to do. Other refusals
// are left as they are.
func (s *Service) missingMeshes(ctx context.Context, ops []store.Op, err error) error {
	var refused *store.MeshMissingError
	if !errors.As(err, &refused) {
		return err
	}
	var missing []resource.MeshName
	of := map[resource.MeshName][]resource.Key{}
	created := map[string]bool{}
	for _, op := range ops {
		created[op.Key.Name] = created[op.Key.Name] || op.Key.Kind == resource.KindMesh && op.Resource != nil
	}
	for _, op := range ops {
		mesh := op.Key.Mesh
		if mesh == "" || op.Resource == nil || created[string(mesh)] {
			continue
		}
		if _, exists := s.cfg.View().Get(resource.Key{Kind: resource.KindMesh, Name: string(mesh)}); exists {
			continue
		}
		if of[mesh] = append(of[mesh], op.Key); len(of[mesh]) == 1 {
			missing = append(missing, mesh)
		}
	}
	var names []string
	for mesh := range readableBy(ctx, s.cfg.Access, s.cfg.View()).List(resource.KindMesh, "") {
		names = append(names, mesh.Key().Name)
	}
	var violations []rpcerr.Violation
	for _, mesh := range missing[:min(maxViolations, len(missing))] {
		violations = append(violations, rpcerr.Violation{Field: "resources", Description: noMesh(mesh, of[mesh], names)})
	}
	if len(violations) == 0 {
		return err
	}
	return rpcerr.WithEffect(rpcerr.New(rpcerr.Invalid, "MESH_MISSING", "%s", violations[0].Description).WithViolations(violations...), rpcerr.EffectNone)
}

func noMesh(name resource.MeshName, of []resource.Key, known []string) string {
	where := describeKey(of[0])
	if len(of) > 1 {
		where = policy.Several(of)
	}
	meant := ""
	if nearest, ok := resource.Nearest(string(name), known); ok {
		meant = fmt.Sprintf("; did you mean %q?", nearest)
	}
	return fmt.Sprintf("%s: mesh %q does not exist%s To create it, apply {type: Mesh, name: %s} before, or in the same batch",
		where, name, cmp.Or(meant, "."), name)
}
