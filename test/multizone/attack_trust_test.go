//go:build multizone

package multizone

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
	syncv1 "meridian/api/sync/v1"
	"meridian/internal/batch"
)

// hostile acts on a terminal, or changes the direction of what follows.
const hostile = "\x1b]0;title\x07\u009b2J\u202egpj\r\u2066"

// requireHarmless proves that nothing in an output acts on a terminal.
func requireHarmless(t *testing.T, r result) {
	t.Helper()
	for _, text := range []string{r.stdout, r.stderr} {
		for _, c := range text {
			require.False(t, unicode.IsControl(c) && c != '\n' && c != '\t' || unicode.Is(unicode.Cf, c) || c == unicode.ReplacementChar, "%q in %q", c, text)
		}
	}
}

// liar is a zone that says what it likes, with a token of its own.
type liar struct {
	stream syncv1.SyncService_StreamClient
	// answer is what it answers to every question.
	answer atomic.Value
}

// lie connects as a zone, says what it likes, and answers questions until the test
// ends.
func lie(t *testing.T, global *process, zone string, hello *syncv1.Hello, frames ...*syncv1.ZoneFrame) *liar {
	t.Helper()
	credential := strings.TrimSpace(global.must("generate", "zone-token", "--zone", zone, "--valid-for", "1h"))
	stream, err := syncv1.NewSyncServiceClient(global.dial()).Stream(bearing(t.Context(), credential))
	require.NoError(t, err)
	hello.Protocol, hello.MinProtocol, hello.Zone = 1, 1, zone
	l := &liar{stream: stream}
	l.answer.Store([]byte("no answer"))
	for _, f := range append([]*syncv1.ZoneFrame{{Body: &syncv1.ZoneFrame_Hello{Hello: hello}}}, frames...) {
		require.NoError(t, stream.Send(f))
	}
	return l
}

// follow answers questions until the stream ends, with the error that it ends with.
func (l *liar) follow() error {
	for {
		frame, err := l.stream.Recv()
		if err != nil {
			return err
		}
		if ask := frame.GetAsk(); ask != nil {
			answer := &syncv1.Answer{Id: ask.GetId(), Part: l.answer.Load().([]byte), Last: true}
			_ = l.stream.Send(&syncv1.ZoneFrame{Body: &syncv1.ZoneFrame_Answer{Answer: answer}})
		}
	}
}

// dataplanesOf lists, as a zone would, dataplanes that it claims.
func dataplanesOf(t *testing.T, items ...map[string]any) []byte {
	t.Helper()
	document, err := json.Marshal(map[string]any{"asOf": 1, "items": items})
	require.NoError(t, err)
	answer, err := proto.Marshal(&meridianv1.InspectResponse{Json: document, Notes: []string{hostile}})
	require.NoError(t, err)
	return answer
}

// A zone that lies harms itself: what it says is short, printable and under its own
// name, the answers of other zones stand, and nothing is left of it when it is deleted.
func TestAttacksByAZone(t *testing.T) {
	global := newGlobal(t).start().ready()
	west := newZone(t, global, "west").start().ready()
	west.mustWith(webDataplane, "apply", "-f", "-")
	global.awaitState("west", "in-sync")

	for name, instance := range map[string]string{"long": strings.Repeat("x", 129), "hostile": "i" + hostile[:4]} {
		refused := lie(t, global, "east", &syncv1.Hello{Instance: instance})
		require.ErrorContains(t, refused.follow(), "the name of the instance", name)
	}

	long := hostile + strings.Repeat("long ", 10_000)
	var acks []*syncv1.ZoneFrame
	for i := range 50 {
		ack := &syncv1.Ack{Error: long}
		for j := range 40 {
			ack.Nacks = append(ack.Nacks, &syncv1.Nack{Kind: "Timeout", Mesh: "default", Name: fmt.Sprintf("p-%d-%d", i, j), Message: hostile + strings.Repeat("x", 200)})
		}
		acks = append(acks, &syncv1.ZoneFrame{Body: &syncv1.ZoneFrame_Ack{Ack: ack}})
	}
	east := lie(t, global, "east", &syncv1.Hello{Instance: "i", Version: long[:1000]}, acks...)
	ended := make(chan error, 1)
	go func() { ended <- east.follow() }()
	global.await("the lies to have arrived", func() bool { return global.zones()["east"].LastError != "" })
	zones := global.command("zones", "-o", "json")
	require.Less(t, len(zones.stdout), 1<<20, "a thousand reports of 512 bytes")
	require.LessOrEqual(t, len(global.zones()["east"].LastError), 1024)
	for _, format := range []string{"json", "yaml", "wide"} {
		requireHarmless(t, global.command("zones", "-o", format))
	}

	// It lists the dataplane of another zone, and one of a hostile name.
	east.answer.Store(dataplanesOf(t, map[string]any{"mesh": "default", "name": "web-1", "zone": "west", "services": []string{"stolen"}},
		map[string]any{"mesh": "default", "name": hostile, "zone": "west", "services": []string{hostile}, "unmatched": hostile}))
	listed := global.command("dataplanes", "-o", "json")
	require.Zero(t, listed.code, listed.stderr)
	var list struct {
		Items []struct {
			Name, Zone string
			Services   []string
		}
	}
	require.NoError(t, json.Unmarshal([]byte(listed.stdout), &list))
	for _, d := range list.Items {
		require.Equal(t, d.Services[0] == "web", d.Zone == "west", "%v", d)
	}
	require.Len(t, list.Items, 3)
	for _, args := range [][]string{{"dataplanes"}, {"dataplanes", "-o", "json"}, {"dataplanes", "-o", "yaml"}, {"dataplanes", "-o", "wide"}} {
		requireHarmless(t, global.command(args...))
	}
	require.Contains(t, global.must("inspect", "dataplane", "web-1", "--zone", "west"), "web-1")

	// It answers what cannot be read, and too much of it.
	for _, answer := range [][]byte{[]byte(hostile), {}, []byte(strings.Repeat("x", 60<<10))} {
		east.answer.Store(answer)
		r := global.command("dataplanes")
		require.Contains(t, r.stdout, "web-1", r.stderr)
		lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
		require.Contains(t, lines[len(lines)-1], "east", "it is named in the last line: %s", r.stdout)
		requireHarmless(t, r)
	}

	global.must("zones", "delete", "east", "--force")
	require.Error(t, <-ended)
	require.NotContains(t, global.zones(), "east")
	require.NotContains(t, global.must("dataplanes", "-o", "json"), "stolen")
	global.healthy("a zone that lies")
}

// Labels are bounded, so that no list or export breaks, and what acts on a terminal
// does not come in, nor out.
func TestAttacksWithLabels(t *testing.T) {
	global := newGlobal(t).start().ready()
	client := meridianv1.NewAdminServiceClient(global.dial())
	apply := func(r *meridianv1.Resource) error {
		_, err := batch.Apply(t.Context(), client, &meridianv1.ApplyRequest{RequestId: r.GetName(), Resources: []*meridianv1.Resource{r}})
		return err
	}
	labelled := func(name string, labels map[string]string) *meridianv1.Resource {
		return &meridianv1.Resource{
			Kind: "TrafficPermission", Mesh: "default", Name: name, Labels: labels,
			Spec: []byte(`{"sources": [{"match": {"kuma.io/service": "web"}}], "destinations": [{"match": {"kuma.io/service": "api"}}]}`),
		}
	}
	many := map[string]string{}
	for i := range 65 {
		many[fmt.Sprint("l", i)] = "x"
	}
	for name, labels := range map[string]map[string]string{
		"huge":          {"a": strings.Repeat("x", 12<<20)},
		"large":         {"a": strings.Repeat("x", 5<<10)},
		"many":          many,
		"large-in-all":  {"a": strings.Repeat("x", 4<<10), "b": strings.Repeat("x", 4<<10), "c": strings.Repeat("x", 4<<10), "d": strings.Repeat("x", 4<<10), "e": "x"},
		"hostile-value": {"a": hostile},
		"hostile-key":   {"\x1b[2J": "a"},
	} {
		require.Contains(t, []codes.Code{codes.InvalidArgument, codes.ResourceExhausted}, status.Code(apply(labelled(name, labels))), name)
	}
	// As much as may be, of 12 MiB in all, can be read and exported.
	const policies = 800
	var documents []*meridianv1.Resource
	for i := range policies {
		documents = append(documents, labelled(fmt.Sprint("p-", i), map[string]string{
			"a": strings.Repeat("x", 4000), "b": strings.Repeat("x", 4000), "c": strings.Repeat("x", 4000), "d": strings.Repeat("x", 4000),
		}))
	}
	_, err := batch.Apply(t.Context(), client, &meridianv1.ApplyRequest{RequestId: "all", Resources: documents})
	require.NoError(t, err)
	require.Equal(t, policies, strings.Count(global.must("get", "traffic-permissions", "-o", "name"), "\n"))
	require.Equal(t, policies, strings.Count(global.must("export"), "type: TrafficPermission"))
	stored := global.read("process_resident_memory_bytes")
	require.Less(t, stored, float64(1<<30))
	global.healthy("labels")
}

// §6.8: the token of one service does not take over the dataplane of another, and what
// proxies say reaches no terminal.
func TestAttacksByAProxy(t *testing.T) {
	zone := newProcess(t, "meridian-zone", "east", "--name", "east", "--grpc-addr", anyPort, "--http-addr", anyPort).start().ready()
	client := meridianv1.NewDataplaneServiceClient(zone.dial())
	issue := func(args ...string) context.Context {
		issued := strings.TrimSpace(zone.must(append([]string{"generate", "dataplane-token", "-m", "default", "--valid-for", "1h"}, args...)...))
		return bearing(t.Context(), issued)
	}
	connect := func(ctx context.Context, name, service string) (meridianv1.DataplaneService_ConnectClient, *meridianv1.ConnectResponse, error) {
		stream, err := client.Connect(ctx)
		require.NoError(t, err)
		spec := fmt.Sprintf(`{"networking": {"address": "10.0.0.1", "inbound": [{"port": 80, "tags": {"kuma.io/service": %q}}]}}`, service)
		require.NoError(t, stream.Send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Hello{
			Hello: &meridianv1.DataplaneHello{Mesh: "default", Name: name, Spec: []byte(spec)},
		}}))
		first, err := stream.Recv()
		return stream, first, err
	}
	web, first, err := connect(issue("--tag", "kuma.io/service=web"), "web-1", "web")
	require.NoError(t, err)
	_, _, err = connect(issue("--tag", "kuma.io/service=payments"), "web-1", "payments")
	require.Equal(t, codes.PermissionDenied, status.Code(err), err)
	_, _, err = connect(issue("--name", "web-2", "--tag", "kuma.io/service=web"), "web-1", "web")
	require.Equal(t, codes.PermissionDenied, status.Code(err), err)
	require.Equal(t, "online", zone.dataplanes()["web-1"].State, "the first is not told to leave")
	require.Contains(t, zone.must("get", "dataplane", "web-1", "-o", "yaml"), "kuma.io/service: web")

	require.NoError(t, web.Send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Ack{
		Ack: &meridianv1.DataplaneAck{Sequence: first.GetSequence(), Error: hostile + strings.Repeat("long ", 10_000)},
	}}))
	zone.await("the error of the proxy", func() bool { return strings.Contains(zone.must("inspect", "dataplane", "web-1"), "title") })
	for _, args := range [][]string{
		{"inspect", "dataplane", "web-1"}, {"dataplanes"}, {"dataplanes", "-o", "wide"}, {"dataplanes", "-o", "json"}, {"dataplanes", "-o", "yaml"},
	} {
		r := zone.command(args...)
		requireHarmless(t, r)
		require.Less(t, len(r.stdout), 8<<10)
	}
	_, _, err = connect(issue(), "evil-1", hostile)
	require.Equal(t, codes.InvalidArgument, status.Code(err), err)

	// A role that issues tokens for some names issues no other.
	zone.mustWith(adminsOnly+`---
type: AccessRole
name: issuer
rules:
- mesh: default
  access: [GENERATE_DATAPLANE_TOKEN]
  when: [{dpToken: {names: ['web-*'], tags: [{name: kuma.io/service, value: web}]}}]
---
type: AccessRoleBinding
name: issuer
subjects: [{type: User, name: issuer}]
roles: [issuer]
`, "apply", "-f", "-", "--force")
	issuer := bearing(t.Context(), strings.TrimSpace(zone.must("generate", "user-token", "--name", "issuer", "--valid-for", "1h")))
	tokens := meridianv1.NewTokenServiceClient(zone.dial())
	for name, allowed := range map[string]bool{"web-1": true, "": false, "payments-1": false, "web": false} {
		_, err := tokens.GenerateDataplaneToken(issuer, &meridianv1.GenerateDataplaneTokenRequest{
			Mesh: "default", Name: name, ValidForSeconds: 3600, Tags: []*meridianv1.TokenTagValues{{Name: "kuma.io/service", Values: []string{"web"}}},
		})
		require.Equal(t, allowed, err == nil, "%q: %v", name, err)
	}
	zone.healthy("proxies")
}

// §6.2: a binding to a role that does not exist yet takes what everything takes, and
// who writes the role later is told of it.
func TestAttacksWithBindingsToMissingRoles(t *testing.T) {
	global := newGlobal(t, "--localhost-is-admin=false").start().ready()
	global.mustWith(adminsOnly+`---
type: AccessRole
name: binder
rules:
- types: [AccessRoleBinding]
  access: [CREATE, UPDATE]
- types: [TrafficPermission]
  access: [CREATE]
---
type: AccessRoleBinding
name: binder
subjects: [{type: User, name: mallory}]
roles: [binder]
`, "apply", "-f", "-", "--force")
	mallory := bearing(t.Context(), strings.TrimSpace(global.must("generate", "user-token", "--name", "mallory", "--valid-for", "1h")))
	client := meridianv1.NewAdminServiceClient(global.dial())
	binding := func(role string) error {
		_, err := batch.Apply(mallory, client, &meridianv1.ApplyRequest{RequestId: role, Resources: []*meridianv1.Resource{{
			Kind: "AccessRoleBinding", Name: "later", Spec: fmt.Appendf(nil, `{"subjects": [{"type": "User", "name": "mallory"}], "roles": [%q]}`, role),
		}}})
		return err
	}
	require.Equal(t, codes.PermissionDenied, status.Code(binding("future")))
	require.NoError(t, binding("binder"), "what they hold they may bind")
	global.mustWith("type: AccessRoleBinding\nname: waiting\nsubjects: [{type: User, name: ann}]\nroles: [future]\n", "apply", "-f", "-")
	told := global.commandWith("type: AccessRole\nname: future\nrules: [{mesh: default, access: [CREATE]}]\n", "apply", "-f", "-")
	require.Zero(t, told.code, told.stderr)
	require.Contains(t, told.stdout+told.stderr, "waiting")
}
