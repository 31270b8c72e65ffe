package consensus

// CutFinely makes a server's restores take many parts.
func CutFinely(n *Node) { n.restorer.restorePart = 1 << 10 }

// CutOff closes a server's connections and its listener at once.
func CutOff(n *Node) error { return n.network.Close() }
