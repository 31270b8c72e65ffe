package consensus

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	peerv1 "meridian/api/peer/v1"
)

// TestAQueueIsForgottenOnce: two goroutines that end with a queue leave the one that has
// taken its place between them.
func TestAQueueIsForgottenOnce(t *testing.T) {
	var tasks []func()
	conn := &grpc.ClientConn{}
	f := newForwards(&core{cfg: DefaultConfig("")})
	emptied := &portions[*forward]{}
	f.queues[conn] = &portions[*forward]{
		atOnce: func() int { return 1 }, size: (*forward).bytes, serve: func([]*forward) {}, run: func(do func()) { tasks = append(tasks, do) },
	}
	f.add(&forward{conn: conn, request: &peerv1.ProposeRequest{}})
	f.forget(conn, emptied)
	require.Contains(t, f.queues, conn, "it has a batch to send")
	for _, task := range tasks {
		task()
	}
	f.forget(conn, f.queues[conn])
	require.Empty(t, f.queues)
}
