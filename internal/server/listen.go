package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"meridian/internal/atomicfile"
)

// Listen opens a TCP listener for the address given by a flag. The error names
// the flag and what to do.
func Listen(flag, addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("--%s %s: the port is in use by another process; choose another, or 0 for any free one", flag, addr)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("--%s %s: this machine has no such address", flag, addr)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("--%s %s: not permitted to listen there; ports below 1024 need privileges", flag, addr)
	default:
		return nil, usagef("--%s %s: %w", flag, addr, err)
	}
}

// reservedFiles is how many files a server can still open with every connection that
// it takes: for its log, its snapshots, the audit log and the other servers. It is
// at most a quarter of what it may open at all.
const reservedFiles = 256

// reservingListener hangs up on connections that would take the last files of the
// process, so that clients that open many cannot keep it from writing. The
// system numbers a file by the lowest free number, which says how many there are.
// Connections are handed on as they are, since gRPC sets options of theirs.
type reservingListener struct {
	net.Listener
	// limit is the number from which on a file is spared.
	limit uint64
}

// reserveFiles returns a listener that leaves files to its process.
func reserveFiles(l net.Listener) net.Listener {
	limit, ok := openFiles()
	if !ok {
		return l
	}
	return reservingListener{l, limit - min(reservedFiles, limit/4)}
}

// Accept implements net.Listener.
func (l reservingListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if number, ok := descriptor(conn); !ok || number < l.limit {
			return conn, nil
		}
		_ = conn.Close()
	}
}

// CheckFree reports, in Listen's words, an address that could not be listened on
// now.
func CheckFree(flag, addr string) error {
	l, err := Listen(flag, addr)
	if err != nil {
		return err
	}
	return l.Close()
}

// Listeners are those that both servers have. Webhook is nil where it is off.
type Listeners struct {
	GRPC, HTTP, Webhook net.Listener
}

// OpenListeners opens the listeners that the options ask for, all or none. A
// port of 0 is the one of the data directory's last run, if that is free.
func OpenListeners(o Options) (Listeners, error) {
	var l Listeners
	var err error
	last := LastPorts(o.DataDir)
	if l.GRPC, err = last.listen("grpc-addr", o.GRPCAddr); err != nil {
		return Listeners{}, err
	}
	if l.HTTP, err = last.listen("http-addr", o.HTTPAddr); err != nil {
		return Listeners{}, errors.Join(err, l.GRPC.Close())
	}
	l.GRPC, l.HTTP = reserveFiles(l.GRPC), reserveFiles(l.HTTP)
	if o.WebhookAddr == "" {
		return l, nil
	}
	if l.Webhook, err = last.listen("webhook-addr", o.WebhookAddr); err != nil {
		return Listeners{}, errors.Join(err, l.GRPC.Close(), l.HTTP.Close())
	}
	l.Webhook = reserveFiles(l.Webhook)
	return l, nil
}

// Close closes those that are not served yet.
func (l Listeners) Close() error { return errors.Join(l.HTTP.Close(), l.CloseServices()) }

// CloseServices closes all but that of health and metrics.
func (l Listeners) CloseServices() error { return errors.Join(l.GRPC.Close(), l.CloseWebhook()) }

// CloseWebhook closes that of the webhook, if there is one.
func (l Listeners) CloseWebhook() error {
	if l.Webhook == nil {
		return nil
	}
	return l.Webhook.Close()
}

// Addresses returns what the listeners are bound to.
func (l Listeners) Addresses() Addresses {
	a := Addresses{GRPC: l.GRPC.Addr().String(), HTTP: l.HTTP.Addr().String()}
	if l.Webhook != nil {
		a.Webhook = l.Webhook.Addr().String()
	}
	return a
}

// AddressesFile is the file in the data directory that lists the bound
// addresses once the server is ready.
const AddressesFile = "addresses.json"

// Addresses are the addresses a server is bound to. A field is empty where the
// server has no such listener.
type Addresses struct {
	GRPC    string `json:"grpc"`
	HTTP    string `json:"http"`
	Raft    string `json:"raft,omitempty"`
	Gossip  string `json:"gossip,omitempty"`
	Webhook string `json:"webhook,omitempty"`
}

// WriteAddresses writes the bound addresses into the data directory.
func WriteAddresses(dir string, a Addresses) error {
	data, err := json.MarshalIndent(a, "", "  ")
	if err != nil {
		return fmt.Errorf("encode addresses: %w", err)
	}
	return atomicfile.Write(filepath.Join(dir, AddressesFile), append(data, '\n'), 0o644)
}

// RemoveAddresses removes the list of addresses: a server that is not ready has
// none to offer.
func RemoveAddresses(dir string) error {
	err := os.Remove(filepath.Join(dir, AddressesFile))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove stale addresses: %w", err)
	}
	return nil
}
