package turns

import "context"

// Turns are the queues of one server.
type Turns struct {
	// work is for what takes a processor, held for the requests whose content is
	// in memory, from decoding it to the answer.
	work, held *Queue
}

// heldBytes bounds the large requests that are decoded and not answered yet, in
// bytes as they were received. What they are decoded into takes several times
// that.
const heldBytes = 64 << 20

// NewServer returns the queues of a server.
func NewServer() *Turns {
	const most = 1 << 10
	return &Turns{
		work: New(DefaultLimits()),
		held: New(Limits{AtOnce: most, PerCaller: most, Unauthenticated: most, Large: most, LargeBytes: heldBytes, Waiting: 64, AllWaiting: most}),
	}
}

// Hold answers a request of so many bytes, with what it is decoded into in memory.
// A large one waits until there is space. Errors are those of Queue.Do.
func (t *Turns) Hold(ctx context.Context, bytes int64, answer func() error) error {
	if bytes <= Small {
		return answer()
	}
	return t.held.Do(ctx, bytes, answer)
}

// Work runs a piece of work of a request of so many bytes in its turn. Errors are
// those of Queue.Do.
func (t *Turns) Work(ctx context.Context, bytes int64, work func() error) error {
	return t.work.Do(ctx, bytes, work)
}

// Question answers a question of a caller in its turn, as Work does. Errors are those of
// Queue.DoFor.
func (t *Turns) Question(ctx context.Context, who Caller, answer func() error) error {
	return t.work.DoFor(ctx, who, 0, answer)
}

// Stats returns the numbers of the pieces of work, and of the requests held.
func (t *Turns) Stats() (work, held Stats) { return t.work.Stats(), t.held.Stats() }
