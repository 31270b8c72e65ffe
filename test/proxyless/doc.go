// Package proxyless tests that stock grpc-go does what policies say: real clients and
// servers in xDS mode obey the resources that a zone makes for them.
//
// It guarantees that no assertion depends on time. Non-goals: the protocol between the
// zone and its proxies, which the tests of package serve check.
package proxyless
