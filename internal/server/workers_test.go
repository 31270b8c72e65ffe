package server

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
)

// A worker that waits is given the next function, the same goroutine for all of them; it
// ends when nothing comes, and with the others.
func TestWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorkers()
		ran := 0
		for range 3 {
			w.do(func() { ran++ })
			synctest.Wait()
			require.EqualValues(t, 1, w.idle.Load(), "one worker has run all so far")
		}
		require.Equal(t, 3, ran)

		block := make(chan struct{})
		for range 2 * maxIdleWorkers {
			w.do(func() { <-block })
		}
		synctest.Wait()
		require.Zero(t, w.idle.Load(), "all run at once")
		close(block)
		synctest.Wait()
		require.EqualValues(t, maxIdleWorkers, w.idle.Load(), "no more than these wait")

		<-time.After(workerPatience) // of the bubble
		synctest.Wait()
		require.Zero(t, w.idle.Load(), "nothing came")
		w.do(func() { ran++ })
		synctest.Wait()
		require.Equal(t, 4, ran)
		require.EqualValues(t, 1, w.idle.Load())
		w.end()
		w.end()
		synctest.Wait() // the bubble fails where a goroutine is left
		require.Zero(t, w.idle.Load())
	})
}

// sentStream notes what is sent.
type sentStream struct {
	grpc.ServerStream
	sent []any
}

func (s *sentStream) SendMsg(m any) error {
	s.sent = append(s.sent, m)
	return nil
}

// The answer of a handler is sent when it has returned, so that it leaves with the end of
// the call; what a handler that failed has answered is not sent.
func TestAnswersLeaveWithTheEndOfTheCall(t *testing.T) {
	stream := &sentStream{}
	g := &gathered{call: &call{ServerStream: stream}}
	require.NoError(t, g.SendMsg("first"))
	require.Empty(t, stream.sent)
	require.NoError(t, g.answer())
	require.Equal(t, []any{"first"}, stream.sent)
	require.NoError(t, g.answer())
	require.Len(t, stream.sent, 1)
	require.NoError(t, g.SendMsg("second"))
	require.NoError(t, g.SendMsg("third"))
	require.NoError(t, g.answer())
	require.Equal(t, []any{"first", "second", "third"}, stream.sent)
}
