package print

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTable(t *testing.T) {
	tab := &Table{Header: []string{"NAME", "STATE"}}
	tab.Add("é", "fine")
	tab.Add("longer", "")
	tab.Add("x", "two\nlines ")
	require.Equal(t, "NAME    STATE\né       fine\nlonger  -\nx       two lines\n", tab.String(0))
}
