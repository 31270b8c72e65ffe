package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"google.golang.org/protobuf/proto"
)

// A snapshot is magic bytes, the last of which is the format, and records: four
// bytes of length and four of CRC32C (both little-endian, both over kind and
// message), one byte of kind, the message. The order is fixed: header,
// resources in key order, requests oldest first, batches newest first, those whose
// contents are kept oldest first, trailer.
const snapshotMagic = "MRDNSNP\x01"

type recordKind byte

const (
	headerRecord recordKind = iota + 1
	resourceRecord
	requestRecord
	batchRecord
	trailerRecord
	pastRecord
)

// order is where a record stands among those of other kinds, in order.
func (k recordKind) order() int {
	switch k {
	case pastRecord:
		return int(trailerRecord)
	case trailerRecord:
		return int(pastRecord)
	}
	return int(k)
}

// maxRecord bounds a record's length as read; a length beyond it is damage.
const maxRecord = 1 << 30

// recordWriter writes records. Its buffer is used again for each.
type recordWriter struct {
	w   io.Writer
	buf []byte
}

func (w *recordWriter) write(kind recordKind, m proto.Message) error {
	buf := append(w.buf[:0], make([]byte, 8)...)
	buf = append(buf, byte(kind))
	buf, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(buf, m)
	if err != nil {
		return err
	}
	w.buf = buf
	if len(buf)-8 > maxRecord {
		return fmt.Errorf("a record of %d bytes, at most %d can be stored", len(buf)-8, maxRecord)
	}
	binary.LittleEndian.PutUint32(buf, uint32(len(buf)-8)) //nolint:gosec // bounded above
	binary.LittleEndian.PutUint32(buf[4:], crc32.Checksum(buf[8:], castagnoli))
	_, err = w.w.Write(buf)
	return err
}

// recordReader reads records and remembers where it is, for error messages.
type recordReader struct {
	r      io.Reader
	offset int64
}

// next returns a record in memory of its own.
func (r *recordReader) next() (recordKind, []byte, error) {
	var head [8]byte
	if err := r.fill(head[:]); err != nil {
		return 0, nil, err
	}
	length := binary.LittleEndian.Uint32(head[:])
	if length == 0 || length > maxRecord {
		return 0, nil, r.corrupt("a record of %d bytes", length)
	}
	body, err := r.body(int64(length))
	if err != nil {
		return 0, nil, err
	}
	if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(head[4:]) {
		return 0, nil, r.corrupt("checksum")
	}
	return recordKind(body[0]), body[1:], nil
}

// trusted is how many bytes are allocated on the word of a length alone.
const trusted = 64 << 10

func (r *recordReader) body(length int64) ([]byte, error) {
	if length <= trusted {
		body := make([]byte, length)
		return body, r.fill(body)
	}
	var buf bytes.Buffer
	n, err := io.CopyN(&buf, r.r, length)
	r.offset += n
	if err != nil {
		return nil, r.failed(err)
	}
	return buf.Bytes(), nil
}

func (r *recordReader) fill(b []byte) error {
	n, err := io.ReadFull(r.r, b)
	r.offset += int64(n)
	if err != nil {
		return r.failed(err)
	}
	return nil
}

func (r *recordReader) failed(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return r.corrupt("it ends too early")
	}
	return err
}

func (r *recordReader) corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}
