// Package traffic sends requests without a pause, for tests in which none may fail.
//
// Guarantees. A request is sent once: a failure is not hidden by another attempt.
//
// Non-goals: what the requests meet.
package traffic

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Load sends requests without a pause until the test ends, or one fails.
type Load struct {
	t       *testing.T
	running sync.WaitGroup

	mu      sync.Mutex
	changed *sync.Cond
	done    []int // requests that succeeded, by worker
	failure error // the first
	stopped bool
}

// New returns a load without workers, which ends with the test.
func New(t *testing.T) *Load {
	l := &Load{t: t}
	l.changed = sync.NewCond(&l.mu)
	t.Cleanup(l.Stop)
	return l
}

// In has a part of the test be what fails.
func (l *Load) In(t *testing.T) { l.t = t }

// Worker sends one request after another from now on.
func (l *Load) Worker(request func() error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := len(l.done)
	l.done = append(l.done, 0)
	l.running.Go(func() {
		for {
			err := request()
			l.mu.Lock()
			if l.stopped || l.failure != nil {
				l.mu.Unlock()
				return
			}
			if err != nil {
				l.failure = fmt.Errorf("worker %d: %w", i, err)
			} else {
				l.done[i]++
			}
			l.changed.Broadcast()
			l.mu.Unlock()
		}
	})
}

// Pass waits until every worker has sent some more requests, and requires that none has
// failed so far.
func (l *Load) Pass(requests int) {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, before := range slices.Clone(l.done) {
		for l.failure == nil && l.done[i] < before+requests {
			l.changed.Wait()
		}
	}
	require.NoError(l.t, l.failure, "after %d requests", l.done)
}

// Sent returns how many requests have succeeded.
func (l *Load) Sent() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, done := range l.done {
		n += done
	}
	return n
}

// Stop ends the workers, once what they have under way is answered.
func (l *Load) Stop() {
	l.mu.Lock()
	l.stopped = true
	l.mu.Unlock()
	l.running.Wait()
}

// Post is a request that is not repeated when it fails. fresh has a connection of its own
// for each.
func Post(url string, http2, fresh bool) func() error {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(!http2)
	protocols.SetUnencryptedHTTP2(http2)
	client := &http.Client{Transport: &http.Transport{Protocols: protocols, DisableKeepAlives: fresh}}
	return func() error {
		request, err := http.NewRequestWithContext(context.Background(), http.MethodPost, url, bytes.NewReader([]byte("body")))
		if err != nil {
			return err
		}
		request.GetBody = nil // nor can it be repeated
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		var body bytes.Buffer
		_, err = body.ReadFrom(response.Body)
		if response.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", response.Status, body.String())
		}
		return errors.Join(err, response.Body.Close())
	}
}

// Call is a call of grpc-go.
func Call(t *testing.T, url string) func() error {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+strings.TrimPrefix(url, "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return func() error { return conn.Invoke(context.Background(), "/a.S/M", &emptypb.Empty{}, &emptypb.Empty{}) }
}
