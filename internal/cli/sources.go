package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"meridian/internal/cli/exit"
	"meridian/internal/resource"
)

// downloadTimeout bounds how long the documents of one URL may take to arrive.
const downloadTimeout = 30 * time.Second

// sources are where a command reads documents from.
type sources struct {
	// files are the values of -f: files, directories, URLs, or - for standard input.
	files []string
	// kustomize is the directory of -k.
	kustomize string
	recursive bool
	// large reads files of any size (see resource.DecodeOptions).
	large bool
	cmd   *cobra.Command
}

// bindSources defines -f, -k and -R.
func bindSources(cmd *cobra.Command) *sources {
	s := &sources{cmd: cmd}
	cmd.Flags().StringArrayVarP(&s.files, "filename", "f", nil, "file, directory or https:// URL to read, or - for standard input; repeatable")
	cmd.Flags().StringVarP(&s.kustomize, "kustomize", "k", "", "directory with a kustomization.yaml to build and read")
	cmd.Flags().BoolVarP(&s.recursive, "recursive", "R", true, "read directories of -f with everything below them")
	return s
}

// given reports whether the user named any.
func (s *sources) given() bool { return len(s.files) > 0 || s.kustomize != "" }

// stdin reports whether standard input is read.
func (s *sources) stdin() bool { return slices.Contains(s.files, "-") }

// load reads all documents. The error is resource.DocumentErrors, or a failure
// with its exit code.
func (s *sources) load(stdin io.Reader, options resource.DecodeOptions) ([]resource.Document, error) {
	if !s.given() {
		return nil, exit.Usagef("-f is required: the file or directory to read, or - for standard input")
	}
	options.Flat, options.Large = !s.recursive, s.large
	var (
		paths []string
		read  []resource.Source
	)
	for _, file := range s.files {
		if !strings.Contains(file, "://") {
			paths = append(paths, file)
			continue
		}
		data, err := fetchURL(s.cmd.Context(), file)
		if err != nil {
			return nil, &exit.Failure{Code: exit.Usage, Err: fmt.Errorf("-f %s: %w", file, err)}
		}
		read = append(read, resource.Source{Name: file, Data: data})
	}
	if s.kustomize != "" {
		data, err := build(s.kustomize)
		if err != nil {
			return nil, &exit.Failure{Code: exit.Usage, Err: fmt.Errorf("-k %s: %w", s.kustomize, err)}
		}
		read = append(read, resource.Source{Name: "kustomization " + s.kustomize, Data: data})
	}
	return resource.Load(paths, stdin, options, read...)
}

// fetchURL reads the documents of a URL, at most resource.MaxSourceBytes of them.
// Documents decide what a mesh does, so they are not read over plain HTTP from
// another host, nor after a redirection to it.
func fetchURL(ctx context.Context, address string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, downloadTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, errors.New("not a URL")
	}
	if err := secure(request.URL); err != nil {
		return nil, err
	}
	client := &http.Client{CheckRedirect: func(next *http.Request, before []*http.Request) error {
		if len(before) >= 5 {
			return errors.New("more than 5 redirections")
		}
		return secure(next.URL)
	}}
	response, err := client.Do(request)
	if err != nil {
		var wrapped *url.Error
		if errors.As(err, &wrapped) {
			err = wrapped.Err // the message has the URL already
		}
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("no answer within %s", downloadTimeout)
		}
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the server answered %s", response.Status)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, resource.MaxSourceBytes+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the answer: %w", err)
	case len(data) > resource.MaxSourceBytes:
		return nil, fmt.Errorf("more than %d MiB; split it", resource.MaxSourceBytes>>20)
	}
	return data, nil
}

// secure refuses URLs that others on the network could answer.
func secure(u *url.URL) error {
	switch {
	case u.Scheme == "https":
		return nil
	case u.Scheme != "http":
		return fmt.Errorf("%s:// is not supported: use https://", u.Scheme)
	case u.Hostname() == "localhost" || net.ParseIP(u.Hostname()).IsLoopback():
		return nil
	}
	return errors.New("http:// is read from loopback only, since others could change the documents on the way: use https://")
}

// build returns the documents of a kustomization.
func build(directory string) ([]byte, error) {
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), directory)
	if err != nil {
		return nil, err
	}
	return built.AsYaml()
}
