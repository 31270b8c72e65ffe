package cli

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/resource"
)

// editPrefix begins the lines that edit adds to a file and takes out again.
const editPrefix = "# meridian: "

func newEditCommand(a *app) *cobra.Command {
	var mesh *meshFlag
	var o applyOptions
	cmd := &cobra.Command{
		Use:   "edit KIND NAME | KIND/NAME",
		Short: "Edit a stored resource in an editor and apply it",
		Long: `Open a stored resource as YAML in the editor of $VISUAL or $EDITOR (otherwise vi)
and apply what is saved. A document that is invalid is opened again with its
problems. If the resource was changed meanwhile, or deleted and created anew,
nothing is written and the exit code is 3. Whatever cannot be applied stays in the
file, whose name is printed.

What takes access away is shown first, and on a terminal asked about; --yes answers.`,
		Example: "  meridian edit traffic-permission allow-web\n  EDITOR='code --wait' meridian edit Timeout/web -m demo",
		Args: func(cmd *cobra.Command, args []string) error {
			return exactly("KIND", "NAME")(cmd, splitSlash(args))
		},
		ValidArgsFunction: completeKinds(nil),
	}
	mesh = bindMesh(cmd)
	bindForce(cmd, &o.force)
	bindSkipTests(cmd, &o.skipTests)
	bindYes(cmd, &o.yes)
	o.output = &print.FormatFlag{Value: print.FormatTable}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		args = splitSlash(args)
		kind, err := lookupKind(args[0])
		if err != nil {
			return err
		}
		if err := mesh.check(); err != nil {
			return err
		}
		return a.edit(cmd.Context(), kind, mesh.name, args[1], &o)
	}
	return cmd
}

func (a *app) edit(ctx context.Context, kind *resource.Descriptor, mesh, name string, o *applyOptions) (err error) {
	stored, err := a.fetch(ctx, kind, mesh, name, meridianv1.Consistency_CONSISTENCY_LINEARIZABLE)
	if err != nil {
		return err
	}
	e, err := newEditing(stored)
	if err != nil {
		return err
	}
	defer func() {
		if err == nil || e.unchanged {
			_ = os.Remove(e.path)
			return
		}
		a.Message("What was edited is kept in %s.", e.path)
	}()
	document, err := a.editUntilValid(ctx, e)
	if err != nil || document == nil {
		return err
	}
	request := &meridianv1.ApplyRequest{
		Resources: []*meridianv1.Resource{client.Encode(document.Resource)}, RequestId: rand.Text(), Force: o.force, SkipTests: o.skipTests,
		IfVersions: asStored(stored),
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	caused, err := a.askBeforeLoss(ctx, c, &proposal{written: []*resource.Resource{document.Resource}, force: o.force, conditions: request.GetIfVersions()}, o.yes, false)
	if err != nil {
		return err
	}
	return a.sendApply(ctx, c, request, o, caused)
}

// editUntilValid opens the editor until the file has a valid document. It is nil
// when the user changed nothing.
func (a *app) editUntilValid(ctx context.Context, e *editing) (*resource.Document, error) {
	for before := e.initial; ; {
		if err := a.openEditor(ctx, e.path); err != nil {
			content, readErr := e.read()
			e.unchanged = readErr == nil && bytes.Equal(content, e.initial)
			return nil, err
		}
		content, err := e.read()
		if err != nil {
			return nil, err
		}
		if bytes.Equal(content, e.initial) {
			a.Message("Nothing was changed.")
			e.unchanged = true
			return nil, nil
		}
		document, err := e.decode(content)
		if err == nil || bytes.Equal(content, before) {
			return document, err
		}
		before = content
		if err := e.reopen(content, err); err != nil {
			return nil, err
		}
	}
}

// openEditor runs the user's editor on a file, until the user ends it. Its value may have arguments, so a
// shell reads it, as git and kubectl do.
func (a *app) openEditor(ctx context.Context, path string) error {
	env := a.connection.Env
	editor := cmp.Or(env["VISUAL"], env["EDITOR"], "vi")
	command := exec.CommandContext(context.WithoutCancel(ctx), "sh", "-c", editor+` "$1"`, "sh", path) //nolint:gosec // the user's own editor
	command.Stdin, command.Stdout, command.Stderr = a.stdin, a.Stdout, a.Stderr
	for name, value := range env {
		command.Env = append(command.Env, name+"="+value)
	}
	if err := a.foreground.run(command); err != nil {
		return fmt.Errorf("the editor %q: %w; $VISUAL and $EDITOR choose another one", editor, err)
	}
	return nil
}

// editing is a file in which a resource is edited.
type editing struct {
	key     resource.Key
	path    string
	initial []byte
	// unchanged: the file has nothing that is worth keeping.
	unchanged bool
}

func newEditing(stored *resource.Resource) (*editing, error) {
	m := stored.Meta()
	var text bytes.Buffer
	shown := resource.New(resource.Meta{Key: m.Key, Labels: m.Labels}, nil, stored.Canonical())
	if err := resource.Encode(&text, resource.FormatYAML, shown); err != nil {
		return nil, err
	}
	file, err := os.CreateTemp("", "meridian-edit-*.yaml") // mode 0600
	if err != nil {
		return nil, fmt.Errorf("create the file to edit: %w", err)
	}
	e := &editing{key: m.Key, path: file.Name(), initial: text.Bytes()}
	_, err = file.Write(e.initial)
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("write the file to edit: %w", err)
	}
	return e, nil
}

// read returns what the user saved, without the lines of reopen.
func (e *editing) read() ([]byte, error) {
	content, err := os.ReadFile(e.path)
	if err != nil {
		return nil, fmt.Errorf("read the edited file: %w", err)
	}
	for bytes.HasPrefix(content, []byte(editPrefix)) {
		_, content, _ = bytes.Cut(content, []byte("\n"))
	}
	return content, nil
}

// decode reads the edited document, which must still be of the resource.
func (e *editing) decode(content []byte) (*resource.Document, error) {
	documents, err := resource.Decode(e.path, content, resource.DecodeOptions{Mesh: e.key.Mesh})
	switch {
	case err != nil:
		return nil, inputFailure(err)
	case len(documents) != 1:
		return nil, exit.Usagef("%s: the file has %s; edit is about one resource", e.path, print.Plural(len(documents), "document"))
	case documents[0].Resource.Key() != e.key:
		return nil, exit.Usagef("%s: the document is %s; edit cannot rename %s: use apply, then delete", e.path, documents[0].Resource.Key(), e.key)
	}
	return &documents[0], nil
}

// reopen writes the file again with the problems in front of the content.
func (e *editing) reopen(content []byte, problem error) error {
	var b bytes.Buffer
	for _, line := range exit.Explain(problem).Lines {
		b.WriteString(editPrefix + strings.TrimSpace(line) + "\n")
	}
	b.WriteString(editPrefix + "save without a change to leave\n")
	b.Write(content)
	if err := os.WriteFile(e.path, b.Bytes(), 0o600); err != nil {
		return fmt.Errorf("write the file to edit: %w", err)
	}
	return nil
}
