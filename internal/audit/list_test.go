package audit

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/rpcerr"
)

// names are what listed records are about, or who was refused.
func names(t *testing.T, lines [][]byte) []string {
	t.Helper()
	var out []string
	for _, line := range lines {
		r, err := DecodeLine(line)
		require.NoError(t, err)
		name := r.Who.Name
		if len(r.Targets) > 0 {
			name = r.Targets[0].Name
		}
		out = append(out, name)
	}
	return out
}

func TestList(t *testing.T) {
	c, forward := movable(t.TempDir())
	c.MaxBytes = 2000
	l := open(t, c)
	for i := range 8 {
		l.Write(write(fmt.Sprint("w", i)))
		forward(time.Second)
		l.Write(denial(fmt.Sprint("d", i), "192.0.2.7:1"))
		forward(time.Second)
	}
	list := func(q Query) ([]string, bool) {
		lines, more, err := l.List(t.Context(), q)
		require.NoError(t, err)
		return names(t, lines), more
	}
	all, more := list(Query{})
	require.Equal(t, strings.Fields("w0 d0 w1 d1 w2 d2 w3 d3 w4 d4 w5 d5 w6 d6 w7 d7"), all, "of all chains and files, oldest first")
	require.False(t, more)

	// Pages have every record once.
	var paged []string
	after := Place{}
	for pages := 0; ; pages++ {
		require.Less(t, pages, 9)
		lines, more, err := l.List(t.Context(), Query{Limit: 3, After: after, Source: "s"})
		require.NoError(t, err)
		paged = append(paged, names(t, lines)...)
		if !more {
			break
		}
		last, err := DecodeLine(lines[len(lines)-1])
		require.NoError(t, err)
		after = Place{last.Time, "s", last.Chain, last.Seq}
	}
	require.Equal(t, all, paged)

	for name, tc := range map[string]struct {
		query Query
		want  string
	}{
		"since":         {Query{Since: clock().Add(13 * time.Second)}, "d6 w7 d7"},
		"verdict":       {Query{Verdict: Denied, Since: clock().Add(10 * time.Second)}, "d5 d6 d7"},
		"user":          {Query{User: "d3"}, "d3"},
		"name":          {Query{Name: "w2"}, "w2"},
		"kind and name": {Query{Kind: "Timeout", Name: "w5"}, "w5"},
		"another kind":  {Query{Kind: "Retry", Name: "w5"}, ""},
		"no such user":  {Query{User: "eve"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, more := list(tc.query)
			require.Equal(t, strings.Fields(tc.want), append([]string{}, got...))
			require.False(t, more)
		})
	}
}

// A page is bounded in bytes, and one caller at a time makes the disk work.
func TestListIsBounded(t *testing.T) {
	l := open(t, config(t.TempDir()))
	for i := range 300 {
		r := write(fmt.Sprint("w", i))
		r.Rule = strings.Repeat("x", maxText)
		l.Write(r)
	}
	lines, more, err := l.List(t.Context(), Query{})
	require.NoError(t, err)
	require.True(t, more)
	size := 0
	for _, line := range lines {
		size += len(line)
	}
	require.LessOrEqual(t, size, maxPageBytes)

	l.listing <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = l.List(ctx, Query{})
	require.Equal(t, rpcerr.Unavailable, rpcerr.CodeOf(err))
	<-l.listing
	_, _, err = l.List(ctx, Query{})
	require.Error(t, err, "it ends with its caller")
}
