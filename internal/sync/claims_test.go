package zonesync

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/resource"
)

// What a zone says of itself is shortened and counted where it is received.
func TestClaimsOfZonesAreBounded(t *testing.T) {
	r, c := newRegistry(), &conn{}
	_, err := r.join("z", c, &syncv1.Hello{Instance: "i"}, time.Now())
	require.NoError(t, err)
	flood := &syncv1.Ack{Error: "\x1b[2Jgone\nand " + strings.Repeat("é", 1<<20)}
	for i := range 5000 {
		flood.Nacks = append(flood.Nacks, &syncv1.Nack{Kind: "TrafficPermission", Mesh: "default", Name: fmt.Sprint("p", i), Message: strings.Repeat("x", 10_000)})
	}
	flood.Nacks = append(flood.Nacks,
		&syncv1.Nack{Kind: strings.Repeat("K", 1<<20), Name: "a"}, &syncv1.Nack{Kind: "Mesh", Name: strings.Repeat("n", 1<<20)},
		&syncv1.Nack{Kind: "Mesh", Name: "a\x1b[2J"}, &syncv1.Nack{Kind: "Mesh", Mesh: "\n", Name: "a"}, &syncv1.Nack{Kind: "\x1b", Name: "a"})
	r.acknowledge("z", c, flood, time.Now())
	in := r.zones["z"]["i"]
	require.LessOrEqual(t, in.reported, maxZoneReports)
	require.Greater(t, in.reported, maxZoneReports-2*maxClaim)
	listed := len(in.quarantined)
	require.Less(t, listed, maxQuarantined)
	for key, q := range in.quarantined {
		require.NoError(t, resource.CheckName(key.Name))
		require.LessOrEqual(t, len(q.Message), maxClaim)
		require.True(t, strings.HasSuffix(q.Message, "…"))
	}
	require.True(t, strings.HasPrefix(in.problem(), "[2Jgone and é"), in.problem())
	require.Contains(t, in.problem(), fmt.Sprintf("…; %d more reports of resources that it did not accept are not listed", 5005-listed))
	require.Less(t, len(in.problem()), 2*maxClaim)

	// What is accepted in the end makes space, and the mark goes.
	var cleared []*syncv1.Nack
	for _, n := range flood.Nacks {
		cleared = append(cleared, &syncv1.Nack{Kind: n.Kind, Mesh: n.Mesh, Name: n.Name, Cleared: true})
	}
	r.acknowledge("z", c, &syncv1.Ack{Nacks: cleared}, time.Now())
	require.Empty(t, in.quarantined)
	require.Zero(t, in.reported)
	require.Empty(t, in.problem())
	short := &syncv1.Ack{}
	for i := range maxQuarantined + 1 {
		short.Nacks = append(short.Nacks, &syncv1.Nack{Kind: "Mesh", Name: fmt.Sprint("p", i)})
	}
	r.acknowledge("z", c, short, time.Now())
	require.Len(t, in.quarantined, maxQuarantined)
	require.Contains(t, in.problem(), "1 more reports")
	short.Nacks[0].Message = strings.Repeat("x", maxClaim)
	before := in.reported
	r.acknowledge("z", c, &syncv1.Ack{Nacks: short.Nacks[:1]}, time.Now())
	require.Equal(t, before+maxClaim, in.reported, "the report replaces the one before")

	for i := range maxInstances - 1 {
		_, err := r.join("z", &conn{}, &syncv1.Hello{Instance: fmt.Sprint("j", i)}, time.Now())
		require.NoError(t, err)
	}
	_, err = r.join("z", &conn{}, &syncv1.Hello{Instance: "one more"}, time.Now())
	require.ErrorContains(t, err, "32 connected instances, the limit for one zone")
	_, err = r.join("z", &conn{}, &syncv1.Hello{Instance: "j0", Lease: 1}, time.Now())
	require.NoError(t, err, "a newer connection of one of them")
	_, err = r.join("y", &conn{}, &syncv1.Hello{Instance: "i"}, time.Now())
	require.NoError(t, err, "another zone")

	require.ErrorContains(t, checkInstance(strings.Repeat("a", maxInstanceName+1)), "has 129 bytes; at most 128 are allowed")
	require.ErrorContains(t, checkInstance("a\u202eb"), "characters that do not print")
	require.NoError(t, checkInstance("zone-1"))
	r.forget(func(zone resource.ZoneName) bool { return zone == "z" })
	require.Len(t, r.zones, 1)
}

// The answers of one zone that are arriving are bounded together, and its errors
// are its own: no code that does not exist, no long text.
func TestAnswersOfOneZoneAreBounded(t *testing.T) {
	q := askQueue{pending: map[uint64]*pendingAsk{}}
	ask := func(id uint64) *pendingAsk {
		p := &pendingAsk{done: make(chan struct{})}
		q.pending[id] = p
		return p
	}
	first, second := ask(1), ask(2)
	part := make([]byte, maxAnswer/4)
	for range 3 {
		q.answer(&syncv1.Answer{Id: 1, Part: part})
	}
	q.answer(&syncv1.Answer{Id: 2, Part: part})
	q.answer(&syncv1.Answer{Id: 2, Part: part[:1], Last: true})
	<-second.done
	require.Equal(t, codes.ResourceExhausted, status.Code(second.err))
	require.Nil(t, second.answer)
	q.answer(&syncv1.Answer{Id: 1, Part: part, Last: true})
	<-first.done
	require.NoError(t, first.err)
	require.Len(t, first.answer, maxAnswer)
	require.Zero(t, q.held)

	third := ask(3)
	q.answer(&syncv1.Answer{Id: 3, Last: true, Code: 4711, Error: strings.Repeat("x", 1<<20)})
	require.Equal(t, codes.Unknown, status.Code(third.err))
	require.Less(t, len(third.err.Error()), 2*maxClaim)
	ask(4)
	q.answer(&syncv1.Answer{Id: 4, Part: part})
	q.drop(4)
	require.Zero(t, q.held)
	fifth := ask(5)
	q.answer(&syncv1.Answer{Id: 5, Part: part})
	q.fail(errClosed)
	require.ErrorIs(t, fifth.err, errClosed)
	require.Zero(t, q.held)
}

// Whatever a zone sends as a text, what is kept is short, printable and one line.
func FuzzClaim(f *testing.F) {
	for _, s := range []string{"", "a", "\x1b[2J", "a\nb\tc", "\u202e", strings.Repeat("é", 300), "\xff\xfe", "👩‍👩‍👧"} {
		f.Add(s, 64)
	}
	f.Fuzz(func(t *testing.T, text string, limit int) {
		limit = 3 + max(limit, -limit)%maxClaim
		if limit < 3 {
			limit = 3
		}
		got := claim(text, limit)
		require.LessOrEqual(t, len(got), limit)
		require.True(t, utf8.ValidString(got))
		require.Equal(t, got, claim(got, limit), "what was kept is kept")
	})
}

// TestReportsOfAllZonesAreBounded: what all zones of a server report is kept up to a
// number of bytes, whatever they say; zones that leave make space again.
func TestReportsOfAllZonesAreBounded(t *testing.T) {
	r := newRegistry()
	conns := map[resource.ZoneName]*conn{}
	flood := &syncv1.Ack{}
	for i := range maxQuarantined {
		flood.Nacks = append(flood.Nacks, &syncv1.Nack{Kind: "Mesh", Name: fmt.Sprint("p", i), Message: strings.Repeat("x", maxClaim)})
	}
	kept := func() (bytes int) {
		for _, instances := range r.zones {
			for _, in := range instances {
				for _, q := range in.quarantined {
					bytes += sizeOf(q)
				}
			}
		}
		return bytes
	}
	report := func(zone resource.ZoneName, instance string) {
		c := &conn{}
		conns[zone] = c
		_, err := r.join(zone, c, &syncv1.Hello{Instance: instance}, time.Now())
		require.NoError(t, err)
		r.acknowledge(zone, c, flood, time.Now())
	}
	for i := range maxReports/maxZoneReports + 20 {
		report(resource.ZoneName(fmt.Sprint("z", i)), "i")
		report(resource.ZoneName(fmt.Sprint("z", i)), "j")
	}
	require.LessOrEqual(t, kept(), maxReports)
	require.Greater(t, kept(), maxReports-10*maxZoneReports/9)
	require.Empty(t, r.zones["z51"]["i"].quarantined)
	require.Contains(t, r.zones["z51"]["i"].problem(), "1000 more reports")
	r.forget(func(zone resource.ZoneName) bool { return zone == "z0" })
	report("late", "i")
	require.NotEmpty(t, r.zones["late"]["i"].quarantined)
	require.LessOrEqual(t, kept(), maxReports)
}
