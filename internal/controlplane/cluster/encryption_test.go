package cluster

import (
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/consensus"
)

func TestServersWithoutEncryptionAreNamedWhereOthersEncrypt(t *testing.T) {
	for name, test := range map[string]struct {
		said []string
		want []string
	}{
		"no server encrypts":            {[]string{"none", "none"}, nil},
		"every server does":             {[]string{"1f0c", "2a2b"}, nil},
		"one does not":                  {[]string{"1f0c", "none", "none"}, []string{"b", "c"}},
		"an older release, unreachable": {[]string{"1f0c", ""}, nil},
	} {
		var members []consensus.Member
		for i, said := range test.said {
			members = append(members, consensus.Member{Name: string(rune('a' + i)), Encryption: said})
		}
		require.Equal(t, test.want, unencrypted(members), name)
	}
}
