package cli

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"meridian/internal/atomicfile"
	"meridian/internal/cli/exit"
)

// outFile is where a command that prints credentials writes them, in place of
// standard output.
type outFile struct {
	path      string
	overwrite bool
}

// bindOut defines --out and --overwrite.
func bindOut(cmd *cobra.Command) *outFile {
	o := &outFile{}
	cmd.Flags().StringVar(&o.path, "out", "", "write to this file, readable by its owner only, in place of standard output")
	cmd.Flags().BoolVar(&o.overwrite, "overwrite", false, "with --out: replace the file if it exists")
	return o
}

// writing calls do, which prints, with the file in place of standard output. The
// file is made first, so that no credential is issued that cannot be kept, and
// gets its name only after do has succeeded.
func (a *app) writing(ctx context.Context, o *outFile, do func(context.Context) error) error {
	if o.path == "" {
		if o.overwrite {
			return exit.Usagef("--overwrite is about --out: give both")
		}
		return do(ctx)
	}
	file, err := createNew(o.path, o.overwrite, "--overwrite")
	if err != nil {
		return err
	}
	defer file.Discard()
	stdout := a.Stdout
	a.Stdout = file
	err = do(ctx)
	a.Stdout = stdout
	if err != nil {
		return err
	}
	if err := commitNew(file, o.path, o.overwrite, "--overwrite"); err != nil {
		return err
	}
	a.Message("Written to %s.", o.path)
	return nil
}

// createNew begins a file that only its owner can read; flag is what lets it
// replace one.
func createNew(path string, overwrite bool, flag string) (*atomicfile.File, error) {
	if _, err := os.Lstat(path); !overwrite && err == nil {
		return nil, exit.Usagef("%s exists: %s replaces it", path, flag)
	}
	file, err := atomicfile.Create(path, 0o600)
	if err != nil {
		return nil, exit.Usagef("the file cannot be written: %w", err)
	}
	return file, nil
}

// commitNew gives the file its name.
func commitNew(file *atomicfile.File, path string, overwrite bool, flag string) error {
	commit := file.CommitNew
	if overwrite {
		commit = file.Commit
	}
	err := commit()
	if errors.Is(err, fs.ErrExist) {
		return exit.Usagef("%s exists by now: %s replaces it", path, flag)
	}
	return err
}
