package resource

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"meridian/internal/doctree"
)

// MaxSourceBytes bounds one file or standard input: 32 MiB, some fifty thousand
// policies. What is larger is refused before it is read.
const MaxSourceBytes = 32 << 20

// Load reads every document of the given files, of the directories with
// everything below them, and of stdin where a path is "-". In directories, the
// files ending in .yaml, .yml and .json count and hidden ones do not; they are
// read in bytewise order of their paths.
//
// The documents of more, which has been read already, come last.
//
// As Decode, it accepts everything or nothing; two documents with one identity
// are found across sources. The error is DocumentErrors, with the sources that
// could not be read among the rest.
func Load(paths []string, stdin io.Reader, opts DecodeOptions, more ...Source) ([]Document, error) {
	var documents []Document
	var failed DocumentErrors
	tests := 0
	if take := opts.Tests; take != nil {
		opts.Tests = func(source string, document *doctree.Node) {
			tests++
			take(source, document)
		}
	}
	for _, path := range paths {
		sources, err := expand(path, opts.Flat)
		if err != nil {
			failed = append(failed, sourceError(path, 0, err.Error())...)
			continue
		}
		found, broken := -tests, len(failed)
		for _, source := range sources {
			decoded, problems := loadSource(source, stdin, opts)
			documents = append(documents, decoded...)
			failed = append(failed, problems...)
			found += len(decoded)
		}
		if found+tests == 0 && len(failed) == broken {
			failed = append(failed, sourceError(sourceName(path), 0, "holds no resources")...)
		}
	}
	for _, source := range more {
		decoded, problems := decodeAll(source.Name, source.Data, opts, &place{})
		documents = append(documents, decoded...)
		failed = append(failed, problems...)
		if len(decoded)+len(problems) == 0 {
			failed = append(failed, sourceError(source.Name, 0, "holds no resources")...)
		}
	}
	failed = append(failed, duplicates(documents)...)
	if len(failed) > 0 {
		return nil, failed
	}
	return documents, nil
}

// Source is documents that have been read, and what messages call their origin.
type Source struct {
	Name string
	Data []byte
}

// sourceName is what messages call a path.
func sourceName(path string) string {
	if path == "-" {
		return "stdin"
	}
	return path
}

// expand turns a path into the files it stands for.
func expand(path string, flat bool) ([]string, error) {
	if path == "-" {
		return []string{path}, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, plainError(err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	var files []string
	err = filepath.WalkDir(path, func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case file != path && strings.HasPrefix(entry.Name(), "."):
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case entry.IsDir() && flat && file != path:
			return fs.SkipDir
		case entry.IsDir():
			return nil
		}
		switch strings.ToLower(filepath.Ext(file)) {
		case ".yaml", ".yml", ".json":
			// Mounted configuration is symbolic links; follow those to files.
			if target, err := os.Stat(file); err != nil || target.Mode().IsRegular() {
				files = append(files, file)
			}
		}
		return nil
	})
	if err != nil {
		return nil, plainError(err)
	}
	if len(files) == 0 {
		return nil, errors.New("the directory holds no .yaml, .yml or .json file")
	}
	slices.Sort(files)
	return files, nil
}

// loadSource reads and decodes one file or stdin.
func loadSource(path string, stdin io.Reader, opts DecodeOptions) ([]Document, DocumentErrors) {
	name, reader := sourceName(path), stdin
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, sourceError(name, 0, plainError(err).Error())
		}
		defer file.Close()
		if info, err := file.Stat(); err == nil && info.Size() > MaxSourceBytes && !opts.Large {
			return nil, sourceError(name, 0, tooLarge(fmt.Sprintf("%d MiB", (info.Size()+(1<<20)-1)>>20), opts).Error())
		}
		reader = file
	}
	if reader == nil {
		return nil, sourceError(name, 0, "there is no standard input here")
	}
	if opts.Large && !strings.HasSuffix(strings.ToLower(name), ".json") {
		return loadParts(name, reader, opts)
	}
	data, err := io.ReadAll(io.LimitReader(reader, MaxSourceBytes+1))
	if err != nil {
		return nil, sourceError(name, 0, plainError(err).Error())
	}
	if len(data) > MaxSourceBytes {
		return nil, sourceError(name, 0, tooLarge("more than that", opts).Error())
	}
	return decodeAll(name, data, opts, &place{})
}

// tooLarge says what can be done about a file of that size. Of a large input, only JSON
// is bounded as a file.
func tooLarge(size string, opts DecodeOptions) error {
	what, otherwise := "a file of documents", ", where lines of `---` separate its documents, apply it with --in-batches"
	if opts.Large {
		what, otherwise = "a file of JSON", " write its documents as YAML, with lines of `---` between them"
	}
	return fmt.Errorf("%s can have %d MiB, this one has %s; split it, or%s", what, MaxSourceBytes>>20, size, otherwise)
}

// plainError takes the operation and the path, which the message has already,
// off a file system error.
func plainError(err error) error {
	if pathError := (*fs.PathError)(nil); errors.As(err, &pathError) {
		return pathError.Err
	}
	return err
}
