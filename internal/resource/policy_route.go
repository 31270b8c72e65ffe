package resource

import (
	"maps"
	"slices"

	"meridian/internal/doctree"
)

// TrafficRoute sends the traffic of outbounds elsewhere, whole or in shares.
type TrafficRoute struct {
	Connection[TrafficRouteConf, *TrafficRouteConf]
}

func (*TrafficRoute) fieldHint(name string) string { return successorHint(name, KindMeshTrafficRoute) }

// TrafficRouteConf is the published configuration of TrafficRoute.
type TrafficRouteConf struct {
	RouteDestinations
	LoadBalancer *LoadBalancer `json:"loadBalancer,omitzero" doc:"How an endpoint is chosen; round robin when absent."`
	HTTP         []RouteHTTP   `json:"http,omitzero" doc:"Rules for HTTP requests, tried in order; requests that match none go to split or destination."`
}

// RouteDestinations is where traffic goes: in shares, or to one destination.
type RouteDestinations struct {
	Split       []RouteSplit `json:"split,omitzero" doc:"Destinations that share the traffic by weight; not together with destination."`
	Destination TagSelector  `json:"destination,omitzero" doc:"Tags of the one destination; not together with split."`
}

// RouteSplit is one share of the traffic.
type RouteSplit struct {
	Weight      uint32      `json:"weight" required:"true" doc:"Share of the traffic, relative to the sum of all weights; 0 takes none."`
	Destination TagSelector `json:"destination" required:"true" doc:"Tags of the destination, kuma.io/service among them."`
}

// LoadBalancer chooses an endpoint; one of its fields is written.
type LoadBalancer struct {
	RoundRobin   *struct{}     `json:"roundRobin,omitzero" doc:"Takes the endpoints in turn."`
	LeastRequest *LeastRequest `json:"leastRequest,omitzero" doc:"Takes the least busy of a few random endpoints."`
	RingHash     *RingHash     `json:"ringHash,omitzero" doc:"Consistent hashing on a ring."`
	Random       *struct{}     `json:"random,omitzero" doc:"Takes a random endpoint."`
	Maglev       *struct{}     `json:"maglev,omitzero" doc:"Consistent hashing by a Maglev table."`
}

// LeastRequest takes the least busy of a few.
type LeastRequest struct {
	ChoiceCount *uint32 `json:"choiceCount,omitzero" min:"2" doc:"How many random endpoints are compared; 2 when absent."`
}

// RingHash is consistent hashing on a ring.
type RingHash struct {
	HashFunction *string `json:"hashFunction,omitzero" enum:"XX_HASH|MURMUR_HASH_2" doc:"Hash function; XX_HASH when absent."`
	MinRingSize  *uint64 `json:"minRingSize,omitzero" doc:"Smallest size of the ring."`
	MaxRingSize  *uint64 `json:"maxRingSize,omitzero" doc:"Largest size of the ring."`
}

// RouteHTTP is one rule for HTTP requests.
type RouteHTTP struct {
	Match  *RouteMatch  `json:"match" required:"true" doc:"Requests that the rule is for; all conditions must hold."`
	Modify *RouteModify `json:"modify,omitzero" doc:"Changes to matching requests and their answers."`
	RouteDestinations
}

// RouteMatch holds conditions on a request.
type RouteMatch struct {
	Method  *StringMatch           `json:"method,omitzero" doc:"Condition on the method."`
	Path    *StringMatch           `json:"path,omitzero" doc:"Condition on the path."`
	Headers map[string]StringMatch `json:"headers,omitzero" doc:"Conditions on headers, by their names."`
}

// StringMatch compares text in one of three ways.
type StringMatch struct {
	Prefix *string `json:"prefix,omitzero" doc:"The text begins with this."`
	Exact  *string `json:"exact,omitzero" doc:"The text is this."`
	Regex  *string `json:"regex,omitzero" format:"regex" doc:"The text matches this regular expression (RE2)."`
}

// RouteModify changes matching requests and their answers.
type RouteModify struct {
	Path            *ModifyPath    `json:"path,omitzero" doc:"Rewrites the path."`
	Host            *ModifyHost    `json:"host,omitzero" doc:"Rewrites the Host header."`
	RequestHeaders  *ModifyHeaders `json:"requestHeaders,omitzero" doc:"Changes headers of the request."`
	ResponseHeaders *ModifyHeaders `json:"responseHeaders,omitzero" doc:"Changes headers of the answer."`
}

// ModifyPath rewrites a path.
type ModifyPath struct {
	RewritePrefix *string       `json:"rewritePrefix,omitzero" doc:"Replaces the prefix that the match found."`
	Regex         *RegexReplace `json:"regex,omitzero" doc:"Replaces what a regular expression finds."`
}

// ModifyHost rewrites a Host header.
type ModifyHost struct {
	Value    *string       `json:"value,omitzero" doc:"The new host."`
	FromPath *RegexReplace `json:"fromPath,omitzero" doc:"Takes the new host from the path."`
}

// RegexReplace is a replacement by regular expression.
type RegexReplace struct {
	Pattern      string `json:"pattern" required:"true" format:"regex" doc:"Regular expression (RE2) to look for."`
	Substitution string `json:"substitution" required:"true" doc:"What to put in its place; \\1 is the first group."`
}

// ModifyHeaders adds and removes headers.
type ModifyHeaders struct {
	Add    []AddHeader    `json:"add,omitzero" doc:"Headers to add or replace."`
	Remove []RemoveHeader `json:"remove,omitzero" doc:"Headers to remove."`
}

// AddHeader adds or replaces a header.
type AddHeader struct {
	Name   string `json:"name" required:"true" notEmpty:"true" doc:"Name of the header."`
	Value  string `json:"value" required:"true" doc:"Value of the header."`
	Append *bool  `json:"append,omitzero" doc:"Adds to a header that is already there instead of replacing it; false when absent."`
}

// RemoveHeader removes a header.
type RemoveHeader struct {
	Name string `json:"name" required:"true" notEmpty:"true" doc:"Name of the header."`
}

func (c *TrafficRouteConf) check(at Path, r *Report) {
	c.RouteDestinations.check(at, len(c.HTTP) > 0 || c.LoadBalancer == nil, r)
	if c.LoadBalancer != nil {
		c.LoadBalancer.check(at.Field("loadBalancer"), r)
	}
	for i := range c.HTTP {
		c.HTTP[i].check(at.Field("http").Index(i), r)
	}
}

func (d *RouteDestinations) check(at Path, needed bool, r *Report) {
	if needed || (d.Split != nil && d.Destination != nil) {
		checkOneOf(at, r, choice{"split", d.Split != nil}, choice{"destination", d.Destination != nil})
	}
	if d.Destination != nil {
		checkDestination(at.Field("destination"), d.Destination, r)
	}
	if d.Split == nil {
		return
	}
	split, sum := at.Field("split"), uint64(0)
	for i, s := range d.Split {
		sum += uint64(s.Weight)
		checkDestination(split.Index(i).Field("destination"), s.Destination, r)
	}
	if sum == 0 {
		r.Errorf(split, "the weights add up to 0, so that no traffic goes anywhere")
	}
}

// checkDestination refuses destinations that name no service.
func checkDestination(at Path, tags TagSelector, r *Report) {
	if tags[ServiceTag] == "" {
		r.Errorf(at, "must name the service with the tag %s", ServiceTag)
	}
	checkTags(at, tags, r)
}

func (l *LoadBalancer) check(at Path, r *Report) {
	checkOneOf(at, r,
		choice{"roundRobin", l.RoundRobin != nil}, choice{"leastRequest", l.LeastRequest != nil},
		choice{"ringHash", l.RingHash != nil}, choice{"random", l.Random != nil}, choice{"maglev", l.Maglev != nil})
	if h := l.RingHash; h != nil && h.MinRingSize != nil && h.MaxRingSize != nil && *h.MaxRingSize < *h.MinRingSize {
		r.Errorf(at.Field("ringHash").Field("maxRingSize"), "must not be smaller than minRingSize (%d)", *h.MinRingSize)
	}
}

func (h *RouteHTTP) check(at Path, r *Report) {
	match := at.Field("match")
	if m := h.Match; m != nil {
		if m.Method == nil && m.Path == nil && len(m.Headers) == 0 {
			r.Errorf(match, "needs at least one of method, path, headers")
		}
		if m.Method != nil {
			m.Method.check(match.Field("method"), r)
		}
		if m.Path != nil {
			m.Path.check(match.Field("path"), r)
		}
		for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
			header := m.Headers[name]
			header.check(doctree.MemberPath(match.Field("headers"), name), r)
		}
	}
	if h.Modify != nil {
		h.Modify.check(at.Field("modify"), h.Match, r)
	}
	h.RouteDestinations.check(at, true, r)
}

func (m *StringMatch) check(at Path, r *Report) {
	checkOneOf(at, r, choice{"prefix", m.Prefix != nil}, choice{"exact", m.Exact != nil}, choice{"regex", m.Regex != nil})
}

func (m *RouteModify) check(at Path, match *RouteMatch, r *Report) {
	if p := m.Path; p != nil {
		path := at.Field("path")
		checkOneOf(path, r, choice{"rewritePrefix", p.RewritePrefix != nil}, choice{"regex", p.Regex != nil})
		if p.RewritePrefix != nil && (match == nil || match.Path == nil || match.Path.Prefix == nil) {
			r.Errorf(path.Field("rewritePrefix"), "needs a match on a path prefix to rewrite")
		}
	}
	if h := m.Host; h != nil {
		checkOneOf(at.Field("host"), r, choice{"value", h.Value != nil}, choice{"fromPath", h.FromPath != nil})
	}
}
