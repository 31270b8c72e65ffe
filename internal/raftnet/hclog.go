package raftnet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"slices"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// raftLogger passes raft's log lines to slog. Raft is talkative: what it calls
// information (every election, every snapshot) is debugging to an operator, so
// everything below a warning becomes slog's debug level, and so does what it
// calls a failure and is ordinary (routine).
type raftLogger struct {
	to   *slog.Logger
	name string
	args []any
}

// NewLogger returns a logger for raft that writes to slog.
func NewLogger(to *slog.Logger) hclog.Logger {
	return &raftLogger{to: to.With("component", "raft")}
}

func slogLevel(level hclog.Level) slog.Level {
	switch level {
	case hclog.Warn:
		return slog.LevelWarn
	case hclog.Error:
		return slog.LevelError
	case hclog.Trace:
		return slog.LevelDebug - 4
	default:
		return slog.LevelDebug
	}
}

func (l *raftLogger) enabled(level hclog.Level) bool {
	return l.to.Enabled(context.Background(), slogLevel(level))
}

func (l *raftLogger) Log(level hclog.Level, msg string, args ...any) {
	if closing(args) || routine[msg] {
		level = min(level, hclog.Debug)
	}
	if level == hclog.Off || !l.enabled(level) {
		return
	}
	for i, arg := range args {
		if f, ok := arg.(hclog.Format); ok && len(f) > 0 {
			args[i] = fmt.Sprintf(fmt.Sprint(f[0]), f[1:]...)
		}
	}
	l.to.Log(context.Background(), slogLevel(level), msg, args...)
}

// routine are the messages that raft repeats several times a second while another
// server restarts, or writes whenever one joins or comes back, and calls warnings
// and errors. What an operator has to know of it is said once, by
// observeHeartbeats: that a server does not answer, and that it answers again.
var routine = map[string]bool{ //nolint:gochecknoglobals // a constant
	"failed to appendEntries to":                                 true,
	"failed to heartbeat to":                                     true,
	"failed to contact":                                          true,
	"failed to pipeline appendEntries":                           true,
	"failed to start pipeline replication to":                    true,
	"failed to make requestVote RPC":                             true,
	"peer has newer term, stopping replication":                  true,
	"no known peers, aborting election":                          true, // a server that joins
	"Election timeout reached, restarting election":              true, // once is said: heartbeat timeout reached
	"failed to get previous log":                                 true, // a follower that is behind: the leader sends what is missing
	"appendEntries rejected, sending older logs":                 true,
	"rejecting vote request since we have a leader":              true,
	"rejecting pre-vote request since we have a leader":          true,
	"rejecting vote request since our last index is greater":     true,
	"rejecting pre-vote request since our last index is greater": true,
}

// closing reports whether a message is about a connection that this side has
// closed, which is how a stop looks from inside raft and nothing to worry about.
func closing(args []any) bool {
	return slices.ContainsFunc(args, func(arg any) bool {
		err, ok := arg.(error)
		return ok && (errors.Is(err, net.ErrClosed) || errors.Is(err, raft.ErrTransportShutdown))
	})
}

func (l *raftLogger) Trace(msg string, args ...any) { l.Log(hclog.Trace, msg, args...) }
func (l *raftLogger) Debug(msg string, args ...any) { l.Log(hclog.Debug, msg, args...) }
func (l *raftLogger) Info(msg string, args ...any)  { l.Log(hclog.Info, msg, args...) }
func (l *raftLogger) Warn(msg string, args ...any)  { l.Log(hclog.Warn, msg, args...) }
func (l *raftLogger) Error(msg string, args ...any) { l.Log(hclog.Error, msg, args...) }

func (l *raftLogger) IsTrace() bool { return l.enabled(hclog.Trace) }
func (l *raftLogger) IsDebug() bool { return l.enabled(hclog.Debug) }
func (l *raftLogger) IsInfo() bool  { return l.enabled(hclog.Info) }
func (l *raftLogger) IsWarn() bool  { return l.enabled(hclog.Warn) }
func (l *raftLogger) IsError() bool { return l.enabled(hclog.Error) }

func (l *raftLogger) ImpliedArgs() []any { return l.args }
func (l *raftLogger) Name() string       { return l.name }

func (l *raftLogger) With(args ...any) hclog.Logger {
	implied := append(append([]any(nil), l.args...), args...)
	return &raftLogger{to: l.to.With(args...), name: l.name, args: implied}
}

func (l *raftLogger) Named(name string) hclog.Logger {
	if l.name != "" {
		name = l.name + "." + name
	}
	return l.ResetNamed(name)
}

func (l *raftLogger) ResetNamed(name string) hclog.Logger {
	return &raftLogger{to: l.to, name: name, args: l.args}
}

// SetLevel does nothing: the level is the slog handler's.
func (l *raftLogger) SetLevel(hclog.Level) {}

func (l *raftLogger) GetLevel() hclog.Level {
	for _, level := range []hclog.Level{hclog.Trace, hclog.Debug, hclog.Warn, hclog.Error} {
		if l.enabled(level) {
			return level
		}
	}
	return hclog.Off
}

func (l *raftLogger) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return slog.NewLogLogger(l.to.Handler(), slog.LevelDebug)
}

func (l *raftLogger) StandardWriter(opts *hclog.StandardLoggerOptions) io.Writer {
	return l.StandardLogger(opts).Writer()
}
