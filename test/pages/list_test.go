//go:build multizone

package pages

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// page is a page with commands, and what stands around them.
type page struct {
	path string
	// live pages are about running servers: values of the moment are compared by form.
	live bool
	// inRepository pages run in the root of the repository.
	inRepository bool
	// servers are started before the page.
	servers []string
	// before is run before the page, first before one of its commands.
	before string
	first  map[string]string
	// words of the page that stand for something of the reader.
	words map[string]string
}

// startTour starts the servers that pages share, a global and a zone with the policies
// of examples/, and returns the environment of their administrator.
func startTour(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	s := newSession(t, dir, root)
	s.run("meridian-global --data-dir $PAGE/global --name global-1 --default-access restricted &")
	s.must("export MERIDIAN_CONFIG=$PAGE/global/admin.yaml; meridian generate zone-token --zone east --valid-for 24h --bundle > $PAGE/east.bundle")
	s.run("meridian-zone --data-dir $PAGE/east --name east --join-bundle $PAGE/east.bundle &")
	s.must("MERIDIAN_CONFIG=$PAGE/east/admin.yaml meridian apply -f examples/dataplanes/east; meridian apply -f examples/mesh.yaml -f examples/policies --wait=zones")
	require.FileExists(t, dir+"/global/admin.yaml")
	return []string{"MERIDIAN_CONFIG=" + dir + "/global/admin.yaml", "TOUR=" + dir}
}

// address is the command that prints an address of a server of the tour.
func address(server, listener string) string {
	return `$(sed -n 's/.*"` + listener + `": *"\([^"]*\)".*/\1/p' $TOUR/` + server + `/addresses.json)`
}

const owner = `cat > policy.yaml <<'END'
type: TrafficPermission
mesh: default
name: web-to-backend
sources: [{match: {kuma.io/service: web}}]
destinations: [{match: {kuma.io/service: backend}}]
END
meridian apply -f policy.yaml
cp policy.yaml old.yaml
sed -i 's/: backend}/: other}/' policy.yaml
cp policy.yaml new.yaml
mkdir roles
cat > roles/owner.yaml <<'END'
type: AccessRole
name: backend-owner
rules:
- types: [TrafficPermission]
  mesh: default
  access: [CREATE, UPDATE, DELETE]
  when:
  - destinations: {match: {kuma.io/service: backend}}
---
type: AccessRoleBinding
name: backend-owners
subjects: [{type: User, name: backend-owner}]
roles: [backend-owner]
END
cp roles/owner.yaml roles.yaml
`

// web1 is the dataplane of the pages about policies.
const web1 = `type: Dataplane
mesh: mesh-1
name: web-1
networking:
  address: 127.0.0.1
  inbound: [{port: 8080, servicePort: 8080, tags: {kuma.io/service: web}}]
  outbound:
  - {port: 10001, tags: {kuma.io/service: backend}}
  - {port: 10002, tags: {kuma.io/service: payments}}
`

const owners = `cat > cap.yaml <<'END'
type: MeshUpstreamTimeout
mesh: mesh-1
name: owner
targetRef: {kind: Service, name: web}
to:
  - {targetRef: {kind: Service, name: backend}, connectTimeout: 60s, idleTimeout: 1h}
  - {targetRef: {kind: Service, name: payments}, connectTimeout: 5s}
---
` + web1 + `END
cat > unset.yaml <<'END'
type: MeshUpstreamTimeout
mesh: mesh-1
name: base
to:
  - {targetRef: {kind: Mesh}, connectTimeout: 10s, http: {requestTimeout: 15s, streamIdleTimeout: 1h}}
---
` + web1 + `END
`

const routes = `cat > route.yaml <<'END'
type: HTTPRoute
mesh: mesh-1
name: get-info
parentRefs: [{kind: Service, name: payments}]
rules: [{matches: [{path: {type: PathPrefix, value: /v1/getinfo}}]}]
---
type: MeshUpstreamTimeout
mesh: mesh-1
name: base
to: [{targetRef: {kind: Mesh}, connectTimeout: 10s, http: {requestTimeout: 5s}}]
---
type: MeshUpstreamTimeout
mesh: mesh-1
name: info
to: [{targetRef: {kind: HTTPRoute, name: get-info}, connectTimeout: 1s}]
---
` + web1 + `END
cp $REPOSITORY/internal/policy/testdata/targetref-permission-list/input.yaml permissions.yaml
`

// freeAddress is an address of loopback that no server uses at the moment.
func freeAddress() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err.Error() // which no server takes
	}
	defer l.Close()
	return l.Addr().String()
}

// pages are the pages with commands, in the order in which they run: what changes the
// servers of the tour comes last.
var pages = []*page{
	{path: "README.md", live: true, inRepository: true, before: "unset MERIDIAN_CONFIG", words: map[string]string{"$PWD/bin": "$PWD"}},
	{path: "docs/audit.md", live: true, before: `meridian generate user-token --name bob --valid-for 1h --out bob
echo '{type: Mesh, name: bobs}' > bobs.yaml
! meridian apply -f bobs.yaml --token-file bob
cp $TOUR/global/pki/ca.pem ca.pem
mkdir -p $PAGE/var/lib/meridian
ln -s $TOUR/global/audit $PAGE/var/lib/meridian/audit`, first: map[string]string{
		// The checkpoint follows the records.
		"meridian audit verify --ca ca.pem /var/lib/meridian/audit": "until grep -qs denied $TOUR/global/audit/head.json; do sleep 0.05; done",
	}},
	{path: "docs/access-control.md", live: true, before: owner + `meridian apply -f roles
export MERIDIAN_TOKEN=$(meridian generate user-token --name backend-owner --valid-for 1h)`},
	{path: "docs/contract.md", live: true, before: owner},
	{path: "docs/dataplanes.md", live: true},
	{path: "docs/operations/leader-loss.md", live: true},
	{path: "docs/operations/member-unreachable.md", live: true, words: map[string]string{"SERVER:5680": address("global", "http")}},
	{path: "docs/operations/zone-offline.md", live: true, words: map[string]string{"ZONE:5679": address("east", "http")}},
	{path: "docs/operations/disk-full.md", live: true, words: map[string]string{"DIR": "$TOUR/global"}},
	{path: "docs/operations/rolling-restart-and-upgrade.md", live: true},
	{path: "docs/policies/targetref.md", before: routes, first: map[string]string{
		"meridian validate -f timeouts.yaml": "sed -i '/name: web-timeouts/,$ s/name: web}/name: wbe}/' timeouts.yaml",
	}},
	{path: "docs/policies/tests.md", before: "mkdir shop carried"},
	{path: "docs/policies/analysis.md", before: "mkdir shop"},
	{path: "docs/policies/migrate.md", before: "mkdir shop"},
	{path: "docs/plan.md", before: "mkdir deployed new"},
	{path: "docs/policies/defaults-and-overrides.md", first: map[string]string{
		"meridian validate -f shop.yaml":                        `sed -i.whole 's/when: spec.limits\["per-user"\]/when: spec.limits.per-user/' shop.yaml`,
		"meridian eval policy AuthPolicy baseline -f shop.yaml": "mv shop.yaml.whole shop.yaml",
	}},
	{path: "docs/policies/defaults-and-overrides-on-targetref.md", before: owners, first: map[string]string{
		"meridian validate -f cap.yaml": `sed -i 's/duration("10s")$/duration("10s"/' cap.yaml`,
	}},
	{path: "docs/tokens.md", live: true, servers: []string{"meridian-global --data-dir $PAGE/own"}, before: "export MERIDIAN_CONFIG=$PAGE/own/admin.yaml"},
	{path: "docs/operations/cluster.md", live: true, before: "unset MERIDIAN_CONFIG; mkdir -p $PAGE/tmp/own", words: map[string]string{"127.0.0.1:5690": freeAddress()}},
	{path: "docs/operations/zone-cluster.md", live: true, servers: []string{"meridian-global --data-dir $PAGE/own"}, before: "export MERIDIAN_CONFIG=$PAGE/own/admin.yaml"},
	{path: "docs/operations/encryption.md", live: true},
	{path: "docs/operations/backup-and-restore.md", live: true, servers: []string{"meridian-global --data-dir $PAGE/own --name one"}, before: `export MERIDIAN_CONFIG=$PAGE/own/admin.yaml
printf 'type: Mesh\nname: demo\n---\ntype: Mesh\nname: shop\n' | meridian apply -f -
meridian generate user-token --name bob --valid-for 1h
meridian generate dataplane-token --name web-1 --valid-for 1h`},
	{path: "docs/operations/certificates.md", live: true},
}

// unrun has why a fence is not run, by its page and its first command.
var unrun = map[string]map[string]string{
	"README.md": {
		"make demo": "the tour below is run; the tests are run by CI",
		"meridian plan -f examples/traffic/no-web.yaml": "needs the applications of make demo",
	},
	"docs/testing.md": {
		"make torture DURATION=1h SEED=7 CLIENTS=32": "takes an hour; CI runs a short one",
		"make mutants":    "CI runs it",
		"make kubernetes": "builds Kubernetes, which takes a quarter of an hour",
	},
	"docs/operations/rollouts.md": {
		"meridian apply -f policies/ --rollout zones=canary,then=25%,then=all --interval 10m --halt-on 'zone.proxiesRejected > 0 || !zone.connected'": "needs zones, and takes as long as its intervals",
	},
	"docs/operations/size.md": {
		"meridian apply -f export/ --in-batches":  "writes a million resources; tests of the command have smaller inputs",
		"meridian delete -f export/ --in-batches": "deletes a million resources; tests of the command have smaller inputs",
	},
	"docs/dataplanes.md": {"meridian dataplanes": "needs a proxy that stays connected"},
	"docs/proxies/README.md": {
		"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 730 -config ca.cnf -keyout ca.key -out ca.crt": "is for a zone that has no authority of its own",
		"journalctl -u backend -g grpc_audit_log -o cat -n 1 | meridian why backend-1 --log -":                                     "needs a call that was denied; tests of the command have one",
		"meridian proxy run -f web-1.yaml --token-file web.token \\":                                                               "runs beside an application until it is stopped; test/multizone runs it",
		"meridian proxy shadow --service backend":                                                                                  "needs an Envoy with connections of callers; test/envoy has one",
		"meridian why backend-1 --from kuma.io/service=web \\":                                                                     "needs a call that was denied; tests of the command have one",
	},
	"docs/history.md": {"meridian history Timeout web-timeouts": "shows what the commands are for; tests of the command have each"},
	"docs/proxies/envoy.md": {
		"meridian generate dataplane-token --name web-1 --tag kuma.io/service=web --valid-for 720h --out web.token":                       "is for the host of an application; a test of the command has the flags of the page",
		"install -d /etc/meridian && install -m 0644 web-1.yaml ca.pem /etc/meridian/ && install -o web -m 0600 web.token /etc/meridian/": "as the one before",
		"meridian generate dataplane-token --tag kuma.io/service=web --valid-for 720h --out token":                                        "needs Kubernetes; a test of the command has the flags of the page",
	},
	"docs/operations/backup-and-restore.md": {
		"mkdir -m 700 -p /var/lib/meridian && cp -a backup/pki /var/lib/meridian/": "is for a host of another address",
		"export MERIDIAN_CONFIG=/var/lib/meridian/admin.yaml":                      "follows the one before",
	},
	"docs/operations/certificates.md": {
		"openssl x509 -in DIR/pki/server.pem -noout -subject -enddate -ext subjectAltName": "signals every server of the host",
	},
	"docs/operations/drain.md":        {"meridian zones drain east --timeout 10m": "would empty the zone that other pages use"},
	"docs/operations/disk-corrupt.md": {"mv DIR DIR.damaged": "needs a server whose disk is corrupt"},
	"docs/operations/disk-lost.md":    {"meridian cluster members": "leaves out the flags of the reader's server"},
	"docs/operations/encryption.md": {
		"meridian-global --data-dir /var/lib/meridian --encryption-key-file /etc/meridian/encryption.keys --admin-context-file /run/meridian/admin.yaml": "is another way to start the server of the fence before",
	},
	"docs/operations/recover.md": {
		"meridian cluster recover --data-dir /var/lib/meridian --dry-run":                                  "needs a cluster that has lost its majority: TestRecoverWithOneServer in test/multizone",
		"meridian cluster recover --data-dir /var/lib/meridian --confirm 823f680af8f12b76ad2a0a11363db572": "as the one before",
		"meridian cluster members": "as the one before",
	},
	"docs/operations/rolling-restart-and-upgrade.md": {"meridian cluster leader -o name": "restarts a service of systemd"},
}
