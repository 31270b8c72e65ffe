package zone

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	meridianv1 "meridian/api/meridian/v1"
	peerv1 "meridian/api/peer/v1"
	"meridian/internal/controlplane/cluster"
	"meridian/internal/policy/answer"
	"meridian/internal/question"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/turns"
)

// elsewhere is what the other servers of the zone say to a question; empty in a zone of one,
// and where it does not matter.
type elsewhere struct {
	// enforcement is what their proxies do with policies, unenforced what of the fields they
	// do not obey, proxies their lists of them, and trials what they have counted.
	enforcement []*peerv1.PolicyEnforcement
	unenforced  []*peerv1.UnenforcedField
	proxies     []*answer.ProxiesAnswer
	trials      []*answer.TrialsAnswer
	// servers is how many servers are spoken for, with this one, and missing are those that
	// did not answer. unknown: one of these may have proxies.
	// silent are all that did not answer: lost ones are among them whose proxies have gone to
	// other servers.
	servers int
	missing []string
	silent  []string
	unknown bool
}

// notes says what an answer lacks.
func (e elsewhere) notes() []string {
	if !e.unknown {
		return nil
	}
	return []string{fmt.Sprintf("what proxies do that are connected to %s is not known: no answer", strings.Join(e.missing, ", "))}
}

// askOthers puts a question to every other server at the same time.
func askOthers[T any](ctx context.Context, o *otherServers, ask func(context.Context, peerv1.ProxyServiceClient) (T, error)) (found []T, e elsewhere) {
	peers := o.zone.cluster.Others()
	answers, errs := make([]T, len(peers)), make([]error, len(peers))
	var asking sync.WaitGroup
	for i, p := range peers {
		asking.Go(func() {
			asked, cancel := context.WithTimeout(ctx, cluster.AnswerTimeout)
			defer cancel()
			answers[i], errs[i] = ask(asked, peerv1.NewProxyServiceClient(p.Conn))
		})
	}
	asking.Wait()
	e.servers = 1
	for i, p := range peers {
		if errs[i] != nil {
			e.silent = append(e.silent, p.Name)
		}
		switch {
		case errs[i] == nil:
			found = append(found, answers[i])
			e.servers++
		case o.isLost(p.Name): // its proxies have gone to other servers
			e.servers++
		default:
			e.missing, e.unknown = append(e.missing, p.Name), true
		}
	}
	return found, e
}

// isLost reports whether a server has told nothing of its proxies for so long that those
// have gone elsewhere.
func (o *otherServers) isLost(server string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	since, known := o.lost[server]
	return known && o.zone.Now().Sub(since) >= absentAfter
}

// partsOf asks the other servers for their parts of an answer.
func (o *otherServers) partsOf(ctx context.Context, req *meridianv1.InspectRequest, asked question.Question) (e elsewhere) {
	about := &peerv1.EnforcedRequest{Mesh: req.GetMesh(), Revision: uint64(o.zone.revision()), OwnRevision: uint64(o.zone.Store.Revision())}
	switch q := asked.(type) {
	case question.Policy:
		about.Kind, about.Name, about.Fields = string(q.Kind), q.Name, asksFields(q)
	case question.Conditions:
		if !o.zone.inspect.attaches(q.Kind) {
			return elsewhere{} // every server has the whole answer
		}
		about.Kind = string(q.Kind)
	case question.Proxies:
		proxies, e := documentsOf[answer.ProxiesAnswer](ctx, o, req)
		e.proxies = proxies
		return e
	case question.Trials:
		trials, e := documentsOf[answer.TrialsAnswer](ctx, o, req)
		e.trials = trials
		return e
	default:
		return elsewhere{}
	}
	counts, e := askOthers(ctx, o, func(ctx context.Context, c peerv1.ProxyServiceClient) (*peerv1.EnforcedResponse, error) {
		return c.Enforced(ctx, about)
	})
	for _, c := range counts {
		e.enforcement = append(e.enforcement, c.GetPolicies()...)
		e.unenforced = append(e.unenforced, c.GetFields()...)
	}
	return e
}

// asksFields reports whether an answer about a resource says which of its fields proxies do
// not obey.
func asksFields(q question.Policy) bool { return question.AsksProxies(q.Kind) && q.Rule == "" }

// documentsOf are the answers of the other servers to a question.
func documentsOf[A any](ctx context.Context, o *otherServers, req *meridianv1.InspectRequest) ([]*A, elsewhere) {
	return askOthers(ctx, o, func(ctx context.Context, c peerv1.ProxyServiceClient) (*A, error) {
		response, err := c.Inspect(ctx, req)
		if err != nil {
			return nil, err
		}
		a := new(A)
		return a, answer.Unmarshal(response.GetJson(), a)
	})
}

// withTrials adds what proxies of other servers have counted.
func (e elsewhere) withTrials(document []byte) ([]byte, error) {
	var all answer.TrialsAnswer
	if err := answer.Unmarshal(document, &all); err != nil {
		return nil, err
	}
	for _, more := range e.trials {
		all.Items, all.More = append(all.Items, more.Items...), all.More+more.More
	}
	all.Sort()
	return answer.Marshal(&all)
}

// withUnenforced adds what proxies of other servers do not obey: the proxies about which
// the same is said are counted together.
func (e elsewhere) withUnenforced(zone resource.ZoneName, warnings []answer.Warning) []answer.Warning {
	type about struct{ path, dialect, status, note string }
	known := map[about]int{}
	for i, w := range warnings {
		if u := w.Unenforced; u != nil {
			known[about{w.Path, u.Dialect, u.Status, u.Note}] = i
		}
	}
	for _, f := range e.unenforced {
		key := about{f.GetPath(), f.GetDialect(), f.GetStatus(), f.GetNote()}
		proxies := int(f.GetProxies())
		i, ok := known[key]
		if ok {
			proxies += warnings[i].Unenforced.Zones[0].Proxies
		}
		w := answer.UnenforcedWarning(key.path, &answer.Unenforced{
			Dialect: key.dialect, Status: key.status, Note: key.note, Zones: []answer.UnenforcedIn{{Zone: zone, Proxies: proxies}},
		})
		if ok {
			warnings[i] = w
			continue
		}
		known[key] = len(warnings)
		warnings = append(warnings, w)
	}
	return warnings
}

// withProxies adds the lists of the other servers to a list of proxies.
func (e elsewhere) withProxies(document []byte) ([]byte, error) {
	var all answer.ProxiesAnswer
	if err := answer.Unmarshal(document, &all); err != nil {
		return nil, err
	}
	if all.Behind != nil {
		all.Behind.Servers = e.servers
		if e.unknown {
			all.Behind.AsOf = 0 // it says nothing about proxies that may be there
		}
	}
	for _, more := range e.proxies {
		for _, p := range more.Items {
			i := slices.IndexFunc(all.Items, func(have answer.ProxyStatus) bool { return have.Mesh == p.Mesh && have.Name == p.Name })
			if i < 0 {
				all.Items = append(all.Items, p)
				continue
			}
			all.Items[i].Streams = append(all.Items[i].Streams, p.Streams...)
			all.Items[i].Plaintext = cmp.Or(all.Items[i].Plaintext, p.Plaintext)
		}
		if b := more.Behind; b != nil && all.Behind != nil {
			all.Behind.AsOf = min(all.Behind.AsOf, b.AsOf)
			all.Behind.Count, all.Behind.Rejected = all.Behind.Count+b.Count, all.Behind.Rejected+b.Rejected
			all.Behind.Some = append(all.Behind.Some, b.Some...)
		}
	}
	slices.SortStableFunc(all.Items, func(a, b answer.ProxyStatus) int {
		return cmp.Or(cmp.Compare(a.Mesh, b.Mesh), cmp.Compare(a.Name, b.Name))
	})
	if b := all.Behind; b != nil {
		slices.SortStableFunc(b.Some, func(x, y answer.ProxyBehind) int { return cmp.Compare(y.State, x.State) })
		b.Some = b.Some[:min(len(b.Some), answer.MaxBehind)]
	}
	return answer.Marshal(&all)
}

// forward puts a question about one dataplane to the server that has its proxy; nil where
// that is this one, or none, or does not answer.
func (o *otherServers) forward(ctx context.Context, req *meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
	name := ""
	switch q := req.GetQuestion().(type) {
	case *meridianv1.InspectRequest_Dataplane:
		name = q.Dataplane.GetName()
	case *meridianv1.InspectRequest_Proxy:
		if q.Proxy.GetLive() {
			name = q.Proxy.GetName()
		}
	}
	key := resource.Key{Kind: resource.KindDataplane, Mesh: resource.MeshName(req.GetMesh()), Name: name}
	if name == "" || req.GetAt() != nil || o.zone.dataplanes.State(key).Connected {
		return nil, nil
	}
	server := o.serverOf(key)
	for _, p := range o.zone.cluster.Others() {
		if p.Name != server {
			continue
		}
		response, err := peerv1.NewProxyServiceClient(p.Conn).Inspect(ctx, req)
		switch {
		case err == nil:
			return response, nil
		case ctx.Err() != nil, status.Code(err) == codes.Unavailable:
			return nil, nil //nolint:nilerr // what is known here is the answer
		}
		return nil, rpcerr.FromStatus(err)
	}
	return nil, nil
}

// serverOf is the server that says that it has the proxy of a dataplane; empty for none.
func (o *otherServers) serverOf(key resource.Key) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	for server, reports := range o.reports {
		if reports[key] != nil {
			return server
		}
	}
	return ""
}

var errStarting = status.Error(codes.Unavailable, "the server is starting")

// Inspect answers a question from the proxies of this server.
func (o *otherServers) Inspect(ctx context.Context, req *meridianv1.InspectRequest) (*meridianv1.InspectResponse, error) {
	if !o.assembled.Load() {
		return nil, errStarting
	}
	response, err := o.zone.inspect.inspectHere(ctx, turns.Caller{Name: "another server of the zone", Known: true}, req, nil)
	if err != nil {
		return nil, rpcerr.ToStatus(err).Err()
	}
	return response, nil
}

// catchUp bounds how long a server that is asked waits for what the one that asks has applied.
const catchUp = 200 * time.Millisecond

// Enforced counts the proxies of this server that obey policies.
func (o *otherServers) Enforced(ctx context.Context, req *peerv1.EnforcedRequest) (*peerv1.EnforcedResponse, error) {
	if !o.assembled.Load() {
		return nil, errStarting
	}
	s, mesh, kind := o.zone.inspect, resource.MeshName(req.GetMesh()), resource.Kind(req.GetKind())
	out := &peerv1.EnforcedResponse{}
	if req.GetName() != "" {
		o.awaitApplied(ctx, resource.Revision(req.GetRevision()), resource.Revision(req.GetOwnRevision()))
		key := resource.Key{Kind: kind, Mesh: mesh, Name: req.GetName()}
		e, err := s.enforcement(key)
		if err == nil && e.proxies() > 0 {
			out.Policies = []*peerv1.PolicyEnforcement{e.encode(key)}
		}
		if err == nil && req.GetFields() {
			out.Fields, err = s.unenforcedFields(key)
		}
		return out, err
	}
	if !s.attaches(kind) {
		return out, nil
	}
	counts, err := s.enforcementOf(kind, mesh)
	for key, c := range counts {
		e := enforcement{holds: c.Obey, lacking: map[string]int{}}
		if c.Proxies > c.Obey {
			e.lacking[""] = c.Proxies - c.Obey
		}
		out.Policies = append(out.Policies, e.encode(key))
	}
	return out, err
}

// awaitApplied returns when this server has applied revisions of the global and of what the
// zone owns, or after a moment.
func (o *otherServers) awaitApplied(ctx context.Context, revision, own resource.Revision) {
	ctx, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	if o.zone.globalStore != nil {
		_ = o.zone.globalStore.Wait(ctx, revision) // what is here is the answer then
	}
	_ = o.zone.Store.Wait(ctx, own)
}

// unenforcedFields is what the proxies of this server do not obey of a resource.
func (s *inspectService) unenforcedFields(key resource.Key) (fields []*peerv1.UnenforcedField, err error) {
	warnings, err := s.unenforced(key)
	for _, w := range warnings {
		u := w.Unenforced
		fields = append(fields, &peerv1.UnenforcedField{
			Path: w.Path, Dialect: u.Dialect, Status: u.Status, Note: u.Note, Proxies: uint32(u.Zones[0].Proxies), //nolint:gosec // a count
		})
	}
	return fields, err
}

// enforcement is what proxies do with a policy: how many obey it, and how many of these in
// part, and how many do not, by their state; with the first of those, and that in part.
type enforcement struct {
	holds, approximated int
	lacking             map[string]int
	lacks, part         resource.Key
}

// proxies counts those on which it is in effect.
func (e enforcement) proxies() int {
	all := e.holds
	for _, n := range e.lacking {
		all += n
	}
	return all
}

// add adds what proxies of another server do.
func (e *enforcement) add(more *peerv1.PolicyEnforcement) {
	e.holds, e.approximated = e.holds+int(more.GetHolds()), e.approximated+int(more.GetApproximated())
	for state, n := range more.GetLacking() {
		e.lacking[state] += int(n)
	}
	e.lacks, e.part = cmp.Or(e.lacks, decodeKey(more.GetLacks())), cmp.Or(e.part, decodeKey(more.GetPart()))
}

func (e enforcement) encode(policy resource.Key) *peerv1.PolicyEnforcement {
	out := &peerv1.PolicyEnforcement{
		Policy: encodeKey(policy), Holds: uint32(e.holds), Approximated: uint32(e.approximated), //nolint:gosec // counts
		Lacking: map[string]uint32{}, Lacks: encodeKey(e.lacks), Part: encodeKey(e.part),
	}
	for state, n := range e.lacking {
		out.Lacking[state] = uint32(n) //nolint:gosec // a count
	}
	return out
}

func encodeKey(key resource.Key) *peerv1.Key {
	if key == (resource.Key{}) {
		return nil
	}
	return &peerv1.Key{Kind: string(key.Kind), Mesh: string(key.Mesh), Name: key.Name}
}

func decodeKey(key *peerv1.Key) resource.Key {
	return resource.Key{Kind: resource.Kind(key.GetKind()), Mesh: resource.MeshName(key.GetMesh()), Name: key.GetName()}
}
