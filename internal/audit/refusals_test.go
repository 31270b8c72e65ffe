package audit

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// movable returns a configuration whose clock the test moves.
func movable(dir string) (c Config, forward func(time.Duration)) {
	at := clock()
	c = config(dir)
	c.Now = func() time.Time { return at }
	return c, func(d time.Duration) { at = at.Add(d) }
}

// refusal is of a caller without credentials, or with some that do not hold.
func refusal(from, source, rule string) Record {
	return Record{Who: Who{Source: source}, From: from, Method: "m", Decision: Refused, Rule: rule, Message: "not authenticated: x"}
}

func counted(all []Record) (total uint64) {
	for _, r := range all {
		total += 1 + r.Repeated
	}
	return total
}

// A client that fails a million times leaves a few lines, and a record of a write
// stays apart from them.
func TestManyRefusalsAreCounted(t *testing.T) {
	dir := t.TempDir()
	c, forward := movable(dir)
	l := open(t, c)
	for i := range 1000 {
		l.Write(denial("bob", fmt.Sprintf("192.0.2.7:%d", i+1)))
	}
	l.Write(denial("eve", "192.0.2.8:1"))
	l.Write(write("a"))
	require.Len(t, recordsOf(t, dir, chainDenied), 2)
	l.flush()
	require.Len(t, recordsOf(t, dir, chainDenied), 2, "the window has not ended")
	forward(SyncEvery)
	l.flush()
	got := recordsOf(t, dir, chainDenied)
	require.Len(t, got, 3, "what was counted follows")
	require.Equal(t, `999 more refusals of "bob" for ACCESS_DENIED since 2026-01-02T03:04:05Z`, got[2].Message)
	require.Equal(t, "bob", got[2].Who.Name)
	require.EqualValues(t, 1001, counted(got), "every refusal is accounted for")
	require.Len(t, records(t, dir), 1)

	// The longer it continues, the rarer the records: at most one a minute.
	for range 3600 {
		l.Write(denial("bob", "192.0.2.7:1"))
		forward(SyncEvery)
		l.flush()
	}
	more := recordsOf(t, dir, chainDenied)[3:]
	require.Less(t, len(more), 2*70)
	l.Write(denial("bob", "192.0.2.7:1"))
	require.NoError(t, l.Close())
	require.EqualValues(t, 1001+3601, counted(recordsOf(t, dir, chainDenied)))
	require.Empty(t, verifyDir(t, dir).Problems)
}

// No caller hides in a flood: not the five who try the admin's token among all that are
// refused without one, from their own address or from others.
func TestNoCallerHidesInAFlood(t *testing.T) {
	dir := t.TempDir()
	c, forward := movable(dir)
	l := open(t, c)
	anonymous := func(from string, i int) Record {
		r := refusal(from, "anonymous", "ACCESS_DENIED")
		r.Decision, r.Who.Name = Denied, "mesh-system:anonymous"
		r.Targets = []Target{{Action: "apply", Kind: "Mesh", Name: fmt.Sprint(i)}}
		return r
	}
	for second := range 60 {
		for i := range 1024 {
			l.Write(anonymous(fmt.Sprintf("192.0.2.7:%d", i+1), second*1024+i))
			l.Write(anonymous(fmt.Sprintf("[2001:db8::%x]:1", i+1), i))
			l.Write(denial("mallory", "192.0.2.9:1"))
		}
		if second == 30 {
			for i := range 5 {
				l.Write(refusal(fmt.Sprintf("192.0.2.7:%d", i+1), "unknown", "TOKEN_REFUSED"))
			}
			l.Write(refusal("198.51.100.1:7", "unknown", "TOKEN_REFUSED"))
			l.Write(denial("bob", "192.0.2.8:1"))
		}
		forward(SyncEvery)
		l.flush()
	}
	require.NoError(t, l.Close())
	all := recordsOf(t, dir, chainRefused)
	of := func(host, rule string) []Record {
		return slices.DeleteFunc(slices.Clone(all), func(r Record) bool { return r.Rule != rule || !strings.HasPrefix(r.From, host+":") })
	}
	require.EqualValues(t, 5, counted(of("192.0.2.7", "TOKEN_REFUSED")))
	require.EqualValues(t, 1, counted(of("198.51.100.1", "TOKEN_REFUSED")))
	require.EqualValues(t, 60*1024*2+6, counted(all), "every refusal is accounted for")
	require.Less(t, len(all), 600, "addresses of one network of IPv6 are one caller")
	require.True(t, slices.ContainsFunc(recordsOf(t, dir, chainDenied), func(r Record) bool { return r.Who.Name == "bob" }))
	require.Empty(t, verifyDir(t, dir).Problems)
}

// Refusals of the tokens of several users have a record for each of them, also from one
// address: a list of what a user tried lacks nothing.
func TestRefusedTokensAreToldApart(t *testing.T) {
	dir := t.TempDir()
	c, forward := movable(dir)
	l := open(t, c)
	for i := range 100 {
		for _, name := range []string{"bob", "eve"} {
			r := refusal(fmt.Sprintf("192.0.2.7:%d", i+1), "token", "TOKEN_REFUSED")
			r.Who.Name = name
			l.Write(r)
		}
	}
	forward(maxWindow)
	l.flush()
	require.NoError(t, l.Close())
	of := map[string][]Record{}
	for _, r := range recordsOf(t, dir, chainRefused) {
		of[r.Who.Name] = append(of[r.Who.Name], r)
	}
	require.EqualValues(t, 100, counted(of["bob"]))
	require.EqualValues(t, 100, counted(of["eve"]))
}

// However many callers there are, their refusals take a bounded part of the disk, and
// none of that of writes, of other kinds of callers, or of those who come later.
func TestRefusalsHaveABudget(t *testing.T) {
	dir := t.TempDir()
	c, forward := movable(dir)
	c.RefusalBytes = 64 << 10
	l := open(t, c)
	l.Write(write("a"))
	kubernetes := denial("first", "192.0.2.1:1")
	kubernetes.Who.Source = "kubernetes"
	l.Write(kubernetes)
	for round := range 4 {
		for i := range 2 * maxSlots {
			r := refusal(fmt.Sprintf("10.%d.%d.%d:1", round, i/256, i%256), "unknown", "TOKEN_REFUSED")
			r.Message = strings.Repeat("x", 4096)
			l.Write(r)
		}
		before := l.refusals[chainRefused].chain.shownHead().Seq
		forward(time.Minute)
		l.flush()
		require.Less(t, l.refusals[chainRefused].chain.shownHead().Seq-before, uint64(2*60*refusalRate/128), "within a minute")
	}
	size := int64(0)
	files, err := filepath.Glob(filepath.Join(dir, "refused*"))
	require.NoError(t, err)
	for _, file := range files {
		info, err := os.Stat(file)
		require.NoError(t, err)
		size += info.Size()
	}
	require.LessOrEqual(t, size, c.RefusalBytes*DefaultRefusalFiles)
	require.LessOrEqual(t, len(l.refusals[chainRefused].slots), maxSlots+1)
	shared := l.refusals[chainRefused].slots[identity{source: "unknown", rule: "TOKEN_REFUSED"}].Value.(*slot)
	require.Contains(t, shared.summary().Message, "more refusals of callers that are too many to tell apart for TOKEN_REFUSED")
	l.Write(refusal("198.51.100.1:1", "unknown", "TOKEN_EXPIRED"))
	require.NoError(t, l.Close())
	require.Len(t, records(t, dir), 1)
	require.Len(t, recordsOf(t, dir, chainKubernetes), 1)
	last := recordsOf(t, dir, chainRefused)
	require.True(t, slices.ContainsFunc(last, func(r Record) bool { return r.Rule == "TOKEN_EXPIRED" }), "apart by their reason at least")
	report := verifyDir(t, dir)
	require.Empty(t, report.Problems)
}
