package cluster

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/atomicfile"
	"meridian/internal/clientconfig"
	"meridian/internal/gossip"
	"meridian/internal/pki"
	"meridian/internal/raftlog"
	"meridian/internal/server"
	"meridian/internal/version"
)

// joinFile notes how far a server has come with joining, below the data
// directory. It is there from before the first request until the server has
// caught up with the others for the first time.
const joinFile = "join.json"

// joinState is the content of joinFile.
type joinState struct {
	FormatVersion int `json:"formatVersion"`
	// RequestID names the attempt, so that an answer that was lost can be asked
	// for again though the token is used up.
	RequestID string `json:"requestId"`
	// Name is the one that the server joins under.
	Name string `json:"name"`
	// Cluster is the id of the cluster.
	Cluster string `json:"cluster"`
	// Disk tells the data directory from others that a server of the name had or will
	// have.
	Disk string `json:"disk"`
	// Answered says that what was asked for is in the data directory.
	Answered bool `json:"answered"`
	// Peers are the servers to get in touch with.
	Peers []gossip.Peer `json:"peers,omitempty"`
}

const joinFormat = 1

// readJoinState returns nil when there is none.
func readJoinState(dir string) (*joinState, error) {
	path := filepath.Join(dir, joinFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("--data-dir: %w", err)
	}
	var note joinState
	if err := json.Unmarshal(data, &note); err != nil || note.FormatVersion != joinFormat {
		return nil, fmt.Errorf("--data-dir: %s cannot be read by this release; use the release that wrote it, or start the server with a new directory", path)
	}
	return &note, nil
}

func (n *joinState) write(dir string) error {
	data, err := json.MarshalIndent(n, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", joinFile, err)
	}
	return atomicfile.Write(filepath.Join(dir, joinFile), append(data, '\n'), 0o600)
}

func removeJoinState(dir string) error {
	if err := os.Remove(filepath.Join(dir, joinFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", joinFile, err)
	}
	return nil
}

// join has a new server fetch what makes it one of a cluster that exists, once:
// the authority that signs its certificate and the keys of gossip. Afterwards
// the directory holds them, and c.joinState says where the others are to be found. A
// directory that is in use needs none of it.
func (c *Server) join(ctx context.Context) error {
	dir := c.cfg.DataDir
	cluster := raftlog.ClusterIn(dir)
	used := raftlog.NodeIn(dir) != ""
	note, err := readJoinState(dir)
	if err != nil {
		return err
	}
	if used {
		c.joinState = note // as long as it is there, the server has yet to arrive
		return c.checkUnusedBundle(cluster)
	}
	if note != nil && note.Answered {
		c.joinState = note
		return c.checkUnusedBundle(note.Cluster)
	}
	if c.cfg.JoinBundle == "" {
		if note != nil {
			return &server.UsageError{Err: fmt.Errorf("--data-dir %s: this server was joining %s %s and has not been accepted yet: give it --%s again, or start it with a new directory", dir, c.cfg.Kind, note.Cluster, c.cfg.Kind.BundleFlag)}
		}
		return nil
	}
	bundle, err := clientconfig.LoadServerBundle(c.cfg.JoinBundle)
	if err != nil {
		return &server.UsageError{Err: fmt.Errorf("--%s: %w", c.cfg.Kind.BundleFlag, err)}
	}
	if err := c.checkBundle(bundle); err != nil {
		return &server.UsageError{Err: err}
	}
	if note == nil {
		note = &joinState{FormatVersion: joinFormat, RequestID: rand.Text(), Disk: raftlog.NewDisk()}
	}
	if note.Disk == "" { // of an older release
		note.Disk = raftlog.NewDisk()
	}
	note.Name, note.Cluster = c.cfg.Name, bundle.Cluster
	if err := note.write(dir); err != nil {
		return err
	}
	return c.requestJoin(ctx, bundle, note)
}

// requestJoin requests to join and stores the response. The note that this is done
// comes last, so that whatever is cut off is done again.
func (c *Server) requestJoin(ctx context.Context, bundle clientconfig.ServerBundle, note *joinState) error {
	a := &joinClient{
		bundle: bundle, source: c.cfg.JoinBundle, log: c.Log, kind: c.cfg.Kind, now: c.Now, waiting: c.Readiness.SetReason,
		request: &meridianv1.JoinRequest{RequestId: note.RequestID, Name: note.Name, Version: version.String(), Encrypts: c.Encrypts(), WantsGlobal: c.cfg.InheritsGlobal},
	}
	response, err := a.run(ctx)
	if err != nil {
		return err
	}
	dir := c.cfg.DataDir
	if response.GetClusterId() != bundle.Cluster {
		return fmt.Errorf("--%s %s: it is for %s %s, and the server that answered is of %s %s", c.cfg.Kind.BundleFlag, c.cfg.JoinBundle, c.cfg.Kind, bundle.Cluster, c.cfg.Kind, response.GetClusterId())
	}
	if err := pki.ImportCA(dir, c.Encryption, response.GetCa(), response.GetCaKey()); err != nil {
		return fmt.Errorf("--data-dir %s: %w", dir, err)
	}
	if rotation := response.GetRotation(); len(rotation) > 0 {
		if err := pki.ImportRotation(dir, c.Encryption, rotation); err != nil {
			return fmt.Errorf("--data-dir %s: %w", dir, err)
		}
	}
	if err := writeGossipKeys(dir, c.Encryption, response.GetGossipKeys()); err != nil {
		return err
	}
	if c.cfg.InheritsGlobal {
		if len(response.GetGlobal().GetAddresses()) == 0 { // the token is good for another attempt of this server
			return &server.UsageError{Err: fmt.Errorf("--%s %s: the server that answered does not say how it reaches the global: say it with --join-bundle or --global-addr, as on that server", c.cfg.Kind.BundleFlag, c.cfg.JoinBundle)}
		}
		if err := c.hooks.KeepWayToGlobal(response.GetGlobal()); err != nil {
			return fmt.Errorf("--data-dir %s: keep the way to the global: %w", dir, err)
		}
	}
	note.Answered, note.Peers = true, nil
	for _, p := range response.GetPeers() {
		note.Peers = append(note.Peers, gossip.Peer{Name: p.GetName(), GRPC: p.GetGrpc(), Raft: p.GetRaft(), Gossip: p.GetGossip()})
	}
	if err := note.write(dir); err != nil {
		return err
	}
	c.Log.Info("accepted: this server has what it needs to join", "cluster", note.Cluster, "name", note.Name)
	c.joinState = note
	return nil
}

// checkUnusedBundle says that a bundle is not needed any more, which is no mistake: a
// server is restarted as it was started. One for another cluster is.
func (c *Server) checkUnusedBundle(cluster string) error {
	if c.cfg.JoinBundle == "" {
		return nil
	}
	bundle, err := clientconfig.LoadServerBundle(c.cfg.JoinBundle)
	if err == nil && bundle.Cluster != cluster && !raftlog.ClusterBefore(c.cfg.DataDir, bundle.Cluster) {
		return &server.UsageError{Err: fmt.Errorf("--%s %s is for %s %s, and --data-dir %s belongs to %s %s: omit the bundle to continue there, or start with a new directory to join the other",
			c.cfg.Kind.BundleFlag, c.cfg.JoinBundle, c.cfg.Kind, bundle.Cluster, c.cfg.DataDir, c.cfg.Kind, cluster)}
	}
	c.Log.Info("the join bundle is not used: this server has joined before", "bundle", c.cfg.JoinBundle, "cluster", cluster)
	return nil
}

// checkBundle refuses the bundle of another kind of control plane: the servers of a cluster
// hold the same.
func (c *Server) checkBundle(b clientconfig.ServerBundle) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("--%s %s: %w", c.cfg.Kind.BundleFlag, c.cfg.JoinBundle, fmt.Errorf(format, args...))
	}
	switch {
	case b.Zone != "" && c.cfg.Zone == "":
		return refuse("it is for a server of zone %q, and this is one of a global: start meridian-zone with it", b.Zone)
	case b.Zone == "" && c.cfg.Zone != "":
		return refuse("it is for a server of a global, and this is one of zone %q: make one with `meridian generate server-token --bundle` on a server of the zone", c.cfg.Zone)
	case b.Zone != c.cfg.Zone:
		return refuse("it is for a server of zone %q, and this is one of zone %q", b.Zone, c.cfg.Zone)
	case b.Federated && !c.cfg.Federated:
		return refuse("zone %q follows a global: say also how this server reaches that, with --join-bundle or --global-addr, as on the other servers", b.Zone)
	case !b.Federated && c.cfg.Federated:
		return refuse("zone %q is standalone: leave out what connects this server to a global", b.Zone)
	}
	return nil
}
