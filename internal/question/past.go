package question

// ReasonNotTold is the reason with which a zone refuses a question about an earlier state
// that is given by its name alone: it does not keep what it was told under that name.
const ReasonNotTold = "NOT_TOLD"

// HasPast reports whether a question can be asked about an earlier state: it is about
// policies, and not about what is connected now.
func HasPast(q Question) bool {
	switch q.(type) {
	case Dataplane, Connection, Policy, Route, Gateway, Why:
		return true
	}
	return false
}
