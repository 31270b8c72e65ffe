package consensus

import "time"

// CutFinely makes a server's restores take many parts.
func CutFinely(n *Node) { n.restorer.restorePart = 1 << 10 }

// SlowWrites lets a server assume that a small write takes so long.
func SlowWrites(n *Node, took time.Duration) {
	n.keeper.mu.Lock()
	n.keeper.slow = 2 * took
	n.keeper.mu.Unlock()
	n.keeper.tune()
}

// CutOff closes a server's connections and its listener at once.
func CutOff(n *Node) error { return n.network.Close() }
