package agent

import (
	"encoding/json"
	"fmt"

	"meridian/internal/atomicfile"
	"meridian/internal/xds"
)

// ListenerTemplate is what a gRPC server makes the name of its listener resource of: its
// address takes the place of %s.
const ListenerTemplate = "in/%s"

// bootstrap is the file by which a gRPC client or server finds its control plane, as
// gRPC documents it.
type bootstrap struct {
	XDSServers                         []bootstrapServer            `json:"xds_servers"`
	Node                               bootstrapNode                `json:"node"`
	ServerListenerResourceNameTemplate string                       `json:"server_listener_resource_name_template"`
	CertificateProviders               map[string]bootstrapProvider `json:"certificate_providers"`
}

type bootstrapProvider struct {
	PluginName string         `json:"plugin_name"`
	Config     bootstrapFiles `json:"config"`
}

type bootstrapFiles struct {
	Certificate     string `json:"certificate_file"`
	Key             string `json:"private_key_file"`
	Roots           string `json:"ca_certificate_file"`
	RefreshInterval string `json:"refresh_interval"`
}

type bootstrapServer struct {
	ServerURI      string                `json:"server_uri"`
	ChannelCreds   []bootstrapCredential `json:"channel_creds"`
	ServerFeatures []string              `json:"server_features"`
}

type bootstrapCredential struct {
	Type string `json:"type"`
}

type bootstrapNode struct {
	ID       string            `json:"id"`
	Metadata map[string]string `json:"metadata"`
}

// writeBootstrap writes the bootstrap file. Deletions of resources are to be obeyed, so
// the server feature ignore_resource_deletion is left out: what a zone withdraws, from a
// dataplane that can have no certificate for one, must not stay in effect.
func writeBootstrap(path, socket, mesh, name, instance string, providers map[string]bootstrapProvider) error {
	content, err := json.MarshalIndent(bootstrap{
		XDSServers: []bootstrapServer{{
			ServerURI: "unix://" + socket, ChannelCreds: []bootstrapCredential{{Type: "insecure"}}, ServerFeatures: []string{"xds_v3"},
		}},
		Node:                               bootstrapNode{ID: mesh + "/" + name, Metadata: map[string]string{xds.InstanceField: instance}},
		ServerListenerResourceNameTemplate: ListenerTemplate,
		CertificateProviders:               providers,
	}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the bootstrap file: %w", err)
	}
	return atomicfile.Write(path, append(content, '\n'), 0o600)
}
