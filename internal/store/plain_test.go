package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	storev1 "meridian/api/store/v1"
	"meridian/internal/resource"
)

// plainTxn is a batch with everything that a plain command can have.
func plainTxn() Txn {
	access := resource.Revision(300)
	key := func(name string) resource.Key {
		return resource.Key{Kind: resource.KindTrafficPermission, Mesh: "default", Name: name}
	}
	labelled := resource.Meta{Key: key("a"), Labels: map[string]string{"z": "1", "a": "2", "none": ""}}
	return Txn{
		RequestID: "id", Time: time.Unix(1700000000, 5).UTC(), AccessRevision: &access,
		Ops: []Op{
			Put(resource.New(labelled, nil, []byte(`{"sources":[]}`))), Delete(key("b")),
			Put(resource.New(resource.Meta{Key: resource.Key{Kind: resource.KindMesh, Name: "default"}}, nil, nil)),
		},
		Preconditions: []Precondition{{Key: key("b"), Version: 3, Revision: 1 << 40}, {Key: key("c")}},
	}
}

// messageOf returns the message of a batch, without its envelope.
func messageOf(t testing.TB, txn Txn) []byte {
	t.Helper()
	data, err := EncodeCommand(txn)
	require.NoError(t, err)
	return data[commandOverhead:]
}

// samePlain requires of a message that is decoded as a plain one that this gives what
// decoding it as any command does, and reports whether it was.
func samePlain(t *testing.T, message []byte) bool {
	t.Helper()
	plain, ok := decodePlain(message)
	if !ok {
		return false
	}
	want, err := decodeAny(message)
	require.NoError(t, err)
	require.Equal(t, want, plain)
	return true
}

// sameRestamped requires of a message that gets another time as a plain one that this gives
// what it does to any command, and reports whether it was.
func sameRestamped(t *testing.T, message []byte) (plain []byte, ok bool) {
	t.Helper()
	at := time.Unix(1800000000, 7)
	plain, scope, ok := restampPlain(message, at)
	if !ok {
		return nil, false
	}
	want, wantScope, err := restampAny(message, at)
	require.NoError(t, err)
	require.Equal(t, wantScope, scope)
	wanted, err := DecodeCommand(want)
	require.NoError(t, err)
	got, err := DecodeCommand(plain)
	require.NoError(t, err)
	require.Equal(t, wanted, got)
	return want, true
}

// TestPlainCommandsAreRestamped: a leader writes another time into the commands of almost every
// write without decoding them, byte for byte as into any command. Others, and what is
// malformed, are decoded.
func TestPlainCommandsAreRestamped(t *testing.T) {
	for name, change := range map[string]func(*Txn){
		"everything":        func(*Txn) {},
		"without time":      func(txn *Txn) { txn.Time = time.Time{} },
		"without id":        func(txn *Txn) { txn.RequestID = "" },
		"nothing but an id": func(txn *Txn) { *txn = Txn{RequestID: "id"} },
	} {
		txn := plainTxn()
		change(&txn)
		message := messageOf(t, txn)
		want, ok := sameRestamped(t, message)
		require.True(t, ok, name)
		got, _, err := Restamp(seal(formatFirst, append(make([]byte, commandOverhead), message...)), time.Unix(1800000000, 7))
		require.NoError(t, err)
		require.Equal(t, want, got, name)
	}
	since := resource.Revision(1)
	for name, change := range map[string]func(*Txn){
		"all of the state": func(txn *Txn) { txn.UnchangedSince = &since },
		"times":            func(txn *Txn) { txn.Ops[0].KeepTimes = true },
		"a rollout":        func(txn *Txn) { txn.Ops[1].Key.Kind = resource.KindRollout },
		"an epoch":         func(txn *Txn) { txn.SetEpoch = &Epoch{ClusterID: "c"} },
	} {
		txn := plainTxn()
		change(&txn)
		_, ok := sameRestamped(t, messageOf(t, txn))
		require.False(t, ok, name)
	}
	whole := messageOf(t, plainTxn())
	for n := range whole {
		sameRestamped(t, whole[:n])
		sameRestamped(t, append(whole[:n:n], 0xff))
	}
}

// TestPlainCommands: the commands of almost every write are decoded as plain ones, with the
// result that any command gives; others, and what is malformed, are not.
func TestPlainCommands(t *testing.T) {
	with := func(change func(*Txn)) []byte {
		txn := plainTxn()
		change(&txn)
		return messageOf(t, txn)
	}
	shared := plainTxn()
	shared.Note = []byte("note")
	batches := Txn{Time: time.Unix(1700000001, 0).UTC(), Batches: []Txn{shared, {Ops: []Op{Delete(resource.Key{Kind: resource.KindMesh, Name: "m"})}}, {}}}
	for name, message := range map[string][]byte{
		"everything":   messageOf(t, plainTxn()),
		"nothing":      nil,
		"without time": with(func(txn *Txn) { txn.Time = time.Time{} }),
		"batches":      messageOf(t, batches),
	} {
		require.True(t, samePlain(t, message), name)
	}
	field := func(number protowire.Number, content []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), content)
	}
	op := func(change *storev1.Operation) []byte {
		data, err := proto.Marshal(change)
		require.NoError(t, err)
		return field(3, data)
	}
	whole := messageOf(t, plainTxn())
	for name, message := range map[string][]byte{
		"a rollout": with(func(txn *Txn) {
			txn.Ops = []Op{Delete(resource.Key{Kind: resource.KindRollout, Name: "r"})}
		}),
		"kept times":                with(func(txn *Txn) { txn.Ops[0].KeepTimes = true }),
		"an epoch":                  with(func(txn *Txn) { txn.SetEpoch = &Epoch{} }),
		"a condition on the state":  with(func(txn *Txn) { txn.UnchangedSince = txn.AccessRevision }),
		"a retention":               messageOf(t, Txn{Retention: &Retention{}}),
		"operations beside batches": append(messageOf(t, batches), whole...),
		"a batch of batches":        field(11, field(1, messageOf(t, batches))),
		"a version":                 op(&storev1.Operation{Change: &storev1.Operation_Put{Put: &storev1.Resource{Key: &storev1.Key{Kind: "Mesh", Name: "m"}, Version: 1}}}),
		"a key without a name":      op(&storev1.Operation{Change: &storev1.Operation_Delete{Delete: &storev1.Key{Kind: "Mesh"}}}),
		"an operation without any":  op(&storev1.Operation{}),
		"a label twice":             op(&storev1.Operation{Change: &storev1.Operation_Put{Put: &storev1.Resource{Key: &storev1.Key{Kind: "Mesh", Name: "m"}, Labels: []*storev1.Label{{Name: "a"}, {Name: "a"}}}}}),
		"a time that is none":       field(2, protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), 1<<31-1)),
		"text that is none":         field(1, []byte{0xff}),
		"a newer field":             field(12, nil),
		"a newer field of a key":    field(3, field(2, append(field(1, []byte("Mesh")), append(field(3, []byte("m")), field(4, nil)...)...))),
		"cut short":                 whole[:len(whole)-1],
		"two times":                 append(with(func(*Txn) {}), whole...),
	} {
		_, ok := decodePlain(message)
		require.False(t, ok, name)
	}
}

func FuzzPlain(f *testing.F) {
	whole := messageOf(f, plainTxn())
	f.Add(whole)
	f.Add(messageOf(f, Txn{Time: time.Unix(1, 2).UTC(), Batches: []Txn{plainTxn(), {Note: []byte("n")}}}))
	f.Add(messageOf(f, Txn{Batches: []Txn{{SetEpoch: nil, Ops: plainTxn().Ops}}}))
	f.Fuzz(func(t *testing.T, message []byte) {
		kept := append([]byte(nil), message...)
		plain, ok := decodePlain(message)
		samePlain(t, message)
		sameRestamped(t, message)
		if !ok {
			return
		}
		for i := range message { // what was decoded has no part in it
			message[i] ^= 0xff
		}
		want, err := decodeAny(kept)
		require.NoError(t, err)
		require.Equal(t, want, plain)
	})
}
