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
	// Refused: the caller did not prove who it is.
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
	// "kubernetes"; "unknown" when its credentials were refused; "server" for what
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
	// Seq counts records from 1, over all files.
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
	// Repeated is how many equal refusals the record stands for beyond itself.
	Repeated uint64 `json:"repeated,omitempty"`
	// Prev is the hash of the record before; of the first one, zeros.
	Prev string `json:"prev"`
}

const (
	hashText = 2 * sha256.Size
	// hashField precedes the hash at the end of a line.
	hashField = `,"hash":"`
	lineTail  = `"}`
	// maxLine bounds a line that is read, in bytes.
	maxLine = 1 << 20
	// maxTargets is how many targets one record names.
	maxTargets = 256
	// maxText bounds a text that callers have a say in, in bytes.
	maxText = 1024
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
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		return nil, "", fmt.Errorf("audit: encode a record: %w", err)
	}
	body := bytes.TrimSuffix(b.Bytes(), []byte("}\n"))
	sum := sha256.Sum256(body)
	hash = hex.EncodeToString(sum[:])
	line = append(append(append(append([]byte{}, body...), hashField...), hash...), lineTail...)
	return append(line, '\n'), hash, nil
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
func clip(text string) string {
	if len(text) <= maxText {
		return text
	}
	cut := maxText
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "… (" + strconv.Itoa(len(text)-cut) + " bytes more)"
}
