package zone

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"meridian/internal/atomicfile"
)

// modeFile says what a zone's data directory is, for life.
const modeFile = "zone.json"

// mode is the content of modeFile.
type mode struct {
	FormatVersion int    `json:"formatVersion"`
	Name          string `json:"name"`
	Federated     bool   `json:"federated"`
}

func (m mode) String() string {
	if m.Federated {
		return "a zone of a global"
	}
	return "a standalone zone"
}

// checkMode checks that a data directory is what it is about to be used for, and
// notes it down on first use (§1.3).
func checkMode(dir string, want mode) error {
	have, err := readMode(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		encoded, err := json.MarshalIndent(want, "", "  ")
		if err != nil {
			return fmt.Errorf("encode %s: %w", modeFile, err)
		}
		return atomicfile.Write(filepath.Join(dir, modeFile), append(encoded, '\n'), 0o644)
	case err != nil:
		return fmt.Errorf("--data-dir: %w", err)
	case have.FormatVersion > want.FormatVersion:
		return fmt.Errorf("--data-dir %s was written by a newer release", dir)
	case have.Name != want.Name:
		return fmt.Errorf("--data-dir %s belongs to zone %q, not %q; choose another directory", dir, have.Name, want.Name)
	case have.Federated != want.Federated:
		fix := "leave out what connects it to a global"
		if have.Federated {
			fix = "start it with --join-bundle or --global-addr"
		}
		return fmt.Errorf("--data-dir %s belongs to %s, and would now be used for %s; that never changes: %s, or choose another directory", dir, have, want, fix)
	}
	return nil
}

// readMode reads what a data directory says that it is.
func readMode(dir string) (have mode, err error) {
	path := filepath.Join(dir, modeFile)
	data, err := os.ReadFile(path)
	if err != nil {
		return mode{}, err
	}
	if err := json.Unmarshal(data, &have); err != nil {
		return mode{}, fmt.Errorf("%s is damaged (%w); restore it, or start with a new directory", path, err)
	}
	return have, nil
}
