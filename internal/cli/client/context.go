package client

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc/credentials/insecure"

	"meridian/internal/authn/token"
	"meridian/internal/cli/exit"
	"meridian/internal/clientconfig"
	"meridian/internal/pki"
)

const (
	// ConfigVariable names the environment variable for --config.
	ConfigVariable = "MERIDIAN_CONFIG"
	// TokenVariable names the environment variable that holds a token.
	TokenVariable = "MERIDIAN_TOKEN"
	// TokenFileVariable names the environment variable for a file with a token.
	TokenFileVariable = "MERIDIAN_TOKEN_FILE"
	// defaultPort is that of a global's API.
	defaultPort = "5685"
	// defaultZonePort is that of a zone.
	defaultZonePort = "5678"
	defaultTimeout  = 30 * time.Second
)

// Flags choose the control plane and how to reach it.
type Flags struct {
	// Env are the environment's variables.
	Env map[string]string
	// Timeout is how long a request may take.
	Timeout time.Duration

	config     string
	context    string
	address    string
	token      string
	tokenFile  string
	caFile     string
	skipVerify bool
	flags      *pflag.FlagSet
}

// Bind defines the flags.
func (c *Flags) Bind(flags *pflag.FlagSet) {
	c.flags = flags
	flags.StringVar(&c.config, "config", "", "client configuration file (default $"+ConfigVariable+", else ~/.config/meridian/config.yaml)")
	flags.StringVar(&c.context, "context", "", "control plane to use, by its name in the configuration")
	flags.StringVar(&c.address, "address", "", "HOST:PORT of the control plane's servers, separated by commas; without --config or --context the configuration is not read")
	flags.StringVar(&c.token, "token", "", "token to authenticate with; other users of this host can read it in the list of processes: better --token-file or $"+TokenVariable)
	flags.StringVar(&c.tokenFile, "token-file", "", "file with the token to authenticate with (default $"+TokenFileVariable+")")
	flags.StringVar(&c.caFile, "ca-cert-file", "", "PEM file of the CA to trust")
	flags.BoolVar(&c.skipVerify, "skip-verify", false, "skip TLS certificate verification (insecure)")
	flags.DurationVar(&c.Timeout, "timeout", defaultTimeout, "how long a request may take")
}

// ConfigPath returns the configuration file and whether the user named it.
func (c *Flags) ConfigPath() (path string, explicit bool, err error) {
	switch {
	case c.config != "":
		return c.config, true, nil
	case c.Env[ConfigVariable] != "":
		return c.Env[ConfigVariable], true, nil
	case c.Env["HOME"] == "":
		return "", false, exit.Usagef("there is no home directory to look for a configuration in; use --config FILE or %s", ConfigVariable)
	}
	return filepath.Join(c.Env["HOME"], ".config", "meridian", "config.yaml"), false, nil
}

// maxTokenFile bounds a file with a token, in bytes.
const maxTokenFile = 64 << 10

// TokenFile returns the file that --token-file or the environment names; empty for none.
func (c *Flags) TokenFile() string {
	if c.flags.Changed("token-file") {
		return c.tokenFile
	}
	return c.Env[TokenFileVariable]
}

// FlagToken returns the token that --token or --token-file gives, and which of
// them does; both are empty when none does. An empty token is an error: without
// one the request would be made with another identity.
func (c *Flags) FlagToken() (text, source string, err error) {
	switch byText, byFile := c.flags.Changed("token"), c.flags.Changed("token-file"); {
	case byText && byFile:
		return "", "", exit.Usagef("--token and --token-file name two tokens: give one of them")
	case byText:
		return checkGiven(c.token, "--token")
	case byFile:
		return readToken(c.tokenFile, "--token-file")
	}
	return "", "", nil
}

// givenToken is FlagToken, and else the token of the environment.
func (c *Flags) givenToken() (text, source string, err error) {
	if text, source, err = c.FlagToken(); err != nil || source != "" {
		return text, source, err
	}
	text, path := c.Env[TokenVariable], c.Env[TokenFileVariable]
	switch {
	case text != "" && path != "":
		return "", "", exit.Usagef("%s and %s name two tokens: set one of them", TokenVariable, TokenFileVariable)
	case text != "":
		return checkGiven(text, TokenVariable)
	case path != "":
		return readToken(path, TokenFileVariable)
	}
	return "", "", nil
}

func checkGiven(text, source string) (string, string, error) {
	if text = strings.TrimSpace(text); text == "" {
		return "", "", exit.Usagef("%s is empty", source)
	}
	return text, source, nil
}

// readToken reads a file with a token.
func readToken(path, source string) (string, string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", "", exit.Usagef("%s: %w", source, err)
	}
	defer func() { _ = f.Close() }() // read only
	data, err := io.ReadAll(io.LimitReader(f, maxTokenFile+1))
	switch {
	case err != nil:
		return "", "", exit.Usagef("%s: %w", source, err)
	case len(data) > maxTokenFile:
		return "", "", exit.Usagef("%s: %s is longer than any token", source, path)
	}
	return checkGiven(string(data), source)
}

// target decides which control plane to talk to. Flags win over the entry of
// the configuration. With --address alone the configuration is not used: the token of an entry
// is never sent to an address that the user did not connect with it.
func (c *Flags) target() (Target, error) {
	if c.Timeout <= 0 {
		return Target{}, exit.Usagef("--timeout %s: must be positive", c.Timeout)
	}
	given, givenSource, err := c.givenToken()
	if err != nil {
		return Target{}, err
	}
	var entry clientconfig.ControlPlane
	source := "--address"
	if c.address == "" || c.config != "" || c.context != "" {
		if entry, source, err = c.chosenEntry(); err != nil {
			return Target{}, err
		}
	}
	tokenSource := source
	if c.address != "" {
		addresses, err := ParseAddresses(c.address)
		if err != nil {
			return Target{}, err
		}
		entry.Addresses, source = addresses, "--address"
	}
	if given != "" {
		entry.Token, tokenSource = given, givenSource
	}
	entry.SkipVerify = entry.SkipVerify || c.skipVerify
	caSource := "the CA of " + source
	if c.caFile != "" {
		pem, err := os.ReadFile(c.caFile)
		if err != nil {
			return Target{}, exit.Usagef("--ca-cert-file: %w", err)
		}
		entry.CA, caSource = string(pem), c.caFile
	}
	stored := entry // as it is in the file, for what is learned
	if c.address == "" && c.caFile == "" {
		entry.Addresses = entry.AllServers()
	}
	t, err := newTarget(entry, source, tokenSource, caSource)
	if err == nil && c.caFile == "" && entry.Name != "" && !entry.SkipVerify && !entry.Plaintext {
		path, _, _ := c.ConfigPath()
		t.learn = func(named []byte) (bool, error) {
			return clientconfig.LearnAuthorities(path, entry.Name, entry.CA, named)
		}
		if c.address == "" {
			t.learnServers = func(named []byte) ([]string, error) {
				return clientconfig.LearnServers(path, stored, named)
			}
		}
	}
	return t, err
}

func newTarget(entry clientconfig.ControlPlane, source, tokenSource, caSource string) (Target, error) {
	t := Target{addresses: entry.Addresses, source: source}
	if entry.Token != "" {
		if err := token.CheckText(entry.Token); err != nil {
			return Target{}, exit.Usagef("%w (of %s)", err, tokenSource)
		}
		t.tokenSource = tokenSource
		t.credentials = token.Credentials(entry.Token, entry.Plaintext)
	}
	if entry.Plaintext {
		t.transport = insecure.NewCredentials()
		return t, nil
	}
	if entry.CA == "" {
		caSource = ""
	}
	transport, err := pki.ClientTransport(pki.ClientTLSConfig{
		CAPEM: []byte(entry.CA), Source: caSource, SkipVerify: entry.SkipVerify,
	})
	if err != nil {
		return Target{}, exit.Usagef("%w", err)
	}
	t.transport = transport
	return t, nil
}

// chosenEntry returns the entry of the configuration that the flags choose, and
// where it is.
func (c *Flags) chosenEntry() (clientconfig.ControlPlane, string, error) {
	path, explicit, err := c.ConfigPath()
	if err != nil {
		return clientconfig.ControlPlane{}, "", err
	}
	contexts, err := clientconfig.LoadContexts(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && explicit:
		return clientconfig.ControlPlane{}, "", exit.Failf(exit.Usage, "there is no configuration file %s", path).With(
			"It comes from --config or " + ConfigVariable + "; a server writes one, admin.yaml, into its data directory.")
	case errors.Is(err, fs.ErrNotExist):
		return clientconfig.ControlPlane{}, "", notConfigured()
	case err != nil:
		return clientconfig.ControlPlane{}, "", exit.Failf(exit.Usage, "the configuration cannot be read: %w", err)
	}
	entry, err := contexts.Get(c.context)
	if err == nil {
		return entry, fmt.Sprintf("the control plane %q in %s", entry.Name, path), nil
	}
	if len(contexts.ControlPlanes) == 0 {
		return clientconfig.ControlPlane{}, "", notConfigured()
	}
	names := ContextNames(contexts)
	if c.context == "" {
		return clientconfig.ControlPlane{}, "", exit.Failf(exit.Usage, "%s has several control planes and none is chosen", path).With(
			"Choose with --context or `meridian config control-planes switch`: " + strings.Join(names, ", "))
	}
	return clientconfig.ControlPlane{}, "", exit.Failf(exit.Usage, "there is no control plane %q in %s%s",
		c.context, path, exit.DidYouMean(c.context, names)).With("There are: " + strings.Join(names, ", "))
}

// ContextNames are the names of the control planes of a configuration.
func ContextNames(c *clientconfig.Contexts) []string {
	names := make([]string, len(c.ControlPlanes))
	for i, cp := range c.ControlPlanes {
		names[i] = cp.Name
	}
	return names
}

// notConfigured is what a user sees first who has not set anything up.
func notConfigured() error {
	return exit.Failf(exit.Usage, "no control plane is configured").With(
		"Every server writes a configuration that is ready to use into its data directory:",
		"  meridian --config DIR/admin.yaml …     (or "+ConfigVariable+"=DIR/admin.yaml)",
		"To keep one of your own:",
		"  meridian config control-planes add --name NAME --address HOST:PORT --ca-cert-file FILE --token-file FILE",
	)
}

// ParseAddresses reads a comma-separated list of addresses. A scheme of https
// and a missing port are tolerated.
func ParseAddresses(list string) ([]string, error) {
	return parseAddresses("--address", list, defaultPort)
}

// ParseZoneAddresses is ParseAddresses for those of a zone, which a flag has.
func ParseZoneAddresses(flag, list string) ([]string, error) {
	return parseAddresses(flag, list, defaultZonePort)
}

func parseAddresses(flag, list, missing string) ([]string, error) {
	var addresses []string
	for entry := range strings.SplitSeq(list, ",") {
		address := strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(entry), "https://"), "/")
		switch {
		case address == "":
			return nil, exit.Usagef("%s %q: write HOST:PORT, several separated by commas", flag, list)
		case strings.Contains(address, "://") || strings.Contains(address, "/"):
			return nil, exit.Usagef("%s %q: write HOST:PORT; the API speaks gRPC over TLS, no other scheme and no path", flag, address)
		}
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			host, port = strings.Trim(address, "[]"), missing
			if strings.Contains(host, ":") && net.ParseIP(host) == nil {
				return nil, exit.Usagef("%s %q: write HOST:PORT", flag, address)
			}
		}
		if n, err := strconv.ParseUint(port, 10, 16); host == "" || err != nil || n == 0 {
			return nil, exit.Usagef("%s %q: write HOST:PORT, with a port between 1 and 65535", flag, address)
		}
		addresses = append(addresses, net.JoinHostPort(host, port))
	}
	return addresses, nil
}
