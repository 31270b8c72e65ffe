package raftnet

import (
	"errors"
	"io"
	"time"

	"github.com/hashicorp/raft"
)

// firstRetry and maxRetry are how long a leader waits before it sends entries again
// to a member that did not answer. The time doubles from one to the other. It
// doubles up to maxRefusedRetry while the member answers that it cannot store them:
// a message of many megabytes has crossed the network for nothing.
const (
	firstRetry      = 10 * time.Millisecond
	maxRetry        = 200 * time.Millisecond
	maxRefusedRetry = 2 * time.Second
)

// insist returns send repeated until the member has taken the message, or has
// refused it for a reason that raft deals with. Raft would wait after each failure
// twice as long as after the one before, up to 10 s, and longer than it takes the
// member to return; if another member fails in that time, no write is acknowledged.
//
// A refusal without raft.AppendEntriesResponse.NoRetryBackoff says that the member
// could not store the entries. After each of these raft would also go back by an
// entry, and after many need a snapshot for a member that lacks nothing.
//
// It ends with the last error when this server does not lead in that term any more,
// or the member has gone or moved.
func (w *Endpoint) insist(id raft.ServerID, target raft.ServerAddress, resp *raft.AppendEntriesResponse, send func(*raft.AppendEntriesRequest) error) func(*raft.AppendEntriesRequest) error {
	return func(message *raft.AppendEntriesRequest) error {
		for pause := firstRetry; ; pause *= 2 {
			*resp = raft.AppendEntriesResponse{}
			err := send(message)
			taken := err == nil && (resp.Success || resp.NoRetryBackoff || resp.Term > message.Term)
			if taken || !w.replicating(message.Term, id, target) {
				return err
			}
			if err == nil {
				pause = min(pause, maxRefusedRetry)
			} else {
				pause = min(pause, maxRetry)
			}
			time.Sleep(pause)
		}
	}
}

// Replicating is told how to find out whether this server leads in a term a cluster
// that has a member at an address. To be called before raft runs.
func (w *Endpoint) Replicating(replicating func(term uint64, id raft.ServerID, at raft.ServerAddress) bool) {
	w.replicating = replicating
}

// InstallSnapshot sends a snapshot. That it could not be sent is told to raft only once
// the member has answered something since. Raft sends the snapshot again after each
// failure, and waits twice as long before that as before, up to 10 s: as long as the
// member is away there is no use in that, and when it is back it should not have to
// wait. The file of the snapshot stays open for so long.
//
// As insist it ends when this server does not lead in that term any more, or the member
// has gone or moved.
func (w *Endpoint) InstallSnapshot(id raft.ServerID, target raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	err := w.addresses.reach(id, target, func(at raft.ServerAddress) error { return w.Transport.InstallSnapshot(id, at, args, resp, data) })
	if err == nil {
		return nil
	}
	look := time.NewTicker(maxRetry)
	defer look.Stop()
	for since := w.asked.Add(1); ; {
		answered := w.Changed()
		if w.Answered(id, args.Term, since) || !w.replicating(args.Term, id, target) {
			return err
		}
		select {
		case <-answered:
		case <-look.C:
		case <-w.done:
			return err
		}
	}
}

// RequestVote asks for a vote, again and again as long as this server campaigns in
// that term and the voter has not answered: it may be starting, or need longer than
// a message may take to write its vote, and answers a repeated question from what it
// has written. Raft would ask again in the next election only, which is far away
// while disks are slow.
func (w *Endpoint) RequestVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	for pause := firstRetry; ; pause = min(2*pause, maxRetry) {
		*resp = raft.RequestVoteResponse{}
		err := w.addresses.reach(id, target, func(at raft.ServerAddress) error { return w.Transport.RequestVote(id, at, args, resp) })
		if err == nil || !w.campaigning(args.Term) {
			return err
		}
		time.Sleep(pause)
	}
}

// RequestPreVote asks whether a vote would be given, again and again as long as this
// server campaigns and the voter does not agree, which it may do as soon as it has
// missed the leader itself. Raft asks under the same term in the next election, so
// that each question ends after the time of one. The first question is asked when it is
// this server's turn to campaign.
func (w *Endpoint) RequestPreVote(id raft.ServerID, target raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	if wait := w.standBack(); wait > 0 {
		time.Sleep(wait)
		if !w.campaigning(args.Term - 1) {
			return errNotCampaigning
		}
	}
	began := time.Now()
	for pause := firstRetry; ; pause = min(2*pause, maxRetry) {
		*resp = raft.RequestPreVoteResponse{}
		err := w.addresses.reach(id, target, func(at raft.ServerAddress) error { return w.Transport.RequestPreVote(id, at, args, resp) })
		if err == nil && (resp.Granted || resp.Term > args.Term) || !w.campaigning(args.Term-1) || time.Since(began) > w.electionTimeout() {
			return err
		}
		time.Sleep(pause)
	}
}

// errNotCampaigning is why a vote was not asked for.
var errNotCampaigning = errors.New("this server does not campaign any more")

// Campaigning is told how to find out whether this server campaigns in a term, how
// long an election may last, and for how long other servers are still to be the only
// ones that campaign. To be called before raft runs.
func (w *Endpoint) Campaigning(campaigning func(term uint64) bool, timeout, standBack func() time.Duration) {
	w.campaigning, w.electionTimeout, w.standBack = campaigning, timeout, standBack
}
