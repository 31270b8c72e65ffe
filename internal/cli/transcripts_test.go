package cli

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// transcripts are commands with what they print, of commands of which the documents show no
// output. UPDATE_GOLDEN=1 writes them.
const transcripts = "testdata/transcripts"

var transcribed = map[string][]string{
	"history": {"history Timeout web", "history Timeout absent", "blame Timeout web", "blame Timeout absent"},
	"diff":    {"diff --from 100", "diff --from 102 --to 103 -o json", "diff --from 103", "diff --from 9"},
	"get":     {"get timeouts --at 102", "get timeout web --at 102 -o yaml", "get timeout web --at 9", "get timeout web --at 999"},
	"rollback": {
		"rollback --to 102 --dry-run", "rollback --to 102 --kind TokenRevocation", "rollback --to 9", "rollback",
		"rollback --to 102", "rollback --to 102",
	},
	"reference": {"api-resources", "explain Timeout", "explain timeouts.conf.connectTimeout", "explain Tmeout", "explain §3.3"},
	"files":     {"lint HOME/new.yaml", "validate -f HOME/new.yaml", "eval dataplane web-1 -f HOME/new.yaml", "plan -f HOME/new.yaml --from-files HOME/new.yaml", "test HOME/new.yaml", "migrate -f HOME/new.yaml"},
	"mistakes":  {"config get-contexts", "config view", "rollout status", "inspect policy Mesh default", "zones drain", "analyz"},
}

// Every command has a transcript: here, in the documents, or its output is
// compared by the test that is named here.
func TestEveryCommandHasATranscript(t *testing.T) {
	elsewhere := map[string]string{
		"analyze": "TestAnalyze", "completion": "TestVersionAndCompletion", "config": "TestConfigControlPlanes", "edit": "TestEdit", "export": "TestExportRoundTrip",
		"help": "TestHelp", "status": "TestStatus", "version": "TestVersionAndCompletion", "watch": "TestWatchPrintsChangesAndResumes",
	}
	tests, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	var source strings.Builder
	for _, path := range tests {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		source.Write(text)
	}
	for name, test := range elsewhere {
		require.Contains(t, source.String(), "\nfunc "+test+"(t *testing.T)", name)
	}
	shown := map[string]bool{}
	for _, commands := range transcribed {
		for _, line := range commands {
			shown[strings.Fields(line)[0]] = true
		}
	}
	require.NoError(t, filepath.WalkDir("../../docs", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		text, err := os.ReadFile(path)
		for _, line := range strings.Split(string(text), "\n") {
			if said, ok := strings.CutPrefix(line, "$ meridian "); ok {
				shown[strings.Fields(said)[0]] = true
			}
		}
		return err
	}))
	for _, cmd := range newRootCommand(newApp(nil, nil, nil, nil, nil)).Commands() {
		if !shown[cmd.Name()] && elsewhere[cmd.Name()] == "" {
			t.Errorf("meridian %s has no transcript: add one to transcribed", cmd.Name())
		}
	}
}

// TestTranscripts compares what commands print with what they printed before.
func TestTranscripts(t *testing.T) {
	const document = "type: Timeout\nmesh: default\nname: web\nsources: [{match: {kuma.io/service: '*'}}]\ndestinations: [{match: {kuma.io/service: web}}]\nconf: {connectTimeout: 3s}\n"
	for name, commands := range transcribed {
		t.Run(name, func(t *testing.T) {
			h, _ := historyOf(t)
			h.write("new.yaml", document)
			var got strings.Builder
			for _, line := range commands {
				fmt.Fprintf(&got, "$ meridian %s\n", strings.ReplaceAll(line, "HOME/", ""))
				out := h.run(strings.Fields(strings.ReplaceAll(line, "HOME/", h.home+"/"))...)
				clean := strings.NewReplacer(h.home+"/", "", h.home, "HOME", h.address, "ADDRESS")
				fmt.Fprintf(&got, "%s%s[exit code %d]\n\n", clean.Replace(out.stdout), clean.Replace(out.stderr), out.code)
			}
			file := filepath.Join(transcripts, name+".golden")
			if os.Getenv("UPDATE_GOLDEN") != "" {
				require.NoError(t, os.MkdirAll(transcripts, 0o755))
				require.NoError(t, os.WriteFile(file, []byte(got.String()), 0o644))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, string(want), got.String())
		})
	}
}
