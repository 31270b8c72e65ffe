package audit

import (
	"encoding/binary"
	"encoding/json"
	"time"
)

const (
	// noteFormat is the first byte of a note.
	noteFormat = 1
	runBytes   = 16
)

// run tells one run of a server from all others.
type run [runBytes]byte

// note is what travels with a batch: whose it is, and what its record says
// beside the outcome. On the wire it is a byte of format, the run, the number
// (big-endian), the length of the server's name in a byte, the name, and the
// rest as JSON: what is not ours, or is recorded, need not be read to its end.
type note struct {
	server string
	run    run
	number uint64
	asked  asking
}

// asking is who asked for a batch and how.
type asking struct {
	Time    time.Time `json:"time"`
	Who     Who       `json:"who"`
	From    string    `json:"from,omitempty"`
	Method  string    `json:"method"`
	Rule    string    `json:"rule,omitempty"`
	Request string    `json:"request,omitempty"`
}

// record returns the record of a batch that was written.
func (a asking) record() Record {
	return Record{Decision: Allowed, Who: a.Who, From: a.From, Method: a.Method, Rule: a.Rule, Request: a.Request}
}

// encode returns nil when there is no way to say it: the batch goes without.
func (n note) encode() []byte {
	text, err := json.Marshal(n.asked)
	if err != nil || len(n.server) > 255 {
		return nil
	}
	b := make([]byte, 0, 1+runBytes+8+1+len(n.server)+len(text))
	b = append(append(b, noteFormat), n.run[:]...)
	b = binary.BigEndian.AppendUint64(b, n.number)
	b = append(append(b, byte(len(n.server))), n.server...) //nolint:gosec // at most 255
	return append(b, text...)
}

// decodeNote reads a note but for what was asked, which it returns apart, and
// reports whether it is one of a server's. What it cannot read is nobody's: the
// note of a later release, of which only that release knows the meaning.
func decodeNote(data []byte, server string) (n note, asked []byte, ours bool) {
	const fixed = 1 + runBytes + 8 + 1
	if len(data) < fixed || data[0] != noteFormat {
		return note{}, nil, false
	}
	end := fixed + int(data[fixed-1])
	if len(data) < end || string(data[fixed:end]) != server {
		return note{}, nil, false
	}
	n = note{server: server, run: run(data[1 : 1+runBytes]), number: binary.BigEndian.Uint64(data[1+runBytes:])}
	return n, data[end:], true
}
