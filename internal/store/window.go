package store

// window is a queue whose contents can be handed to readers as a slice without
// copying: elements are appended behind every slice handed out and never
// written over. One writer; the slices may be read by anyone.
type window[T any] struct {
	items   []T
	dropped int // in front of items, in the same array
}

func (w *window[T]) push(v T) { w.items = append(w.items, v) }

// pop drops the oldest element. The array is left behind once a quarter of it
// is dead, so that what was dropped can be collected.
func (w *window[T]) pop() {
	w.items = w.items[1:]
	w.dropped++
	if w.dropped > 64+len(w.items)/4 {
		w.items = append(make([]T, 0, len(w.items)+len(w.items)/4+16), w.items...)
		w.dropped = 0
	}
}

// slice returns the elements, oldest first. The result never changes.
func (w *window[T]) slice() []T { return w.items[:len(w.items):len(w.items)] }
