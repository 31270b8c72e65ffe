package sink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
)

// filePerm are the permissions of a file that is made.
const filePerm = 0o600

// File passes records on to a file, at whose end they are written as they stand in the
// log. It is opened for each write, so that it may be renamed at any time. The error
// means that it cannot be opened.
func File(path string, log *slog.Logger) (*Sink, error) {
	t := &file{path: path}
	f, err := t.open()
	if err != nil {
		return nil, err
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	return newSink("file", t, log), nil
}

type file struct {
	path string
	// torn says that the last line is truncated.
	torn bool
}

func (t *file) open() (*os.File, error) {
	return os.OpenFile(t.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, filePerm)
}

func (t *file) write(_ context.Context, entries []entry) (done, _ int, err error) {
	f, err := t.open()
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for _, e := range entries {
		line := e.line
		if t.torn {
			line = append([]byte("\n"), line...)
		}
		n, err := f.Write(line)
		t.torn = n > 0 && err != nil || n == 0 && t.torn
		if err != nil {
			return done, 0, fmt.Errorf("write: %w", err)
		}
		done++
	}
	return done, 0, nil
}

func (t *file) close() error { return nil }
