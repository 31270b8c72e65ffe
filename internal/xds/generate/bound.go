package generate

import (
	"fmt"
	"slices"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/xds"
	"meridian/internal/xds/world"
)

const (
	// maxRoutesBytes bounds the routes of an outbound, and each cluster of it.
	maxRoutesBytes = 3 << 20
	// maxResourceBytes bounds every resource: stock gRPC clients receive messages of up to
	// 4 MiB, and package serve sends a large resource alone.
	maxResourceBytes = 4<<20 - 64<<10
)

// Mark is a point in the making of outbounds.
type Mark struct{ resources, selectors int }

// Mark returns the point that has been reached.
func (b *Builder) Mark() Mark { return Mark{len(b.Resources), len(b.Selectors)} }

// AddRoutes adds the routes of an outbound. Where they, or a cluster since the mark, have
// more bytes than clients receive, it takes back what was added since the mark and adds
// refuse, by which every request fails: what is left out is in Omitted.
func (b *Builder) AddRoutes(a *policy.Attachment, since Mark, routes, refuse *routev3.RouteConfiguration, origins ...xds.Origin) error {
	size, name := proto.Size(routes), xds.Ref{Type: xds.Route, Name: routes.GetName()}
	for _, r := range b.Resources[since.resources:] {
		if len(r.Body) > max(size, maxRoutesBytes) {
			size, name = len(r.Body), r.Ref()
		}
	}
	if size <= maxRoutesBytes {
		return b.Add(routes, origins...)
	}
	o := xds.Omission{
		Attachment: a.String(),
		Why:        fmt.Sprintf("every request of this outbound fails: %s has %d bytes, and clients receive at most %d: write fewer or shorter rules", name, size, maxRoutesBytes),
	}
	from := origins
	for _, r := range b.Resources[since.resources:] {
		from = append(from, r.Origins...)
	}
	for i := range from {
		o.Sources = append(o.Sources, from[i].Source)
	}
	slices.SortFunc(o.Sources, resource.Key.Compare)
	o.Sources = slices.Compact(o.Sources)
	b.Omitted = append(b.Omitted, o)
	b.takeBack(since)
	return b.Add(refuse)
}

// takeBack removes what was added since a mark.
func (b *Builder) takeBack(since Mark) {
	for _, r := range b.Resources[since.resources:] {
		delete(b.clusters, r.Name)
		b.nowhere = b.nowhere && r.Name != nowhereCluster
	}
	for _, s := range b.Selectors[since.selectors:] {
		delete(b.selectors, world.KeyOf(b.Mesh, s).Name())
	}
	b.Resources, b.Selectors = b.Resources[:since.resources], b.Selectors[:since.selectors]
}

// tooLarge says which resource is larger than clients receive; empty when none is.
func tooLarge(all []*xds.Resource) string {
	for _, r := range all {
		if len(r.Body) > maxResourceBytes {
			return fmt.Sprintf("%s has %d bytes, and clients receive at most %d", r.Ref(), len(r.Body), maxResourceBytes)
		}
	}
	return ""
}
