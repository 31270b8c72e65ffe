package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn"
	"meridian/internal/authn/token"
	"meridian/internal/clientconfig"
	"meridian/internal/consensus"
	"meridian/internal/rpcerr"
	"meridian/internal/server"
)

// Why a server cannot join, for programs. Those about its token are
// internal/service/tokens'.
const (
	reasonOwnCertificates = "OWN_CERTIFICATES"
	reasonNameTaken       = "NAME_TAKEN"
	reasonNotEncrypted    = "NOT_ENCRYPTED"
	reasonNoWay           = "NO_WAY_TO_GLOBAL"
)

// GenerateServerToken issues the token by which one new server joins
// (§6.2: it takes membership of mesh-system:admin).
func (s *clusterService) GenerateServerToken(ctx context.Context, req *meridianv1.GenerateServerTokenRequest) (*meridianv1.GenerateServerTokenResponse, error) {
	c := s.server
	if err := c.Authorizer.RequireAdmin(ctx); err != nil {
		return nil, err
	}
	if err := c.checkCanIssueCerts(); err != nil {
		return nil, err
	}
	token, err := c.Tokens.Server(ctx, req.GetValidForSeconds())
	if err != nil {
		return nil, err
	}
	response := &meridianv1.GenerateServerTokenResponse{Token: token}
	if req.GetBundle() {
		response.Bundle, err = clientconfig.ServerBundle{
			Zone: c.cfg.Zone, Federated: c.cfg.Federated, Cluster: c.Node.ClusterID(), Addresses: c.ServerAddresses(), CA: string(c.PKI.CAPEM()), Token: token,
		}.Encode()
	}
	return response, err
}

// checkCanIssueCerts refuses where new servers cannot be given the key that
// signs their certificates.
func (c *Server) checkCanIssueCerts() error {
	if c.peers.CA() != nil {
		return nil
	}
	return rpcerr.New(rpcerr.Invalid, reasonOwnCertificates,
		"the certificates of this %s were given (--ca-file), so it cannot make one for a new server: start it with --ca-file, --cert-file, --key-file and --gossip-key-file of its own, and --join %s", c.cfg.Kind, c.Addresses.Raft)
}

// ServerAddresses are the gRPC addresses of all servers of the cluster, this one
// first.
func (c *Server) ServerAddresses() []string { return c.addressesOf(c.Node.Servers()) }

func (c *Server) addressesOf(members []consensus.Server) []string {
	addresses := []string{c.advertisedGRPC}
	for _, p := range c.gossip.Load().Peers() {
		// Gossip also remembers servers that were removed.
		member := slices.ContainsFunc(members, func(s consensus.Server) bool { return s.Name == p.Name })
		if member && p.GRPC != "" && !slices.Contains(addresses, p.GRPC) {
			addresses = append(addresses, p.GRPC)
		}
	}
	return addresses
}

// announcedServers are the addresses of all members, once they are known: a server
// that has just started does not know where the others are.
func (c *Server) announcedServers() []string {
	members := c.Node.Servers()
	if addresses := c.addressesOf(members); len(addresses) == len(members) {
		return addresses
	}
	return nil
}

// joinService serves new servers. It requires a server token.
type joinService struct {
	meridianv1.UnimplementedJoinServiceServer
	server *Server
}

// Join hands a new server the authority by which it proves to be one. Whatever
// can be refused is refused before the token is used up.
func (s *joinService) Join(ctx context.Context, req *meridianv1.JoinRequest) (*meridianv1.JoinResponse, error) {
	c := s.server
	presented := authn.PrincipalFrom(ctx).Token
	if presented == nil || presented.Key.Use != token.ForServer {
		return nil, rpcerr.New(rpcerr.Unauthenticated, authn.ReasonNoCredentials, "not authenticated: a new server presents a server token")
	}
	if req.GetRequestId() == "" || len(req.GetRequestId()) > maxRequestID {
		return nil, rpcerr.New(rpcerr.Invalid, "REQUEST_ID_MISSING", "request_id is required, of at most %d characters, so that an answer that was lost can be asked for again", maxRequestID)
	}
	if err := checkServerName(req.GetName()); err != nil {
		return nil, rpcerr.New(rpcerr.Invalid, "BAD_SERVER_NAME", "%w", err)
	}
	if err := c.checkCanIssueCerts(); err != nil {
		return nil, err
	}
	if at, taken := c.nameTaken(ctx, req.GetName()); taken {
		return nil, rpcerr.New(rpcerr.Conflict, reasonNameTaken,
			"a server called %q runs already, at %s: give the new one another name with --%s", req.GetName(), at, c.cfg.Kind.NameFlag)
	}
	if c.Encrypts() && !req.GetEncrypts() {
		return nil, rpcerr.New(rpcerr.Invalid, reasonNotEncrypted,
			"server %q would keep the secrets of this %s on its disk without encryption, and this %s encrypts them: start it with --encryption-key-file", req.GetName(), c.cfg.Kind, c.cfg.Kind)
	}
	response, err := c.joinResponse(req.GetWantsGlobal())
	if err != nil {
		return nil, err
	}
	if err := c.Tokens.UseUp(ctx, *presented, req.GetRequestId(), req.GetName()); err != nil {
		return nil, err
	}
	c.Log.Info("a new server was accepted", "server", req.GetName(), "version", req.GetVersion(), "token", presented.ID)
	return response, nil
}

// maxRequestID bounds a request id, in bytes.
const maxRequestID = 128

// joinResponse is what a new server needs, with the way to the global where it wants that.
func (c *Server) joinResponse(wantsGlobal bool) (*meridianv1.JoinResponse, error) {
	ca := c.peers.Base()
	key, err := ca.KeyPEM()
	if err != nil {
		return nil, err
	}
	gossip, err := gossipKeys(c.cfg, c.Encryption)
	if err != nil {
		return nil, err
	}
	var rotation []byte
	if r := c.peers.Rotation(); r != nil {
		if rotation, err = r.Encode(); err != nil {
			return nil, err
		}
	}
	response := &meridianv1.JoinResponse{
		Rotation:  rotation,
		ClusterId: c.Node.ClusterID(), Ca: ca.CertificatePEM(), CaKey: key, GossipKeys: gossip,
		Peers: []*meridianv1.JoinPeer{{
			Name: c.cfg.Name, Grpc: c.advertisedGRPC, Raft: c.Addresses.Raft, Gossip: server.Dialable(c.Addresses.Gossip),
		}},
	}
	if wantsGlobal {
		if response.Global, err = c.hooks.WayToGlobal(); err != nil {
			return nil, rpcerr.New(rpcerr.Unavailable, reasonNoWay, "server %q cannot say how it reaches the global: %w", c.cfg.Name, err)
		}
	}
	for _, p := range c.gossip.Load().Peers() {
		response.Peers = append(response.Peers, &meridianv1.JoinPeer{Name: p.Name, Grpc: p.GRPC, Raft: p.Raft, Gossip: p.Gossip})
	}
	return response, nil
}

// nameTaken says where a member of that name answers. One that is gone may come
// back under its name with an empty disk.
func (c *Server) nameTaken(ctx context.Context, name string) (at string, taken bool) {
	for _, m := range c.Node.Members(ctx) {
		if m.Name == name && m.State != consensus.StateUnreachable {
			return m.Raft, true
		}
	}
	return "", false
}

// maxServerName bounds the name of a server, in bytes.
const maxServerName = 128

// checkServerName refuses names that logs, tables and certificates could not
// show as they are.
func checkServerName(name string) error {
	switch {
	case name == "":
		return errors.New("a server needs a name")
	case len(name) > maxServerName:
		return fmt.Errorf("the name of a server has at most %d bytes, not %d", maxServerName, len(name))
	case strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) || unicode.IsSpace(r) || r == '/' }):
		return fmt.Errorf("%q cannot be the name of a server: no spaces, slashes or characters that do not print", name)
	}
	return nil
}
