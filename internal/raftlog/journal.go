package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"meridian/internal/atomicfile"
)

// The journal is a file of fixed size. It has records, each with the entries of one
// append, written one behind the other, and again from the beginning once the entries
// of all of them are in the bbolt file. Its blocks are allocated and written when it is
// made, so that a record takes one sync and no space.
//
// A disk writes sectors, in any order, and each of them completely or not at all. Every
// sector of a page says to which record it belongs and where that begins, and has a
// checksum. So a record of which a crash left a part, and one that was damaged, are told
// apart: the former has sectors that are intact and of other records. And a start knows
// of the newest record by any sector of it.
const (
	journalFile = "journal"
	journalSize = 1 << 20
	// journalPage is what records are aligned to: no page is written again while it holds
	// a record that counts.
	journalPage = 4096
	sectorSize  = 512
	// sectorHead is the number of the record (8 bytes), the page that it begins at (4) and
	// the CRC32C (4), which also covers the position of the sector.
	sectorHead = 16
	sectorData = sectorSize - sectorHead
	// recordHead is the number of the record before it, 0 at the beginning (8 bytes), and
	// the length of its entries (4).
	recordHead = 12
	// entryHead is index (8), term (8), type (1), time of appending (8), length of the
	// extensions (4) and of the data (4).
	entryHead = 33
	// journalRecord is how many bytes of entries a record may have. With more, bbolt's
	// second sync is a small part of what the write takes.
	journalRecord = 256 << 10
)

// journal has records appended to it. Its methods are called one at a time.
type journal struct {
	file *os.File
	disk journalDisk
	// number is that of the newest record, whether it was written or not: none is used
	// twice. previous is that of the last record that counts, and page where the next
	// begins.
	number, previous uint64
	page             int
	// written is how many pages the record has that was written last.
	written int
	// holds says that a start would find entries in it.
	holds bool
	// content and pages are what encode returned last, to be used again.
	content, pages []byte
}

// journalDisk are calls of the system, which tests replace.
type journalDisk struct {
	writeAt func(f *os.File, b []byte, offset int64) error
	sync    func(f *os.File) error
}

var systemJournal = journalDisk{
	writeAt: func(f *os.File, b []byte, offset int64) error { _, err := f.WriteAt(b, offset); return err },
	sync:    syncData,
}

// makeJournal makes the file of a journal, with a sector in each place that is of no
// record: what has none is damaged.
func makeJournal(path string) error {
	data := make([]byte, journalSize)
	for at := 0; at < journalSize; at += sectorSize {
		sealSector(data[at:], at, 0, 0)
	}
	return atomicfile.Write(path, data, 0o600)
}

// removeJournal removes the file of a journal, if there is one.
func removeJournal(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(err, atomicfile.SyncDir(filepath.Dir(path)))
}

// openJournal opens the file of a journal with the content that was read.
func openJournal(path string, read journalContent) (*journal, error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	return &journal{
		file: file, disk: systemJournal,
		number: read.newest, previous: read.last, page: read.end, holds: len(read.entries) > 0,
	}, nil
}

// fits reports whether there is space for a record of so many bytes of entries.
func (j *journal) fits(bytes int) bool {
	return j.page+recordPages(bytes) <= journalSize/journalPage
}

// write writes a record, which sync brings to the disk before the next is written. After
// an error of either the record may be found by the next start, or not; the next one takes
// its place.
func (j *journal) write(logs []*raft.Log) error {
	j.number++
	j.holds = j.holds || len(logs) > 0
	record := j.encode(logs)
	j.written = len(record) / journalPage
	return j.disk.writeAt(j.file, record, int64(j.page)*journalPage)
}

// sync returns once the record that was written is on disk.
func (j *journal) sync() error {
	if err := j.disk.sync(j.file); err != nil {
		return err
	}
	j.previous = j.number
	j.page += j.written
	return nil
}

// restart has the next record be the first: all entries are in the bbolt file. A start
// may find them in both until then.
func (j *journal) restart() { j.previous, j.page = 0, 0 }

// reset makes a journal that was restarted one without entries, and returns once that is on
// disk.
func (j *journal) reset() error {
	if !j.holds {
		return nil
	}
	if err := j.write(nil); err != nil {
		return err
	}
	if err := j.sync(); err != nil {
		return err
	}
	j.holds = false
	return nil
}

func (j *journal) close() error { return j.file.Close() }

// journaledBytes is how many bytes the entries take in a record.
func journaledBytes(logs []*raft.Log) (bytes int) {
	for _, log := range logs {
		bytes += entryHead + entryBytes(log)
	}
	return bytes
}

// recordPages is how many pages a record takes with so many bytes of entries.
func recordPages(bytes int) int {
	const each = journalPage / sectorSize * sectorData
	return (recordHead + bytes + each - 1) / each
}

// encode returns the pages of the record with the current number. They are valid until
// the next call.
func (j *journal) encode(logs []*raft.Log) []byte {
	bytes := journaledBytes(logs)
	content := binary.BigEndian.AppendUint64(j.content[:0], j.previous)
	content = binary.BigEndian.AppendUint32(content, uint32(bytes)) //nolint:gosec // at most journalRecord
	for _, log := range logs {
		content = binary.BigEndian.AppendUint64(content, log.Index)
		content = binary.BigEndian.AppendUint64(content, log.Term)
		content = append(content, byte(log.Type))
		var appended int64
		if !log.AppendedAt.IsZero() {
			appended = log.AppendedAt.UnixNano()
		}
		content = binary.BigEndian.AppendUint64(content, uint64(appended))            //nolint:gosec // its bits
		content = binary.BigEndian.AppendUint32(content, uint32(len(log.Extensions))) //nolint:gosec // at most journalRecord
		content = binary.BigEndian.AppendUint32(content, uint32(len(log.Data)))       //nolint:gosec // at most journalRecord
		content = append(append(content, log.Extensions...), log.Data...)
	}
	j.content = content
	j.pages = slices.Grow(j.pages[:0], recordPages(bytes)*journalPage)
	pages := j.pages[:recordPages(bytes)*journalPage]
	clear(pages)
	for at := 0; at < len(pages); at += sectorSize {
		content = content[copy(pages[at+sectorHead:at+sectorSize], content):]
		sealSector(pages[at:], j.page*journalPage+at, j.number, j.page)
	}
	return pages
}

// sealSector completes the first sector of data, at an offset of the file, as one of a
// record that begins at a page.
func sealSector(data []byte, offset int, number uint64, page int) {
	binary.BigEndian.PutUint64(data, number)
	binary.BigEndian.PutUint32(data[8:], uint32(page)) //nolint:gosec // a page of the file
	binary.BigEndian.PutUint32(data[12:], sectorChecksum(data[:sectorSize], offset))
}

// sectorChecksum is the CRC32C of a sector but for the field that holds it.
func sectorChecksum(sector []byte, offset int) uint32 {
	var position [8]byte
	binary.BigEndian.PutUint64(position[:], uint64(offset)) //nolint:gosec // within the file
	sum := crc32.Update(crc32.Checksum(position[:], castagnoli), castagnoli, sector[:12])
	return crc32.Update(sum, castagnoli, sector[sectorHead:])
}

// journalContent is what a start finds in a journal.
type journalContent struct {
	// entries are those of its records, without gaps.
	entries []*raft.Log
	// newest is the highest number of a record, complete or not, last that of the last
	// record that counts, and end the page behind it.
	newest, last uint64
	end          int
}

// readJournal reads a journal, from the disk.
//
// The newest record is the only one that may be there in part: its append was not
// acknowledged. Anything else that is missing or was changed is damage, for which the
// error wraps ErrCorrupt.
func readJournal(path string) (found journalContent, err error) {
	err = atomicfile.DropCache(path)
	if errors.Is(err, fs.ErrNotExist) {
		return found, corruptLog(path, errors.New("it is missing, and the last entries of the log may be nowhere else"))
	}
	if err != nil {
		return found, dataDirError(filepath.Dir(path), err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return found, dataDirError(filepath.Dir(path), err)
	}
	if found, err = decodeJournal(data); err != nil {
		return found, corruptLog(path, err)
	}
	return found, nil
}

func decodeJournal(data []byte) (found journalContent, err error) {
	if len(data) != journalSize {
		return found, fmt.Errorf("it has %d bytes, not %d", len(data), journalSize)
	}
	begin := 0 // the page of the newest record
	for at := 0; at < journalSize; at += sectorSize {
		sector := journalSector(data, at)
		if err := sector.check(); err != nil {
			return found, err
		}
		if sector.number() > found.newest {
			found.newest, begin = sector.number(), sector.page()
		}
	}
	for found.last != found.newest {
		content, number, complete := readRecord(data, found.end)
		if !complete || found.last != binary.BigEndian.Uint64(content) {
			break
		}
		bytes := content[recordHead:]
		pages := recordPages(len(bytes))
		if found.entries, err = decodeEntries(found.entries, bytes); err != nil {
			return found, fmt.Errorf("record %d: %w", number, err)
		}
		found.last, found.end = number, found.end+pages
	}
	switch {
	case found.last == found.newest:
	case begin == 0: // those before it are in the bbolt file
		found.entries, found.last, found.end = nil, 0, 0
	case begin != found.end:
		return found, fmt.Errorf("a record before record %d is missing or incomplete", found.newest)
	default:
		if _, number, complete := readRecord(data, begin); complete && number == found.newest {
			return found, fmt.Errorf("record %d does not continue the one before it", found.newest)
		}
	}
	return found, nil
}

// sector is a sector of a journal.
type sector struct {
	bytes  []byte
	offset int
}

func journalSector(data []byte, offset int) sector {
	return sector{data[offset : offset+sectorSize], offset}
}

// number is that of its record, 0 when it has been of none.
func (s sector) number() uint64 { return binary.BigEndian.Uint64(s.bytes) }

// page is the page that its record begins at.
func (s sector) page() int { return int(binary.BigEndian.Uint32(s.bytes[8:])) }

func (s sector) check() error {
	if binary.BigEndian.Uint32(s.bytes[12:]) != sectorChecksum(s.bytes, s.offset) {
		return fmt.Errorf("checksum mismatch in the sector at byte %d", s.offset)
	}
	return nil
}

// readRecord returns the head and the entries of the record that begins at a page, and
// whether it is complete.
func readRecord(data []byte, page int) (content []byte, number uint64, complete bool) {
	at := page * journalPage
	if at >= len(data) {
		return nil, 0, false
	}
	first := journalSector(data, at)
	number = first.number()
	if number == 0 || first.page() != page {
		return nil, 0, false
	}
	length := int(binary.BigEndian.Uint32(first.bytes[sectorHead+8:]))
	end := at + recordPages(length)*journalPage
	if end > len(data) {
		return nil, number, false
	}
	for ; at < end; at += sectorSize {
		sector := journalSector(data, at)
		if sector.number() != number || sector.page() != page {
			return nil, number, false
		}
		content = append(content, sector.bytes[sectorHead:]...)
	}
	return content[:recordHead+length], number, true
}

// decodeEntries appends the entries of a record.
func decodeEntries(logs []*raft.Log, bytes []byte) ([]*raft.Log, error) {
	for len(bytes) > 0 {
		if len(bytes) < entryHead {
			return nil, errors.New("an entry is cut short")
		}
		log := &raft.Log{
			Index: binary.BigEndian.Uint64(bytes),
			Term:  binary.BigEndian.Uint64(bytes[8:]),
			Type:  raft.LogType(bytes[16]),
		}
		if appended := int64(binary.BigEndian.Uint64(bytes[17:])); appended != 0 { //nolint:gosec // its bits
			log.AppendedAt = time.Unix(0, appended)
		}
		extensions, data := int(binary.BigEndian.Uint32(bytes[25:])), int(binary.BigEndian.Uint32(bytes[29:]))
		bytes = bytes[entryHead:]
		if extensions > len(bytes) || data > len(bytes)-extensions {
			return nil, fmt.Errorf("entry %d is cut short", log.Index)
		}
		if n := len(logs); n > 0 && log.Index != logs[n-1].Index+1 {
			return nil, fmt.Errorf("entry %d follows entry %d", log.Index, logs[n-1].Index)
		}
		if extensions > 0 {
			log.Extensions = bytes[:extensions:extensions]
		}
		if data > 0 {
			log.Data = bytes[extensions : extensions+data : extensions+data]
		}
		logs, bytes = append(logs, log), bytes[extensions+data:]
	}
	return logs, nil
}
