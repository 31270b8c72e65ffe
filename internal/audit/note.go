package audit

import (
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "meridian/api/store/v1"
)

// note is what travels with a batch: whose it is, and what its record says beside
// the outcome.
type note struct {
	server string
	run    uint64 // tells one run of the server from all others
	number uint64 // of the attempt, within the run
	asked  asking
}

// asking is who asked for a batch and how.
type asking struct {
	time                        time.Time
	who                         Who
	from, method, rule, request string
}

// record returns the record of a batch that was written.
func (a asking) record() Record {
	return Record{Decision: Allowed, Who: a.who, From: a.from, Method: a.method, Rule: a.rule, Request: a.request}
}

// encode returns nil when there is no way to say it: the batch goes without.
func (n note) encode() []byte {
	a := n.asked
	data, err := proto.Marshal(&storev1.Note{
		Server: n.server, Run: n.run, Number: n.number, Time: timestamppb.New(a.time),
		Name: a.who.Name, Groups: a.who.Groups, Source: a.who.Source, Token: a.who.Token,
		From: a.from, Method: a.method, Rule: a.rule, Request: a.request,
	})
	if err != nil {
		return nil
	}
	return data
}

// Author is who wrote a batch, by its note.
type Author struct {
	Who    Who
	Method string
	// Request is the id that the caller gave the request.
	Request string
}

// AuthorOf reads the note of a batch. Without one, what is returned is empty.
func AuthorOf(data []byte) Author {
	if len(data) == 0 {
		return Author{}
	}
	n := decodeNote(data)
	return Author{Who: n.asked.who, Method: n.asked.method, Request: n.asked.request}
}

// isOf reports whether a note is of a server, without reading the rest of it: every server
// is shown the notes of all.
func isOf(data []byte, server string) bool {
	number, kind, n := protowire.ConsumeTag(data)
	if n < 0 || number != 1 || kind != protowire.BytesType {
		return decodeNote(data).server == server
	}
	named, n := protowire.ConsumeBytes(data[n:])
	return n >= 0 && string(named) == server
}

// decodeNote returns a zero note for invalid data.
func decodeNote(data []byte) note {
	var n storev1.Note
	if err := proto.Unmarshal(data, &n); err != nil {
		return note{}
	}
	return note{n.GetServer(), n.GetRun(), n.GetNumber(), asking{
		time: n.GetTime().AsTime(),
		who:  Who{Name: n.GetName(), Groups: n.GetGroups(), Source: n.GetSource(), Token: n.GetToken()},
		from: n.GetFrom(), method: n.GetMethod(), rule: n.GetRule(), request: n.GetRequest(),
	}}
}
