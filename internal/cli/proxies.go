package cli

import (
	"crypto/rand"
	"errors"
	"log/slog"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"meridian/internal/agent"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/pki"
	"meridian/internal/policy/answer"
	"meridian/internal/question"
	"meridian/internal/resource"
)

func newProxyCommand(a *app) *cobra.Command {
	group := newGroup("proxy", "Connect applications to a zone over xDS", newProxyRunCommand(a), newProxyStatusCommand(a), newProxyShadowCommand(a))
	group.Long = `Connect an application that speaks xDS, such as one with gRPC's xDS support, to its
zone, and show what the proxies of a zone have accepted, and what permissions that
are only tried would do.`
	group.Example = `  meridian proxy run -f dataplane.yaml --token-file dp.token \
    --zone-address zone.example:5678 --ca-file ca.pem --grpc-bootstrap xds.json
  meridian proxy status
  meridian proxy shadow --service backend`
	return group
}

func newProxyRunCommand(a *app) *cobra.Command {
	var (
		addresses, ca, bootstrap, envoy, socket string
		drain                                   time.Duration
	)
	cmd := &cobra.Command{
		Use:   "run -f FILE --zone-address HOST:PORT --token-file FILE (--grpc-bootstrap FILE | --envoy PROGRAM)",
		Short: "Register a dataplane and relay xDS to its application",
		Long: `Register a dataplane in a zone and relay xDS between the zone and an application on
this host, which uses gRPC's xDS support and needs no other configuration than
GRPC_XDS_BOOTSTRAP=FILE. The bootstrap file is written once the dataplane is
registered: start the application after it.

With --envoy, run an Envoy (1.40 or later) for an application that needs no xDS: it
listens on the addresses of the dataplane's inbounds and outbounds. It is started
again when it ends. Others send it requests while it is ready.

The socket that the application connects to is for this user only. The dataplane
token (--token-file, or MERIDIAN_TOKEN_FILE) and the CA (--ca-file) are read for
every connection, so they can be replaced at any time. On SIGTERM other proxies are
told at once to send the dataplane no more requests; what the application has open
continues until it has closed its connections to the socket, or for the drain time,
and then the registration ends. A second signal ends the drain time.`,
		Example: `  meridian proxy run -f dataplane.yaml --token-file dp.token \
    --zone-address zone.example:5678 --ca-file ca.pem --grpc-bootstrap xds.json
  meridian proxy run -f dataplane.yaml --token-file dp.token \
    --zone-address zone.example:5678 --ca-file ca.pem --envoy /usr/bin/envoy`,
		Args: exactly(),
	}
	files := bindSources(cmd)
	mesh := bindMesh(cmd)
	cmd.Flags().StringVar(&addresses, "zone-address", "", "HOST:PORT of the zone (required)")
	cmd.Flags().StringVar(&ca, "ca-file", "", "PEM file with the CA of the zone (default: the system's)")
	cmd.Flags().StringVar(&bootstrap, "grpc-bootstrap", "", "bootstrap file for gRPC to write")
	cmd.Flags().StringVar(&envoy, "envoy", "", "Envoy to run, 1.40 or later")
	cmd.Flags().StringVar(&socket, "socket", "", "unix socket for the application (default: the bootstrap file with .sock, or a temporary one)")
	cmd.Flags().DurationVar(&drain, "drain-time", 30*time.Second, "how long the application may stay connected after SIGTERM")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		config, err := a.proxyConfig(files, mesh, addresses, ca)
		if err != nil {
			return err
		}
		switch {
		case (bootstrap == "") == (envoy == ""):
			return exit.Usagef("one of --grpc-bootstrap and --envoy is required: the file to write, or the program to run")
		case drain < 0:
			return exit.Usagef("--drain-time %s: a time is not negative", drain)
		case socket == "" && envoy == "":
			socket = bootstrap + ".sock"
		}
		if envoy != "" {
			if config.Envoy, err = exec.LookPath(envoy); err != nil {
				return exit.Usagef("--envoy: %w", err)
			}
			config.Output = a.Stderr
		} else if config.Bootstrap, err = filepath.Abs(bootstrap); err != nil { // the application may run in another directory
			return exit.Usagef("--grpc-bootstrap: %w", err)
		}
		if socket != "" {
			if config.Socket, err = filepath.Abs(socket); err != nil {
				return exit.Usagef("--socket: %w", err)
			}
		}
		config.Drain, config.Instance = drain, rand.Text()
		config.Log = slog.New(slog.NewTextHandler(a.Stderr, nil))
		config.Abort = a.foreground.finish(drain + agent.Ending)
		err = agent.Run(cmd.Context(), config)
		var usage *agent.UsageError
		if errors.As(err, &usage) {
			return exit.Usagef("%w", usage.Err)
		}
		return err
	}
	return cmd
}

// proxyConfig reads what an agent needs to know of its dataplane and zone.
func (a *app) proxyConfig(files *sources, mesh *meshFlag, addresses, ca string) (agent.Config, error) {
	var config agent.Config
	documents, err := a.load(files, mesh)
	if err != nil {
		return config, err
	}
	if len(documents) != 1 || documents[0].Resource.Key().Kind != resource.KindDataplane {
		return config, exit.Usagef("-f has to hold one Dataplane, and nothing else")
	}
	a.advise(remarksOf(documents))
	r := documents[0].Resource
	config.Mesh, config.Name, config.Spec = string(r.Key().Mesh), r.Key().Name, r.Canonical()
	if config.TokenFile = a.connection.TokenFile(); config.TokenFile == "" {
		return config, exit.Usagef("--token-file is required: the file with the dataplane token")
	}
	if addresses == "" {
		return config, exit.Usagef("--zone-address is required: HOST:PORT of the zone")
	}
	if config.Addresses, err = client.ParseZoneAddresses("--zone-address", addresses); err != nil {
		return config, err
	}
	if ca == "" {
		config.Transport, err = pki.ClientTransport(pki.ClientTLSConfig{})
	} else {
		config.Transport, err = pki.FileTransport(ca)
	}
	if err != nil {
		return config, exit.Usagef("--ca-file: %w", err)
	}
	return config, nil
}

// aboutProxies makes a command ask about the proxies of all meshes, of one mesh, or about
// the one of that name, and say none where there are none.
func (a *app) aboutProxies(cmd *cobra.Command, none string, about func(name string) question.Question, formats ...print.Format) {
	var (
		zone      string
		allMeshes bool
	)
	cmd.Flags().StringVar(&zone, "zone", "", "zone to ask through the global")
	mesh := bindMesh(cmd)
	cmd.Flags().BoolVarP(&allMeshes, "all-meshes", "A", false, "show every mesh (the default without -m and NAME)")
	output := print.BindFormat(cmd.Flags(), formats...)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := errors.Join(mesh.check(), checkZone(zone)); err != nil {
			return err
		}
		name, asked := "", ""
		if len(args) == 1 {
			if allMeshes {
				return exit.Usagef("-A shows every mesh, and NAME is of one: give one of them")
			}
			name, asked = args[0], mesh.name
		} else if mesh.explicit() && !allMeshes {
			asked = mesh.name
		}
		q := about(name)
		response, err := a.ask(cmd.Context(), question.Request(q, asked, zone))
		if err != nil {
			return err
		}
		if output.Value.Structured() {
			return a.WriteDocument(output.Value, response.GetJson())
		}
		var list struct{ Items, Incomplete []any }
		if err := answer.Unmarshal(response.GetJson(), &list); err != nil {
			return err
		}
		if len(list.Items) == 0 && len(list.Incomplete) == 0 {
			a.Message("%s", none)
			return nil
		}
		return a.printAnswer(output.Value, q, response.GetJson(), response.GetShownNames())
	}
}

func newProxyStatusCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status [NAME]",
		Short: "Show what proxies have accepted over xDS",
		Long: `Show for each proxy that follows its zone over xDS, or for one, where it stands with
each type of resources: clusters (CDS), endpoints (EDS), listeners (LDS) and routes
(RDS). SYNCED: it has accepted everything that it asked for; SENT: it has not
answered yet; STALE: for more than 5 s; WARMING: more waits for resources that it
refers to; NACK: it rejected something, which is shown with the policies that it is
from; NOT SENT: it has not asked, or there is nothing to send. Of several streams the
state is that of the one with the most to be looked at; -o json has each. REVISION is
the oldest that it has in full, LAG how many resources it lacks in their newest
version. All meshes are shown unless -m names one.`,
		Example: `  meridian proxy status --zone east
  meridian proxy status web-1 -o json`,
		Args: between(0, "NAME"),
	}
	a.aboutProxies(cmd, "No proxy follows a zone over xDS.", func(name string) question.Question {
		return question.Proxies{Name: name}
	}, print.FormatTable, print.FormatJSON, print.FormatYAML)
	return cmd
}

func newProxyShadowCommand(a *app) *cobra.Command {
	var service string
	cmd := &cobra.Command{
		Use:   "shadow [NAME]",
		Short: "Show what permissions that are only tried would do",
		Long: `Show how many calls would have been denied, or allowed, that are not, if permissions
with the label meridian.io/enforcement: shadow were in effect: by the service that
calls, the service that is called, and the policy on whose word. Envoys of meshes
with mutual TLS count that; gRPC servers do not. Counts begin anew when what is
tried on an inbound changes, and when its proxy starts. With NAME, those of one
dataplane; with --service, those of the inbounds of a service. All meshes are shown
unless -m names one; -o wide has a row for each dataplane and port.`,
		Example: `  meridian proxy shadow
  meridian proxy shadow --service backend -o wide`,
		Args: between(0, "NAME"),
	}
	cmd.Flags().StringVar(&service, "service", "", "only calls of this service's inbounds")
	a.aboutProxies(cmd, "No proxy has counted a call about which a permission that is tried would decide otherwise.", func(name string) question.Question {
		return question.Trials{Name: name, Service: service}
	}, print.FormatTable, print.FormatWide, print.FormatJSON, print.FormatYAML)
	return cmd
}
