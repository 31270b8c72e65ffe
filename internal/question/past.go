package question

// HasPast reports whether a question can be asked about an earlier state: it is about
// policies, and not about what is connected now.
func HasPast(q Question) bool {
	switch q.(type) {
	case Dataplane, Connection, Policy, Route, Gateway, Why:
		return true
	}
	return false
}
