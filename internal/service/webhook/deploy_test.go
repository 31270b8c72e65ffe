package webhook

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

const deployed = "../../../deploy/kubernetes/"

// The example configuration asks exactly what this package answers.
func TestTheExampleConfigurationFits(t *testing.T) {
	text, err := os.ReadFile(deployed + "webhook.yaml")
	require.NoError(t, err)
	documents := bytes.Split(text, []byte("\n---\n"))
	require.Len(t, documents, 2)
	var service struct {
		Kind     string
		Metadata struct{ Name, Namespace string }
		Spec     struct {
			Ports []struct{ Port, TargetPort int }
		}
	}
	require.NoError(t, yaml.Unmarshal(documents[0], &service))
	require.Equal(t, "Service", service.Kind)

	var configuration struct {
		APIVersion, Kind string
		Webhooks         []struct {
			AdmissionReviewVersions []string
			ClientConfig            struct {
				Service struct {
					Name, Namespace, Path string
					Port                  int
				}
			}
			Rules []struct {
				APIGroups, APIVersions, Operations, Resources []string
				Scope                                         string
			}
			FailurePolicy, SideEffects string
			TimeoutSeconds             int
		}
	}
	require.NoError(t, yaml.Unmarshal(documents[1], &configuration))
	require.Equal(t, "admissionregistration.k8s.io/v1 ValidatingWebhookConfiguration", configuration.APIVersion+" "+configuration.Kind)
	require.Len(t, configuration.Webhooks, 1)
	hook := configuration.Webhooks[0]
	require.Equal(t, []string{"v1"}, hook.AdmissionReviewVersions)
	require.Equal(t, Path, hook.ClientConfig.Service.Path)
	require.Equal(t, service.Metadata.Name, hook.ClientConfig.Service.Name)
	require.Equal(t, service.Metadata.Namespace, hook.ClientConfig.Service.Namespace)
	require.Equal(t, service.Spec.Ports[0].Port, hook.ClientConfig.Service.Port)
	require.Len(t, hook.Rules, 1)
	require.Equal(t, []string{Group}, hook.Rules[0].APIGroups)
	require.Equal(t, []string{"*"}, hook.Rules[0].APIVersions)
	require.Equal(t, []string{string(opCreate), string(opUpdate), string(opDelete)}, hook.Rules[0].Operations)
	require.Equal(t, []string{"*"}, hook.Rules[0].Resources, "subresources change no content")
	require.Equal(t, "*", hook.Rules[0].Scope)
	require.Equal(t, "Fail", hook.FailurePolicy)
	require.Equal(t, "None", hook.SideEffects)
	require.Greater(t, float64(hook.TimeoutSeconds), decideTimeout.Seconds(), "an answer, even 503, comes in time")

	readme, err := os.ReadFile(deployed + "README.md")
	require.NoError(t, err)
	require.Contains(t, string(readme), "--webhook-host="+service.Metadata.Name+"."+service.Metadata.Namespace+".svc")
	require.Contains(t, string(text), `caBundle: ""`, "what the README replaces")
}
