package zonesync

import (
	"fmt"
	"strconv"
	"strings"

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
	// History is the random part of the global's epoch, which tells histories of one
	// incarnation apart; 0 where there is only one to follow.
	History uint64
}

// ParseWipe reads the form that String writes.
func ParseWipe(text string) (Wipe, error) {
	var w Wipe
	incarnation, revision, _ := strings.Cut(text, "/")
	incarnation, history, _ := strings.Cut(incarnation, "-")
	// What cannot be read is 0, and not written that way again.
	w.Incarnation, _ = strconv.ParseUint(incarnation, 10, 64)
	w.History, _ = strconv.ParseUint(history, 16, 64)
	at, _ := strconv.ParseUint(revision, 10, 64)
	w.Revision = resource.Revision(at)
	if text != w.String() || w.Revision == 0 {
		return Wipe{}, fmt.Errorf("%q is not INCARNATION/REVISION, such as 2/1841, nor INCARNATION-HISTORY/REVISION: the message about the update that is held names it", text)
	}
	return w, nil
}

// String returns INCARNATION/REVISION, or INCARNATION-HISTORY/REVISION with the
// history in hexadecimal.
func (w Wipe) String() string {
	if w.History == 0 {
		return fmt.Sprintf("%d/%d", w.Incarnation, w.Revision)
	}
	return fmt.Sprintf("%d-%x/%d", w.Incarnation, w.History, w.Revision)
}

// accepts reports whether it covers a state of a global, for a replica that stands
// elsewhere. Once the replica has reached the named revision, it covers nothing
// more: a flag that is left in place does no harm.
func (w Wipe) accepts(to store.Epoch, at resource.Revision, have store.Epoch, stands resource.Revision) bool {
	switch {
	case w == (Wipe{}), to.Incarnation != w.Incarnation, at < w.Revision:
		return false
	case w.History != 0 && w.History != to.Random:
		return false
	case w.History == 0 && have.Incarnation == to.Incarnation && have != to:
		return false // it may be of either
	}
	return have != to || stands < w.Revision
}
