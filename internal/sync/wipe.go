package zonesync

import (
	"fmt"

	"meridian/internal/resource"
	"meridian/internal/store"
)

// The wipe guard: an update by comparison that would remove more than a fifth of
// a replica's resources is held for the operator when it removes more than
// wipeFloor. Of a small replica it is held when it comes from another history,
// such as a global's that was restored or built anew, and removes at least half
// and more than one.
const (
	wipeFloor   = 100
	wipePercent = 20
)

// wipes reports whether the guard holds an update that removes some of the
// resources held. same says that it continues the history that the replica has
// followed, where they were deleted one by one.
func wipes(removed, held int, same bool) bool {
	if removed > wipeFloor {
		return removed*100 > held*wipePercent
	}
	return !same && removed > 1 && removed*2 >= held
}

// Wipe names the state of a global that an operator accepts although the replica
// would lose much by it. The zero value accepts none.
type Wipe struct {
	// Incarnation is the global's, Revision the first revision that is accepted.
	Incarnation uint64
	Revision    resource.Revision
}

// ParseWipe reads the form that String writes, INCARNATION/REVISION.
func ParseWipe(text string) (Wipe, error) {
	var w Wipe
	var rest string
	if n, _ := fmt.Sscanf(text+" ", "%d/%d%s", &w.Incarnation, &w.Revision, &rest); n != 2 || text != w.String() || w.Revision == 0 {
		return Wipe{}, fmt.Errorf("%q is not INCARNATION/REVISION, such as 2/1841: the message about the update that is held names it", text)
	}
	return w, nil
}

// String returns INCARNATION/REVISION.
func (w Wipe) String() string { return fmt.Sprintf("%d/%d", w.Incarnation, w.Revision) }

// accepts reports whether it covers a state of a global, for a replica that stands
// elsewhere. Once the replica has reached the named revision, it covers nothing
// more: a flag that is left in place does no harm.
func (w Wipe) accepts(to store.Epoch, at resource.Revision, have store.Epoch, stands resource.Revision) bool {
	if w == (Wipe{}) || to.Incarnation != w.Incarnation || at < w.Revision {
		return false
	}
	return have != to || stands < w.Revision
}
