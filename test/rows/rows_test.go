package rows

import (
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/xds/support"
)

func TestProblems(t *testing.T) {
	table := map[row]support.Status{
		{resource.KindRetry, false, "a"}: support.Enforced, {resource.KindRetry, true, "a"}: support.Enforced,
		{resource.KindRetry, false, "b"}: support.Approximated, {resource.KindTimeout, false, ""}: support.Enforced,
	}
	require.Equal(t, []string{"Retry a is enforced: assert it by a behaviour", "Retry from a is enforced: assert it by a behaviour", "Timeout  is enforced: assert it by a behaviour"}, problems(table, nil, nil, []Claim{{Kind: resource.KindRetry, Fields: "b"}}))
	require.Equal(t, []string{"Retry b is approximated: assert it by a behaviour", "Retry c is asserted, and no row of the table is about it", "Retry from a is asserted by a behaviour: the configuration is not needed"}, problems(table,
		[]Claim{By(TestProblems, resource.KindRetry, "a c"), {Kind: resource.KindRetry, Fields: "from a"}},
		[]Claim{{Kind: resource.KindRetry, Fields: "from a"}, {Kind: resource.KindTimeout}}, nil))
	require.Equal(t, []string{"Retry a is asserted, or is not approximated: take it from the list", "Retry b is asserted, or is not approximated: take it from the list"}, problems(table,
		[]Claim{By(TestProblems, resource.KindRetry, "a b"), {Kind: resource.KindRetry, Fields: "from a"}}, []Claim{{Kind: resource.KindTimeout}}, []Claim{{Kind: resource.KindRetry, Fields: "a b"}}))
}
