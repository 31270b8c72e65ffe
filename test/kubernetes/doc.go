// Package kubernetes tests the admission webhook, and the files and steps of
// deploy/kubernetes, with a real API server: etcd, kube-apiserver,
// kube-controller-manager and kubectl, built from the versions that
// tools/kubernetes pins, as processes on loopback. `make kubernetes` runs it; CI
// does not, since building Kubernetes takes long.
//
// It also records the reviews in internal/service/webhook/testdata/reviews:
// `make kubernetes RECORD=1` writes the requests of the API server.
package kubernetes
