package past_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"meridian/internal/past"
	"meridian/internal/resource"
	"meridian/internal/rpcerr"
	"meridian/internal/store"
)

func write(rev resource.Revision, user, spec string, labels map[string]string) past.Write {
	w := past.Write{Revision: rev, User: user, Time: time.Unix(int64(rev), 0)}
	if spec != "" {
		w.Resource = resource.New(resource.Meta{Key: resource.Key{Kind: "Timeout", Mesh: "default", Name: "a"}, Labels: labels}, nil, []byte(spec))
	}
	return w
}

// TestBlame: each field is of the write since which it has had its value, also where it
// had it once before, and of none where that is older than what is kept.
func TestBlame(t *testing.T) {
	team := map[string]string{"team": "a"}
	writes := []past.Write{
		write(9, "eve", `{"a":2,"b":{"c":1.50},"list":[1,3],"old":true}`, team),
		write(7, "dan", `{"a":2,"b":{"c":1.5},"list":[1,2],"old":true}`, team),
		write(6, "cat", `{"a":1,"b":{"c":1.5},"list":[1],"old":true}`, nil),
		write(5, "bob", `{"a":2,"b":{},"list":[1],"old":true}`, nil),
	}
	first := write(0, "", `{"old":true,"list":[1]}`, nil).Resource
	sets, err := past.Blame(writes, first)
	require.NoError(t, err)
	got := map[string]string{}
	for _, s := range sets {
		got[s.Field] = ""
		if s.By != nil {
			got[s.Field] = s.By.User
		}
	}
	require.Equal(t, map[string]string{"/a": "dan", "/b/c": "eve", "/labels/team": "dan", "/list/0": "", "/list/1": "eve", "/old": ""}, got)

	sets, err = past.Blame([]past.Write{write(3, "dan", `{"a":1}`, nil), write(2, "cat", "", nil), write(1, "bob", `{"a":1}`, nil)}, nil)
	require.NoError(t, err)
	require.Equal(t, "dan", sets[0].By.User, "it was deleted in between")
	sets, err = past.Blame([]past.Write{write(2, "cat", "", nil)}, first)
	require.NoError(t, err)
	require.Empty(t, sets)
}

func TestPointsInTime(t *testing.T) {
	s := store.New(store.DefaultOptions()) // which retains an hour of states
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for i := range 3 {
		r := write(1, "", `{}`, nil).Resource.WithMeta(resource.Meta{Key: resource.Key{Kind: "Mesh", Name: string(rune('a' + i))}})
		require.NoError(t, s.Apply(resource.Revision(10*(i+1)), store.Txn{Time: now.Add(time.Duration(i-3) * time.Hour), Ops: []store.Op{store.Put(r)}}).Err)
	}
	for text, want := range map[string]resource.Revision{"10": 10, "15": 15, "30": 30, "0s": 30, "90m": 20, "2h": 20, "3h": 10} {
		point, err := past.Parse(text)
		require.NoError(t, err)
		state, err := past.Read(t.Context(), s, point, now)
		require.NoError(t, err, text)
		require.Equal(t, want, state.Revision(), text)
	}
	for _, text := range []string{"", "0", "-1h", "yesterday", "-5", "1.5"} {
		_, err := past.Parse(text)
		require.Error(t, err, text)
	}
	for text, says := range map[string]string{"31": "has not been written yet", "9": "the oldest is 10", "100000h": "the oldest revision is 10"} {
		point, err := past.Parse(text)
		require.NoError(t, err)
		_, err = past.Read(t.Context(), s, point, now)
		require.Equal(t, rpcerr.OutOfRange, rpcerr.CodeOf(err))
		require.ErrorContains(t, err, says)
	}
}

func TestCompare(t *testing.T) {
	build := func(labels map[string]string, spec string) *resource.Resource {
		return write(1, "", spec, labels).Resource
	}
	before := build(map[string]string{"team/x": "<a>"}, `{"rules":[{"access":["CREATE"],"mesh":"a"}]}`)
	after := build(map[string]string{"team/x": "b"}, `{"rules":[{"access":["CREATE","UPDATE"]}]}`)
	differences, err := past.Compare(before, after)
	require.NoError(t, err)
	require.Equal(t, []past.Difference{
		{Field: "/labels/team~1x", Before: json.RawMessage(`"\u003ca\u003e"`), After: json.RawMessage(`"b"`)},
		{Field: "/rules/0/access/1", After: json.RawMessage(`"UPDATE"`)},
		{Field: "/rules/0/mesh", Before: json.RawMessage(`"a"`)},
	}, differences)
	for _, pair := range [][2]*resource.Resource{{before, before}, {nil, nil}} {
		differences, err = past.Compare(pair[0], pair[1])
		require.NoError(t, err)
		require.Empty(t, differences)
	}
	differences, err = past.Compare(nil, before)
	require.NoError(t, err)
	require.Len(t, differences, 3)
}
