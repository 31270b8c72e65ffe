package global

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	peerv1 "meridian/api/peer/v1"
	"meridian/internal/resource"
	zonesync "meridian/internal/sync"
)

// TestReportsComeInPages: what a server tells another of its zones is bounded in
// bytes in each answer, however many zones there are and whatever these say, and is
// the same put together.
func TestReportsComeInPages(t *testing.T) {
	report := zonesync.Report{Server: "a", Newest: 7, Reached: true, Late: []resource.ZoneName{"z-0001"}}
	for i := range 3000 {
		for _, id := range []string{"", "i", "j"} {
			in := zonesync.Instance{Zone: resource.ZoneName(fmt.Sprintf("z-%04d", i)), ID: id, Server: "a", Lease: uint64(i), LastError: strings.Repeat("e", 512)}
			if i%100 == 0 {
				in.Quarantined = []zonesync.Quarantined{{Key: resource.Key{Kind: resource.KindMesh, Name: "m"}, Message: strings.Repeat("x", 100<<10)}}
			}
			report.Instances = append(report.Instances, in)
		}
	}
	report.Instances[4].Quarantined = []zonesync.Quarantined{{Key: resource.Key{Kind: resource.KindMesh, Name: "m"}, Message: strings.Repeat("x", 2*reportPage)}}
	for name, limit := range map[string]uint64{"as the server likes": 0, "small": 10 << 10, "more than the server likes": 1 << 40} {
		t.Run(name, func(t *testing.T) {
			pages := 0
			got, err := allPages(func(page *peerv1.Page) (*peerv1.ZoneReport, error) {
				pages++
				page.Bytes = limit
				r := encodeReport(report, page, false)
				require.True(t, proto.Size(r) <= reportPage+16<<10 || len(r.GetInstances()) == 1, "%d bytes", proto.Size(r))
				require.Equal(t, pages == 1, len(r.GetLate()) > 0)
				return r, nil
			})
			require.NoError(t, err)
			require.Equal(t, report, got)
			require.Greater(t, pages, 10)
		})
	}

	brief, err := allPages(func(page *peerv1.Page) (*peerv1.ZoneReport, error) { return encodeReport(report, page, true), nil })
	require.NoError(t, err)
	require.Len(t, brief.Instances, len(report.Instances))
	for _, in := range brief.Instances {
		require.Empty(t, in.Quarantined)
	}
	whole, err := allPages(func(*peerv1.Page) (*peerv1.ZoneReport, error) { // of a server that knows no pages
		r := encodeReport(zonesync.Report{Server: "a", Instances: report.Instances[:1]}, nil, false)
		return r, nil
	})
	require.NoError(t, err)
	require.Equal(t, report.Instances[:1], whole.Instances)
	asked := 0
	_, err = allPages(func(*peerv1.Page) (*peerv1.ZoneReport, error) { // of one that repeats itself
		asked++
		return &peerv1.ZoneReport{More: true, Instances: []*peerv1.ZoneInstance{{Zone: "z", Id: "i"}}}, nil
	})
	require.NoError(t, err)
	require.Equal(t, 2, asked)
	gone := errors.New("gone")
	_, err = allPages(func(page *peerv1.Page) (*peerv1.ZoneReport, error) {
		if page.GetAfterZone() != "" {
			return nil, gone
		}
		return encodeReport(report, page, false), nil
	})
	require.ErrorIs(t, err, gone, "a part of a report is none")
}
