// Package zone assembles and runs a zone control plane: where policies meet
// dataplanes.
//
// A federated zone follows a global: what the global owns lives in a replica on
// the zone's own disk, what the zone owns in a store of its own, and matching
// reads both. A standalone zone owns everything itself. Which of the two a data
// directory is, it is for life (§1.3).
//
// It guarantees that the zone serves from its own disk before, while and after
// the global can be reached (§7.6), and that an answer reflects every
// change that the zone had applied when the question came.
//
// A zone may have several servers (package cluster): the store of what the zone owns is the
// same on all, each has its own replica, and questions about proxies are answered from all.
//
// It refuses writes of what the global owns, and says where to make them.
package zone
