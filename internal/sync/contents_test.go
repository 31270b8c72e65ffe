package zonesync

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/resource"
	"meridian/internal/store"
)

// Records are read in portions that share their memory: what is kept of one, and all of it
// where it cannot be used, stays as it was.
func TestRecordsOfSeveralPortions(t *testing.T) {
	c := &contents{decode: func(m resource.Meta, spec []byte) (*resource.Resource, error) {
		if strings.Contains(string(spec), unusable) {
			return nil, errors.New("unknown field")
		}
		return resource.New(m, nil, spec), nil
	}}
	const n = 2*readAtOnce + 100
	content := func(i int) string {
		switch {
		case i == 7: // more than a portion has
			return strings.Repeat("x", readBytes+1)
		case i%1000 == 0:
			return unusable + fmt.Sprint(i)
		default:
			return fmt.Sprintf(`{"n":%d}`, i)
		}
	}
	var sealed [][2][]byte
	for i := range n {
		r := resource.New(resource.Meta{Key: policyKey(fmt.Sprintf("p-%06d", i)), Version: 1}, nil, []byte(content(i)))
		raw, err := encodePut(r)
		require.NoError(t, err)
		key := diskKey(r.Key())
		sealed = append(sealed, [2][]byte{key, sealRecord(key, raw)})
	}
	for i, kv := range sealed {
		key, value := append([]byte(nil), kv[0]...), append([]byte(nil), kv[1]...)
		bucket := string(recordsBucket)
		switch i {
		case 11:
			bucket = string(quarantineBucket)
		case 12:
			value[len(value)-1] ^= 1
		}
		c.visit(bucket, key, value)
		clear(key)
		clear(value)
	}
	c.finish()
	require.Len(t, c.damage, 1)
	require.Equal(t, sealed[12][0], c.remove[0].key)
	require.Len(t, c.bad, 1)
	require.Equal(t, n-2, c.count())
	at := 0
	check := func(r *record, i int) {
		require.Equal(t, policyKey(fmt.Sprintf("p-%06d", i)), r.key())
		if r.typed != nil {
			require.Equal(t, content(i), string(r.typed.Canonical()))
			require.Equal(t, store.Sum(r.typed), r.term)
		}
		if i%1000 == 0 || i == 11 {
			require.Equal(t, sealed[i][1][recordOverhead:], r.bytes.raw)
		} else {
			require.Nil(t, r.bytes, "memory of a million records")
		}
	}
	for r := range c.eachGood() {
		if at == 11 {
			at = 13
		}
		check(r, at)
		at++
	}
	check(&c.bad[0], 11)
}

// Where decoding changes the bytes, what is served counts in its digest by its own.
func TestRecordsThatDecodingChanges(t *testing.T) {
	c := &contents{decode: func(m resource.Meta, _ []byte) (*resource.Resource, error) {
		return resource.New(m, nil, []byte(`{"other":1}`)), nil
	}}
	r := resource.New(resource.Meta{Key: policyKey("p"), Version: 1}, nil, []byte(`{"n":1}`))
	raw, err := encodePut(r)
	require.NoError(t, err)
	c.visit(string(recordsBucket), diskKey(r.Key()), sealRecord(diskKey(r.Key()), raw))
	c.finish()
	for got := range c.eachGood() {
		require.Equal(t, store.Sum(r), got.sum)
		require.Equal(t, store.Sum(got.typed), got.term)
		require.NotEqual(t, got.sum, got.term)
	}
	require.Equal(t, 1, c.count())
}
