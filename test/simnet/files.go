package simnet

import (
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"meridian/internal/raftlog"
)

// Files is a raftlog.Storage in real files below a directory that can be made
// to fail, hang or be full. A write that fails has not reached the files.
type Files struct {
	raftlog.Storage
	Faults
}

// NewFiles returns the storage of a directory.
func NewFiles(dir string) *Files { return &Files{Storage: raftlog.Files(dir)} }

// SetIdentity replaces the identity.
func (f *Files) SetIdentity(data []byte) error {
	if err := f.before(WriteIdentity, len(data), nil); err != nil {
		return err
	}
	return f.Storage.SetIdentity(data)
}

// OpenLog opens the log.
func (f *Files) OpenLog(verify func(raftlog.LogFile) error, mark raftlog.JournalMark) (raftlog.LogFile, error) {
	log, err := f.Storage.OpenLog(verify, mark)
	if err != nil {
		return nil, err
	}
	return fileLog{LogFile: log, faults: &f.Faults}, nil
}

// OpenSnapshots opens the snapshots.
func (f *Files) OpenSnapshots(retain int, logger hclog.Logger) (raftlog.SnapshotFiles, error) {
	snapshots, err := f.Storage.OpenSnapshots(retain, logger)
	if err != nil {
		return nil, err
	}
	return fileSnapshots{SnapshotFiles: snapshots, faults: &f.Faults}, nil
}

// Space returns what SetFree and Full left, and at most what there is.
func (f *Files) Space() (raftlog.Space, error) {
	space, err := f.Storage.Space()
	space.Free = min(space.Free, f.space(space.Total))
	return space, err
}

type fileLog struct {
	raftlog.LogFile
	faults *Faults
}

func (l fileLog) GetLog(index uint64, log *raft.Log) error {
	if err := l.faults.before(ReadLog, 0, nil); err != nil {
		return err
	}
	return l.LogFile.GetLog(index, log)
}

func (l fileLog) WriteLogs(logs []*raft.Log) (sync func() error, err error) {
	size := 0
	for _, log := range logs {
		size += len(log.Data) + len(log.Extensions)
	}
	if err := l.faults.before(WriteLog, size, nil); err != nil {
		return nil, err
	}
	return l.LogFile.WriteLogs(logs)
}

func (l fileLog) DeleteRange(first, last uint64) error {
	if err := l.faults.before(WriteLog, 1, nil); err != nil {
		return err
	}
	return l.LogFile.DeleteRange(first, last)
}

func (l fileLog) Set(key, value []byte) error {
	if err := l.faults.before(WriteValue, len(value), nil); err != nil {
		return err
	}
	return l.LogFile.Set(key, value)
}

func (l fileLog) Get(key []byte) ([]byte, error) {
	if err := l.faults.before(ReadValue, 0, nil); err != nil {
		return nil, err
	}
	return l.LogFile.Get(key)
}

type fileSnapshots struct {
	raftlog.SnapshotFiles
	faults *Faults
}

func (s fileSnapshots) Create(version raft.SnapshotVersion, index, term uint64, members raft.Configuration, membersIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	if err := s.faults.before(WriteSnapshot, 1, nil); err != nil {
		return nil, err
	}
	sink, err := s.SnapshotFiles.Create(version, index, term, members, membersIndex, trans)
	if err != nil {
		return nil, err
	}
	return fileSink{SnapshotSink: sink, faults: s.faults}, nil
}

type fileSink struct {
	raft.SnapshotSink
	faults *Faults
}

func (k fileSink) Write(b []byte) (int, error) {
	if err := k.faults.before(WriteSnapshot, len(b), nil); err != nil {
		return 0, err
	}
	return k.SnapshotSink.Write(b)
}
