package consensus

// CutFinely makes a server's restores take many parts.
func CutFinely(n *Node) { n.restorer.restorePart = 1 << 10 }
