package cli

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"meridian/internal/audit"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
)

func newAuditCommand(a *app) *cobra.Command {
	return newGroup("audit", "Read and verify audit logs", newAuditVerifyCommand(a))
}

func newAuditVerifyCommand(a *app) *cobra.Command {
	var headFile string
	cmd := &cobra.Command{
		Use:   "verify FILE|DIR...",
		Short: "Verify the hash chain of an audit log",
		Long: `Verify that no record of an audit log was altered, removed, moved or cut off, and
report where one was. The files are parts of one log, in any order; a
directory is read for all log files in it.

Every record holds the hash of the one before. The checkpoint head.json, beside
the files or given by --head, shows that the end was not cut off: keep a copy of
it where writers of the log cannot write.

It needs no server, and exits with 1 when something is wrong.`,
		Example: `  meridian audit verify /var/lib/meridian/audit
  meridian audit verify --head yesterday/head.json audit-*.log audit.log`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return exit.Usagef("missing FILE or DIR")
			}
			return nil
		},
	}
	output := print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatJSON, print.FormatYAML)
	cmd.Flags().StringVar(&headFile, "head", "", "checkpoint to compare the log with (default head.json beside the files)")
	cmd.RunE = func(_ *cobra.Command, args []string) error { return a.verifyAudit(output.Value, args, headFile) }
	return cmd
}

func (a *app) verifyAudit(f print.Format, args []string, headFile string) error {
	files, head, err := auditFiles(args)
	if err == nil && headFile != "" {
		var given audit.Head
		given, err = audit.ReadHead(headFile)
		head = &given
	}
	if err != nil {
		return exit.Usagef("%w", err)
	}
	report, err := audit.Verify(files, head)
	if err != nil {
		return exit.Usagef("%w", err)
	}
	if f != print.FormatTable {
		err = a.WriteValue(f, report)
	} else {
		err = a.printAudit(report)
	}
	if err != nil {
		return err
	}
	for _, note := range report.Notes {
		a.Message("Note: %s.", note)
	}
	if head == nil {
		a.Message("Note: there is no checkpoint, so records may be missing at the end.")
	}
	if n := len(report.Problems); n > 0 {
		return exit.Failf(exit.No, "the audit log was altered: %s", print.Plural(n, "problem"))
	}
	return nil
}

func (a *app) printAudit(report audit.Report) error {
	for _, p := range report.Problems {
		if err := a.Println(p.String()); err != nil {
			return err
		}
	}
	if len(report.Problems) > 0 {
		return nil
	}
	t := &print.Table{Header: []string{"RECORDS", "FIRST", "LAST", "HASH"}}
	t.Add(strconv.FormatUint(report.Records, 10), strconv.FormatUint(report.First, 10), strconv.FormatUint(report.Last, 10), report.Hash)
	return a.Table(t)
}

// auditFiles replaces directories by the logs in them and finds the checkpoint
// beside the file that is written.
func auditFiles(args []string) (files []string, head *audit.Head, err error) {
	for _, arg := range args {
		info, err := os.Stat(arg)
		if err != nil {
			return nil, nil, err
		}
		if !info.IsDir() {
			files = append(files, arg)
			continue
		}
		in, checkpoint, err := audit.Files(arg)
		if err != nil {
			return nil, nil, err
		}
		files, head = append(files, in...), checkpoint
	}
	i := slices.IndexFunc(files, func(f string) bool { return filepath.Base(f) == audit.CurrentFile })
	if head != nil || i < 0 {
		return files, head, nil
	}
	beside, err := audit.ReadHead(filepath.Join(filepath.Dir(files[i]), audit.HeadFile))
	if errors.Is(err, fs.ErrNotExist) {
		return files, nil, nil
	}
	return files, &beside, err
}
