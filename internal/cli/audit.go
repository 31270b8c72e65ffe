package cli

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"meridian/internal/audit"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/pki"
)

func newAuditCommand(a *app) *cobra.Command {
	return newGroup("audit", "Read and verify audit logs", newAuditListCommand(a), newAuditVerifyCommand(a))
}

func newAuditVerifyCommand(a *app) *cobra.Command {
	var headFile, caFile string
	cmd := &cobra.Command{
		Use:   "verify FILE|DIR...",
		Short: "Verify the hash chain of an audit log",
		Long: `Verify that no record of an audit log was altered, removed, moved or cut off, and
report where one was. The files are parts of one log, in any order; a
directory is read for all log files in it.

Every record holds the hash of the one before. The checkpoint head.json, beside
the files or given by --head, shows that the ends were not cut off. It is signed
by the server: --ca verifies that the certificate is one of the CA. Keep copies of
it where writers of the log cannot write: an old checkpoint and the files of its
time fit each other.

It needs no server, and exits with 1 when something is wrong.`,
		Example: `  meridian audit verify /var/lib/meridian/audit
  meridian audit verify --ca ca.pem /var/lib/meridian/audit
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
	cmd.Flags().StringVar(&caFile, "ca", "", "PEM certificates of the CAs, one of which must have issued the certificate that signed the checkpoint")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		return a.verifyAudit(output.Value, args, headFile, caFile)
	}
	return cmd
}

// auditReport is what was found of a log and of who signed its checkpoint.
type auditReport struct {
	audit.Report
	SignedBy string `json:"signedBy,omitempty"`
}

func (a *app) verifyAudit(f print.Format, args []string, headFile, caFile string) error {
	files, heads, err := auditFiles(args)
	if err == nil && headFile != "" {
		heads, err = append(heads, headFile), nil
	}
	if err != nil {
		return exit.Usagef("%w", err)
	}
	var roots *x509.CertPool
	if caFile != "" {
		if roots, err = pki.ReadAuthorities(caFile); err != nil {
			return exit.Usagef("--ca: %w", err)
		}
	}
	report, err := verifyAudit(files, heads, headFile, roots)
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
	if n := len(report.Problems); n > 0 {
		return exit.Failf(exit.No, "the audit log was altered: %s", print.Plural(n, "problem"))
	}
	return nil
}

// verifyAudit verifies files with the checkpoints in others, of which old, unless
// empty, may be of any time.
func verifyAudit(files, heads []string, old string, roots *x509.CertPool) (auditReport, error) {
	var (
		report      auditReport
		problems    []audit.Problem
		notes       []string
		checkpoints []audit.Head
	)
	for _, file := range heads {
		head, err := audit.ReadHead(file)
		if err != nil {
			return report, err
		}
		signer, err := head.CheckSignature(roots)
		switch {
		case errors.Is(err, audit.ErrUnsigned) && roots == nil:
			notes = append(notes, file+": the checkpoint is not signed")
		case err != nil:
			problems = append(problems, audit.Problem{File: file, What: "the checkpoint: " + err.Error()})
		default:
			report.SignedBy = signer
			if roots == nil {
				notes = append(notes, fmt.Sprintf("%s: the checkpoint is signed by %s, by the certificate in it: --ca verifies that this is one of the CA", file, signer))
			}
		}
		if file == old {
			head = head.AnyTime()
		}
		checkpoints = append(checkpoints, head)
	}
	if len(heads) == 0 {
		notes = append(notes, "there is no checkpoint, so records may be missing at the end")
	}
	var err error
	report.Report, err = audit.Verify(files, checkpoints...)
	report.Problems, report.Notes = append(problems, report.Problems...), append(report.Notes, notes...)
	return report, err
}

func (a *app) printAudit(report auditReport) error {
	for _, p := range report.Problems {
		if err := a.Println(p.String()); err != nil {
			return err
		}
	}
	if len(report.Problems) > 0 {
		return nil
	}
	t := &print.Table{Header: []string{"CHAIN", "RECORDS", "FIRST", "LAST", "HASH"}}
	for _, c := range report.Chains {
		t.Add(c.Chain, strconv.FormatUint(c.Records, 10), strconv.FormatUint(c.First, 10), strconv.FormatUint(c.Last, 10), c.Hash)
	}
	return a.Table(t)
}

// auditFiles replaces directories by the logs in them, and finds the checkpoint beside
// files that are named as a log names them.
func auditFiles(args []string) (files, heads []string, err error) {
	for _, arg := range args {
		info, err := os.Stat(arg)
		if err != nil {
			return nil, nil, err
		}
		dir := filepath.Dir(arg)
		if info.IsDir() {
			dir = arg
			in, _, err := audit.Files(arg)
			if err != nil {
				return nil, nil, err
			}
			files = append(files, in...)
		} else {
			files = append(files, arg)
		}
		head := filepath.Join(dir, audit.HeadFile)
		if _, err := os.Stat(head); err == nil && !slices.Contains(heads, head) && (info.IsDir() || filepath.Base(arg) == audit.CurrentFile) {
			heads = append(heads, head)
		}
	}
	return files, heads, nil
}
