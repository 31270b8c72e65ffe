// Package boltcheck verifies the structure of a bbolt file, and salvages the
// content of a damaged one.
//
// bbolt trusts its pages: it checksums only the two meta pages. A damaged page can
// make it end the process, read for ever, or write over pages in use. So the users
// of such a file check it before bbolt opens it for writing. This package reads the
// pages itself, validates every field, and returns errors where bbolt would panic.
//
// Non-goals: keys and values, which need checksums of their own.
package boltcheck

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
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

// lockWait is how long another process may hold the file before it counts as in
// use.
const lockWait = time.Second

// CheckKeys walks the pages of a bbolt file and checks everything that bbolt
// trusts without a checksum: which pages there are, how long they are, where
// their keys and values lie. It looks at each key of each top-level bucket, unless
// known is nil: what known says of one is returned as damage. It changes nothing.
//
// Errors: bbolt's ErrTimeout while another process has the file open; the file
// system's; anything else is damage.
func CheckKeys(path string, known func(bucket string, key []byte) error) error {
	var unknown error
	c := &checker{damage: func(err error) error { return err }}
	if known != nil {
		c.visit = func(bucket string, key, _ []byte) {
			if unknown == nil {
				unknown = known(bucket, key)
			}
		}
	}
	if err := walk(path, c); err != nil {
		return err
	}
	return unknown
}

// Salvage is CheckKeys for a file whose contents are wanted whatever its state: it
// calls visit with each key and value of each top-level bucket on an intact
// page, valid during the call, and returns what is wrong with the others. Empty
// damage means that the structure is intact and visit has seen everything; with
// damage it may also see a key twice.
//
// Errors: bbolt's ErrTimeout while another process has the file open; the file
// system's. A file that is not bbolt's at all is damage.
func Salvage(path string, visit func(bucket string, key, value []byte)) (damage []error, err error) {
	c := &checker{visit: visit, damage: func(err error) error {
		damage = append(damage, err)
		return nil
	}}
	err = walk(path, c)
	var pathError *os.PathError
	if err != nil && !errors.Is(err, bolterrors.ErrTimeout) && !errors.As(err, &pathError) {
		damage, err = append(damage, err), nil
	}
	return damage, err
}

// The layout of a root page: the page's header, then what is below, 64 bytes with
// a checksum (FNV-1a, 64 bits) of the 56 before it at their end.
const (
	metaMagicAt    = boltHeaderLen
	metaPageSizeAt = boltHeaderLen + 8
	metaTxidAt     = boltHeaderLen + 48
	metaSumAt      = boltHeaderLen + 56
	metaEnd        = boltHeaderLen + 64
	metaMagic      = 0xED0CDAED
)

// CheckRoots checks the two root pages of a bbolt file, of which bbolt needs one.
// It writes them in turn, so with the newer one damaged it goes back by one
// transaction without a word. A crash cannot do that: what counts on a root page
// lies within the part of a disk that is written whole. So where every
// transaction matters, a file with one bad root is damaged.
//
// Errors: the file system's; anything else is damage.
func CheckRoots(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // read only
	first, pageSize, err := root(file, 0)
	if err != nil {
		return fmt.Errorf("first root page: %w", err)
	}
	second, _, err := root(file, int64(pageSize))
	if err != nil {
		return fmt.Errorf("second root page: %w", err)
	}
	if first != second+1 && second != first+1 {
		return fmt.Errorf("the root pages are of transactions %d and %d, which do not follow one another", first, second)
	}
	return nil
}

// root returns the transaction that a root page is of, and the size of pages.
func root(file io.ReaderAt, at int64) (transaction uint64, pageSize uint32, err error) {
	page := make([]byte, metaEnd)
	if _, err := file.ReadAt(page, at); err != nil {
		return 0, 0, fmt.Errorf("%v", err) //nolint:errorlint // a file that ends too soon is damage
	}
	sum := fnv.New64a()
	_, _ = sum.Write(page[boltHeaderLen:metaSumAt]) // never fails
	if binary.NativeEndian.Uint32(page[metaMagicAt:]) != metaMagic || sum.Sum64() != binary.NativeEndian.Uint64(page[metaSumAt:]) {
		return 0, 0, errors.New("checksum mismatch")
	}
	return binary.NativeEndian.Uint64(page[metaTxidAt:]), binary.NativeEndian.Uint32(page[metaPageSizeAt:]), nil
}

func walk(path string, c *checker) (err error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockWait, ReadOnly: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // read only
	return db.View(func(tx *bbolt.Tx) error {
		size := db.Info().PageSize
		c.file, c.pageSize, c.seen = file, size, make([]bool, tx.Size()/int64(size))
		return c.pages(uint64(tx.Cursor().Bucket().RootPage()), nil, nil)
	})
}

// checker walks one file.
type checker struct {
	file     io.ReaderAt
	pageSize int
	seen     []bool // by page

	// damage receives the error of a page that is not intact; the walk continues
	// without it if it returns nil.
	damage func(error) error
	// visit, if any, is called with the contents of the bucket that the walk is
	// in, empty outside any.
	visit  func(bucket string, key, value []byte)
	bucket string
	// spare are buffers for pages that are not being looked at.
	spare [][]byte
}

// take returns a buffer for a page: as few are allocated as the tree is deep.
func (c *checker) take(size int) []byte {
	if last := len(c.spare) - 1; last >= 0 {
		page := c.spare[last]
		if c.spare = c.spare[:last]; size <= cap(page) {
			return page[:size]
		}
	}
	return make([]byte, size)
}

// pages checks the tree below a page, whose keys must be at least low and below
// high; nil does not bound.
func (c *checker) pages(id uint64, low, high []byte) error {
	if err := c.tree(id, low, high); err != nil {
		return c.damage(err)
	}
	return nil
}

func (c *checker) tree(id uint64, low, high []byte) error {
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
	page := c.take(int(count) * c.pageSize) //nolint:gosec // checked above
	defer func() { c.spare = append(c.spare, page) }()
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
func (c *checker) elements(page []byte, low, high []byte) (used int, err error) {
	kind := binary.NativeEndian.Uint16(page[8:])
	count := int(binary.NativeEndian.Uint16(page[10:]))
	if kind != boltBranch && kind != boltLeaf {
		return 0, fmt.Errorf("unknown type %d", kind)
	}
	used = boltHeaderLen + count*boltElementLen
	if used > len(page) || kind == boltBranch && count == 0 {
		return 0, fmt.Errorf("%d elements", count)
	}
	keys, values, buckets, children := make([][]byte, count), make([][]byte, count), make([]bool, count), make([]uint64, count)
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
		values[i] = page[used+int(keyLen) : end]
		buckets[i] = flags == boltBucketFlag
		if buckets[i] && len(values[i]) < boltBucketLen {
			return 0, fmt.Errorf("bucket %q has no header", keys[i])
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
		case buckets[i]:
			err = c.nested(keys[i], values[i])
		case c.visit != nil:
			c.visit(c.bucket, keys[i], values[i])
		}
		if err != nil {
			return 0, err
		}
	}
	return used, nil
}

// nested checks a bucket: a tree of its own or, while it is small, a page within
// its value.
func (c *checker) nested(name, value []byte) error {
	defer func(outer string) { c.bucket = outer }(c.bucket)
	c.bucket = string(name)
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
