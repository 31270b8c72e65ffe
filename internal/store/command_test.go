package store_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	storev1 "meridian/api/store/v1"
	"meridian/internal/resource"
	"meridian/internal/store"
)

func fullCommand() store.Txn {
	access := resource.Revision(0)
	labelled := retry("a", 1)
	labelled = labelled.WithMeta(resource.Meta{Key: labelled.Key(), Labels: map[string]string{"z": "1", "a": "2"}})
	return store.Txn{
		RequestID:      "id-1",
		Time:           clock(3).Add(5 * time.Nanosecond),
		Ops:            []store.Op{store.Put(labelled), store.Delete(retryKey("default", "b")), store.Put(mesh("m"))},
		Preconditions:  []store.Precondition{{Key: retryKey("default", "b"), Version: 3, Revision: 8}, {Key: meshKey("m")}},
		AccessRevision: &access,
		SetEpoch:       &store.Epoch{ClusterID: "c", Incarnation: 2, Random: 1<<63 + 1},
	}
}

func TestRestampChangesTheTimeAlone(t *testing.T) {
	txn := fullCommand()
	data, err := store.EncodeCommand(txn)
	require.NoError(t, err)
	at := clock(77).Add(time.Nanosecond)
	again, _, err := store.Restamp(data, at)
	require.NoError(t, err)
	txn.Time = at
	want, err := store.EncodeCommand(txn)
	require.NoError(t, err)
	require.Equal(t, want, again)

	data[len(data)-1] ^= 1
	_, _, err = store.Restamp(data, at)
	require.ErrorIs(t, err, store.ErrCorrupt)
	data[0] = 9
	_, _, err = store.Restamp(data, at)
	require.ErrorIs(t, err, store.ErrUnknownFormat)
}

func TestCommandRoundTrip(t *testing.T) {
	for name, txn := range map[string]store.Txn{
		"everything": fullCommand(),
		"nothing":    {},
		"zero epoch": {SetEpoch: &store.Epoch{}},
	} {
		t.Run(name, func(t *testing.T) {
			data, err := store.EncodeCommand(txn)
			require.NoError(t, err)
			got, err := store.DecodeCommand(data)
			require.NoError(t, err)
			require.Equal(t, txn.RequestID, got.RequestID)
			require.True(t, txn.Time.Equal(got.Time))
			require.Equal(t, txn.Preconditions, got.Preconditions)
			require.Equal(t, txn.AccessRevision, got.AccessRevision)
			require.Equal(t, txn.SetEpoch, got.SetEpoch)
			require.Len(t, got.Ops, len(txn.Ops))
			for i, op := range txn.Ops {
				require.Equal(t, op.Key, got.Ops[i].Key)
				require.Equal(t, op.Resource == nil, got.Ops[i].Resource == nil)
				if op.Resource != nil {
					require.Equal(t, op.Resource.Meta(), got.Ops[i].Resource.Meta())
					require.Equal(t, op.Resource.Canonical(), got.Ops[i].Resource.Canonical())
				}
			}
			again, err := store.EncodeCommand(got)
			require.NoError(t, err)
			require.Equal(t, data, again)
		})
	}
}

// A log entry of the first format, as it stands in the logs of released
// versions: it must be readable for ever.
func TestCommandFormatOne(t *testing.T) {
	data, err := hex.DecodeString(commandFormatOne)
	require.NoError(t, err)
	txn, err := store.DecodeCommand(data)
	require.NoError(t, err)
	want, err := store.EncodeCommand(fullCommand())
	require.NoError(t, err)
	require.Equal(t, commandFormatOne, hex.EncodeToString(want))
	require.Equal(t, "id-1", txn.RequestID)
}

const commandFormatOne = "01310998210a0469642d31120808c3d490cd0610051a300a2e0a130a055265747279120764656661756c741a01611206" +
	"0a016112013212060a017a1201313a077b226e223a317d1a1512130a055265747279120764656661756c741a01621a11" +
	"0a0f0a090a044d6573681a016d3a027b7d22190a130a055265747279120764656661756c741a016210031808220b0a09" +
	"0a044d6573681a016d2800320e0a01631002190100000000000080"

func TestCommandDamage(t *testing.T) {
	data, err := store.EncodeCommand(fullCommand())
	require.NoError(t, err)
	for i := range data {
		broken := append([]byte(nil), data...)
		broken[i] ^= 1 << (i % 8)
		_, err := store.DecodeCommand(broken)
		require.True(t, errors.Is(err, store.ErrCorrupt) || errors.Is(err, store.ErrUnknownFormat), "byte %d: %v", i, err)
		_, err = store.DecodeCommand(data[:i])
		require.ErrorIs(t, err, store.ErrCorrupt, "cut at %d", i)
	}
}

// A command with anything that this release does not know is refused, however
// deep it sits: to ignore it would make servers of one cluster disagree.
func TestCommandOfALaterRelease(t *testing.T) {
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 500, protowire.VarintType), 1)
	field := func(number protowire.Number, message []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), message)
	}
	for name, message := range map[string][]byte{
		"in the command":   unknown,
		"in an operation":  field(3, unknown),
		"in a resource":    field(3, field(1, unknown)),
		"in a key":         field(4, field(1, unknown)),
		"in the new epoch": field(6, unknown),
	} {
		_, err := store.DecodeCommand(enveloped(message))
		require.ErrorIs(t, err, store.ErrUnknownFormat, name)
	}
	_, err := store.DecodeCommand([]byte{store.NewestFormat + 1, 0, 0, 0, 0})
	require.ErrorIs(t, err, store.ErrUnknownFormat)
}

// A command has the oldest format that holds it: older releases apply what they
// can, and refuse the rest as a whole.
func TestCommandFormats(t *testing.T) {
	txn := fullCommand()
	data, err := store.EncodeCommand(txn)
	require.NoError(t, err)
	require.EqualValues(t, 1, store.FormatOf(data))
	for i := range txn.Ops {
		if txn.Ops[i].Resource != nil {
			txn.Ops[i].KeepTimes = true
		}
	}
	data, err = store.EncodeCommand(txn)
	require.NoError(t, err)
	require.EqualValues(t, 2, store.FormatOf(data))
	_, err = store.DecodeCommand(data)
	require.NoError(t, err)
	restamped, _, err := store.Restamp(data, txn.Time)
	require.NoError(t, err)
	require.EqualValues(t, 2, store.FormatOf(restamped))
	require.Zero(t, store.FormatOf(nil))

	since := resource.Revision(7)
	for _, txn := range []store.Txn{
		{Retention: &store.Retention{Batches: 3, Bytes: 1 << 20, Age: time.Hour}},
		{Retention: &store.Retention{}},
		{UnchangedSince: &since, Ops: []store.Op{store.Delete(meshKey("a"))}},
		{Parts: []store.Part{{Mesh: "a", Kinds: []resource.Kind{"Timeout"}, Digest: store.Digest{Hi: 1, Lo: 2}}}, Ops: []store.Op{store.Delete(meshKey("a"))}},
	} {
		data, err := store.EncodeCommand(txn)
		require.NoError(t, err)
		require.EqualValues(t, 3, store.FormatOf(data))
		decoded, err := store.DecodeCommand(data)
		require.NoError(t, err)
		require.Equal(t, txn, decoded)
	}
}

// The fields of a command, and of what only commands hold: one that is added needs
// a format of its own (NewestFormat), and then a place here.
func TestEveryFieldOfACommandHasAFormat(t *testing.T) {
	for message, fields := range map[protoreflect.Message]int{
		(&storev1.Command{}).ProtoReflect():      11,
		(&storev1.SharedBatch{}).ProtoReflect():  2,
		(&storev1.Part{}).ProtoReflect():         3,
		(&storev1.Operation{}).ProtoReflect():    3,
		(&storev1.Precondition{}).ProtoReflect(): 3,
		(&storev1.Restore{}).ProtoReflect():      4,
		(&storev1.RestoreEnd{}).ProtoReflect():   5,
	} {
		require.Equal(t, fields, message.Descriptor().Fields().Len(), "%s", message.Descriptor().FullName())
	}
}

// Intact, but not what any release writes.
func TestCommandWithoutSense(t *testing.T) {
	field := func(number protowire.Number, message []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), message)
	}
	for name, message := range map[string][]byte{
		"not a message":              {0xff},
		"operation without a change": field(3, nil),
		"deletion without a key":     field(3, field(2, nil)),
		"part without a digest":      field(10, nil),
		"resource without a key":     field(3, field(1, nil)),
		"precondition without a key": field(4, nil),
		"a time that there is not":   field(2, protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), 1<<31-1)),
		"a label twice in one resource": field(3, field(1, append(append(
			field(1, append(field(1, []byte("Mesh")), field(3, []byte("m"))...)),
			field(2, field(1, []byte("a")))...), field(2, field(1, []byte("a")))...))),
	} {
		_, err := store.DecodeCommand(enveloped(message))
		require.ErrorIs(t, err, store.ErrCorrupt, name)
	}
}

func enveloped(message []byte) []byte {
	table := crc32.MakeTable(crc32.Castagnoli)
	sum := crc32.Update(crc32.Checksum([]byte{1}, table), table, message)
	return append([]byte{1, byte(sum), byte(sum >> 8), byte(sum >> 16), byte(sum >> 24)}, message...)
}

func FuzzDecodeCommand(f *testing.F) {
	data, err := store.EncodeCommand(fullCommand())
	require.NoError(f, err)
	f.Add(data)
	f.Add(data[5:])
	f.Add([]byte{})
	data, err = store.EncodeCommand(store.Txn{Batches: []store.Txn{
		{Ops: []store.Op{store.Put(mesh("m"))}, Note: []byte("a")},
		{RequestID: "id", Ops: []store.Op{store.Delete(meshKey("m")), store.Put(retry("a", 1))}},
	}})
	require.NoError(f, err)
	f.Add(data)
	f.Add(data[5:])
	f.Fuzz(func(t *testing.T, data []byte) {
		// Once as it is, once behind a valid envelope, so that the message
		// itself is reached.
		for _, entry := range [][]byte{data, enveloped(data)} {
			txn, err := store.DecodeCommand(entry)
			if err != nil {
				require.True(t, errors.Is(err, store.ErrCorrupt) || errors.Is(err, store.ErrUnknownFormat), "%v", err)
				continue
			}
			again, err := store.EncodeCommand(txn)
			require.NoError(t, err)
			_, err = store.DecodeCommand(again)
			require.NoError(t, err)
			store.New(store.DefaultOptions()).Apply(1, txn)
		}
	})
}

// TestEntriesApplyAsTheyDid: applying entries of the formats that there are leaves
// what it left when they were new, to the last byte of a snapshot: resources,
// versions, times, epochs and the request ids that are remembered. Servers of two
// releases apply one log, so a change of what an entry does takes a format of its own
// (ADR 34), and entries of the formats before it are applied as they were.
func TestEntriesApplyAsTheyDid(t *testing.T) {
	opts := store.DefaultOptions()
	opts.Requests = store.Requests{Min: 4, MaxAge: 15 * time.Minute, MaxBytes: 64 << 20}
	s := store.New(opts)
	rev := resource.Revision(0)
	apply := func(txn store.Txn) {
		data, err := store.EncodeCommand(txn)
		require.NoError(t, err)
		decoded, err := store.DecodeCommand(data)
		require.NoError(t, err)
		rev += 1 + rev%2
		s.Apply(rev, decoded)
	}
	at := func(seconds int, id string, ops ...store.Op) store.Txn {
		return store.Txn{RequestID: id, Time: time.Date(2026, 1, 2, 3, 4, seconds, 5, time.UTC), Ops: ops}
	}
	e := store.Epoch{ClusterID: "c", Incarnation: 1, Random: 7}
	apply(store.Txn{Time: time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC), SetEpoch: &e})
	apply(at(1, "", store.Put(mesh("default"))))
	for i := range 40 {
		id := fmt.Sprint("r", i%30) // some are repeated, some of these forgotten
		apply(at(60*i, id, store.Put(retry(fmt.Sprint("a", i%7), i)), store.Put(retry("b", i%3))))
	}
	apply(at(1, "clock goes back", store.Delete(retryKey("default", "a3"))))
	apply(at(1_000_000, "clock jumps", store.Put(retry("a4", 100))))
	apply(at(2501, "clock is right", store.Put(retry("a5", 100))))
	refused := at(2502, "refused", store.Put(retry("a6", 100)))
	refused.Preconditions = []store.Precondition{{Key: retryKey("default", "a6"), Version: 999}}
	apply(refused)
	apply(at(2503, "", store.Delete(retryKey("default", "missing"))))
	old := resource.New(resource.Meta{Key: retryKey("default", "kept"), CreationTime: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)}, nil, []byte(`{}`))
	apply(at(2504, "kept", store.Op{Key: old.Key(), Resource: old, KeepTimes: true}))
	apply(at(2505, "nothing"))

	var file bytes.Buffer
	require.NoError(t, s.WriteSnapshot(&file))
	require.Equal(t, "695d18f55473b9802fa8cb4ed2dde26e544187e6320c6ce7233f2b39c28594a5", fmt.Sprintf("%x", sha256.Sum256(file.Bytes())))

	// The contents of old revisions, of format 3.
	apply(store.Txn{Retention: &store.Retention{Batches: 12, Bytes: 2500, Age: time.Hour}})
	for i := range 20 {
		apply(at(2510+i, "", store.Put(retry(fmt.Sprint("a", i%7), 1000+i)), store.Delete(retryKey("default", fmt.Sprint("a", (i+3)%7)))))
	}
	stale := rev - 5
	changed := at(2540, "", store.Put(retry("never", 1)))
	changed.UnchangedSince = &stale
	apply(changed)
	apply(store.Txn{Retention: &store.Retention{Batches: 4, Bytes: 2500, Age: time.Hour}})
	file.Reset()
	require.NoError(t, s.WriteSnapshot(&file))
	require.Equal(t, "ea005112d89b21d026c5ebcdff6d680316facc208e759e97444a9d15d2518cc2", fmt.Sprintf("%x", sha256.Sum256(file.Bytes())))

	// Rollouts, of format 4: what they hold, no other batch changes until they end.
	begun := rolloutOf(t, "r", resource.RolloutProgressing, []*resource.Resource{namespaceNamed(t, "held")})
	apply(at(2550, "begun", store.Put(begun)))
	apply(at(2551, "refused", store.Put(namespaceNamed(t, "held"))))
	apply(at(2552, "another", store.Put(rolloutOf(t, "other", resource.RolloutProgressing, []*resource.Resource{namespaceNamed(t, "held")}))))
	file.Reset()
	require.NoError(t, s.WriteSnapshot(&file))
	require.Equal(t, "04b64bdee1f48fc952ea6cf511c713a99d013630dd6ef4ca74eb8cae3b4b4ed1", fmt.Sprintf("%x", sha256.Sum256(file.Bytes())))
	apply(at(2553, "completed", store.Put(rolloutOf(t, "r", resource.RolloutCompleted, []*resource.Resource{namespaceNamed(t, "held")})), store.Put(namespaceNamed(t, "held"))))
	apply(at(2554, "after", store.Put(namespaceNamed(t, "held"))))
	file.Reset()
	require.NoError(t, s.WriteSnapshot(&file))
	require.Equal(t, "4932afdb762e9454c20eec88c7b79acc50ac42b07cb40a75a3ffe6051a3d1a74", fmt.Sprintf("%x", sha256.Sum256(file.Bytes())))

	// Batches that share an entry, of format 5.
	stale = rev
	late := at(0, "shared 3", store.Put(retry("late", 3)))
	late.AccessRevision = &stale
	apply(store.Txn{Time: time.Date(2026, 1, 2, 4, 0, 0, 5, time.UTC), Batches: []store.Txn{
		at(0, "shared 1", store.Put(retry("joined", 1)), store.Delete(retryKey("default", "b"))),
		at(0, "shared 1", store.Put(retry("again", 1))),
		at(0, "shared 2", store.Put(thing(retryKey("missing", "a"), 2)), store.Put(retry("not either", 2))),
		late,
		at(0, "", store.Put(retry("joined too", 4))),
	}})
	file.Reset()
	require.NoError(t, s.WriteSnapshot(&file))
	require.Equal(t, "5f53690478c0b46dc4d4aeecf12653f6da78787ad8fd91df7184d941c5073945", fmt.Sprintf("%x", sha256.Sum256(file.Bytes())))
}
