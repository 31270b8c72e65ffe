package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"
)

// Decision says what became of a request.
type Decision string

// The decisions.
const (
	// Allowed: something was written, or a token was issued.
	Allowed Decision = "allowed"
	// Denied: the caller is known and may not do it.
	Denied Decision = "denied"
	// Refused: the caller did not prove who it is. Who is then whom its token names, if
	// it is one that has expired, is not valid yet or was revoked.
	Refused Decision = "refused"
	// Unknown: a write was attempted, and it may or may not have taken effect.
	Unknown Decision = "unknown"
	// Noted: something about the log itself, or that happened to the server.
	Noted Decision = "noted"
)

// Who made a request.
type Who struct {
	Name   string   `json:"name"`
	Groups []string `json:"groups,omitempty"`
	// Source is how the caller was recognized: "token", "loopback", "anonymous",
	// "kubernetes"; "unknown" when its credentials say
	// nothing that can be relied on; "server" for what
	// a server does by itself.
	Source string `json:"source"`
	// Token is the id (jti) of the caller's token.
	Token string `json:"token,omitempty"`
}

// Target is one thing that was changed, or was not.
type Target struct {
	Action  string `json:"action,omitempty"`
	Kind    string `json:"kind"`
	Mesh    string `json:"mesh,omitempty"`
	Name    string `json:"name"`
	Version uint64 `json:"version,omitempty"`
}

// Record is one line of the log. It holds no secret.
type Record struct {
	// Chain is the chain that the record is in: empty for what was written and what
	// happened, else the name of one of refusals.
	Chain string `json:"chain,omitempty"`
	// Seq counts the records of a chain from 1, over all files.
	Seq uint64 `json:"seq"`
	// Time is when it was written, in UTC.
	Time time.Time `json:"time"`
	Who  Who       `json:"who"`
	// From is the address that the request came from.
	From string `json:"from,omitempty"`
	// Method is what was called, such as "meridian.v1.AdminService/Apply".
	Method   string   `json:"method"`
	Decision Decision `json:"decision"`
	// Rule is what decided: the rule that allowed it, or the reason why not.
	Rule string `json:"rule,omitempty"`
	// Message is what the caller was told, of a denial.
	Message string   `json:"message,omitempty"`
	Targets []Target `json:"targets,omitempty"`
	// Part counts the records of one request that has too many targets for one.
	Part int `json:"part,omitempty"`
	// Revision is the one that a write was made at.
	Revision uint64 `json:"revision,omitempty"`
	// Request is the id that the caller gave the request.
	Request string `json:"request,omitempty"`
	// Repeated is how many refusals the record stands for beyond itself.
	Repeated uint64 `json:"repeated,omitempty"`
	// Prev is the hash of the record before; of the first one, zeros.
	Prev string `json:"prev"`
}

const (
	hashText = 2 * sha256.Size
	// hashField precedes the hash at the end of a line.
	hashField = `,"hash":"`
	lineTail  = `"}`
	// usualLine holds the line of most records, in bytes.
	usualLine = 1 << 10
	// maxLine bounds a line that is read, in bytes.
	maxLine = 1 << 20
	// maxTargets is how many targets one record names.
	maxTargets = 256
	// maxText bounds a text that callers have a say in, in bytes.
	maxText = 1024
	// maxName bounds the name of a resource, a kind, a group or a token, in bytes.
	maxName = 256
	// maxGroups is how many groups of the caller a record names, and maxRefused how
	// many targets the record of a refusal names.
	maxGroups, maxRefused = 32, 8
)

// zeroHash precedes the first record of all.
var zeroHash = string(bytes.Repeat([]byte("0"), hashText))

// errNotARecord means that a line is not what Write produces.
var errNotARecord = errors.New("it is not a record")

// errHash means that a line is not the one its hash was made of.
var errHash = errors.New("its hash does not fit: it was altered")

// encodeRecord returns a record's line, with its newline, and its hash: SHA-256
// over the line up to where the hash begins, which includes the hash before.
func encodeRecord(r Record) (line []byte, hash string, err error) {
	b := bytes.NewBuffer(make([]byte, 0, usualLine))
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		return nil, "", fmt.Errorf("encode an audit record: %w", err)
	}
	body := bytes.TrimSuffix(b.Bytes(), []byte("}\n"))
	sum := sha256.Sum256(body)
	hash = hex.EncodeToString(sum[:])
	return append(append(append(append(body, hashField...), hash...), lineTail...), '\n'), hash, nil
}

// decodeRecord reads a line without its newline and checks it against its own
// hash.
func decodeRecord(line []byte) (r Record, hash string, err error) {
	cut := len(line) - len(hashField) - hashText - len(lineTail)
	if cut < 0 || !bytes.HasPrefix(line[cut:], []byte(hashField)) || !bytes.HasSuffix(line, []byte(lineTail)) {
		return Record{}, "", errNotARecord
	}
	body := line[:cut]
	hash = string(line[cut+len(hashField) : len(line)-len(lineTail)])
	if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != hash {
		return Record{}, "", errHash
	}
	dec := json.NewDecoder(bytes.NewReader(append(bytes.Clone(body), '}')))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil || dec.More() {
		return Record{}, "", errNotARecord
	}
	return r, hash, nil
}

// clip bounds a text that a caller has a say in.
func clip(text string) string { return clipTo(text, maxText) }

// clipTo bounds what a text takes in a line, and marks what it leaves out. A control
// character and an invalid byte take six bytes there.
func clipTo(text string, limit int) string {
	if 6*len(text) <= limit {
		return text
	}
	size, cut := 0, 0
	for at, r := range text {
		width := utf8.RuneLen(r)
		switch {
		case r < ' ' || r == utf8.RuneError || r == '\u2028' || r == '\u2029':
			width = 6
		case r == '"' || r == '\\':
			width = 2
		}
		if size+width > limit {
			return text[:cut] + "… (" + strconv.Itoa(len(text)-cut) + " bytes more)"
		}
		size += width
		_, n := utf8.DecodeRuneInString(text[at:])
		cut = at + n
	}
	return text
}

// bounded returns a record whose texts and lists are bounded, with a mark where
// something is left out: no line is longer than its reader takes (maxLine), and a
// refusal takes little.
func bounded(r Record) Record {
	r.Message, r.From, r.Method, r.Request, r.Rule = clip(r.Message), clip(r.From), clip(r.Method), clip(r.Request), clip(r.Rule)
	r.Who.Name, r.Who.Token = clip(r.Who.Name), clipTo(r.Who.Token, maxName)
	groups := r.Who.Groups
	r.Who.Groups = nil
	for _, group := range groups[:min(maxGroups, len(groups))] {
		r.Who.Groups = append(r.Who.Groups, clipTo(group, maxName))
	}
	if more := len(groups) - maxGroups; more > 0 {
		r.Who.Groups = append(r.Who.Groups, moreMark(more))
	}
	targets := r.Targets
	r.Targets = nil
	more := 0
	if (r.Decision == Denied || r.Decision == Refused) && len(targets) > maxRefused {
		more, targets = len(targets)-maxRefused, targets[:maxRefused]
	}
	for _, t := range targets {
		r.Targets = append(r.Targets, boundedTarget(t))
	}
	if more > 0 {
		r.Targets = append(r.Targets, Target{Action: targets[0].Action, Name: moreMark(more)})
	}
	return r
}

func boundedTarget(t Target) Target {
	return Target{
		Action: clipTo(t.Action, maxName), Kind: clipTo(t.Kind, maxName), Mesh: clipTo(t.Mesh, maxName), Name: clipTo(t.Name, maxName), Version: t.Version,
	}
}

func moreMark(n int) string { return "… (" + strconv.Itoa(n) + " more)" }
