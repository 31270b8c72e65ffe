package zonesync

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/resource"
	"meridian/internal/store"
)

// What `meridian zones` shows of a zone that is gone says who ended it, and that a
// zone follows another global or a later incarnation.
func TestWhyAZoneIsGone(t *testing.T) {
	ours := store.Epoch{ClusterID: "x", Incarnation: 2, Random: 1}
	canceled := status.Error(codes.Canceled, "context canceled")
	for want, c := range map[string]struct {
		err    error
		theirs store.Epoch
	}{
		"the zone closed the connection":                     {context.Canceled, ours},
		"or it was lost":                                     {canceled, store.Epoch{}},
		"it follows cluster y, this is cluster x":            {canceled, store.Epoch{ClusterID: "y", Incarnation: 2}},
		"an earlier incarnation, 2, and the zone has seen 3": {canceled, store.Epoch{ClusterID: "x", Incarnation: 3}},
		"another history of incarnation 2":                   {canceled, store.Epoch{ClusterID: "x", Incarnation: 2, Random: 9}},
		"the server is shutting down":                        {errors.New("the server is shutting down"), store.Epoch{ClusterID: "y"}},
	} {
		require.ErrorContains(t, closeReason(c.err, c.theirs, ours), want)
	}
	require.NoError(t, closeReason(nil, ours, ours))
}

// pretendStream is a stream of which the test is the zone.
type pretendStream struct {
	syncv1.SyncService_StreamServer
	ctx context.Context
	end context.CancelFunc // as gRPC does when the zone or the handler has ended the stream
	in  chan *syncv1.ZoneFrame
}

// newPretendStream returns a stream on which an instance of a zone has said Hello.
func newPretendStream(t *testing.T, zone, instance string) *pretendStream {
	ctx, end := context.WithCancel(t.Context())
	ctx, err := Tap(ctx, &tap.Info{FullMethodName: syncv1.SyncService_Stream_FullMethodName})
	require.NoError(t, err)
	s := &pretendStream{ctx: ctx, end: end, in: make(chan *syncv1.ZoneFrame, 1)}
	s.in <- &syncv1.ZoneFrame{Body: &syncv1.ZoneFrame_Hello{Hello: &syncv1.Hello{Protocol: 1, MinProtocol: 1, Zone: zone, Instance: instance}}}
	return s
}

func (s *pretendStream) Context() context.Context { return s.ctx }
func (s *pretendStream) Send(f *syncv1.GlobalFrame) error {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	if f.GetFence() != nil {
		s.end() // as zones do
	}
	return nil
}

func (s *pretendStream) RecvMsg(m any) error {
	select {
	case f := <-s.in:
		encoded, err := Codec().Marshal(f)
		if err != nil {
			return err
		}
		return Codec().Unmarshal(encoded, m)
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// orders returns every order of some events.
func orders(events []string) [][]string {
	if len(events) <= 1 {
		return [][]string{events}
	}
	var out [][]string
	for i, first := range events {
		rest := slices.Concat(events[:i], events[i+1:])
		for _, o := range orders(rest) {
			out = append(out, append([]string{first}, o...))
		}
	}
	return out
}

// TestWhatChangesDuringAQuestionIsAskedAbout: a zone that may not connect any more, as
// of a change that comes while it is being authorized on account of the one before,
// loses its stream at once.
func TestWhatChangesDuringAQuestionIsAskedAbout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		defer c.stop()
		var refused, hold atomic.Bool
		answer := make(chan struct{})
		c.server.cfg.Authorize = func(context.Context, string, resource.ZoneName) (until time.Time, err error) {
			was := refused.Load()
			if hold.Swap(false) {
				<-answer
			}
			if was {
				return until, errors.New("the token was revoked")
			}
			return until, nil
		}
		s := newPretendStream(t, "east", "a")
		defer s.end()
		ended := make(chan error, 1)
		go func() {
			ended <- c.server.Stream(s)
			s.end()
		}()
		synctest.Wait()
		change := func(content string) {
			c.write(put(resource.Key{Kind: zoneKind, Name: "west"}, content))
			synctest.Wait()
		}
		hold.Store(true)
		change(`{}`)
		require.False(t, hold.Load(), "it was asked")
		refused.Store(true)
		change(`{"enabled":false}`)
		require.Empty(t, ended)
		close(answer)
		synctest.Wait()
		require.Len(t, ended, 1)
		require.ErrorContains(t, <-ended, "the token was revoked")
	})
}

// TestConnectedMeansAStream: in whichever order a zone is authorized, its streams
// end, and its Zone is deleted and created, those that are shown as connected are
// those that have a stream, and none of these is of a zone that may not connect.
func TestConnectedMeansAStream(t *testing.T) {
	for _, order := range orders([]string{"authorized", "asked again", "stream ends", "deleted", "created", "another stream"}) {
		if slices.Index(order, "created") < slices.Index(order, "deleted") {
			continue
		}
		t.Run(strings.Join(order, ", "), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { connectInOrder(t, order) })
		})
	}
}

func connectInOrder(t *testing.T, order []string) {
	c := newCluster(t)
	defer c.stop()
	key := resource.Key{Kind: zoneKind, Name: "east"}
	c.write(put(key, `{}`))
	synctest.Wait()
	exists := func() bool {
		_, ok := c.global.store.View().Get(key)
		return ok
	}
	// The first question about a zone is answered, as of when it was asked, when the
	// test says so; later ones are asked when it says so.
	answered, again, first := make(chan struct{}), make(chan struct{}), true
	var questions atomic.Int32 // without an answer
	c.server.cfg.Authorize = func(context.Context, string, resource.ZoneName) (until time.Time, err error) {
		ok := exists()
		questions.Add(1)
		defer questions.Add(-1)
		if first {
			first = false
			<-answered
		} else {
			<-again
			ok = exists()
		}
		if !ok {
			return until, errors.New("there is no Zone")
		}
		return until, nil
	}
	var ended sync.Map // by instance
	opened := []string{}
	open := func(instance string) (end func()) {
		s := newPretendStream(t, "east", instance)
		opened = append(opened, instance)
		go func() {
			_ = c.server.Stream(s)
			s.end()
			ended.Store(instance, true)
		}()
		return s.end
	}
	ends := []func(){open("a")}
	synctest.Wait()
	require.False(t, first)
	for _, event := range order {
		switch event {
		case "authorized":
			close(answered)
		case "asked again":
			close(again)
		case "stream ends":
			ends[0]()
		case "deleted":
			c.write(store.Delete(key))
		case "created":
			c.write(put(key, `{}`))
		case "another stream":
			ends = append(ends, open("b"))
		}
		synctest.Wait()
		if questions.Load() > 0 {
			continue
		}
		connected := []string{}
		for _, z := range c.server.Zones() {
			connected = append(connected, z.Instances...)
		}
		running := slices.DeleteFunc(slices.Clone(opened), func(instance string) bool {
			_, over := ended.Load(instance)
			return over
		})
		require.Equal(t, running, connected, "after: %s", event)
		if !exists() {
			require.Empty(t, running, "after: %s", event)
		}
	}
	for _, end := range ends {
		end()
	}
	synctest.Wait()
	if z, known := zoneOf(c.server, "east"); known {
		require.Equal(t, ZoneOffline, z.State)
	}
}

// TestZonesAreGreetedInThePresent: a server that starts has the past in its feed
// first, which may be of an earlier epoch. No zone is greeted with that.
func TestZonesAreGreetedInThePresent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.stop()
		c.write(put(policyKey("a"), `{}`), put(resource.Key{Kind: zoneKind, Name: "east"}, `{}`))
		next := c.global.store.View().Epoch()
		next.Incarnation++
		c.global.apply(store.Txn{SetEpoch: &next}) // as a recovery does
		now := c.global.store.View()
		replaying := make(chan struct{})
		s := NewServer(ServerConfig{
			Store: c.global.store, Synced: func(k resource.Kind) bool { return k == policyKind },
			Authorize:   func(context.Context, string, resource.ZoneName) (until time.Time, err error) { return until, nil },
			Reauthorize: func(resource.Kind) bool { <-replaying; return false }, // while the first batch is taken
			Logger:      slog.New(slog.DiscardHandler),
		})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { require.NoError(t, s.Run(ctx)) })
		synctest.Wait()
		require.NotEqual(t, now.Epoch(), s.feed.position().epoch)
		select {
		case <-s.ready:
			t.Error("zones are greeted in the past")
		default:
		}
		close(replaying)
		<-s.ready
		require.Equal(t, now.Epoch(), s.feed.position().epoch)
		require.Equal(t, now.Changed(), s.feed.position().head)
		cancel()
		running.Wait()
	})
}

// TestAskedIsAnInstanceThatIsNotSilent, whatever a silent one has applied.
func TestAskedIsAnInstanceThatIsNotSilent(t *testing.T) {
	r, now := newRegistry(), time.Now()
	silent, heard := &conn{}, &conn{}
	join := func(c *conn, id string, from uint64, at time.Time) {
		t.Helper()
		_, err := r.join("east", c, &syncv1.Hello{Instance: id, Epoch: &syncv1.Epoch{ClusterId: "c"}, FromRevision: from}, at)
		require.NoError(t, err)
	}
	join(silent, "s", 9, now.Add(-silentAfter))
	require.Same(t, silent, r.best("east", store.Epoch{ClusterID: "c"}, now), "there is no other")
	join(heard, "h", 7, now)
	require.Same(t, heard, r.best("east", store.Epoch{ClusterID: "c"}, now))
	require.Same(t, silent, r.best("east", store.Epoch{ClusterID: "c"}, now.Add(-time.Second)), "it is ahead")
}

// TestEqualNumbersAreTwoProcesses is I8: a second process that runs on a copy of
// the data directory does not take the place of the first by the same number.
func TestEqualNumbersAreTwoProcesses(t *testing.T) {
	r, now := newRegistry(), time.Now()
	one, two := &conn{}, &conn{}
	_, err := r.join("east", one, &syncv1.Hello{Instance: "i", Lease: 7}, now)
	require.NoError(t, err)
	_, err = r.join("east", two, &syncv1.Hello{Instance: "i", Lease: 7}, now)
	require.ErrorContains(t, err, "copies of one data directory")
	older, err := r.join("east", two, &syncv1.Hello{Instance: "i", Lease: 8}, now)
	require.NoError(t, err)
	require.Same(t, one, older)
}
