package dataplane

import (
	"maps"
	"slices"
	"time"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/resource"
)

// Plaintext is what the inbounds of a dataplane take without TLS, as its proxy counts it.
// It is immutable.
type Plaintext struct {
	// Connections are those since its proxy counts; Open are those that are open.
	Connections, Open uint64
	// Last is when there was one; without any, when the proxy began to count.
	Last time.Time
	// AsOf is when the proxy said so.
	AsOf time.Time
}

// takePlaintext takes what a proxy has counted. What it was not asked for, or no longer,
// has no effect.
func (s *session) takePlaintext(m *meridianv1.DataplanePlaintext) {
	d := s.service
	now := d.cfg.Now()
	quiet := max(0, m.GetQuiet().AsDuration())
	d.mu.Lock()
	defer d.mu.Unlock()
	if !s.identity.plaintext {
		return
	}
	before := uint64(0)
	if p := s.proxy.plaintext; p != nil && p.Connections <= m.GetConnections() {
		before = p.Connections // a lower number is that of another count
	}
	d.plaintext[s.proxy.key.Mesh] += float64(m.GetConnections() - before)
	s.proxy.plaintext = &Plaintext{Connections: m.GetConnections(), Open: m.GetOpen(), Last: now.Add(-quiet), AsOf: now}
}

// MeshPlaintext is what the inbounds of a mesh's dataplanes take without TLS.
type MeshPlaintext struct {
	Mesh resource.MeshName
	// Connections are those since this service runs, and Open those that are open.
	Connections, Open float64
	// Counting is how many dataplanes have a proxy that counts them.
	Counting int
}

// Plaintext returns what is taken without TLS by the dataplanes of each mesh that has, or
// had, some that count it, in order of the meshes.
func (d *Service) Plaintext() []MeshPlaintext {
	d.mu.Lock()
	defer d.mu.Unlock()
	counts := map[resource.MeshName]MeshPlaintext{}
	for mesh, taken := range d.plaintext {
		counts[mesh] = MeshPlaintext{Mesh: mesh, Connections: taken}
	}
	for key, p := range d.proxies {
		if p.plaintext != nil {
			c := counts[key.Mesh]
			c.Open += float64(p.plaintext.Open)
			c.Counting++
			counts[key.Mesh] = c
		}
	}
	list := make([]MeshPlaintext, 0, len(counts))
	for _, mesh := range slices.Sorted(maps.Keys(counts)) {
		list = append(list, counts[mesh])
	}
	return list
}
