package consensus

import (
	"sync"

	"meridian/internal/store"
)

// awaited are the batches that were given to raft here and whose callers wait. The state
// machine answers them itself. Raft's own answer goes to a goroutine that waits for it
// without regard to the caller's context, and from there to the caller: on an idle machine
// it takes longer to wake one more goroutine than to apply the batch.
//
// A batch is known by where its bytes are: raft hands the state machine of a leader the
// entry that it was given. Where it hands over another copy, which happens when the
// leadership has changed meanwhile, raft's own answer is the caller's.
//
// It is safe for concurrent use.
type awaited struct {
	mu  sync.Mutex
	all map[*byte]*awaiter // by the first byte of the command
}

// awaiter is the caller of one of them.
type awaiter struct {
	command  []byte
	answered chan answer // of capacity 1
}

// answer is what became of a batch.
type answer struct {
	result store.Result
	index  uint64
	err    error
}

func newAwaited() *awaited { return &awaited{all: map[*byte]*awaiter{}} }

// add notes a batch that is about to be given to raft. remove must follow.
func (a *awaited) add(command []byte) *awaiter {
	w := &awaiter{command: command, answered: make(chan answer, 1)}
	if len(command) > 0 {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.all[&command[0]] = w
	}
	return w
}

func (a *awaited) remove(w *awaiter) {
	if len(w.command) > 0 {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.all[&w.command[0]] == w { // and not another attempt with the same batch
			delete(a.all, &w.command[0])
		}
	}
}

// applied answers the caller of a batch, if one waits for it. Nil: no caller does.
func (a *awaited) applied(command []byte, index uint64, result store.Result) {
	if a == nil || len(command) == 0 {
		return
	}
	a.mu.Lock()
	w := a.all[&command[0]]
	a.mu.Unlock()
	if w != nil && len(w.command) == len(command) {
		w.answer(answer{result: result, index: index, err: result.Err})
	}
}

// answer gives the caller the first answer. Further ones are the same.
func (w *awaiter) answer(a answer) {
	select {
	case w.answered <- a:
	default:
	}
}
