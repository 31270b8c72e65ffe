package store

import "meridian/internal/resource"

// request is a batch that was applied under an id.
type request struct {
	id       string
	revision resource.Revision
	results  []OpResult
}

// requests is the bounded window of ids that were applied (§7.1: the
// outcome of a write whose leader fell is unknown to its caller, who retries).
// What it holds depends on the batches before it and on nothing else.
type requests struct {
	bounds  Requests
	window  window[*request]
	byID    map[string]*request
	results int
}

func (w *requests) find(id string) (*request, bool) {
	r, ok := w.byID[id]
	return r, ok
}

func (w *requests) add(r *request) {
	if w.byID == nil {
		w.byID = make(map[string]*request)
	}
	w.window.push(r)
	w.byID[r.id] = r
	w.results += len(r.results)
	for len(w.window.items) > 1 && (len(w.window.items) > w.bounds.Max || w.results > w.bounds.MaxResults) {
		oldest := w.window.items[0]
		delete(w.byID, oldest.id)
		w.results -= len(oldest.results)
		w.window.pop()
	}
}

// Applied returns what became of the batch that was applied under a request id,
// as long as it is remembered. A caller who retries is answered with it, also
// where the batch could not be decided again on the state that it left. One that
// had no operations is not answered: a batch that changes nothing is applied
// without them, and has to be compared again.
func (s *Store) Applied(requestID string) (Result, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.requests.find(requestID)
	if !ok || requestID == "" || len(r.results) == 0 {
		return Result{}, false
	}
	return Result{Revision: r.revision, Results: r.results, Duplicate: true}, true
}
