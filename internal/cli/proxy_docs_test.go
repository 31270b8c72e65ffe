package cli

import (
	"bytes"
	"errors"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"meridian/internal/resource"
)

// What docs/proxies has an operator install runs: the command of the unit and that of the
// sidecar are commands, with dataplanes that are valid, and what stops them waits for longer
// than they drain.
func TestProxiesRunAsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/proxies/envoy.md")
	require.NoError(t, err)
	drains := func(line string) time.Duration {
		words := strings.Fields(strings.ReplaceAll(line, "\\\n", " "))
		require.Equal(t, []string{"proxy", "run"}, words[1:3])
		h := newHarness(t)
		cmd := newProxyRunCommand(newApp(nil, io.Discard, io.Discard, map[string]string{"HOME": h.home}, time.Now))
		cmd.Flags().String("token-file", "", "")
		require.NoError(t, cmd.ParseFlags(words[3:]))
		require.Empty(t, cmd.Flags().Args())
		for _, required := range []string{"filename", "token-file", "zone-address", "ca-file", "envoy"} {
			require.True(t, cmd.Flags().Changed(required), required)
		}
		drain, err := cmd.Flags().GetDuration("drain-time")
		require.NoError(t, err)
		return drain
	}
	valid := func(document string) {
		_, err := resource.Decode("dataplane.yaml", []byte(document), resource.DecodeOptions{})
		require.NoError(t, err)
	}

	unit := regexp.MustCompile(`(?s)ExecStart=/usr/bin/(.*?[^\\])\n.*TimeoutStopSec=([0-9]+)\n`).FindSubmatch(text)
	require.NotNil(t, unit)
	stop, err := strconv.Atoi(string(unit[2]))
	require.NoError(t, err)
	require.Greater(t, time.Duration(stop)*time.Second, drains(string(unit[1]))+10*time.Second)

	fences := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(text, -1)
	require.GreaterOrEqual(t, len(fences), 2)
	valid(string(fences[0][1]))
	var manifests []map[string]any
	for decoder := yaml.NewDecoder(bytes.NewReader(fences[1][1])); ; {
		var one map[string]any
		err := decoder.Decode(&one)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		manifests = append(manifests, one)
	}
	require.Len(t, manifests, 2)
	valid(strings.NewReplacer("POD_NAME", "web-7d4b9-x2x4x", "POD_IP", "10.1.2.3").Replace(manifests[0]["data"].(map[string]any)["dataplane.yaml"].(string)))
	pod := manifests[1]["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
	containers := pod["containers"].([]any)
	_, command, found := strings.Cut(containers[1].(map[string]any)["args"].([]any)[0].(string), "exec ")
	require.True(t, found, "the agent has the signals of the container")
	drain := drains(strings.TrimSpace(command))
	before := containers[0].(map[string]any)["lifecycle"].(map[string]any)["preStop"].(map[string]any)["sleep"].(map[string]any)["seconds"].(int)
	require.Greater(t, time.Duration(before)*time.Second, drain)
	require.Greater(t, pod["terminationGracePeriodSeconds"].(int), before+10)
}
