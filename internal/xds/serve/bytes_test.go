package serve

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/xds"
)

// What a stream says that it takes is what it takes, within a factor of two: a budget
// by it bounds memory.
func TestBytesAreWhatAStreamTakes(t *testing.T) {
	const streams, many = 2, MaxNames / 4
	names := func(n, length int) []string {
		all := make([]string, n)
		for i := range all {
			all[i] = fmt.Sprintf("%0*d", length, i)
		}
		return all
	}
	versions := func(names []string) map[string]string {
		all := make(map[string]string, len(names))
		for _, name := range names {
			all[name] = strings.Repeat("v", 24)
		}
		return all
	}
	rest := func(c *conversation, answer bool) {
		for {
			r, ok := c.stream.Next(c.now)
			if !ok {
				return
			}
			if answer {
				c.ask(r.Type, Request{Nonce: r.Nonce})
			}
		}
	}
	set := setOf(t, 1)
	for name, scenario := range map[string]func(c *conversation){
		"names that do not exist, answered": func(c *conversation) {
			for _, typ := range xds.Types {
				c.ask(typ, Request{Subscribe: names(many, 26)})
			}
			rest(c, true)
		},
		"names that do not exist, unanswered": func(c *conversation) {
			for _, typ := range xds.Types {
				c.ask(typ, Request{Subscribe: names(many, 26)})
			}
			rest(c, false)
		},
		"short names": func(c *conversation) {
			c.ask(xds.Listener, Request{Subscribe: names(many, 1)})
			rest(c, true)
		},
		"long names": func(c *conversation) {
			c.ask(xds.Route, Request{Subscribe: names(1000, MaxNameBytes)})
			rest(c, true)
		},
		"names and versions brought along": func(c *conversation) {
			for _, typ := range xds.Types {
				c.ask(typ, Request{Initial: versions(names(many, 26))})
			}
			rest(c, false)
		},
		"versions of the past": func(c *conversation) {
			all := make([]*xds.Resource, 100)
			for i := range all {
				all[i] = listenerOf(t, fmt.Sprint(i), 1, strings.Repeat("r", 1000))
				all[i].Uses = nil
			}
			c.stream.SetTarget(setOf(t, 1, all...))
			c.ask(xds.Listener, Request{})
			rest(c, true)
			c.stream.SetTarget(set)
		},
		"rejections": func(c *conversation) {
			for version := range maxRejections {
				all := make([]*xds.Resource, 100)
				for i := range all {
					all[i] = endpointsOf(t, fmt.Sprint(i), version+1)
				}
				c.stream.SetTarget(setOf(t, 1, all...))
				c.ask(xds.Endpoints, Request{Subscribe: names(100, 1)})
				for {
					r, ok := c.stream.Next(c.now)
					if !ok {
						break
					}
					c.ask(r.Type, Request{Nonce: r.Nonce, Rejected: true, Detail: strings.Repeat("d", 2*maxDetailBytes)})
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(converse(t, true, set)) // what is made once
			kept := make([]*conversation, streams)
			before := heap()
			counted := int64(0)
			for i := range kept {
				kept[i] = converse(t, true, set)
				scenario(kept[i])
				counted += kept[i].stream.Bytes() + kept[i].stream.cfg.Memory.Bytes()
			}
			took := heap() - before
			runtime.KeepAlive(kept)
			t.Logf("a stream takes %d bytes and counts %d (%.2f)", took/streams, counted/streams, float64(counted)/float64(took))
			require.Greater(t, counted, took/2)
			require.Less(t, counted, took*2)
		})
	}
}

// heap returns the bytes of everything that is reachable.
func heap() int64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// FuzzNames: whatever names a client asks for and gives up again, their limits hold, and
// nothing is left behind.
func FuzzNames(f *testing.F) {
	f.Add("a\n*\n\nb", "x\na", true, uint8(1))
	f.Add(strings.Repeat("long", 400), "*", false, uint8(3))
	set := setOf(f, 1)
	f.Fuzz(func(t *testing.T, first, second string, delta bool, kind uint8) {
		c := converse(t, delta, set)
		typ := xds.Types[int(kind)%len(xds.Types)]
		named := 0
		for _, text := range []string{first, second} {
			names := strings.Split(text, "\n")
			r := Request{Type: typ, Names: names}
			if delta {
				r = Request{Type: typ, Subscribe: names}
			}
			err := c.stream.Handle(r)
			for _, name := range names {
				if len(name) > MaxNameBytes {
					require.ErrorIs(t, err, ErrTooManyNames)
				}
			}
			if err != nil {
				require.ErrorIs(t, err, ErrTooManyNames)
				return
			}
			named = len(text)
			for {
				if _, ok := c.stream.Next(c.now); !ok {
					break
				}
			}
		}
		require.LessOrEqual(t, len(c.stream.types[typ].entries), MaxNames)
		require.LessOrEqual(t, c.stream.Bytes(), int64(4*(len(first)+named+1)*(perEntry+perResource+perChange+perName+100)))
		gone := Request{Type: typ, Names: []string{}}
		if delta {
			gone = Request{Type: typ, Unsubscribe: append(strings.Split(first+"\n"+second, "\n"), "*")}
		}
		require.NoError(t, c.stream.Handle(gone))
		require.Empty(t, c.stream.types[typ].names)
		if !delta && !c.stream.types[typ].named {
			return // it has named none, which means all there are
		}
		if c.stream.types[typ].out == nil {
			require.Empty(t, c.stream.types[typ].entries)
		}
	})
}
