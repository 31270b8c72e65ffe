package agent

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	meridianv1 "meridian/api/meridian/v1"
)

const (
	// countEvery is how often an Envoy is asked how many connections without TLS its
	// inbounds take.
	countEvery = 5 * time.Second
	// sayAgain is after what time the zone is told again what has not changed: it knows
	// then that it is still counted.
	sayAgain = 15 * time.Second
)

// plaintextStats are the statistics of the connections without TLS of inbounds that accept
// both. Those of inbounds without HTTP that are open are another filter's.
const plaintextStats = "/stats?usedonly&filter=%5E%28%28http%7Ctcp%29%5C.in_.*_plaintext%5C.downstream_cx_%28total%7Cactive%29" +
	"%7Cconnection_limit%5C.in_.*_plaintext%5C.active_connections%29%24"

// plaintext counts the connections without TLS that an Envoy takes, where the zone asks
// for it. The zero value does not count.
type plaintext struct {
	mu     sync.Mutex
	wanted bool
	// asks: the zone of this connection has asked for it. told is what it was told last.
	asks bool
	told said
	// asked is when Envoy was asked last; zero before.
	asked             time.Time
	connections, open uint64
	// last is when there was a connection; without any, when counting began.
	last time.Time
}

// reconnect begins with another connection.
func (p *plaintext) reconnect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asks, p.told = false, said{}
}

// want begins to count anew, or ends that, as the zone asks.
func (p *plaintext) want(wanted bool, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.asks = wanted; p.wanted == wanted {
		return
	}
	p.wanted, p.asked, p.connections, p.open, p.last = wanted, time.Time{}, 0, 0, now
}

func (p *plaintext) counts() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.wanted
}

// add takes the connections that were new, and those that are open.
func (p *plaintext) add(taken, open uint64, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked, p.open = now, open
	if p.connections += taken; taken > 0 || open > 0 {
		p.last = now
	}
}

// said is what a zone was told last; the zero value is nothing.
type said struct {
	connections, open uint64
	asked             time.Time
}

// next returns what the zone is to be told, or nil.
func (p *plaintext) next() *meridianv1.ConnectRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.asks || p.asked.IsZero() {
		return nil
	}
	same := !p.told.asked.IsZero() && p.told.connections == p.connections && p.told.open == p.open
	if same && p.asked.Sub(p.told.asked) < sayAgain {
		return nil
	}
	p.told = said{p.connections, p.open, p.asked}
	return &meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Plaintext{Plaintext: &meridianv1.DataplanePlaintext{
		Connections: p.connections, Open: p.open, Quiet: durationpb.New(p.asked.Sub(p.last)),
	}}}
}

// count counts until ctx ends, for one run of Envoy.
func (s *supervisor) count(ctx context.Context) {
	ticker := time.NewTicker(countEvery)
	defer ticker.Stop()
	counter := NewPlaintextCounter(s.admin)
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		if !s.agent.plaintext.counts() {
			continue
		}
		if taken, open, err := counter.Count(ctx); err == nil {
			s.agent.plaintext.add(taken, open, time.Now())
		}
	}
}

// PlaintextCounter counts the connections without TLS that the inbounds of one run of an
// Envoy take, where they accept both.
type PlaintextCounter struct {
	admin  *http.Client
	before map[string]uint64
}

// NewPlaintextCounter returns a counter that asks an Envoy's administration interface.
func NewPlaintextCounter(admin *http.Client) *PlaintextCounter {
	return &PlaintextCounter{admin: admin, before: map[string]uint64{}}
}

// Count returns how many connections were taken since the last call, or, in the first
// one, since Envoy runs, and how many are open. The error is that of the question.
func (c *PlaintextCounter) Count(ctx context.Context) (taken, open uint64, err error) {
	body, err := ask(ctx, c.admin, http.MethodGet, plaintextStats)
	if err != nil {
		return 0, 0, err
	}
	taken, open = countPlaintext(body, c.before)
	return taken, open, nil
}

// countPlaintext reads how many connections are new in an answer of Envoy, and how many
// are open. before are the totals of the answer before, by name, and become those of this
// one. A total that is lower begins anew, as that of a listener that was removed.
func countPlaintext(body []byte, before map[string]uint64) (taken, open uint64) {
	for line := range bytes.Lines(body) {
		name, value, _ := strings.Cut(strings.TrimSpace(string(line)), ": ")
		n, err := strconv.ParseUint(value, 10, 64)
		switch {
		case err != nil:
		case strings.HasSuffix(name, ".downstream_cx_active"), strings.HasSuffix(name, ".active_connections"):
			open += n
		default:
			if was := before[name]; n >= was {
				taken += n - was
			} else {
				taken += n
			}
			before[name] = n
		}
	}
	return taken, open
}
