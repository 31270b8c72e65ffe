//go:build kubernetes

package kubernetes

import (
	"fmt"
	"strings"
)

// users are those of the steps. Kubernetes lets all of them write everything of
// kuma.io, see surroundings: what is refused is refused by Meridian.
func (c *cluster) users() map[string]user {
	c.t.Helper()
	c.must(c.admin, surroundings, "apply", "-f", "-")
	var token string
	c.await("the service account", func() bool {
		out, err := c.kubectl(c.admin, "", "create", "token", "deployer", "--namespace", "web")
		token = strings.TrimSpace(out)
		return err == nil
	})
	return map[string]user{
		"admin":         c.admin,
		"backend-owner": c.userByRequest("backend-owner"),
		"alice":         c.userWithCertificate("alice", "dev"),
		"carol":         c.userWithCertificate("carol", "mesh-system:authenticated", "dev"),
		"dana":          c.userWithCertificate("oidc:dana@example.com", "oidc:demo-operators", "oidc:staff"),
		"role-manager":  c.userWithCertificate("role-manager"),
		"deployer":      {"--token", token},
		"impersonated":  append(user{"--as", "oidc:dana@example.com", "--as-group", "oidc:demo-operators", "--as-uid", "c8b1", "--as-user-extra", "example.com/ticket=OPS-4711"}, c.admin...),
	}
}

// surroundings is what Kubernetes itself grants, and where.
const surroundings = `
apiVersion: v1
kind: Namespace
metadata: {name: web}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: deployer, namespace: web}
---
apiVersion: v1
kind: Secret
metadata: {name: s, namespace: web}
---
apiVersion: v1
kind: Pod
metadata: {name: web-0, namespace: web}
spec: {serviceAccountName: deployer, automountServiceAccountToken: false, containers: [{name: web, image: "web:1"}]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: kuma-policy-management}
rules:
- {apiGroups: [kuma.io], resources: ["*"], verbs: ["*"]}
- {apiGroups: ["", apps], resources: [pods, pods/exec, secrets, deployments], verbs: [create, get, patch, delete]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: kuma-policy-management}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: kuma-policy-management}
subjects:
- {kind: Group, name: "system:authenticated", apiGroup: rbac.authorization.k8s.io}
- {kind: Group, name: "system:unauthenticated", apiGroup: rbac.authorization.k8s.io}
`

// withSubresources gives one kind what none has here, but what a cluster's own
// definition may give it.
func withSubresources(definitions string) string {
	at := strings.Index(definitions, "  name: retries.kuma.io\n")
	rest := strings.Replace(definitions[at:], "      schema:\n",
		"      subresources: {status: {}, scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}}\n      schema:\n", 1)
	rest = strings.Replace(rest, "            spec:\n", "            status: {type: object, x-kubernetes-preserve-unknown-fields: true}\n            spec:\n", 1)
	return definitions[:at] + rest
}

// unknownKind is a kind of the API group that Meridian does not have.
const unknownKind = `
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: zoneingresses.kuma.io}
spec:
  group: kuma.io
  scope: Cluster
  names: {kind: ZoneIngress, listKind: ZoneIngressList, plural: zoneingresses, singular: zoneingress}
  versions:
  - name: v1alpha1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// storedBefore was stored before the webhook was there, which refuses all of it: a
// misspelt field, two meshes, a kind that there is not.
func storedBefore() string {
	held := strings.Replace(permission("stored-held", inDefault, "source", "backend"), "stored-held}", "stored-held, finalizers: [example.com/hold]}", 1)
	unclear := strings.Replace(permission("stored-unclear", inDefault, "sources", "backend"), "stored-unclear}", "stored-unclear, labels: {kuma.io/mesh: other}}", 1)
	return strings.Join([]string{
		permission("stored", inDefault, "source", "backend"), permission("stored-too", inDefault, "source", "backend"),
		held, unclear, object("ZoneIngress", "stored", inDefault),
	}, "---")
}

// permission is the TrafficPermission of the walk-through (§6.11), by its name, what says which mesh it
// is in, the name of its sources (misspelt, where it should not be one) and its
// destination. Mesh is a line of its own, or a label of metadata.
func permission(name, mesh, sources, destination string) string {
	label := ""
	if strings.HasPrefix(mesh, "labels:") {
		label, mesh = ", "+mesh, ""
	}
	return fmt.Sprintf(`
apiVersion: kuma.io/v1alpha1
kind: TrafficPermission
%s
metadata: {name: %s%s}
spec:
  %s:
  - match: {kuma.io/service: web}
  destinations:
  - match: {kuma.io/service: %s}
`, mesh, name, label, sources, destination)
}

func object(kind, name, rest string) string {
	return fmt.Sprintf("\napiVersion: kuma.io/v1alpha1\nkind: %s\nmetadata: {name: %s}\n%s\n", kind, name, rest)
}

func dataplane(name, namespace, mesh string) string {
	return fmt.Sprintf("\napiVersion: kuma.io/v1alpha1\nkind: Dataplane\nmesh: %s\nmetadata: {name: %s, namespace: %s}\n"+
		"spec: {networking: {address: 10.0.0.7, inbound: [{port: 8080, tags: {kuma.io/service: web}}]}}\n", mesh, name, namespace)
}

const (
	inDefault = "mesh: default"
	apply     = "apply -f -"
	denial    = `Error from server (Forbidden): error when %s: admission webhook "access.meridian.kuma.io" denied the request: Access Denied (user "%s" cannot access the resource)` + "\n"
	logs      = "mesh: default\nspec: {sources: [{match: {kuma.io/service: '*'}}], destinations: [{match: {kuma.io/service: '*'}}], conf: {backend: nowhere}}"
	retry     = "mesh: default\nspec: {sources: [{match: {kuma.io/service: '*'}}], destinations: [{match: {kuma.io/service: '*'}}], conf: {http: {numRetries: 3}}}"
)

func refused(doing, who string) string { return fmt.Sprintf(denial, doing, who) }

// walkThrough is that of §6.11 on Kubernetes, until the access rules are in force.
func walkThrough() []step {
	return []step{
		{as: "alice", args: apply + " --dry-run=server", in: permission("web-to-backend", inDefault, "sources", "backend"), says: "created (server dry run)"},
		{record: "default-binding", as: "admin", args: apply, says: "accessrolebinding.kuma.io/default created", in: `
apiVersion: kuma.io/v1alpha1
kind: AccessRoleBinding
metadata:
  name: default
spec:
  subjects:
  - type: Group
    name: mesh-system:admin
  - type: Group
    name: system:masters
  - type: Group
    name: system:serviceaccounts:kube-system
  roles:
  - admin
`},
		{as: "admin", args: apply, says: "Warning: AccessRoleBinding/backend-owners: it is not in force until it is applied", in: `
---
apiVersion: kuma.io/v1alpha1
kind: AccessRole
metadata:
  name: backend-owner
spec:
  rules:
  - types: ["TrafficPermission"]
    mesh: default
    access: ["CREATE", "UPDATE", "DELETE"]
    when:
    - destinations:
        match:
          kuma.io/service: backend
---
apiVersion: kuma.io/v1alpha1
kind: AccessRoleBinding
metadata:
  name: backend-owners
spec:
  subjects:
  - type: User
    name: backend-owner
  roles:
  - backend-owner
`},
	}
}

// restricted continues once they are.
func restricted() []step {
	return []step{
		{record: "create", as: "backend-owner", args: apply, in: permission("web-to-backend", inDefault, "sources", "backend"), says: "created"},
		{
			record: "update-denied-new", as: "backend-owner", args: apply, in: permission("web-to-backend", inDefault, "sources", "not-backend"), denied: true,
			says: `denied the request: Access Denied (user "backend-owner/system:authenticated" cannot access the resource)` + "\n",
		},
	}
}

// everythingElse is what an API server asks beyond the walk-through.
func everythingElse() []step {
	mine := func(sources string) string {
		return strings.Replace(permission("web-to-backend", inDefault, "sources", "backend"), "web}", sources+"}", 1)
	}
	others := permission("web-to-backend", inDefault, "sources", "not-backend")
	byOwner := `user "backend-owner/system:authenticated" cannot`
	labelled := permission("one-of-many", "labels: {kuma.io/mesh: demo}", "sources", "anything")
	raw := "/apis/kuma.io/v1alpha1/trafficpermissions"
	return []step{
		{record: "update", as: "backend-owner", args: apply, in: mine("admin"), says: "configured"},
		{record: "update-replace", as: "backend-owner", args: "replace -f -", in: mine("web"), says: "replaced"},
		{record: "update-finalizer", as: "backend-owner", args: `patch trafficpermission web-to-backend --type=merge -p {"metadata":{"finalizers":["example.com/hold"]}}`, says: "patched"},
		{record: "delete-held", as: "backend-owner", args: "delete trafficpermission web-to-backend --wait=false", says: "deleted"},
		{record: "update-while-deleted", as: "backend-owner", args: `patch trafficpermission web-to-backend --type=json -p [{"op":"remove","path":"/metadata/finalizers"}]`, says: "patched"},
		{record: "create-dry-run", as: "backend-owner", args: apply + " --dry-run=server", in: mine("web"), says: "created (server dry run)"},
		{record: "create-dry-run-denied", as: "backend-owner", args: apply + " --dry-run=server", in: others, denied: true, says: byOwner},
		{record: "create-denied", as: "backend-owner", args: apply, in: others, denied: true, says: refused(`creating "STDIN"`, "backend-owner/system:authenticated") + "  missing: CREATE on TrafficPermission"},
		{record: "create-generated-name", as: "backend-owner", args: "create -f -", in: strings.Replace(mine("web"), "name: web-to-backend", "generateName: web-to-backend-", 1), says: "created"},
		{record: "create-server-side", as: "backend-owner", args: "apply --server-side -f -", in: mine("web"), says: "serverside-applied"},
		{record: "update-server-side", as: "backend-owner", args: "apply --server-side -f -", in: mine("operators"), says: "serverside-applied"},
		{record: "delete-dry-run", as: "backend-owner", args: "delete trafficpermission web-to-backend --dry-run=server", says: "deleted (server dry run)"},
		{record: "delete", as: "backend-owner", args: "delete trafficpermission web-to-backend", says: "deleted"},

		{as: "admin", args: apply, in: others, says: "created"},
		{record: "update-denied-old", as: "backend-owner", args: apply, in: mine("web"), denied: true, says: "as it is stored"},
		{record: "delete-denied", as: "backend-owner", args: "delete trafficpermission web-to-backend", denied: true, says: byOwner},
		{record: "update-moves-mesh", as: "admin", args: apply, in: permission("web-to-backend", "mesh: demo", "sources", "not-backend"), denied: true, says: "delete it and create it anew"},
		{record: "update-moves-mesh-denied", as: "dana", args: apply, in: permission("web-to-backend", "mesh: demo", "sources", "not-backend"), denied: true, says: "as it is stored"},
		{as: "admin", args: "delete trafficpermission web-to-backend", says: "deleted"},

		{record: "create-other-mesh", as: "backend-owner", args: apply, in: permission("web-to-backend", "mesh: demo", "sources", "backend"), denied: true, says: `in mesh "demo"`},
		{record: "create-by-service-account", as: "deployer", args: "create -f -", in: mine("web"), denied: true, says: `user "system:serviceaccount:web:deployer/system:serviceaccounts,system:serviceaccounts:web,system:authenticated" cannot`},
		{record: "create-default-mesh", as: "backend-owner", args: apply, in: permission("web-to-backend", "", "sources", "backend"), says: "created"},
		{as: "admin", args: "delete trafficpermission web-to-backend", says: "deleted"},
		{record: "create-group-not-added", as: "alice", args: apply, in: object("TrafficLog", "all", logs), denied: true, says: `user "alice/dev,system:authenticated" cannot`},
		{record: "create-group-verbatim", as: "carol", args: apply, in: object("TrafficLog", "all", logs), says: "Warning: "},
		{record: "create-advice", as: "admin", args: apply, in: object("TrafficLog", "all-too", logs), says: "nowhere"},

		{record: "create-mesh-by-label", as: "dana", args: apply, in: labelled, says: "created"},
		{record: "delete-one-of-a-collection", as: "dana", args: "delete --raw " + raw + "?labelSelector=kuma.io/mesh%3Ddemo", says: "one-of-many"},
		{record: "create-impersonated", as: "impersonated", args: apply, in: labelled, says: "created"},
		{record: "create-in-namespace", as: "dana", args: apply, in: dataplane("web-0", "web", "demo"), says: "created"},
		{as: "admin", args: apply, in: object("Mesh", "demo", "spec: {}"), says: "created"},
		{record: "create-without-spec", as: "admin", args: apply, in: object("Mesh", "default", ""), says: "created"},
		{record: "mesh-of-operator", as: "dana", args: apply, in: object("Mesh", "demo", "spec: {mtls: {enabledBackend: ca-1, backends: [{name: ca-1, type: builtin}]}}"), says: "configured"},
		{record: "mesh-of-others", as: "dana", args: apply, in: object("Mesh", "default", "spec: {}"), denied: true, says: `it is about the names demo, not "default"`},

		{record: "create-invalid", as: "admin", args: apply, in: strings.Replace(mine("web"), "destinations", "destination", 1), denied: true, says: "unknown field `destination`; did you mean `destinations`?"},
		{record: "create-invalid-without-access", as: "alice", args: apply, in: object("TrafficPermission", "web", inDefault+"\nspec: {sources: []}"), denied: true, says: "sources"},
		{record: "create-unknown-kind", as: "admin", args: apply, in: object("ZoneIngress", "in", inDefault+"\nspec: {networking: {port: 10001}}"), denied: true, says: `unknown kind "ZoneIngress"`},
		{record: "update-fixes-stored-denied", as: "backend-owner", args: apply, in: permission("stored", inDefault, "sources", "backend"), denied: true, says: "as it is stored"},
		{record: "update-fixes-stored", as: "admin", args: apply, in: permission("stored", inDefault, "sources", "backend"), says: "Warning: what is stored is not valid"},
		{record: "delete-unclear-denied", as: "dana", args: "delete trafficpermission stored-unclear", denied: true, says: "Warning: what is stored is not valid"},
		{record: "delete-unclear", as: "admin", args: "delete trafficpermission stored-unclear", says: "keep one of them"},
		{record: "delete-unknown-kind", as: "admin", args: "delete zoneingress stored", says: "unknown kind"},
		{as: "admin", args: "delete trafficpermission stored-held --wait=false", says: "deleted"},
		{record: "update-frees-invalid-denied", as: "backend-owner", args: `patch trafficpermission stored-held --type=json -p [{"op":"remove","path":"/metadata/finalizers"}]`, denied: true, says: "as it is stored"},
		{record: "update-frees-invalid", as: "admin", args: `patch trafficpermission stored-held --type=json -p [{"op":"remove","path":"/metadata/finalizers"}]`, says: "patched"},
		{record: "delete-invalid", as: "admin", args: "delete trafficpermission stored-too", says: "unknown field `source`"},

		{as: "admin", args: apply, in: object("Retry", "all", retry), says: "created"},
		{record: "update-status", as: "admin", args: `patch retry all --subresource=status --type=merge -p {"status":{"phase":"Ready","replicas":1}}`, says: "patched"},
		{record: "update-scale", as: "admin", args: "scale retry all --replicas=2"},

		{record: "escalation", as: "role-manager", args: apply, in: object("AccessRoleBinding", "mine", "spec: {subjects: [{type: User, name: role-manager}], roles: [admin]}"), denied: true, says: "users cannot grant rights beyond their own"},
		{record: "last-admin", as: "admin", args: "delete accessrolebinding default", denied: true, says: `no subject would have the role "admin" with every access any more`},
		{record: "binding-to-missing-role", as: "admin", args: apply, in: object("AccessRoleBinding", "early", "spec: {subjects: [{type: User, name: bob}], roles: [not-yet]}"), says: `Warning: `},

		{record: "other-group", as: "alice", args: "create deployment web --image=web:1 --namespace web", says: "created"},
		{record: "core-group", as: "alice", args: "delete secret s --namespace web", says: "deleted"},
		{record: "connect", as: "alice", args: "exec web-0 --namespace web -- sh", denied: true, says: "does not have a host assigned"},
	}
}
