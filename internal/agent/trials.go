package agent

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	logsv1 "go.opentelemetry.io/proto/otlp/logs/v1"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/identity"
	"meridian/internal/resource"
	"meridian/internal/xds"
)

const (
	// maxTrialCounts bounds the counts that are kept, and maxTrialsOfPort those of what is
	// tried on one port, and of what was before: the zone takes no more.
	maxTrialCounts, maxTrialsOfPort = 128, 2
	// maxTrialText bounds a text of a count, in bytes.
	maxTrialText = 100
	// tellTrials is how often the zone is told of counts, if there are others.
	tellTrials = 5 * time.Second
)

// Trials counts the calls about which permissions that are only tried would decide otherwise
// than those in effect, as an Envoy tells of them. It is safe for concurrent use.
type Trials struct {
	log *slog.Logger
	now func() time.Time

	mu     sync.Mutex
	counts map[trialKey]*trialCount // guarded by mu
	// taken counts the calls. Guarded by mu.
	taken uint64
}

// trialKey is what calls have in common that are counted together.
type trialKey struct {
	port              uint32
	stamp, caller, by string
	denied, others    bool
}

type trialCount struct {
	calls       uint64
	first, last time.Time
}

// NewTrials returns counts of nothing.
func NewTrials(log *slog.Logger) *Trials {
	return &Trials{log: log, now: time.Now, counts: map[trialKey]*trialCount{}}
}

// Take counts entries of an Envoy's log that are of calls about which something else would be
// decided, and leaves others alone.
func (t *Trials) Take(data *logsv1.LogsData) {
	for _, r := range data.GetResourceLogs() {
		port, err := strconv.ParseUint(attribute(r.GetResource().GetAttributes(), xds.TrialPort), 10, 16)
		if err != nil {
			continue
		}
		for _, scope := range r.GetScopeLogs() {
			for _, record := range scope.GetLogRecords() {
				if key, ok := trialOf(uint32(port), record.GetBody().GetKvlistValue()); ok {
					t.count(key)
				}
			}
		}
	}
}

// trialOf reads an entry. It is false where nothing else would be decided.
func trialOf(port uint32, body *commonv1.KeyValueList) (trialKey, bool) {
	said := map[string]string{}
	for _, m := range body.GetValues() {
		said[m.GetKey()] = m.GetValue().GetStringValue()
	}
	key := trialKey{port: port, stamp: cut(said[xds.TrialStamp], maxTrialText), caller: cut(servicesOf(said[xds.TrialCaller]), maxTrialText)}
	denied := strings.Contains(said[xds.TrialDetails], xds.DeniedDetails)
	allowed := 0
	for i := 0; ; i++ {
		result, there := said[xds.TrialResult+strconv.Itoa(i)]
		if !there {
			break
		}
		by := cut(said[xds.TrialPolicy+strconv.Itoa(i)], maxTrialText)
		if result != xds.TrialAllowed {
			key.denied, key.by = true, by
			break
		}
		if allowed++; key.by == "" {
			key.by = by
		}
	}
	return key, key.denied && !denied || !key.denied && denied && allowed > 0
}

// servicesOf are the services of a caller, in order, with commas.
func servicesOf(certified string) string {
	name, err := identity.Parse(certified)
	if err != nil {
		return ""
	}
	var services []string
	for _, set := range name.Sets {
		services = append(services, set[resource.ServiceTag])
	}
	slices.Sort(services)
	return strings.Join(slices.Compact(services), ",")
}

// count counts a call.
func (t *Trials) count(key trialKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	c := t.counts[key]
	if c == nil {
		t.forget(key)
		if len(t.counts) >= maxTrialCounts-1 { // one place is for others
			key.caller, key.by, key.denied, key.others = "", "", false, true
			key.port, key.stamp = 0, ""
			c = t.counts[key]
		}
	}
	if c == nil {
		c = &trialCount{first: now}
		t.counts[key] = c
		if !key.others {
			would := "allowed"
			if key.denied {
				would = "denied"
			}
			t.log.Info("a permission that is only tried would decide otherwise", "would_be", would, "by", key.by, "caller", key.caller, "port", key.port)
		}
	}
	c.calls++
	c.last = now
	t.taken++
}

// forget forgets what was tried on the port before the last two trials.
func (t *Trials) forget(key trialKey) {
	last := map[string]time.Time{}
	for k, c := range t.counts {
		if k.port == key.port && k.stamp != key.stamp && c.last.After(last[k.stamp]) {
			last[k.stamp] = c.last
		}
	}
	for len(last) >= maxTrialsOfPort {
		oldest := ""
		for stamp, at := range last {
			if oldest == "" || at.Before(last[oldest]) || at.Equal(last[oldest]) && stamp < oldest {
				oldest = stamp
			}
		}
		for k := range t.counts {
			if k.port == key.port && k.stamp == oldest {
				delete(t.counts, k)
			}
		}
		delete(last, oldest)
	}
}

// Told returns what was counted, in order; nil where nothing was since it was told of so
// many calls, which is the number that it returned then.
func (t *Trials) Told(before uint64) (*meridianv1.DataplaneTrial, uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.taken == before {
		return nil, before
	}
	m := &meridianv1.DataplaneTrial{}
	for k, c := range t.counts {
		m.Counts = append(m.Counts, &meridianv1.DataplaneTrialCount{
			Port: k.port, Stamp: k.stamp, Caller: k.caller, Denied: k.denied, By: k.by, Calls: c.calls,
			First: c.first.UnixMilli(), Last: c.last.UnixMilli(), Others: k.others,
		})
	}
	slices.SortFunc(m.GetCounts(), func(a, b *meridianv1.DataplaneTrialCount) int {
		return cmp.Or(cmp.Compare(a.GetPort(), b.GetPort()), strings.Compare(fmt.Sprint(a.GetStamp(), a.GetCaller(), a.GetBy(), a.GetDenied()), fmt.Sprint(b.GetStamp(), b.GetCaller(), b.GetBy(), b.GetDenied())))
	})
	return m, t.taken
}
