package raftnet

import "sync"

// signal wakes everyone who waits for something to change.
type Signal struct {
	mu sync.Mutex
	ch chan struct{}
}

// wait returns a channel that is closed by the next wake. Take it before looking
// at what may change.
func (s *Signal) Wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ch == nil {
		s.ch = make(chan struct{})
	}
	return s.ch
}

// wake closes the channel of everyone who waits.
func (s *Signal) Wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ch != nil {
		close(s.ch)
		s.ch = nil
	}
}
