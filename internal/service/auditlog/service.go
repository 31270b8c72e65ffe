// Package auditlog lists the records of audit logs.
//
// Guarantees. Only administrators read records. A page has the oldest records of all
// servers that answered, in the order of their times, and names the servers that did
// not. What another server sends is checked and bounded.
//
// Non-goals: verifying the chains, which takes the files.
package auditlog

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	peerv1 "meridian/api/peer/v1"
	"meridian/internal/audit"
	"meridian/internal/rpcerr"
)

// askTimeout bounds how long a server may take to list its records.
const askTimeout = 10 * time.Second

// Source is a server or a zone that has an audit log, or a server of a zone: then both are set.
type Source struct {
	Server, Zone string
	// Ask returns a page of its records.
	Ask func(ctx context.Context, q *peerv1.ListAuditRequest) (*peerv1.ListAuditResponse, error)
}

func (s *Source) name() string {
	switch {
	case s.Zone == "":
		return "server/" + s.Server
	case s.Server == "":
		return "zone/" + s.Zone
	}
	return inZone("zone/"+s.Zone, s.Server)
}

// inZone is the name of a server of the zone of a name.
func inZone(zone, server string) string { return zone + "/" + server }

// Absence is a server or a zone, or a server of a zone, that cannot be asked, and why.
type Absence struct{ Server, Zone, Reason string }

// Service implements meridianv1.AuditServiceServer.
type Service struct {
	meridianv1.UnimplementedAuditServiceServer
	// Authorize refuses callers who may not read records.
	Authorize func(ctx context.Context) error
	// Sources are all logs, that of this server among them.
	Sources func(ctx context.Context) ([]Source, []Absence)
}

// Local answers for the log of a server: its Ask.
func Local(log func(ctx context.Context, q audit.Query) (lines [][]byte, more bool, err error)) func(context.Context, *peerv1.ListAuditRequest) (*peerv1.ListAuditResponse, error) {
	return func(ctx context.Context, q *peerv1.ListAuditRequest) (*peerv1.ListAuditResponse, error) {
		req := q.GetRequest()
		query := audit.Query{
			User: req.GetUser(), Kind: req.GetKind(), Name: req.GetName(), Verdict: audit.Decision(req.GetVerdict()),
			Source: q.GetSource(), Limit: int(min(req.GetPageSize(), audit.MaxPage)), After: decodePlace(q.GetAfter()),
		}
		if req.GetSince() != nil {
			query.Since = req.GetSince().AsTime()
		}
		lines, more, err := log(ctx, query)
		if err != nil {
			return nil, err
		}
		return &peerv1.ListAuditResponse{Lines: lines, More: more}, nil
	}
}

// Together answers for the logs of a zone's servers, as the one log of the zone: its Ask.
func Together(sources func(context.Context) ([]Source, []Absence)) func(context.Context, *peerv1.ListAuditRequest) (*peerv1.ListAuditResponse, error) {
	return func(ctx context.Context, q *peerv1.ListAuditRequest) (*peerv1.ListAuditResponse, error) {
		all, absent := sources(ctx)
		m, missing := gather(ctx, all, q.GetRequest(), decodePlace(q.GetAfter()))
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		response := &peerv1.ListAuditResponse{}
		for _, a := range append(absent, missing...) {
			response.Absent = append(response.Absent, &peerv1.AbsentServer{Server: a.Server, Reason: a.Reason})
		}
		var records []*meridianv1.AuditRecord
		records, _, response.More = m.page(int(min(q.GetRequest().GetPageSize(), audit.MaxPage)))
		for _, r := range records {
			response.Lines, response.Servers = append(response.Lines, r.GetJson()), append(response.Servers, r.GetServer())
		}
		return response, nil
	}
}

// AnswerZone is what a zone answers its global with: a question and a page as bytes.
func AnswerZone(ask func(context.Context, *peerv1.ListAuditRequest) (*peerv1.ListAuditResponse, error)) func(context.Context, []byte) ([]byte, error) {
	return func(ctx context.Context, question []byte) ([]byte, error) {
		var q peerv1.ListAuditRequest
		if err := proto.Unmarshal(question, &q); err != nil {
			return nil, rpcerr.ToStatus(rpcerr.New(rpcerr.Invalid, "BAD_QUESTION", "the question cannot be read: %w", err)).Err()
		}
		page, err := ask(ctx, &q)
		if err != nil {
			return nil, rpcerr.ToStatus(err).Err()
		}
		return proto.Marshal(page)
	}
}

// AskZone is Source.Ask of a zone that is asked in bytes.
func AskZone(ask func(ctx context.Context, question []byte) ([]byte, error)) func(context.Context, *peerv1.ListAuditRequest) (*peerv1.ListAuditResponse, error) {
	return func(ctx context.Context, q *peerv1.ListAuditRequest) (*peerv1.ListAuditResponse, error) {
		question, err := proto.Marshal(q)
		if err != nil {
			return nil, fmt.Errorf("encode a question: %w", err)
		}
		reply, err := ask(ctx, question)
		if err != nil {
			return nil, err
		}
		var page peerv1.ListAuditResponse
		if err := proto.Unmarshal(reply, &page); err != nil {
			return nil, errors.New("its answer cannot be read")
		}
		return &page, nil
	}
}

// ListAudit returns a page of the records of all sources.
func (s *Service) ListAudit(ctx context.Context, req *meridianv1.ListAuditRequest) (*meridianv1.ListAuditResponse, error) {
	if err := s.Authorize(ctx); err != nil {
		return nil, err
	}
	after, err := readToken(req.GetPageToken())
	if err != nil {
		return nil, err
	}
	if !slices.Contains(verdicts, audit.Decision(req.GetVerdict())) {
		return nil, rpcerr.New(rpcerr.Invalid, "INVALID_VERDICT", "%q is no verdict: write allowed, denied, refused, unknown or noted", req.GetVerdict())
	}
	query := proto.CloneOf(req)
	query.PageToken = ""
	query.PageSize = min(query.GetPageSize(), audit.MaxPage)
	if query.PageSize == 0 {
		query.PageSize = audit.MaxPage
	}
	sources, absent := s.Sources(ctx)
	m, missing := gather(ctx, sources, query, after)
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	response := &meridianv1.ListAuditResponse{}
	for _, a := range append(absent, missing...) {
		response.Incomplete = append(response.Incomplete, &meridianv1.AuditAbsence{Server: a.Server, Zone: a.Zone, Reason: a.Reason})
	}
	var last audit.Place
	var more bool
	response.Records, last, more = m.page(int(query.GetPageSize()))
	if more {
		response.NextPageToken = writeToken(last)
	}
	return response, nil
}

var verdicts = []audit.Decision{"", audit.Allowed, audit.Denied, audit.Refused, audit.Unknown, audit.Noted}

// gather asks all sources, and puts together what they answer. It returns who has not.
func gather(ctx context.Context, sources []Source, query *meridianv1.ListAuditRequest, after audit.Place) (*merge, []Absence) {
	pages, errs := askAll(ctx, sources, query, after)
	m := &merge{after: after}
	var absent []Absence
	for i := range sources {
		from := &sources[i]
		if errs[i] == nil {
			errs[i] = m.add(from, pages[i])
		}
		if errs[i] != nil {
			absent = append(absent, Absence{from.Server, from.Zone, errs[i].Error()})
			continue
		}
		for _, a := range pages[i].GetAbsent() {
			absent = append(absent, Absence{a.GetServer(), from.Zone, a.GetReason()})
		}
	}
	return m, absent
}

func askAll(ctx context.Context, sources []Source, query *meridianv1.ListAuditRequest, after audit.Place) ([]*peerv1.ListAuditResponse, []error) {
	pages, errs := make([]*peerv1.ListAuditResponse, len(sources)), make([]error, len(sources))
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var asking sync.WaitGroup
	for i := range sources {
		asking.Go(func() {
			q := &peerv1.ListAuditRequest{Request: query, Source: sources[i].name(), After: encodePlace(after)}
			pages[i], errs[i] = sources[i].Ask(ctx, q)
			if errors.Is(errs[i], context.DeadlineExceeded) {
				errs[i] = fmt.Errorf("no answer within %s", askTimeout)
			}
		})
	}
	asking.Wait()
	return pages, errs
}

// merge puts pages of several sources together.
type merge struct {
	after   audit.Place
	records []placed
	// until is the first of the last places of those sources that have more: what
	// comes after it may not be in order yet.
	until *audit.Place
}

type placed struct {
	place  audit.Place
	record *meridianv1.AuditRecord
}

// maxAbsent bounds the servers that a zone names as absent.
const maxAbsent = 64

// errNotRecords means that a source has not answered with what was asked for.
var errNotRecords = errors.New("its answer holds what is no record, or not in order")

// add adds a page. The error is errNotRecords; then nothing is added.
func (m *merge) add(from *Source, page *peerv1.ListAuditResponse) error {
	servers := page.GetServers()
	switch {
	case len(page.GetLines()) > audit.MaxPage || page.GetMore() && len(page.GetLines()) == 0:
		return errNotRecords
	case len(servers) > 0 && (from.Zone == "" || len(servers) != len(page.GetLines())), len(page.GetAbsent()) > maxAbsent:
		return errNotRecords
	}
	last := m.after
	var records []placed
	for i, line := range page.GetLines() {
		r, err := audit.DecodeLine(line)
		place := audit.Place{Time: r.Time, Source: from.name(), Chain: r.Chain, Seq: r.Seq}
		server := from.Server
		if len(servers) > 0 {
			server = servers[i]
			place.Source = inZone(place.Source, server)
		}
		if err != nil || last != (audit.Place{}) && place.Compare(last) <= 0 {
			return errNotRecords
		}
		last = place
		records = append(records, placed{place, &meridianv1.AuditRecord{Server: server, Zone: from.Zone, Json: line}})
	}
	m.records = append(m.records, records...)
	if page.GetMore() && (m.until == nil || last.Compare(*m.until) < 0) {
		m.until = &last
	}
	return nil
}

// maxPageBytes is after how many bytes a page has no further record.
const maxPageBytes = 8 << 20

// page returns the oldest records, the place of the last, and whether there are more.
func (m *merge) page(limit int) (out []*meridianv1.AuditRecord, last audit.Place, more bool) {
	slices.SortFunc(m.records, func(a, b placed) int { return a.place.Compare(b.place) })
	size := 0
	for _, r := range m.records {
		size += len(r.record.GetJson())
		if len(out) == limit || size > maxPageBytes && len(out) > 0 || m.until != nil && r.place.Compare(*m.until) > 0 {
			return out, last, true
		}
		out, last = append(out, r.record), r.place
	}
	return out, last, m.until != nil
}

func encodePlace(p audit.Place) *peerv1.AuditPlace {
	if p == (audit.Place{}) {
		return nil
	}
	return &peerv1.AuditPlace{UnixNanos: p.Time.UnixNano(), Source: p.Source, Chain: p.Chain, Seq: p.Seq}
}

func decodePlace(p *peerv1.AuditPlace) audit.Place {
	if p == nil {
		return audit.Place{}
	}
	return audit.Place{Time: time.Unix(0, p.GetUnixNanos()).UTC(), Source: p.GetSource(), Chain: p.GetChain(), Seq: p.GetSeq()}
}

// A token of a page is the place that it begins after.
func writeToken(p audit.Place) string {
	data, err := proto.Marshal(encodePlace(p))
	if err != nil {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(data)
}

func readToken(text string) (audit.Place, error) {
	if text == "" {
		return audit.Place{}, nil
	}
	var p peerv1.AuditPlace
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = proto.Unmarshal(data, &p)
	}
	if err != nil {
		return audit.Place{}, rpcerr.New(rpcerr.Invalid, "INVALID_PAGE_TOKEN", "the page token is not one that this server has given")
	}
	return decodePlace(&p), nil
}
