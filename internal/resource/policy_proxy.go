package resource

import (
	"regexp"
	"slices"
	template "text/template/parse"

	"meridian/internal/doctree"
)

// ProxyTemplate changes the proxy configuration of whole dataplanes.
type ProxyTemplate struct {
	DataplanePolicy[ProxyTemplateConf, *ProxyTemplateConf]
}

func (*ProxyTemplate) fieldHint(name string) string {
	return successorHint(name, KindMeshEnvoyTemplate)
}

// ProxyTemplateConf is the published configuration of ProxyTemplate.
type ProxyTemplateConf struct {
	EnvoyTemplate
	Resources []RawResource `json:"resources,omitzero" doc:"Proxy resources to add as they are."`
}

// EnvoyTemplate is what both generations of templates share.
type EnvoyTemplate struct {
	Imports       []string       `json:"imports,omitzero" notEmpty:"true" doc:"Profiles to begin with, such as default-proxy."`
	Modifications []Modification `json:"modifications,omitzero" doc:"Changes to the generated configuration, in order."`
}

// RawResource is a proxy resource as it is.
type RawResource struct {
	Name     string `json:"name" required:"true" notEmpty:"true" doc:"Name of the resource among those of its type."`
	Version  string `json:"version" required:"true" notEmpty:"true" doc:"Version of the resource."`
	Resource string `json:"resource" required:"true" notEmpty:"true" doc:"The resource, as YAML."`
}

// Modification is one change; one of its fields is written.
type Modification struct {
	Cluster       *ClusterModification     `json:"cluster,omitzero" doc:"Change to clusters."`
	Listener      *ListenerModification    `json:"listener,omitzero" doc:"Change to listeners."`
	NetworkFilter *FilterModification      `json:"networkFilter,omitzero" doc:"Change to network filters."`
	HTTPFilter    *FilterModification      `json:"httpFilter,omitzero" doc:"Change to HTTP filters."`
	VirtualHost   *VirtualHostModification `json:"virtualHost,omitzero" doc:"Change to virtual hosts."`
}

// ModificationValue is what is put in.
type ModificationValue struct {
	Value *string `json:"value,omitzero" doc:"What to add or to merge in, as YAML; none with remove."`
}

// ClusterModification adds, patches or removes clusters.
type ClusterModification struct {
	Operation string        `json:"operation" required:"true" enum:"add|patch|remove" doc:"What to do."`
	Match     *ClusterMatch `json:"match,omitzero" doc:"Clusters to patch or remove; all when absent."`
	ModificationValue
}

// ClusterMatch selects clusters.
type ClusterMatch struct {
	Name   *string `json:"name,omitzero" doc:"Name of the cluster."`
	Origin *string `json:"origin,omitzero" doc:"Where it comes from: inbound, outbound, gateway, prometheus, transparent or ingress."`
}

// ListenerModification adds, patches or removes listeners.
type ListenerModification struct {
	Operation string         `json:"operation" required:"true" enum:"add|patch|remove" doc:"What to do."`
	Match     *ListenerMatch `json:"match,omitzero" doc:"Listeners to patch or remove; all when absent."`
	ModificationValue
}

// ListenerMatch selects listeners.
type ListenerMatch struct {
	Name   *string     `json:"name,omitzero" doc:"Name of the listener."`
	Origin *string     `json:"origin,omitzero" doc:"Where it comes from: inbound, outbound, gateway, prometheus, transparent or ingress."`
	Tags   TagSelector `json:"tags,omitzero" doc:"Tags of the inbound or outbound that the listener is for."`
}

// FilterModification adds, patches or removes filters.
type FilterModification struct {
	Operation string       `json:"operation" required:"true" enum:"addFirst|addLast|addBefore|addAfter|patch|remove" doc:"What to do."`
	Match     *FilterMatch `json:"match,omitzero" doc:"Filters to patch, to remove or to add next to; all when absent."`
	ModificationValue
}

// FilterMatch selects filters.
type FilterMatch struct {
	Name         *string     `json:"name,omitzero" doc:"Name of the filter."`
	Origin       *string     `json:"origin,omitzero" doc:"Where its listener comes from: inbound, outbound, gateway, prometheus, transparent or ingress."`
	ListenerName *string     `json:"listenerName,omitzero" doc:"Name of its listener."`
	ListenerTags TagSelector `json:"listenerTags,omitzero" doc:"Tags of the inbound or outbound that its listener is for."`
}

// VirtualHostModification adds, patches or removes virtual hosts.
type VirtualHostModification struct {
	Operation string            `json:"operation" required:"true" enum:"add|patch|remove" doc:"What to do."`
	Match     *VirtualHostMatch `json:"match,omitzero" doc:"Virtual hosts to patch or remove; all when absent."`
	ModificationValue
}

// VirtualHostMatch selects virtual hosts.
type VirtualHostMatch struct {
	Name                   *string `json:"name,omitzero" doc:"Name of the virtual host."`
	Origin                 *string `json:"origin,omitzero" doc:"Where it comes from: inbound, outbound, gateway, prometheus, transparent or ingress."`
	RouteConfigurationName *string `json:"routeConfigurationName,omitzero" doc:"Name of its route configuration."`
}

func (c *ProxyTemplateConf) check(at Path, r *Report) { c.EnvoyTemplate.check(at, r) }

func (c *EnvoyTemplate) check(at Path, r *Report) {
	for i := range c.Modifications {
		c.Modifications[i].check(at.Field("modifications").Index(i), r)
	}
}

func (m *Modification) check(at Path, r *Report) {
	checkOneOf(at, r,
		choice{"cluster", m.Cluster != nil}, choice{"listener", m.Listener != nil}, choice{"networkFilter", m.NetworkFilter != nil},
		choice{"httpFilter", m.HTTPFilter != nil}, choice{"virtualHost", m.VirtualHost != nil})
	if c := m.Cluster; c != nil {
		c.check(at.Field("cluster"), c.Operation, c.Match != nil, r)
	}
	if l := m.Listener; l != nil {
		l.check(at.Field("listener"), l.Operation, l.Match != nil, r)
		if l.Match != nil {
			checkTags(at.Field("listener").Field("match").Field("tags"), l.Match.Tags, r)
		}
	}
	if v := m.VirtualHost; v != nil {
		// A virtual host is added to the route configuration that match names.
		v.check(at.Field("virtualHost"), v.Operation, false, r)
	}
	m.NetworkFilter.check(at.Field("networkFilter"), r)
	m.HTTPFilter.check(at.Field("httpFilter"), r)
}

// check refuses values that the operation lacks or does not take, and a match
// on what is only being added.
func (v *ModificationValue) check(at Path, operation string, matched bool, r *Report) {
	switch {
	case operation == "remove" && v.Value != nil:
		r.Errorf(at.Field("value"), "is not used by remove; leave it out")
	case operation != "remove" && (v.Value == nil || *v.Value == ""):
		r.Errorf(at.Field("value"), "is required by %s", operation)
	}
	if operation == "add" && matched {
		r.Errorf(at.Field("match"), "is not used by add; leave it out")
	}
}

func (f *FilterModification) check(at Path, r *Report) {
	if f == nil {
		return
	}
	f.ModificationValue.check(at, f.Operation, false, r)
	match := at.Field("match")
	if f.Match != nil {
		checkTags(match.Field("listenerTags"), f.Match.ListenerTags, r)
	}
	if slices.Contains([]string{"addBefore", "addAfter", "patch"}, f.Operation) &&
		(f.Match == nil || f.Match.Name == nil || *f.Match.Name == "") {
		r.Errorf(match.Field("name"), "is required by %s", f.Operation)
	}
}

// VirtualOutbound gives services host names and ports by templates.
type VirtualOutbound struct {
	DataplanePolicy[VirtualOutboundConf, *VirtualOutboundConf]
}

func (*VirtualOutbound) fieldHint(name string) string {
	return successorHint(name, KindMeshVirtualOutbound)
}

// Validate also refuses a policy without conf: there is no name to give.
func (p *VirtualOutbound) Validate(at Path, r *Report) {
	p.DataplanePolicy.Validate(at, r)
	if p.Conf == nil {
		r.Errorf(at.Field("conf"), "is required: it says how hosts and ports are made from tags")
	}
}

// VirtualOutboundConf is the published configuration of VirtualOutbound.
type VirtualOutboundConf struct {
	Host       *string             `json:"host,omitzero" doc:"Template of the host name, such as {{.service}}.mesh."`
	Port       *string             `json:"port,omitzero" doc:"Template of the port, such as {{.port}}."`
	Parameters []TemplateParameter `json:"parameters,omitzero" doc:"What the templates can use; one of them stands for kuma.io/service."`
}

// TemplateParameter gives a tag a name in templates.
type TemplateParameter struct {
	Name   string  `json:"name" required:"true" doc:"Name in the templates, of letters, digits and _."`
	TagKey *string `json:"tagKey,omitzero" doc:"Tag whose value it stands for; the same as name when absent."`
}

var parameterName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

func (c *VirtualOutboundConf) check(at Path, r *Report) {
	if c.Host == nil {
		r.Errorf(at.Field("host"), "is required")
	}
	if c.Port == nil {
		r.Errorf(at.Field("port"), "is required")
	}
	c.checkParts(at, r)
	if !slices.ContainsFunc(c.Parameters, func(p TemplateParameter) bool { return p.tag() == ServiceTag }) {
		r.Errorf(at.Field("parameters"), "needs an entry with tagKey: %s", ServiceTag)
	}
}

// checkParts checks what is written, whether or not the rest is.
func (c *VirtualOutboundConf) checkParts(at Path, r *Report) {
	var names []string
	for i, p := range c.Parameters {
		name := at.Field("parameters").Index(i).Field("name")
		switch {
		case !parameterName.MatchString(p.Name):
			r.Errorf(name, "consists of letters, digits and _, got %q", doctree.Clip(p.Name))
		case slices.Contains(names, p.Name):
			r.Errorf(name, "%s is defined twice", p.Name)
		}
		names = append(names, p.Name)
	}
	if c.Host != nil {
		checkTemplate(at.Field("host"), *c.Host, names, r)
	}
	if c.Port != nil {
		checkTemplate(at.Field("port"), *c.Port, names, r)
	}
}

func (p TemplateParameter) tag() string {
	if p.TagKey == nil {
		return p.Name
	}
	return *p.TagKey
}

// checkTemplate refuses text that is no template or uses an unknown parameter.
// Nil parameters are defined elsewhere. It only parses: executing an author's
// template could run for ever.
func checkTemplate(at Path, text string, parameters []string, r *Report) {
	if text == "" {
		r.Errorf(at, "must not be empty")
		return
	}
	tree := template.New("template")
	tree.Mode = template.SkipFuncCheck
	if _, err := tree.Parse(text, "{{", "}}", map[string]*template.Tree{}); err != nil {
		r.Errorf(at, "is not a template: %s", err)
		return
	}
	for _, node := range tree.Root.Nodes {
		action, ok := node.(*template.ActionNode)
		if !ok {
			if _, plain := node.(*template.TextNode); !plain {
				r.Errorf(at, "may only contain text and {{.parameter}}, got %s", doctree.Clip(node.String()))
			}
			continue
		}
		checkPipe(at, action.Pipe, parameters, r)
	}
}

func checkPipe(at Path, pipe *template.PipeNode, parameters []string, r *Report) {
	for _, command := range pipe.Cmds {
		for _, argument := range command.Args {
			switch a := argument.(type) {
			case *template.FieldNode:
				name := a.Ident[0]
				if len(a.Ident) > 1 || (parameters != nil && !slices.Contains(parameters, name)) {
					r.Errorf(at, "uses {{%s}}, which no parameter defines%s", a, didYouMean(name, parameters))
				}
			case *template.PipeNode:
				checkPipe(at, a, parameters, r)
			}
		}
	}
}
