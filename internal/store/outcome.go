package store

import "strconv"

// String returns the word that `meridian apply` prints.
func (o Outcome) String() string {
	switch o {
	case Unchanged:
		return "unchanged"
	case Created:
		return "created"
	case Updated:
		return "updated"
	case Deleted:
		return "deleted"
	case Missing:
		return "missing"
	}
	return "outcome(" + strconv.Itoa(int(o)) + ")"
}
