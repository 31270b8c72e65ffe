package envoy

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/meshca/meshcatest"
	"meridian/internal/resource"
)

// Once the token of a dataplane is revoked, a caller with a certificate that was issued on
// it is denied, whatever permissions say, and one with a certificate of another token is
// not; before and after HTTP is known.
func TestARevokedTokenEndsItsIdentity(t *testing.T) {
	for _, protocol := range []string{"http", "tcp"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			c, ca := joined(t, protocol, mutualTLS)
			z := c.zone
			z.apply(z.put(resource.KindMeshTrafficPermission, "m", "all", everyone))
			on := func(token string) caller {
				pair := meshcatest.IssueOn(t, ca, "m", "web-1", token, resource.Tags{resource.ServiceTag: "web"}).Pair(t)
				return presenting(t, &pair)
			}
			require.Empty(t, z.settle("backend-1"))
			stolen, renewed := on("stolen"), on("new")
			accepted := func(a answer, err error) bool { return err == nil && a.status == http.StatusOK }
			stolen.until(t, c.at, accepted)

			z.apply(z.put(resource.KindTokenRevocation, "", "stolen", `{"use":"dataplane-token","id":"stolen"}`))
			require.Empty(t, z.settle("backend-1"))
			stolen.until(t, c.at, func(a answer, err error) bool {
				if protocol == "http" {
					return err == nil && a.status == http.StatusForbidden
				}
				return err != nil
			})
			if protocol == "http" {
				a, err := stolen.get(c.at)
				require.NoError(t, err)
				require.Contains(t, a.body, "[revoked-token]")
			}
			renewed.until(t, c.at, accepted)
			for range 20 {
				require.False(t, accepted(stolen.get(c.at)))
			}
		})
	}
}
