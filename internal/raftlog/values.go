package raftlog

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// The keys under which raft keeps its stable values.
var (
	keyCurrentTerm       = []byte("CurrentTerm")
	keyLastVoteTerm      = []byte("LastVoteTerm")
	keyLastVoteCandidate = []byte("LastVoteCand")
)

// Set stores a value with its checksum. Without space it waits: raft has to know
// its term and its vote before it can do anything else.
func (s *Log) Set(key, value []byte) error {
	if have, err := s.Get(key); err == nil && bytes.Equal(have, value) {
		return nil
	}
	sealed := append([]byte{checksumVersion}, binary.BigEndian.AppendUint32(nil, valueChecksum(key, value))...)
	sealed = append(sealed, value...)
	err := s.write(s.host != nil, writes, 0, func() error { return s.file.Set(key, sealed) })
	if err != nil {
		return s.neverReturn(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[string(key)] = bytes.Clone(value)
	return nil
}

// Get reads a value. It fails with the text "not found", which raft compares, or
// with ErrCorrupt.
func (s *Log) Get(key []byte) ([]byte, error) {
	var value []byte
	err := s.guard(func() (err error) {
		value, err = s.readValue(key)
		return err
	})
	s.mu.Lock()
	known, seen := s.values[string(key)]
	if err == nil && !seen {
		s.values[string(key)] = bytes.Clone(value)
	}
	s.mu.Unlock()
	switch {
	case err == nil && (!seen || bytes.Equal(known, value)):
		return value, nil
	case err == nil:
		err = corruptLog(s.path, fmt.Errorf("value %q is an older one", key))
	case isNotFound(err) && !seen:
		return nil, err
	case isNotFound(err):
		err = corruptLog(s.path, fmt.Errorf("value %q is missing", key))
	}
	return nil, s.neverReturn(s.failed(err))
}

func (s *Log) readValue(key []byte) ([]byte, error) {
	sealed, err := s.file.Get(key)
	if isNotFound(err) {
		return nil, err
	}
	if err != nil {
		return nil, corruptLog(s.path, fmt.Errorf("value %q: %w", key, err))
	}
	if len(sealed) < checksumLen || sealed[0] != checksumVersion ||
		binary.BigEndian.Uint32(sealed[1:]) != valueChecksum(key, sealed[checksumLen:]) {
		return nil, corruptLog(s.path, fmt.Errorf("checksum mismatch in value %q", key))
	}
	return sealed[checksumLen:], nil
}

// SetUint64 is Set for a number.
func (s *Log) SetUint64(key []byte, value uint64) error {
	return s.Set(key, binary.BigEndian.AppendUint64(nil, value))
}

// CurrentTerm returns raft's term, 0 when none was stored.
func (s *Log) CurrentTerm() (uint64, error) {
	term, err := s.GetUint64(keyCurrentTerm)
	if isNotFound(err) {
		return 0, nil
	}
	return term, err
}

// SetCurrentTerm stores raft's term.
func (s *Log) SetCurrentTerm(term uint64) error { return s.SetUint64(keyCurrentTerm, term) }

// GetUint64 is Get for a number.
func (s *Log) GetUint64(key []byte) (uint64, error) {
	value, err := s.Get(key)
	if err != nil {
		return 0, err
	}
	if len(value) != 8 {
		return 0, corruptLog(s.path, fmt.Errorf("value %q has %d bytes, not 8", key, len(value)))
	}
	return binary.BigEndian.Uint64(value), nil
}

func valueChecksum(key, value []byte) uint32 {
	return crc32.Update(crc32.Update(0, castagnoli, key), castagnoli, value)
}
