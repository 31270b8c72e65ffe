package consensus

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"time"

	"go.etcd.io/bbolt"
)

// The layout of a bbolt page: a header (id 8 bytes, type 2, count 2, overflow
// 4), then one element of 16 bytes per key, then keys and values. Numbers are in
// the machine's byte order.
const (
	boltHeaderLen  = 16
	boltElementLen = 16
	boltBranch     = 1
	boltLeaf       = 2
	boltBucketFlag = 1
	boltBucketLen  = 16
)

// checkBolt walks the pages of a bbolt file and checks everything that bbolt
// believes without a checksum: which pages there are, how long they are, where
// their keys and values lie. Without it, a page that claims to be longer than it
// is ends the process when the free list is computed, and one that claims to be
// shorter gets overwritten.
func checkBolt(path string) (err error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second, ReadOnly: true})
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := db.Close(); err == nil {
			err = closeErr
		}
	}()
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // read only
	return db.View(func(tx *bbolt.Tx) error {
		size := db.Info().PageSize
		c := &boltCheck{file: file, pageSize: size, seen: make([]bool, tx.Size()/int64(size))}
		return c.pages(uint64(tx.Cursor().Bucket().RootPage()), nil, nil)
	})
}

type boltCheck struct {
	file     io.ReaderAt
	pageSize int
	seen     []bool // by page
}

// pages checks the tree below a page, whose keys must be at least low and below
// high; nil does not bound.
func (c *boltCheck) pages(id uint64, low, high []byte) error {
	if id >= uint64(len(c.seen)) {
		return fmt.Errorf("page %d is past the end, page %d", id, len(c.seen))
	}
	head := make([]byte, boltHeaderLen)
	if _, err := c.file.ReadAt(head, int64(id)*int64(c.pageSize)); err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	if own := binary.NativeEndian.Uint64(head); own != id {
		return fmt.Errorf("page %d says it is page %d", id, own)
	}
	count := uint64(binary.NativeEndian.Uint32(head[12:])) + 1
	if count > uint64(len(c.seen))-id {
		return fmt.Errorf("page %d ends past the end, page %d", id, len(c.seen))
	}
	for i := id; i < id+count; i++ {
		if c.seen[i] {
			return fmt.Errorf("page %d is used twice", i)
		}
		c.seen[i] = true
	}
	page := make([]byte, count*uint64(c.pageSize))
	if _, err := c.file.ReadAt(page, int64(id)*int64(c.pageSize)); err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	used, err := c.elements(page, low, high)
	if err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	if want := (used + c.pageSize - 1) / c.pageSize; uint64(want) != count {
		return fmt.Errorf("page %d spans %d pages instead of %d", id, count, want)
	}
	return nil
}

// elements checks the content of a page and what lies below it, and returns how
// many bytes it uses.
func (c *boltCheck) elements(page []byte, low, high []byte) (used int, err error) {
	kind := binary.NativeEndian.Uint16(page[8:])
	count := int(binary.NativeEndian.Uint16(page[10:]))
	if kind != boltBranch && kind != boltLeaf {
		return 0, fmt.Errorf("unknown type %d", kind)
	}
	used = boltHeaderLen + count*boltElementLen
	if used > len(page) || kind == boltBranch && count == 0 {
		return 0, fmt.Errorf("%d elements", count)
	}
	keys, values, children := make([][]byte, count), make([][]byte, count), make([]uint64, count)
	for i := range count {
		at := boltHeaderLen + i*boltElementLen
		element := page[at : at+boltElementLen]
		var pos, keyLen, valueLen, flags uint32
		if kind == boltBranch {
			pos, keyLen = binary.NativeEndian.Uint32(element), binary.NativeEndian.Uint32(element[4:])
			children[i] = binary.NativeEndian.Uint64(element[8:])
		} else {
			flags, pos = binary.NativeEndian.Uint32(element), binary.NativeEndian.Uint32(element[4:])
			keyLen, valueLen = binary.NativeEndian.Uint32(element[8:]), binary.NativeEndian.Uint32(element[12:])
		}
		end := uint64(used) + uint64(keyLen) + uint64(valueLen)
		if uint64(at)+uint64(pos) != uint64(used) || end > uint64(len(page)) || keyLen == 0 || flags&^boltBucketFlag != 0 {
			return 0, fmt.Errorf("element %d is not where it should be", i)
		}
		keys[i] = page[used : used+int(keyLen)]
		if flags == boltBucketFlag {
			values[i] = page[used+int(keyLen) : end]
			if len(values[i]) < boltBucketLen {
				return 0, fmt.Errorf("bucket %q has no header", keys[i])
			}
		}
		used = int(end)
	}
	for i, key := range keys {
		switch {
		case low != nil && bytes.Compare(key, low) < 0, high != nil && bytes.Compare(key, high) >= 0:
			return 0, fmt.Errorf("element %d is on the wrong page", i)
		case i > 0 && bytes.Compare(keys[i-1], key) >= 0:
			return 0, fmt.Errorf("element %d is out of order", i)
		}
	}
	for i := range keys {
		switch {
		case kind == boltBranch && i+1 < count:
			err = c.pages(children[i], keys[i], keys[i+1])
		case kind == boltBranch:
			err = c.pages(children[i], keys[i], high)
		case values[i] != nil:
			err = c.bucket(values[i])
		}
		if err != nil {
			return 0, err
		}
	}
	return used, nil
}

// bucket checks a bucket: a tree of its own or, while it is small, a page within
// its value.
func (c *boltCheck) bucket(value []byte) error {
	if root := binary.NativeEndian.Uint64(value); root != 0 {
		return c.pages(root, nil, nil)
	}
	inline := value[boltBucketLen:]
	if len(inline) < boltHeaderLen {
		return fmt.Errorf("an inline bucket of %d bytes", len(inline))
	}
	used, err := c.elements(inline, nil, nil)
	if err == nil && used != len(inline) {
		err = fmt.Errorf("an inline bucket of %d bytes uses %d", len(inline), used)
	}
	return err
}
