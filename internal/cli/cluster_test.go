package cli

import (
	"context"

	meridianv1 "meridian/api/meridian/v1"
)

func (s *fakeServer) Members(context.Context, *meridianv1.MembersRequest) (*meridianv1.MembersResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.members, nil
}
