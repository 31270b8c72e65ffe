package auditlog

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	peerv1 "meridian/api/peer/v1"
	"meridian/internal/audit"
	"meridian/internal/rpcerr"
)

// logOf is a log with records at given seconds.
func logOf(seconds ...int) func(context.Context, audit.Query) ([][]byte, bool, error) {
	return func(_ context.Context, q audit.Query) (lines [][]byte, more bool, _ error) {
		for i, s := range seconds {
			at := time.Date(2026, 1, 2, 3, 0, s, 0, time.UTC)
			if place := (audit.Place{Time: at, Source: q.Source, Seq: uint64(i + 1)}); q.After != (audit.Place{}) && place.Compare(q.After) <= 0 {
				continue
			}
			if len(lines) == q.Limit {
				return lines, true, nil
			}
			lines = append(lines, fmt.Appendf(nil, `{"seq":%d,"time":%q}`, i+1, at.Format(time.RFC3339Nano)))
		}
		return lines, false, nil
	}
}

func service(absent []Absence, sources ...Source) *Service {
	return &Service{
		Authorize: func(context.Context) error { return nil },
		Sources:   func(context.Context) ([]Source, []Absence) { return sources, absent },
	}
}

// zoneOf is a zone that is asked in bytes, as through its stream.
func zoneOf(name string, log func(context.Context, audit.Query) ([][]byte, bool, error)) Source {
	return Source{Zone: name, Ask: AskZone(AnswerZone(Local(log)))}
}

// list reads all pages of a size, and says who was when.
func list(t *testing.T, s *Service, size uint32) (out []string, absent map[string]string) {
	t.Helper()
	absent = map[string]string{}
	req := &meridianv1.ListAuditRequest{PageSize: size}
	for pages := 0; ; pages++ {
		require.Less(t, pages, 30, "it ends")
		page, err := s.ListAudit(t.Context(), req)
		require.NoError(t, err)
		require.LessOrEqual(t, len(page.GetRecords()), audit.MaxPage)
		for _, r := range page.GetRecords() {
			record, err := audit.DecodeLine(r.GetJson())
			require.NoError(t, err)
			out = append(out, fmt.Sprint(r.GetServer(), r.GetZone(), record.Time.Second()))
		}
		for _, i := range page.GetIncomplete() {
			absent[i.GetServer()+i.GetZone()] = i.GetReason()
		}
		if req.PageToken = page.GetNextPageToken(); req.PageToken == "" {
			return out, absent
		}
	}
}

func TestRecordsOfAllServersAreInOrder(t *testing.T) {
	s := service([]Absence{{Zone: "west", Reason: "offline"}},
		Source{Server: "a", Ask: Local(logOf(1, 4, 4, 9))}, Source{Server: "b", Ask: Local(logOf(2, 4, 10))}, zoneOf("east", logOf(3, 3, 11)),
		Source{Server: "c", Ask: func(context.Context, *peerv1.ListAuditRequest) (*peerv1.ListAuditResponse, error) {
			return nil, errors.New("away")
		}})
	want := []string{"a1", "b2", "east3", "east3", "a4", "a4", "b4", "a9", "b10", "east11"}
	for _, size := range []uint32{0, 1, 2, 3, 100, 1 << 31} {
		got, absent := list(t, s, size)
		require.Equal(t, want, got, "pages of %d", size)
		require.Equal(t, map[string]string{"west": "offline", "c": "away"}, absent)
	}
}

// The servers of a zone are listed as one log of the zone, in one order with the others, each
// record once and with its server, also where two have one of the same moment and number; those
// that do not answer are named.
func TestRecordsOfAZoneOfSeveralServers(t *testing.T) {
	one, two := logOf(1, 4, 4, 9), logOf(1, 4, 8)
	servers := []Source{
		{Zone: "east", Server: "one", Ask: Local(one)},
		{Zone: "east", Server: "two", Ask: Local(two)},
		{Zone: "east", Server: "three", Ask: func(context.Context, *peerv1.ListAuditRequest) (*peerv1.ListAuditResponse, error) {
			return nil, errors.New("away")
		}},
	}
	gone := []Absence{{Zone: "east", Server: "four", Reason: "gone"}}
	together := Together(func(context.Context) ([]Source, []Absence) { return servers, gone })
	s := service(nil, Source{Server: "a", Ask: Local(logOf(1, 5, 10))}, Source{Zone: "east", Ask: AskZone(AnswerZone(together))})
	want := []string{"a1", "oneeast1", "twoeast1", "oneeast4", "oneeast4", "twoeast4", "a5", "twoeast8", "oneeast9", "a10"}
	for _, size := range []uint32{0, 1, 2, 3, 100} {
		got, absent := list(t, s, size)
		require.Equal(t, want, got, "pages of %d", size)
		require.Equal(t, map[string]string{"threeeast": "away", "foureast": "gone"}, absent)
	}
	// A server of the zone that is asked itself says the same of the zone.
	got, absent := list(t, service(gone, servers...), 2)
	require.Equal(t, []string{"oneeast1", "twoeast1", "oneeast4", "oneeast4", "twoeast4", "twoeast8", "oneeast9"}, got)
	require.Len(t, absent, 2)
}

// A zone that lies spoils nothing: it is named, and the others' records are listed.
func TestAZoneThatLies(t *testing.T) {
	late := `{"seq":1,"time":"2026-01-02T03:00:09Z"}`
	for name, page := range map[string]*peerv1.ListAuditResponse{
		"no record":    {Lines: [][]byte{[]byte("\x1b[2J")}},
		"out of order": {Lines: [][]byte{[]byte(late), []byte(`{"seq":2,"time":"2026-01-02T03:00:08Z"}`)}},
		"twice":        {Lines: [][]byte{[]byte(late), []byte(late)}},
		"endless":      {More: true},
		"too many":     {Lines: make([][]byte, audit.MaxPage+1)},
		"servers":      {Lines: [][]byte{[]byte(late)}, Servers: []string{"one", "two"}},
		"all absent":   {Absent: make([]*peerv1.AbsentServer, maxAbsent+1)},
	} {
		t.Run(name, func(t *testing.T) {
			lying := Source{Zone: "west", Ask: AskZone(func(context.Context, []byte) ([]byte, error) { return proto.Marshal(page) })}
			got, absent := list(t, service(nil, Source{Server: "a", Ask: Local(logOf(1, 2))}, lying), 1)
			require.Equal(t, []string{"a1", "a2"}, got)
			require.Equal(t, map[string]string{"west": errNotRecords.Error()}, absent)
		})
	}
}

func TestWhoMayList(t *testing.T) {
	denied := rpcerr.New(rpcerr.Denied, "ACCESS_DENIED", "no")
	s := service(nil)
	s.Authorize = func(context.Context) error { return denied }
	s.Sources = func(context.Context) ([]Source, []Absence) {
		t.Error("it is not asked")
		return nil, nil
	}
	_, err := s.ListAudit(t.Context(), &meridianv1.ListAuditRequest{})
	require.ErrorIs(t, err, denied)

	s = service(nil)
	for _, bad := range []*meridianv1.ListAuditRequest{{Verdict: "maybe"}, {PageToken: "%"}, {PageToken: "_w"}} {
		_, err := s.ListAudit(t.Context(), bad)
		require.Equal(t, rpcerr.Invalid, rpcerr.CodeOf(err), bad)
	}
}
