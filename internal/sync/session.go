package zonesync

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/dial"
	"meridian/internal/rpcerr"
)

const (
	// frameBuffer is how many frames wait between the network and the disk.
	frameBuffer = 256
	// outBuffer is how many frames wait to be sent to the global.
	outBuffer = 64
	// maxConcurrentAnswers is how many questions are answered at a time.
	maxConcurrentAnswers = 8
	// answerPart is how an answer is cut, in bytes.
	answerPart = 32 << 10
)

// session is one connection of a Client: a receiver, an applier and a sender
// with bounded buffers between them, so that a slow disk holds back the network
// and not the other way round.
type session struct {
	client  *Client
	replica *Replica
	address string

	group   *errgroup.Group
	frames  chan *syncv1.GlobalFrame
	out     chan *syncv1.ZoneFrame
	answers chan struct{} // a slot per question being answered

	received time.Time // when a frame last came from the global
	followed bool      // the replica agreed with the global at some time
	// next is the server that this one sends the zone to, if it does.
	next string
}

func newSession(c *Client, address string) *session {
	return &session{
		client: c, replica: c.cfg.Replica, address: address,
		frames:  make(chan *syncv1.GlobalFrame, frameBuffer),
		out:     make(chan *syncv1.ZoneFrame, outBuffer),
		answers: make(chan struct{}, maxConcurrentAnswers),
	}
}

// run serves the connection until it fails or ctx is done. Everything it started
// has ended when it returns.
func (s *session) run(ctx context.Context) (err error) {
	if err := s.replica.settle(); err != nil {
		return err
	}
	attempts := dial.NewLog()
	conn, err := s.client.dial(attempts, s.address)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.group, ctx = errgroup.WithContext(ctx)
	stream, err := syncv1.NewSyncServiceClient(conn).Stream(ctx)
	if err != nil {
		return fmt.Errorf("open stream: %w", attempts.Explain(err))
	}
	s.group.Go(func() error { return s.receive(ctx, stream) })
	s.group.Go(func() error { return s.send(ctx, stream) })
	s.group.Go(func() error { return s.commit(ctx) })
	return s.group.Wait()
}

func (s *session) receive(ctx context.Context, stream syncv1.SyncService_StreamClient) error {
	for {
		f, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			err = errors.New("the global closed the stream")
		}
		if err != nil {
			return fmt.Errorf("receive: %w", rpcerr.FromStatus(err))
		}
		select {
		case s.frames <- f:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *session) send(ctx context.Context, stream syncv1.SyncService_StreamClient) error {
	for {
		select {
		case f := <-s.out:
			if err := stream.Send(f); err != nil && !errors.Is(err, io.EOF) {
				return fmt.Errorf("send: %w", err)
			}
			// After EOF the receiver has the reason.
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *session) enqueue(ctx context.Context, f *syncv1.ZoneFrame) error {
	select {
	case s.out <- f:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *session) sendHello(ctx context.Context, h *syncv1.Hello) error {
	return s.enqueue(ctx, &syncv1.ZoneFrame{Body: &syncv1.ZoneFrame_Hello{Hello: h}})
}

// commit owns the replica while the session lasts.
func (s *session) commit(ctx context.Context) error {
	defer s.replica.publishStatus(nil)
	m := s.replica.machine
	s.replica.takeAccept()
	if err := s.sendHello(ctx, m.connect(s.replica.nextLease())); err != nil {
		return err
	}
	s.received = time.Now()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	owed := time.NewTimer(0) // set to when what is owed is due
	defer owed.Stop()
	for {
		wait, err := s.acknowledge(ctx)
		if err != nil {
			return err
		}
		if owed.Stop(); wait > 0 {
			owed.Reset(wait)
		}
		select {
		case f := <-s.frames:
			s.received = time.Now()
			if err := s.step(ctx, f); err != nil {
				return err
			}
		case <-owed.C:
		case now := <-tick.C:
			if now.Sub(s.received) >= silenceAfter {
				return errSilent
			}
			s.replica.takeAccept()
			if m.tick(now) {
				if err := s.sendHello(ctx, m.greet()); err != nil {
					return err
				}
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// step takes a frame and those that wait behind it, persists what they amount to
// in one transaction, and shows it. What it is to say of that is owed.
func (s *session) step(ctx context.Context, f *syncv1.GlobalFrame) error {
	m := s.replica.machine
	commits, reply, failed := s.gather(ctx, f)
	if err := s.replica.commit(commits); err != nil {
		return errors.Join(err, failed)
	}
	s.replica.publishStatus(nil)
	switch {
	case failed != nil:
		return failed
	case reply.hello:
		return s.sendHello(ctx, m.greet())
	case reply.ack:
		s.followed = s.followed || m.phase == replicaFollowing
		m.owe(reply)
	}
	return nil
}

// acknowledge says what has been persisted, if that is due, and returns in how long it is
// the next time; zero is never.
func (s *session) acknowledge(ctx context.Context) (wait time.Duration, err error) {
	m, now := s.replica.machine, time.Now()
	due, wait := m.pace.Due(now)
	if !due {
		return wait, nil
	}
	ack := m.acknowledge(now)
	if s.client.cfg.Authorities != nil {
		ack.Authorities = s.client.cfg.Authorities()
	}
	if s.client.cfg.Draining != nil {
		d := s.client.cfg.Draining()
		ack.Draining, ack.Dataplanes, ack.DataplanesApplied, ack.DataplanesOfZone = d.Begun, d.Dataplanes, d.Applied, d.OfZone
	}
	if s.client.cfg.ServersOfZone != nil {
		ack.Servers = uint32(s.client.cfg.ServersOfZone()) //nolint:gosec // a count
	}
	_, wait = m.pace.Due(now)
	return wait, s.enqueue(ctx, &syncv1.ZoneFrame{Body: &syncv1.ZoneFrame_Ack{Ack: ack}})
}

// gather takes frames until none waits, one fails, or the replica asks for a
// repair.
func (s *session) gather(ctx context.Context, f *syncv1.GlobalFrame) (commits []*commit, reply signal, err error) {
	for {
		c, sig, err := s.take(ctx, f)
		if c != nil {
			commits = append(commits, c)
		}
		reply = reply.and(sig)
		if err != nil || reply.hello || len(commits) >= frameBuffer {
			return commits, reply, err
		}
		select {
		case f = <-s.frames:
		default:
			return commits, reply, nil
		}
	}
}

// take hands one frame to the replica, or to the answerer.
func (s *session) take(ctx context.Context, f *syncv1.GlobalFrame) (*commit, signal, error) {
	if ask := f.GetAsk(); ask != nil {
		return nil, signal{}, s.answer(ctx, ask)
	}
	if servers := f.GetServers(); servers != nil {
		s.client.learn(s.address, servers.Addresses)
		s.client.trust(servers.Authorities)
		return nil, signal{}, nil
	}
	if drain := f.GetDrain(); drain != nil && s.client.cfg.Drain != nil {
		return nil, signal{}, s.client.cfg.Drain(drain.GetDraining())
	}
	if fence := f.GetFence(); fence.GetReason() == syncv1.FenceReason_FENCE_REASON_MOVED {
		s.next = fence.GetAddress()
	}
	c, sig, err := s.replica.machine.receive(f, time.Now())
	if err == nil && f.GetWelcome() != nil {
		s.client.setStatus(true, s.address, nil)
		s.client.cfg.Logger.Info("connected to the global", "address", s.address,
			"mode", f.GetWelcome().Mode.String(), "head", f.GetWelcome().Head, "revision", s.replica.machine.revision)
	}
	return c, sig, err
}

// answer has a question answered on the side.
func (s *session) answer(ctx context.Context, ask *syncv1.Ask) error {
	answer, request := s.client.cfg.Answer, ask.Request
	if len(ask.Audit) > 0 {
		answer, request = s.client.cfg.AnswerAudit, ask.Audit
	}
	if answer == nil {
		return s.sendAnswer(ctx, ask.Id, nil, status.Error(codes.Unimplemented, "this zone answers no questions"))
	}
	select {
	case s.answers <- struct{}{}:
	default:
		return s.sendAnswer(ctx, ask.Id, nil, status.Error(codes.ResourceExhausted, "the zone is answering too many questions"))
	}
	s.group.Go(func() error {
		defer func() { <-s.answers }()
		limited := ctx
		if ask.TimeoutMs > 0 {
			var cancel context.CancelFunc
			limited, cancel = context.WithTimeout(ctx, time.Duration(ask.TimeoutMs)*time.Millisecond)
			defer cancel()
		}
		reply, err := answer(limited, request)
		return s.sendAnswer(ctx, ask.Id, reply, err)
	})
	return nil
}

// statusOfAnswer is why a question has no answer. The time that the caller gave has a
// code of its own, however it is wrapped.
func statusOfAnswer(failure error) *status.Status {
	if _, ok := status.FromError(failure); !ok && errors.Is(failure, context.DeadlineExceeded) {
		return status.New(codes.DeadlineExceeded, failure.Error())
	}
	return status.Convert(failure)
}

func (s *session) sendAnswer(ctx context.Context, id uint64, answer []byte, failure error) error {
	if failure != nil {
		st, reason := statusOfAnswer(failure), ""
		if own := (*rpcerr.Error)(nil); errors.As(rpcerr.FromStatus(failure), &own) {
			reason = own.Reason
		}
		return s.enqueue(ctx, &syncv1.ZoneFrame{Body: &syncv1.ZoneFrame_Answer{Answer: &syncv1.Answer{
			Id: id, Last: true, Code: uint32(st.Code()), Error: st.Message(), Reason: reason,
		}}})
	}
	for {
		n := min(len(answer), answerPart)
		a := &syncv1.Answer{Id: id, Part: answer[:n], Last: n == len(answer)}
		if err := s.enqueue(ctx, &syncv1.ZoneFrame{Body: &syncv1.ZoneFrame_Answer{Answer: a}}); err != nil {
			return err
		}
		if a.Last {
			return nil
		}
		answer = answer[n:]
	}
}
