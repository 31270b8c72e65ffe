package zonesync

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"

	syncv1 "meridian/api/sync/v1"
	"meridian/internal/store"
)

// FuzzRecord: no bytes on disk make a record that was not written as such.
func FuzzRecord(f *testing.F) {
	op, err := encodePut(put(policyKey("a"), `{}`).Resource)
	require.NoError(f, err)
	key := diskKey(policyKey("a"))
	f.Add(key, sealRecord(key, op))
	f.Add(key, []byte{1, 0, 0, 0, 0})
	f.Add([]byte{}, []byte{})
	f.Fuzz(func(t *testing.T, key, value []byte) {
		c, err := readRecord(key, value)
		if err != nil {
			return
		}
		require.Equal(t, key, diskKey(c.meta.Key))
		require.Equal(t, value, sealRecord(key, c.raw))
	})
}

// FuzzReplica: no sequence of frames makes a replica panic, lose count of its
// digest, or go back within an epoch.
func FuzzReplica(f *testing.F) {
	g := newGlobalSim(f, 1<<20)
	z := newZoneSim(f, g, f.TempDir())
	z.decode = decodeOld
	g.write(put(policyKey("a"), `{}`), put(policyKey("b"), unusable))
	var seed bytes.Buffer
	keep := func() {
		for z.send(1) {
			for _, fr := range z.down {
				_, err := protodelim.MarshalTo(&seed, fr)
				require.NoError(f, err)
			}
			z.receive(100)
		}
	}
	z.connect()
	keep()
	g.write(store.Delete(policyKey("a")))
	keep()
	f.Add(bytes.Clone(seed.Bytes()))
	seed.Reset()
	roll := g.begin("r", "east", rolled{policyKey("c"), 1}, rolled{policyKey("b"), 0})
	keep()
	g.complete(roll)
	keep()
	z.close()
	f.Add(seed.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		r := &replica{
			instance: "i", holdings: newHoldings("east", decodeOld, 0),
		}
		r.connect(1)
		in := bytes.NewReader(data)
		for {
			var fr syncv1.GlobalFrame
			if protodelim.UnmarshalFrom(in, &fr) != nil {
				return
			}
			epoch, rev := r.epoch, r.revision
			c, sig, err := r.receive(&fr, time.Time{})
			if epoch == r.epoch {
				require.GreaterOrEqual(t, r.revision, rev)
			}
			var sum store.Digest
			bad := 0
			for _, h := range r.held {
				sum = sum.Add(h.sum)
				if h.bad {
					bad++
				}
			}
			require.Equal(t, sum, r.digest)
			var shown store.Digest
			for _, res := range r.served() {
				shown = shown.Add(store.Sum(res))
			}
			require.Equal(t, shown, r.shown, "of what is served, with rollouts")
			var parts store.Digest
			for _, part := range r.buckets {
				parts = parts.Add(part)
			}
			require.Equal(t, parts, r.digest)
			require.Len(t, r.bad, bad)
			if c != nil {
				r.persisted(c)
			}
			if err != nil {
				return
			}
			if sig.hello {
				r.greet()
			}
			if sig.ack {
				r.acknowledge(time.Now())
			}
		}
	})
}

// FuzzPublisher: no Hello and no Acks make a publisher panic or send more than
// its window.
func FuzzPublisher(f *testing.F) {
	g := newGlobalSim(f, 1<<20)
	for _, n := range []string{"a", "b", "c"} {
		g.write(put(policyKey(n), `{}`))
	}
	for _, h := range []*syncv1.Hello{
		{Protocol: 1, Zone: "east", Instance: "i"},
		{Protocol: 1, Epoch: epochTo(g.store.View().Epoch()), FromRevision: uint64(g.applied)},
		{Protocol: 1, Buckets: new(buckets).bytes(), Window: 1},
	} {
		raw, err := proto.Marshal(h)
		require.NoError(f, err)
		f.Add(raw, []byte{}, uint16(3))
	}
	f.Fuzz(func(t *testing.T, hello, ack []byte, seconds uint16) {
		var h syncv1.Hello
		var a syncv1.Ack
		if proto.Unmarshal(hello, &h) != nil || proto.Unmarshal(ack, &a) != nil {
			return
		}
		p := newPublisher(defaultPacing(), g.feed, g.store.View)
		defer p.close()
		now := g.now
		if p.greet(&h, now) != nil {
			return
		}
		for range 10 {
			fr, err := p.next(now)
			if err != nil {
				return
			}
			if fr == nil {
				now = now.Add(time.Duration(seconds) * time.Second)
			}
			if p.acknowledge(&a, now) != nil {
				return
			}
		}
		require.LessOrEqual(t, p.sent-p.consumed, p.window+maxPart)
	})
}
