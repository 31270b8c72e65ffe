// Package controlplane is what a server of the global and a zone have in common:
// listeners, storage, audit log, authentication, the gRPC API, health and metrics,
// with one order to start and to stop them.
//
// A server starts in this order; each step needs the ones before it:
//
//  1. Listeners are bound (Open). A start that fails for want of a port leaves no
//     trace in the data directory.
//  2. Health and metrics are served (Run), so that a start can be watched.
//  3. The data directory is claimed: the node locks it and restores the store
//     (NodeConfig, OpenNode).
//  4. The audit log is opened, and the writer that records what it commits
//     (OpenRecords). With them come keys and the authorizer, which read the store.
//  5. The gRPC API is assembled (Assemble), then served (Serve).
//  6. The server announces that it is ready (Announce).
//
// It stops in the reverse order, for these reasons: it is no longer ready, so that
// clients turn elsewhere; watches end and other calls finish, within
// server.StopTimeout; health and metrics end, after everything that they report
// about; the node closes, when no call can write to it any more; and the audit log
// closes last, since the node may apply until it is closed.
//
// It guarantees that a part which fails stops the others, that Run returns only
// when every part has ended, and that a fatal failure of the storage ends Run at
// once: what is blocked on a disk that hangs cannot be waited for.
//
// Non-goals: what a server is for. The global and the zone decide which services
// they register and what they run beside them.
package controlplane
