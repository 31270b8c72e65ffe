package policy

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"meridian/internal/resource"
)

// AttachmentType says what part of a dataplane a rule configures.
type AttachmentType string

// The types of attachment, in the order they are listed in.
const (
	OnDataplane AttachmentType = "dataplane"
	OnInbound   AttachmentType = "inbound"
	OnOutbound  AttachmentType = "outbound"
)

// Attachment is a part of a dataplane that policies take effect on: the
// dataplane itself, one inbound or one outbound, known by type, port and tags
// (§1.5: duplicate ports are legal), or one route of an outbound.
type Attachment struct {
	Type    AttachmentType `json:"type"`
	Port    uint32         `json:"port,omitempty"`
	Service string         `json:"service,omitempty"`
	Tags    resource.Tags  `json:"tags,omitempty"`
	Route   string         `json:"route"`
}

// Compare orders attachments by type, port, service, tags and route.
func (a *Attachment) Compare(b *Attachment) int {
	if c := cmp.Or(strings.Compare(string(a.Type), string(b.Type)), cmp.Compare(a.Port, b.Port), strings.Compare(a.Service, b.Service)); c != 0 {
		return c
	}
	return cmp.Or(compareTags(a.Tags, b.Tags), strings.Compare(a.Route, b.Route))
}

// String names the attachment for people: "outbound backend:1234".
func (a *Attachment) String() string {
	s := string(a.Type)
	if a.Type != OnDataplane {
		s += " " + a.Service + ":" + strconv.FormatUint(uint64(a.Port), 10)
	}
	if a.Route != "" {
		s += " route " + a.Route
	}
	return s
}

// compareTags orders tag sets as lists of (tag, value), sorted by tag.
func compareTags(a, b resource.Tags) int {
	if maps.Equal(a, b) {
		return 0
	}
	x, y := slices.Sorted(maps.Keys(a)), slices.Sorted(maps.Keys(b))
	for i := range min(len(x), len(y)) {
		if c := cmp.Or(strings.Compare(x[i], y[i]), strings.Compare(a[x[i]], b[y[i]])); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(x), len(y))
}

// Target is what a rule is about: one kind on one attachment.
type Target struct {
	Attachment Attachment
	Kind       resource.Kind
}

// Compare orders targets by attachment, then kind.
func (t *Target) Compare(other *Target) int {
	return cmp.Or(t.Attachment.Compare(&other.Attachment), strings.Compare(string(t.Kind), string(other.Kind)))
}

// Shape is everything about a dataplane that policies can see, save its name.
// Dataplanes of equal shape get the same answers and share them. Immutable.
type Shape struct {
	Mesh resource.MeshName
	// Members are the tag sets by which the dataplane is selected and as which
	// it calls: its inbounds', in order, or its gateway's alone.
	Members []resource.Tags
	Gateway bool
	// Attachments are the dataplane, its inbounds and its outbounds, in order
	// and without duplicates. Their Route is empty.
	Attachments []Attachment

	key    string
	values map[string][]string // tag → distinct values over Members
}

// Dataplane is what an engine sees of one dataplane.
type Dataplane struct {
	// Name is empty when the answer is shared by all dataplanes of the shape:
	// then no policy names any of them.
	Name string
	*Shape
}

// Zone returns the zone that the dataplane's tags name, or "".
func (s *Shape) Zone() resource.ZoneName {
	for _, tags := range s.Members {
		if z := tags[resource.ZoneTag]; z != "" {
			return resource.ZoneName(z)
		}
	}
	return ""
}

func (s *Shape) sendsTo(selector resource.TagSelector) bool {
	for i := range s.Attachments {
		if a := &s.Attachments[i]; a.Type == OnOutbound && selector.Matches(a.Tags) {
			return true
		}
	}
	return false
}

// port is an inbound or outbound as the specs have it.
type port struct {
	number uint32
	tags   resource.Tags
}

// newShape builds a shape. gateway is nil for a dataplane with inbounds.
func newShape(mesh resource.MeshName, inbounds, outbounds []port, gateway resource.Tags) *Shape {
	s := &Shape{Mesh: mesh, Gateway: gateway != nil, Attachments: []Attachment{{Type: OnDataplane}}}
	if s.Gateway {
		s.Members = []resource.Tags{gateway}
		inbounds = nil
	}
	for _, in := range inbounds {
		s.Members = append(s.Members, in.tags)
		s.Attachments = append(s.Attachments, attachment(OnInbound, in))
	}
	for _, out := range outbounds {
		s.Attachments = append(s.Attachments, attachment(OnOutbound, out))
	}
	slices.SortFunc(s.Attachments, func(a, b Attachment) int { return a.Compare(&b) })
	s.Attachments = slices.CompactFunc(s.Attachments, func(a, b Attachment) bool { return a.Compare(&b) == 0 })
	s.values = map[string][]string{}
	for _, tags := range s.Members {
		for tag, value := range tags {
			if !slices.Contains(s.values[tag], value) {
				s.values[tag] = append(s.values[tag], value)
			}
		}
	}
	s.key = s.identity()
	return s
}

func attachment(t AttachmentType, p port) Attachment {
	return Attachment{Type: t, Port: p.number, Service: p.tags[resource.ServiceTag], Tags: p.tags}
}

// identity spells the shape so that equal shapes, and only they, have equal
// strings. Members are the inbounds' tags again, save for a gateway's.
func (s *Shape) identity() string {
	var b []byte
	b = strconv.AppendQuote(b, string(s.Mesh))
	if s.Gateway {
		b = append(b, 'g')
		b = appendTags(b, s.Members[0])
	}
	for i := range s.Attachments[1:] {
		a := &s.Attachments[1+i]
		b = append(b, a.Type[0])
		b = strconv.AppendUint(b, uint64(a.Port), 10)
		b = appendTags(b, a.Tags)
	}
	return string(b)
}

func appendTags(b []byte, tags resource.Tags) []byte {
	b = append(b, '{')
	for _, tag := range slices.Sorted(maps.Keys(tags)) {
		b = strconv.AppendQuote(b, tag)
		b = strconv.AppendQuote(b, tags[tag])
	}
	return append(b, '}')
}
