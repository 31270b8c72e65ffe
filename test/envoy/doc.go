// Package envoy tests that a real Envoy does what policies say, with the resources
// that a zone makes for it.
//
// It needs an Envoy: ENVOY_BIN names one, and `make envoy` installs one. Without, its
// tests are skipped.
//
// It guarantees that no assertion depends on time. Non-goals: the protocol between the
// zone and its proxies, which the tests of package serve check.
package envoy
