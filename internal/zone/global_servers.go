package zone

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"meridian/internal/atomicfile"
)

// serversFile keeps the addresses of servers that the global has named, below
// the data directory.
const serversFile = "global-servers.json"

// learnedServers is what the file holds. It can be deleted at any time: the
// addresses are learned again.
type learnedServers struct {
	FormatVersion int `json:"formatVersion"`
	// Configured are the addresses that the zone was given when it learned. A
	// zone that is given others may be another global's now, and starts anew.
	Configured []string `json:"configured"`
	Learned    []string `json:"learned"`
}

// loadServers returns the addresses that were learned while the zone was given
// the same ones as now. Without the file the zone lacks nothing but a shortcut,
// so whatever is wrong with it is only logged.
func loadServers(dir string, configured []string, log *slog.Logger) []string {
	path := filepath.Join(dir, serversFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var have learnedServers
	if err == nil {
		err = json.Unmarshal(data, &have)
	}
	if err != nil {
		log.Warn("the learned addresses of the global's servers cannot be read: they are learned again", "file", path, "error", err)
		return nil
	}
	if have.FormatVersion != 1 || !slices.Equal(have.Configured, configured) {
		return nil
	}
	return have.Learned
}

// saveServers keeps what loadServers returns.
func saveServers(dir string, configured, learned []string) error {
	data, err := json.MarshalIndent(learnedServers{FormatVersion: 1, Configured: configured, Learned: learned}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", serversFile, err)
	}
	return atomicfile.Write(filepath.Join(dir, serversFile), append(data, '\n'), 0o644)
}
