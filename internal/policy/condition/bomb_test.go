package condition

import (
	"context"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A chain of replacements multiplies a string at every link: the budget must
// stop it before the memory is gone.
func TestStringBombs(t *testing.T) {
	c := newCompiler(t, DefaultOptions())
	x50 := strings.Repeat("x", 50)
	bombs := map[string]string{
		"replace": `"x"` + strings.Repeat(`.replace("x", "`+x50+`")`, 5) + `.size() > 0`,
		"concat":  `["` + x50 + `"]` + strings.Repeat(`.map(s, s+s+s+s+s+s+s+s+s+s+s+s+s+s+s+s)`, 7) + `.size() > 0`,
		"join":    strings.Repeat(`[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16].map(i`, 1) + `, "` + x50 + `").join("` + strings.Repeat(x50, 20) + `")` + strings.Repeat(`.replace("x", "`+x50+`")`, 3) + `.size() > 0`,
	}
	for name, bomb := range bombs {
		t.Run(name, func(t *testing.T) {
			compiled, err := c.Compile(bomb)
			require.NoError(t, err)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			got := compiled.Eval(context.Background(), policyWith(t, spec))
			runtime.ReadMemStats(&after)
			require.Equal(t, Failed, got.Outcome)
			require.Contains(t, got.Reason, "cost limit")
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20), "bytes allocated")
		})
	}
}
