// Package clientconfig reads and writes the files that clients connect by: the
// contexts of the command, and the join bundles of zones and servers.
//
// Guarantees. Files are decoded strictly, within a size limit, and an error names
// the file and what to do. Files with credentials are written atomically with mode
// 0600.
//
// Non-goals. It opens no connections and verifies no tokens.
package clientconfig
