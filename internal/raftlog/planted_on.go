//go:build mutants

package raftlog

import (
	"errors"
	"sync"

	"github.com/hashicorp/raft"

	"meridian/internal/mutant"
)

// planted returns a log with the bug that is on, if it is one of a log's.
func planted(file LogFile) LogFile {
	switch {
	case mutant.On(mutant.AckBeforeSync):
		return &lateLog{LogFile: file}
	case mutant.On(mutant.VoteNotStored):
		return voteless{file}
	}
	return file
}

// lateLog says that entries are on disk one write too early.
type lateLog struct {
	LogFile
	mu   sync.Mutex
	late []*raft.Log // in memory only
}

func (l *lateLog) flushLocked() error {
	late := l.late
	l.late = nil
	if len(late) == 0 {
		return nil
	}
	return l.LogFile.StoreLogs(late)
}

func (l *lateLog) StoreLogs(logs []*raft.Log) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.flushLocked()
	l.late = logs
	return err
}

func (l *lateLog) GetLog(index uint64, log *raft.Log) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, entry := range l.late {
		if entry.Index == index {
			*log = *entry
			return nil
		}
	}
	return l.LogFile.GetLog(index, log)
}

func (l *lateLog) FirstIndex() (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first, err := l.LogFile.FirstIndex()
	if err == nil && first == 0 && len(l.late) > 0 {
		first = l.late[0].Index
	}
	return first, err
}

func (l *lateLog) LastIndex() (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.late); n > 0 {
		return l.late[n-1].Index, nil
	}
	return l.LogFile.LastIndex()
}

func (l *lateLog) DeleteRange(first, last uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(l.flushLocked(), l.LogFile.DeleteRange(first, last))
}

// Close flushes: only a crash shows the bug.
func (l *lateLog) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(l.flushLocked(), l.LogFile.Close())
}

// voteless keeps votes in memory only.
type voteless struct{ LogFile }

func (v voteless) Set(key, value []byte) error {
	if string(key) == string(keyLastVoteTerm) || string(key) == string(keyLastVoteCandidate) {
		return nil
	}
	return v.LogFile.Set(key, value)
}
