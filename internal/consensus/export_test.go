package consensus

// CutFinely makes a server's restores take many parts.
func CutFinely(n *Node) { n.restorePart = 1 << 10 }
