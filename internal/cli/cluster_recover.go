package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/consensus"
	"meridian/internal/raftlog"
)

type recoverOptions struct {
	dataDir, confirm, keyFile string
	dryRun                    bool
	output                    *print.FormatFlag
}

func newRecoverCommand(a *app) *cobra.Command {
	o := &recoverOptions{}
	cmd := &cobra.Command{
		Use:   "recover --data-dir DIR [--dry-run | --confirm CLUSTER-ID]",
		Short: "Force a new single-server cluster after losing a majority",
		Long: `Force a new single-server cluster from the data directory of one server, when a
majority of the cluster is lost permanently. The server must be stopped; no other
server is contacted.

The server becomes the only one of its cluster, with everything in its log as the
state, as a new incarnation of the history. Writes that were acknowledged and are
not in its log are lost. Other servers of the cluster must not be started again as
they are: they would continue as a second history. They join anew, empty.

Where more than one data directory can be read, examine each with --dry-run and
recover the one with the highest last term and, among those, the highest last
entry: it has lost least.

If a majority can be brought back, bring it back instead: nothing is lost then.`,
		Example: `  meridian cluster recover --data-dir /var/lib/meridian --dry-run
  meridian cluster recover --data-dir /var/lib/meridian --confirm 0af7651916cd43dd8448eb211c80319c`,
		Args: exactly(),
		RunE: func(*cobra.Command, []string) error { return a.recoverCluster(o) },
	}
	cmd.Flags().StringVar(&o.dataDir, "data-dir", "", "data directory of the stopped server (required)")
	bindKeyFile(cmd, &o.keyFile)
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "show the state and the effect, change nothing")
	cmd.Flags().StringVar(&o.confirm, "confirm", "", "cluster id as shown by --dry-run; required to recover")
	o.output = print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatJSON, print.FormatYAML)
	return cmd
}

func (a *app) recoverCluster(o *recoverOptions) (err error) {
	switch {
	case o.dataDir == "":
		return exit.Usagef("--data-dir is required: the data directory of the stopped server")
	case o.dryRun && o.confirm != "":
		return exit.Usagef("--dry-run changes nothing and --confirm does: choose one")
	}
	keys, err := loadKeys(o.keyFile)
	if err != nil {
		return err
	}
	r, err := consensus.OpenRecovery(raftlog.Files(o.dataDir), keys)
	if err != nil {
		return explainRecovery(o.dataDir, err)
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if o.confirm != "" && o.confirm != r.Epoch.ClusterID {
		return exit.Usagef("--confirm %s: the directory is of cluster %s", o.confirm, r.Epoch.ClusterID)
	}
	recovered := o.confirm != "" && !r.Alone()
	if recovered {
		if err := r.Recover(a.Now()); err != nil {
			return fmt.Errorf("the recovery was cut off; repeat it: %w", err)
		}
	}
	if o.output.Value.Structured() {
		err = a.WriteValue(o.output.Value, viewRecovery(o.dataDir, r, recovered))
	} else {
		err = a.Output([]byte(describeRecovery(o.dataDir, r, recovered)))
	}
	if err != nil {
		return err
	}
	switch {
	case recovered:
		a.Message("Recovered. Start this server, and see `meridian cluster members`.")
	case r.Alone():
		a.Message("Nothing was changed: there is nothing to recover.")
	case o.dryRun:
		a.Message("Dry run: nothing was changed. --confirm %s does it.", r.Epoch.ClusterID)
	default:
		return exit.Usagef("nothing was changed: --confirm %s does what is said above", r.Epoch.ClusterID)
	}
	return nil
}

// explainRecovery says what to do about a directory that cannot be recovered
// from.
func explainRecovery(dir string, err error) error {
	message := err.Error()
	switch {
	case errors.Is(err, raftlog.ErrDataDirInUse):
		return exit.Failf(exit.Usage, "%s", message).
			With("A server runs on it. Recovery is for a server that is stopped, and only when a majority is lost for good.")
	case errors.Is(err, consensus.ErrNotRecoverable), errors.Is(err, raftlog.ErrNoKey):
		return exit.Failf(exit.Usage, "%s", message)
	case errors.Is(err, raftlog.ErrCorrupt):
		return exit.Failf(exit.Usage, "%s", message).
			With("What it holds cannot be trusted. Recover from the directory of another server, or restore a snapshot into a new global:",
				"  meridian cluster snapshot restore FILE")
	}
	return fmt.Errorf("%s: %w", dir, err)
}

// recoveryView is a recovery as JSON.
type recoveryView struct {
	DataDir     string               `json:"dataDir"`
	Server      string               `json:"server"`
	Member      bool                 `json:"member"`
	Voter       bool                 `json:"voter"`
	ClusterID   string               `json:"clusterId"`
	Incarnation uint64               `json:"incarnation"`
	Others      []recoveryMemberView `json:"others"`
	Revision    uint64               `json:"revision"`
	Time        string               `json:"time"`
	Resources   int                  `json:"resources"`
	FirstEntry  uint64               `json:"firstEntry"`
	LastEntry   uint64               `json:"lastEntry"`
	LastTerm    uint64               `json:"lastTerm"`
	Snapshot    uint64               `json:"snapshot"`
	Alone       bool                 `json:"alone"`
	Recovered   bool                 `json:"recovered"`
	// NextIncarnation begins, or would begin, with the recovery.
	NextIncarnation uint64 `json:"nextIncarnation,omitempty"`
}

type recoveryMemberView struct {
	Name  string `json:"name"`
	Raft  string `json:"raft"`
	Voter bool   `json:"voter"`
}

func viewRecovery(dir string, r *consensus.Recovery, recovered bool) recoveryView {
	v := recoveryView{
		DataDir: dir, Server: r.Server, Member: r.Member, Voter: r.Voter, ClusterID: r.Epoch.ClusterID, Incarnation: r.Epoch.Incarnation,
		Others: []recoveryMemberView{}, Revision: uint64(r.Revision), Time: r.Time.UTC().Format(time.RFC3339Nano), Resources: r.Resources,
		FirstEntry: r.FirstEntry, LastEntry: r.LastEntry, LastTerm: r.LastTerm, Snapshot: r.Snapshot,
		Alone: r.Alone(), Recovered: recovered,
	}
	if !r.Alone() {
		v.NextIncarnation = r.Next.Incarnation
	}
	for _, m := range r.Others {
		v.Others = append(v.Others, recoveryMemberView{Name: m.Name, Raft: m.Raft, Voter: m.Voter})
	}
	return v
}

func describeRecovery(dir string, r *consensus.Recovery, recovered bool) string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		_, _ = fmt.Fprintf(&b, "%-15s %s\n", name+":", fmt.Sprintf(format, args...))
	}
	var others, addresses []string
	for _, m := range r.Others {
		name := m.Name
		if name == r.Server {
			name += " with another disk"
		}
		others, addresses = append(others, name), append(addresses, fmt.Sprintf("%s (%s)", name, m.Raft))
	}
	line("Data directory", "%s", dir)
	line("Server", "%s, %s", r.Server, standingOf(r))
	line("Cluster", "%s, incarnation %d", r.Epoch.ClusterID, r.Epoch.Incarnation)
	line("Others", "%s", print.OrDash(strings.Join(addresses, ", ")))
	line("State", "revision %d, %s, last written %s", r.Revision, print.Plural(r.Resources, "resource"), r.Time.UTC().Format(time.RFC3339))
	line("Log", "ends at entry %d of term %d", r.LastEntry, r.LastTerm)
	if r.Alone() {
		b.WriteString("\nThis server is the only one of its cluster: start it.\n")
		return b.String()
	}
	tense := "becomes"
	if recovered {
		tense = "is now"
	}
	_, _ = fmt.Fprintf(&b, "\n%s %s the only server of the cluster, as incarnation %d of its history.\n", r.Server, tense, r.Next.Incarnation)
	b.WriteString("- Everything in its log is in effect, also what was never acknowledged.\n")
	b.WriteString("- Acknowledged writes that are not in its log are lost: those that it had not received when it stopped.\n")
	if !r.Voter {
		b.WriteString("- It had no vote: the majority did not depend on it, so that it may lack many writes. Prefer another server.\n")
	}
	_, _ = fmt.Fprintf(&b, "- Do not start these again as they are: %s. They would continue as a second history, which zones\n"+
		"  and clients might follow. Keep their data directories until you have compared what they hold with the\n"+
		"  recovered state. Have them join as new servers, with new data directories:\n"+
		"  meridian generate server-token --valid-for 1h --bundle\n", print.OrDash(strings.Join(others, ", ")))
	if r.Role == consensus.RoleZone {
		b.WriteString("- Proxies register again where their agents have the address of this server. What it says of the global is in its replica, and stays.\n")
	} else {
		b.WriteString("- Zones follow by themselves; one that would lose more than a fifth of its resources waits for its operator.\n")
	}
	return b.String()
}

// standingOf says what the server is to its cluster, as far as it knows. Of one
// that was replaced it may know no more than that it was removed.
func standingOf(r *consensus.Recovery) string {
	replaced := slices.ContainsFunc(r.Others, func(m consensus.Member) bool { return m.Name == r.Server })
	switch {
	case replaced:
		return "whose disk was replaced: another disk has its name and its place, and what this one holds ends there"
	case !r.Member:
		return "which was removed from the cluster, or replaced: what it holds ends there"
	case !r.Voter:
		return "a member without a vote"
	}
	return "a member with a vote"
}
