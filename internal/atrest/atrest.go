// Package atrest encrypts what a server keeps on disk with keys from a file: the
// entries of its log, its snapshots, and backups.
//
// Guarantees. Everything is encrypted with AES-256-GCM under a key of its own,
// derived from the first key of the file and a random salt (HKDF, SHA-256), so that
// no nonce is ever used twice. What is read is what was encrypted, whole, or an
// error: ErrNoKey when no key of the file fits, ErrDamaged when it was altered or
// cut off. Each piece names its key in front, by an id that tells nothing about the
// key.
//
// Non-goals. It keeps no keys, and it does not hide sizes or that there is data.
package atrest

import (
	"bytes"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strings"

	"github.com/minio/sio"
)

// ErrNoKey means that something is encrypted with a key that is not in the file.
// Nothing is wrong with what was read.
var ErrNoKey = errors.New("the key is not there")

// ErrDamaged means that encrypted data was altered or cut off.
var ErrDamaged = errors.New("encrypted data is damaged")

const (
	// mark begins everything that is encrypted; its last byte is the format.
	mark = "MRDNENC\x01"
	// saltLen is the length of the salt from which, with the key, the key of one
	// piece of data is derived.
	saltLen = 32
	// HeaderLen is how many bytes stand before the encrypted data: the mark, the id
	// of the key, the salt, and a CRC32C of these, big-endian.
	HeaderLen = len(mark) + idLen + saltLen + crcLen
	idLen     = 8
	crcLen    = 4
	// keyLen is the length of a key, in bytes.
	keyLen = 32
	// maxKeyFile bounds the file of keys, in bytes, and maxKeys their number.
	maxKeyFile = 64 << 10
	maxKeys    = 64
	// purpose separates these keys from others that are derived from the same ones.
	purpose = "meridian encryption at rest 1"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ID names a key. It tells nothing about it.
type ID [idLen]byte

// String returns the id in hexadecimal.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

type key struct {
	id     ID
	secret [keyLen]byte
}

// Keys are the keys of a file. Nil and the zero value hold none: they encrypt
// nothing and read what is not encrypted. Keys do not print.
type Keys struct {
	// first encrypts, nil when the file says that nothing is to be encrypted.
	first *key
	all   []key
}

// String keeps the keys out of logs.
func (k *Keys) String() string {
	if id, ok := k.First(); ok {
		return "encryption key " + id.String()
	}
	return "no encryption key"
}

// GoString keeps the keys out of logs.
func (k *Keys) GoString() string { return k.String() }

// Off is the line that, before all keys, says that nothing is encrypted from now
// on. The keys after it read what is encrypted already.
const Off = "none"

// Load reads a file of keys; an empty path gives none.
func Load(path string) (*Keys, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // read only
	data, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err != nil {
		return nil, err
	}
	k, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return k, nil
}

// Parse reads a file of keys: one on each line, 32 bytes in base64. The first
// encrypts, any decrypts. Empty lines and those that begin with # do not count.
func Parse(data []byte) (*Keys, error) {
	if len(data) > maxKeyFile {
		return nil, fmt.Errorf("the file is larger than %d bytes: it is no file of keys", maxKeyFile)
	}
	k := &Keys{}
	off := false
	for i, line := range strings.Split(string(data), "\n") {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
			continue
		case line == Off && len(k.all) == 0 && !off:
			off = true
			continue
		}
		// The content may be a key: errors do not repeat it.
		secret, err := base64.StdEncoding.DecodeString(line)
		if err != nil || len(secret) != keyLen {
			return nil, fmt.Errorf("line %d is not a key: write the output of `head -c 32 /dev/urandom | base64`", i+1)
		}
		added := newKey(secret)
		for _, other := range k.all {
			if other.id == added.id {
				return nil, fmt.Errorf("line %d repeats a key", i+1)
			}
		}
		if k.all = append(k.all, added); len(k.all) > maxKeys {
			return nil, fmt.Errorf("there are more than %d keys", maxKeys)
		}
	}
	switch {
	case len(k.all) == 0 && !off:
		return nil, errors.New("the file holds no key")
	case !off:
		k.first = &k.all[0]
	}
	return k, nil
}

func newKey(secret []byte) key {
	k := key{secret: [keyLen]byte(secret)}
	sum := sha256.Sum256(append([]byte("meridian encryption key id 1\x00"), secret...))
	copy(k.id[:], sum[:])
	return k
}

// First returns the id of the key that encrypts, or false when nothing is
// encrypted.
func (k *Keys) First() (ID, bool) {
	if k == nil || k.first == nil {
		return ID{}, false
	}
	return k.first.id, true
}

// Header reads what stands before encrypted data: the id of its key, or false for
// data that is not encrypted. data needs HeaderLen bytes, or all there are.
func Header(data []byte) (id ID, encrypted bool, err error) {
	if !IsEncrypted(data) {
		return ID{}, false, nil
	}
	if len(data) < HeaderLen {
		return ID{}, true, fmt.Errorf("%w: it ends within its first bytes", ErrDamaged)
	}
	end := HeaderLen - crcLen
	if crc32.Checksum(data[:end], castagnoli) != binary.BigEndian.Uint32(data[end:]) {
		return ID{}, true, fmt.Errorf("%w: checksum mismatch in its first bytes", ErrDamaged)
	}
	return ID(data[len(mark):]), true, nil
}

// IsEncrypted reports whether data is encrypted, by how it begins.
func IsEncrypted(data []byte) bool { return bytes.HasPrefix(data, []byte(mark)) }

// Fits returns nil when data that begins with these bytes can be read: it is not
// encrypted, or its key is there.
func (k *Keys) Fits(data []byte) error {
	id, encrypted, err := Header(data)
	if err != nil || !encrypted {
		return err
	}
	_, err = k.find(id)
	return err
}

// Current reports whether data that begins with these bytes is as it would be
// written now: encrypted with the first key, or not at all when there is none.
func (k *Keys) Current(data []byte) bool {
	id, encrypted, err := Header(data)
	first, encrypts := k.First()
	return err == nil && encrypted == encrypts && id == first
}

func (k *Keys) find(id ID) (*key, error) {
	if k != nil {
		for i := range k.all {
			if k.all[i].id == id {
				return &k.all[i], nil
			}
		}
	}
	return nil, fmt.Errorf("%w: it is encrypted with key %s, which is not in the file of --encryption-key-file", ErrNoKey, id)
}

// config returns how the data after a header is encrypted.
func (k *key) config(header []byte) (sio.Config, error) {
	salt := header[len(mark)+idLen:][:saltLen]
	derived, err := hkdf.Key(sha256.New, k.secret[:], salt, purpose, keyLen)
	if err != nil {
		return sio.Config{}, fmt.Errorf("derive a key: %w", err)
	}
	return sio.Config{MinVersion: sio.Version20, MaxVersion: sio.Version20, CipherSuites: []byte{sio.AES_256_GCM}, Key: derived}, nil
}

// Writer encrypts what is written to it, and writes it to w. Close completes it;
// it does not close w. Without a key that encrypts, everything passes as it is.
func (k *Keys) Writer(w io.Writer) (io.WriteCloser, error) {
	if k == nil || k.first == nil {
		return plainWriter{w}, nil
	}
	header := make([]byte, 0, HeaderLen)
	header = append(header, mark...)
	header = append(header, k.first.id[:]...)
	header = header[:len(header)+saltLen]
	_, _ = rand.Read(header[len(header)-saltLen:]) // never fails
	header = binary.BigEndian.AppendUint32(header, crc32.Checksum(header, castagnoli))
	config, err := k.first.config(header)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(header); err != nil {
		return nil, err
	}
	return sio.EncryptWriter(writerOnly{w}, config)
}

// writerOnly hides other methods, so that Close of the encrypting writer leaves
// the one below open.
type writerOnly struct{ io.Writer }

type plainWriter struct{ io.Writer }

// Close implements io.Closer.
func (plainWriter) Close() error { return nil }

// Reader returns what r holds, decrypted if it is encrypted.
//
// Errors: those of r, ErrNoKey at once, ErrDamaged at once or when the damaged part
// is reached; a reader that ends without an error returned everything.
func (k *Keys) Reader(r io.Reader) (io.Reader, error) {
	head := make([]byte, HeaderLen)
	n, err := io.ReadFull(r, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, err
	}
	head = head[:n]
	id, encrypted, err := Header(head)
	if err != nil {
		return nil, err
	}
	if !encrypted {
		return io.MultiReader(bytes.NewReader(head), r), nil
	}
	with, err := k.find(id)
	if err != nil {
		return nil, err
	}
	config, err := with.config(head)
	if err != nil {
		return nil, err
	}
	decrypted, err := sio.DecryptReader(r, config)
	if err != nil {
		return nil, fmt.Errorf("decrypt: %w", err)
	}
	return &reader{decrypted: decrypted}, nil
}

// reader reports damage as ErrDamaged. An end of encrypted data without its last
// part is damage, also before its first.
type reader struct {
	decrypted io.Reader
	any       bool
}

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	n, err := r.decrypted.Read(p)
	r.any = r.any || n > 0
	var altered sio.Error
	switch {
	case errors.As(err, &altered), errors.Is(err, io.ErrUnexpectedEOF):
		err = fmt.Errorf("%w: %v", ErrDamaged, err) //nolint:errorlint // an end that comes too soon is not the end
	case errors.Is(err, io.EOF) && !r.any:
		err = fmt.Errorf("%w: it ends too early", ErrDamaged)
	}
	return n, err
}

// Seal encrypts a piece of data, or returns it as it is without a key.
func (k *Keys) Seal(data []byte) ([]byte, error) {
	if k == nil || k.first == nil {
		return data, nil
	}
	var out bytes.Buffer
	out.Grow(HeaderLen + len(data) + (len(data)/partLen+1)*partOverhead)
	w, err := k.Writer(&out)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, fmt.Errorf("encrypt: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("encrypt: %w", err)
	}
	return out.Bytes(), nil
}

// Open is the reverse of Seal.
func (k *Keys) Open(data []byte) ([]byte, error) {
	if _, encrypted, err := Header(data); err != nil || !encrypted {
		return data, err
	}
	r, err := k.Reader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// Size returns the size of data that begins with these bytes and takes size bytes
// in all, when it is decrypted.
func Size(head []byte, size int64) (int64, error) {
	_, encrypted, err := Header(head)
	if err != nil || !encrypted {
		return size, err
	}
	plain, err := sio.DecryptedSize(uint64(max(0, size-int64(HeaderLen))))
	if err != nil {
		return 0, fmt.Errorf("%w: %v", ErrDamaged, err) //nolint:errorlint // the library's error says nothing else
	}
	return int64(plain), nil //nolint:gosec // smaller than size
}

// Encrypted data is made of parts, each with a header and a tag; all but the last
// are of the same length. This is the format DARE 2.0.
const (
	partLen      = 64 << 10
	partHeader   = 16
	partOverhead = partHeader + 16
	lastPart     = 0x80
)

// Complete reads encrypted data without its key, up to the end, and returns the id
// of the key. It finds out that data was cut off, not that it was altered.
//
// Errors: those of r, ErrDamaged, and an error when r holds no encrypted data.
func Complete(r io.Reader) (ID, error) {
	head := make([]byte, HeaderLen)
	n, err := io.ReadFull(r, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return ID{}, err
	}
	id, encrypted, err := Header(head[:n])
	if err == nil && !encrypted {
		err = errors.New("it is not encrypted")
	}
	if err != nil {
		return id, err
	}
	for last := false; ; {
		var part [partHeader]byte
		_, err := io.ReadFull(r, part[:])
		switch {
		case errors.Is(err, io.EOF) && last:
			return id, nil
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return id, fmt.Errorf("%w: it ends too early", ErrDamaged)
		case err != nil:
			return id, err
		case last:
			return id, fmt.Errorf("%w: something follows its end", ErrDamaged)
		}
		last = part[4]&lastPart != 0
		length := int64(binary.LittleEndian.Uint16(part[2:])) + 1 + partOverhead - partHeader
		if _, err := io.CopyN(io.Discard, r, length); errors.Is(err, io.EOF) {
			return id, fmt.Errorf("%w: it ends too early", ErrDamaged)
		} else if err != nil {
			return id, err
		}
	}
}
