package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/authn/token"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
)

func newTokensCommand(a *app) *cobra.Command {
	return newGroup("tokens", "List and revoke tokens, rotate signing keys",
		newTokensListCommand(a), newTokensRotateCommand(a), newTokensRevokeCommand(a), newTokensReissueAdminCommand(a),
		newGroup("keys", "List the keys that sign tokens", newTokensKeysListCommand(a)))
}

// parseTokenKind reads a kind of token in any spelling: user, user-token or
// user-tokens.
func parseTokenKind(text string) (string, error) {
	kind := strings.TrimSuffix(strings.TrimSuffix(strings.ToLower(text), "s"), "-token") + "-token"
	switch token.Use(kind) {
	case token.ForUser, token.ForDataplane, token.ForZone, token.ForServer:
		return kind, nil
	}
	return "", exit.Usagef("%q is no kind of token; the kinds are user, dataplane, zone and server", text)
}

func newTokensListCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list [KIND]",
		Short:   "List the tokens that this control plane has issued",
		Example: "  meridian tokens list dataplane",
		Long: `List the tokens that this control plane has issued: their ids, for whom, until
when. The tokens themselves are kept nowhere. Records of expired tokens are
removed after a day. STATE is active, expired, used (of server tokens), revoked, or
"key deleted" when the key that signed the token is not there any more, which ends
the token as well.`,
		Args: between(0, "KIND"),
	}
	output := print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatWide, print.FormatJSON, print.FormatYAML, print.FormatName)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		kind := ""
		if len(args) > 0 {
			var err error
			if kind, err = parseTokenKind(args[0]); err != nil {
				return err
			}
		}
		c, err := a.connect()
		if err != nil {
			return err
		}
		defer c.Close()
		tokens, err := tokens(cmd.Context(), c, kind)
		if err != nil {
			return err
		}
		return a.printTokens(output.Value, tokens)
	}
	return cmd
}

func tokens(ctx context.Context, c *client.Client, kind string) ([]*meridianv1.IssuedToken, error) {
	var all []*meridianv1.IssuedToken
	err := c.Call(ctx, func(ctx context.Context) error {
		all = nil
		stream, err := c.ListTokens(ctx, &meridianv1.ListTokensRequest{Kind: kind})
		if err != nil {
			return err
		}
		for {
			part, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			all = append(all, part.GetTokens()...)
		}
	})
	return all, err
}

// tokenView is the record of a token as JSON.
type tokenView struct {
	ID        string              `json:"id"`
	Kind      string              `json:"kind"`
	Subject   string              `json:"subject"`
	State     string              `json:"state"`
	Issued    time.Time           `json:"issued"`
	Expires   time.Time           `json:"expires"`
	KeySerial uint64              `json:"keySerial"`
	Issuer    string              `json:"issuer,omitempty"`
	Groups    []string            `json:"groups,omitempty"`
	Tags      map[string][]string `json:"tags,omitempty"`
	Scope     []string            `json:"scope,omitempty"`
	UsedBy    string              `json:"usedBy,omitempty"`
}

func viewToken(t *meridianv1.IssuedToken) tokenView {
	view := tokenView{
		ID: t.GetId(), Kind: t.GetKind(), Subject: t.GetSubject(), State: t.GetState(),
		Issued: t.GetIssued().AsTime(), Expires: t.GetExpires().AsTime(), KeySerial: t.GetKeySerial(),
		Issuer: t.GetIssuer(), Groups: t.GetGroups(), Scope: t.GetScope(), UsedBy: t.GetUsedBy(),
	}
	for _, tag := range t.GetTags() {
		if view.Tags == nil {
			view.Tags = map[string][]string{}
		}
		view.Tags[tag.GetName()] = tag.GetValues()
	}
	return view
}

func (a *app) printTokens(f print.Format, tokens []*meridianv1.IssuedToken) error {
	switch {
	case f.Structured():
		views := make([]tokenView, len(tokens))
		for i, t := range tokens {
			views[i] = viewToken(t)
		}
		return a.WriteValue(f, struct {
			Items []tokenView `json:"items"`
		}{views})
	case f == print.FormatName:
		for _, t := range tokens {
			if err := a.Println(t.GetId()); err != nil {
				return err
			}
		}
		return nil
	}
	if len(tokens) == 0 {
		a.Message("No token of that kind is recorded here.")
		return nil
	}
	t := &print.Table{Header: []string{"ID", "KIND", "SUBJECT", "STATE", "EXPIRES", "KEY"}}
	if f == print.FormatWide {
		t.Header = append(t.Header, "ISSUED", "ISSUER", "FOR")
	}
	for _, token := range tokens {
		row := []string{
			token.GetId(), token.GetKind(), token.GetSubject(), token.GetState(),
			token.GetExpires().AsTime().UTC().Format(time.RFC3339), strconv.FormatUint(token.GetKeySerial(), 10),
		}
		if f == print.FormatWide {
			row = append(row, token.GetIssued().AsTime().UTC().Format(time.RFC3339), token.GetIssuer(), tokenDetails(token))
		}
		t.Add(row...)
	}
	return a.Table(t)
}

// tokenDetails are the groups, tags or scopes of a token, or the server that
// used it up, in a cell.
func tokenDetails(t *meridianv1.IssuedToken) string {
	details := append(append([]string{}, t.GetGroups()...), t.GetScope()...)
	for _, tag := range t.GetTags() {
		details = append(details, tag.GetName()+"="+strings.Join(tag.GetValues(), "|"))
	}
	if t.GetUsedBy() != "" {
		details = append(details, "used by "+t.GetUsedBy())
	}
	return strings.Join(details, ",")
}

func newTokensKeysListCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list [KIND]",
		Short:   "List the keys that sign and verify tokens",
		Example: "  meridian tokens keys list dataplane",
		Long: `List the keys that sign and verify tokens on this control plane, without the keys
themselves, which no command shows. STATE is active (it signs the tokens issued from
now on), retired (it verifies those that it has signed), or unusable (the stored
secret holds no key). TOKENS counts the recorded tokens of a key that are valid now:
deleting the GlobalSecret and the SigningKey of a key ends them.`,
		Args: between(0, "KIND"),
	}
	output := print.BindFormat(cmd.Flags(), print.FormatTable, print.FormatJSON, print.FormatYAML, print.FormatName)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		kind := ""
		if len(args) > 0 {
			var err error
			if kind, err = parseTokenKind(args[0]); err != nil {
				return err
			}
		}
		c, err := a.connect()
		if err != nil {
			return err
		}
		defer c.Close()
		response, err := client.Ask(cmd.Context(), c, (*client.Client).ListKeys, &meridianv1.ListKeysRequest{Kind: kind})
		if err != nil {
			return err
		}
		return a.printKeys(output.Value, response.GetKeys())
	}
	return cmd
}

// keyView is a signing key as JSON.
type keyView struct {
	ID      string    `json:"id"`
	Kind    string    `json:"kind"`
	Serial  uint64    `json:"serial"`
	Issuer  string    `json:"issuer,omitempty"`
	State   string    `json:"state"`
	Created time.Time `json:"created"`
	Tokens  uint64    `json:"tokens"`
}

func (a *app) printKeys(f print.Format, keys []*meridianv1.ListedKey) error {
	views := make([]keyView, len(keys))
	for i, k := range keys {
		views[i] = keyView{k.GetId(), k.GetKind(), k.GetSerial(), k.GetIssuer(), k.GetState(), k.GetCreated().AsTime(), k.GetTokens()}
	}
	switch {
	case f.Structured():
		return a.WriteValue(f, struct {
			Items []keyView `json:"items"`
		}{views})
	case f == print.FormatName:
		for _, k := range views {
			if err := a.Println(k.ID); err != nil {
				return err
			}
		}
		return nil
	}
	if len(views) == 0 {
		a.Message("There is no key for that kind of token here.")
		return nil
	}
	t := &print.Table{Header: []string{"KEY", "KIND", "SERIAL", "STATE", "TOKENS", "CREATED"}}
	for _, k := range views {
		t.Add(k.ID, k.Kind, strconv.FormatUint(k.Serial, 10), k.State, strconv.FormatUint(k.Tokens, 10), k.Created.UTC().Format(time.RFC3339))
	}
	return a.Table(t)
}

func newTokensRotateCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "rotate KIND",
		Short: "Rotate the key that signs a kind of token",
		Long: `Make a new key that signs the tokens of a kind from now on. The keys before it
continue to verify the tokens that they have signed; deleting the GlobalSecret and
the SigningKey of such a key ends all of its tokens at once.

It takes what creating a GlobalSecret and, on a global, a SigningKey takes.`,
		Example: "  meridian tokens rotate dataplane",
		Args:    exactly("KIND"),
		RunE: func(cmd *cobra.Command, args []string) error {
			kind, err := parseTokenKind(args[0])
			if err != nil {
				return err
			}
			response, err := call(cmd.Context(), a, (*client.Client).RotateKey, &meridianv1.RotateKeyRequest{Kind: kind, RequestId: rand.Text()})
			if err != nil {
				return err
			}
			return a.Println(response.GetKey() + " created\nrevision " + strconv.FormatUint(response.GetRevision(), 10))
		},
	}
}

func newTokensRevokeCommand(a *app) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:   "revoke ID",
		Short: "Revoke a token before it expires",
		Long: `Revoke a token before it expires, by its id (jti), on the control plane that issued
it. Requests with it are refused from then on, in every zone that receives the
revocation, and streams that it authenticated end within a second.

It takes what creating a TokenRevocation takes; in a zone of a global, what
updating an IssuedToken takes.`,
		Example: "  meridian tokens revoke 5kt4gq6gkzdx3qk2ffakr3o5xe --reason lost",
		Args:    exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			response, err := call(cmd.Context(), a, (*client.Client).RevokeToken, &meridianv1.RevokeTokenRequest{Id: args[0], Reason: reason, RequestId: rand.Text()})
			if err != nil {
				return err
			}
			outcome := "revoked"
			if response.GetAlreadyRevoked() {
				outcome = "unchanged"
			}
			t := response.GetToken()
			a.Message("The %s of %s.", t.GetKind(), t.GetSubject())
			if left := response.GetAccepted(); left > 0 {
				a.Message("Warning: %d revoked tokens of this mesh, those that were revoked first, have certificates that servers accept until they expire: servers deny the last %d. To end them now, replace the certificate authority of the mesh in each zone (docs/proxies/README.md).", left, response.GetDeniedAtMost())
			}
			return a.Println(t.GetId() + " " + outcome + "\nrevision " + strconv.FormatUint(response.GetRevision(), 10))
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "reason, recorded with the revocation")
	return cmd
}

func newTokensReissueAdminCommand(a *app) *cobra.Command {
	var out *outFile
	cmd := &cobra.Command{
		Use:   "reissue-admin [--out FILE]",
		Short: "Replace the bootstrap admin token",
		Long: `Replace the bootstrap admin token, the GlobalSecret admin-user-token, by a new one,
and revoke the one before: requests with it are refused at once, and its streams
end within a second. The new token is printed; every server also writes it into
the admin.yaml of its data directory.

It takes membership of the group mesh-system:admin. Where no token of an
administrator is left, restart one server with --reissue-admin-token.`,
		Example: "  meridian tokens reissue-admin --out admin.token",
		Args:    exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.writing(cmd.Context(), out, func(ctx context.Context) error {
				response, err := call(ctx, a, (*client.Client).ReissueAdminToken, &meridianv1.ReissueAdminTokenRequest{RequestId: rand.Text()})
				if err != nil {
					return err
				}
				a.Message("The admin token %s is valid from revision %d on, and the one before is revoked.", response.GetId(), response.GetRevision())
				return a.Println(response.GetToken())
			})
		},
	}
	out = bindOut(cmd)
	return cmd
}
