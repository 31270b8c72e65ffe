package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"meridian/internal/atomicfile"
)

// PortsFile is the file in the data directory that remembers which ports a
// server was bound to, by flag. Where a flag says port 0, any free one, the next
// run takes the same again if it is free: others remember it, too, and look for
// the server there.
const PortsFile = "ports.json"

// Ports are those of a server's last run, by flag.
type Ports map[string]int

// LastPorts reads the ports of a data directory's last run. Ports that cannot be
// read are ports that are not known: nothing depends on them.
func LastPorts(dir string) Ports {
	var ports Ports
	data, err := os.ReadFile(filepath.Join(dir, PortsFile))
	if err != nil || json.Unmarshal(data, &ports) != nil {
		return nil
	}
	return ports
}

// RememberPorts writes the ports of this run. The data directory must be the
// server's own by then.
func RememberPorts(dir string, a Addresses) error {
	ports := Ports{}
	for flag, addr := range map[string]string{
		"grpc-addr": a.GRPC, "http-addr": a.HTTP, "webhook-addr": a.Webhook, "raft-addr": a.Raft, "gossip-addr": a.Gossip,
	} {
		if _, port, err := splitPort(addr); err == nil {
			ports[flag] = port
		}
	}
	data, err := json.Marshal(ports)
	if err != nil {
		return fmt.Errorf("encode ports: %w", err)
	}
	return atomicfile.Write(filepath.Join(dir, PortsFile), append(data, '\n'), 0o644)
}

// Again returns the address that a flag's address had the last time, or false:
// it names a port itself, or nothing is known of a last time.
func (p Ports) Again(flag, addr string) (string, bool) {
	host, port, err := splitPort(addr)
	last, known := p[flag]
	if err != nil || port != 0 || !known || last < 1 || last > 65535 {
		return addr, false
	}
	return net.JoinHostPort(host, strconv.Itoa(last)), true
}

// Free is Again for an address that another part is going to listen on: the one
// of the last time if it is free now, TCP or UDP, else the one given.
// It may still be taken before it is used.
func (p Ports) Free(flag, addr string) string {
	again, ok := p.Again(flag, addr)
	if !ok {
		return addr
	}
	l, err := net.Listen("tcp", again)
	if err != nil {
		return addr
	}
	_ = l.Close()
	u, err := net.ListenPacket("udp", again)
	if err != nil {
		return addr
	}
	_ = u.Close()
	return again
}

// PickPort replaces port 0 of an address by a port that is free now, for those
// who have to say which it is before they listen on it.
func PickPort(addr string) (string, error) {
	host, port, err := splitPort(addr)
	if err != nil || port != 0 {
		return addr, nil // listening on it reports what is wrong
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "", fmt.Errorf("find a free port on %s: %w", addr, err)
	}
	_, port, err = splitPort(l.Addr().String())
	return net.JoinHostPort(host, strconv.Itoa(port)), errors.Join(err, l.Close())
}

// listen is Listen on the last time's port where that is free and any would do.
func (p Ports) listen(flag, addr string) (net.Listener, error) {
	if again, ok := p.Again(flag, addr); ok {
		if l, err := net.Listen("tcp", again); err == nil {
			return l, nil
		}
	}
	return Listen(flag, addr)
}

func splitPort(addr string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, err
	}
	port, err = strconv.Atoi(text)
	return host, port, err
}
