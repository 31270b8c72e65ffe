//go:build multizone

package multizone

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	meridianv1 "meridian/api/meridian/v1"
)

// mostHeap bounds a server's heap under attack: what it may hold of requests,
// once more until the collector has been by, and what it is without them.
const mostHeap = 400 << 20

// heap is the heap in use of a server, garbage included.
func (p *process) heap() uint64 {
	p.t.Helper()
	client := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get("http://" + p.addresses()["http"] + "/metrics")
	require.NoError(p.t, err)
	defer response.Body.Close()
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), "go_memstats_heap_inuse_bytes "); ok {
			bytes, err := strconv.ParseFloat(value, 64)
			require.NoError(p.t, err)
			return uint64(bytes)
		}
	}
	p.t.Fatal("the server does not say how large its heap is")
	return 0
}

// stands proves that a server does its work and has not grown.
func (p *process) stands(after string) {
	p.t.Helper()
	heap := p.heap()
	require.Less(p.t, heap, uint64(mostHeap), "after %s", after)
	p.t.Logf("%s, %s: a heap of %d MiB", p.name, after, heap>>20)
	p.healthy(after)
}

// oneBuffer is a codec that sends the bytes it is given, without a copy: a burst
// shares them.
type oneBuffer struct{}

func (oneBuffer) Name() string { return "proto" }

func (oneBuffer) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (oneBuffer) Unmarshal(mem.BufferSlice, any) error { return nil }

// Large requests, each on its own connection and none of them ended: a server
// holds a bounded part of what may be meant, and next to nothing of what may not.
func TestAttacksWithManyLargeRequests(t *testing.T) {
	const clients, parts = 80, 23 << 20 / (63 << 10)
	global := newGlobal(t, "--localhost-is-admin=false").start().ready()
	zone := newZone(t, global, "east", "--localhost-is-admin=false").start().ready()
	part, err := proto.Marshal(&meridianv1.ApplyRequest{Resources: []*meridianv1.Resource{{Kind: "Mesh", Name: "m", Spec: make([]byte, 63<<10)}}})
	require.NoError(t, err)
	for _, target := range []*process{global, zone} {
		trust := target.trust()
		for who, token := range map[string]string{"unauthenticated": "", "forgers": "no.such.token"} {
			for range clients {
				conn, err := grpc.NewClient(target.addresses()["grpc"], grpc.WithTransportCredentials(credentials.NewTLS(trust)))
				require.NoError(t, err)
				defer func() { _ = conn.Close() }()
				ctx := context.WithoutCancel(t.Context())
				if token != "" {
					ctx = bearing(ctx, token)
				}
				call, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, meridianv1.AdminService_Apply_FullMethodName, grpc.ForceCodecV2(oneBuffer{}))
				require.NoError(t, err)
				for range parts {
					if err := call.SendMsg(part); err != nil {
						require.ErrorIs(t, err, io.EOF, "it is refused while it sends")
						break
					}
				}
			}
			target.stands(fmt.Sprintf("%d batches of %d MiB by %s", clients, parts*len(part)>>20, who))
		}
	}
	// Unauthenticated writes that are allowed still succeed.
	var batch strings.Builder
	for i := range 200 {
		fmt.Fprintf(&batch, "---\n{type: TrafficPermission, mesh: default, name: p-%d, sources: [{match: {kuma.io/service: web}}], destinations: [{match: {kuma.io/service: %s}}]}\n", i, strings.Repeat("x", 200))
	}
	r := meridian(t, global.anonymous(), batch.String(), "apply", "-f", "-")
	require.Zero(t, r.code, r.stderr)
}

// Types of HTTP/2 frames and their flags, by RFC 9113.
const (
	h2Data, h2Headers, h2Reset, h2Settings, h2Ping, h2Continuation = 0, 1, 3, 4, 6, 9

	h2EndStream, h2EndHeaders = 1, 4

	// h2RefusedStream is the code of a stream beyond those that may be open.
	h2RefusedStream = 7
)

// frame is an HTTP/2 frame.
func frame(kind, flags byte, stream uint32, payload []byte) []byte {
	out := append([]byte{byte(len(payload) >> 16), byte(len(payload) >> 8), byte(len(payload)), kind, flags}, binary.BigEndian.AppendUint32(nil, stream)...)
	return append(out, payload...)
}

// field is a header field as HPACK writes one that is never indexed.
func field(name, value string) []byte {
	text := func(s string) []byte {
		if len(s) < 127 {
			return append([]byte{byte(len(s))}, s...)
		}
		out := []byte{127}
		n := len(s) - 127
		for ; n >= 128; n >>= 7 {
			out = append(out, byte(n)|128)
		}
		return append(append(out, byte(n)), s...)
	}
	return slices.Concat([]byte{0}, text(name), text(value))
}

// callTo are the header fields of a call.
func callTo(method string) []byte {
	return slices.Concat(field(":method", "POST"), field(":scheme", "https"), field(":path", method), field(":authority", "x"),
		field("content-type", "application/grpc"), field("te", "trailers"))
}

// attack is what a connection does that is up to no good, as frames that are
// written until an error. Nothing is read meanwhile.
type attack struct {
	name   string
	frames func(yield func([]byte) bool)
}

func times(n int, f func(i uint32) []byte) func(yield func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for i := range n {
			if !yield(f(uint32(i))) { //nolint:gosec // a small number
				return
			}
		}
	}
}

func attacks() []attack {
	const get, health = meridianv1.AdminService_Get_FullMethodName, "/grpc.health.v1.Health/Watch"
	odd := func(i uint32) uint32 { return 2*i + 1 }
	long := field("x", strings.Repeat("x", 16000))
	request := []byte{0, 0, 0, 0, 0}
	return []attack{
		{"a flood of pings", times(50_000, func(uint32) []byte { return frame(h2Ping, 0, 0, make([]byte, 8)) })},
		{"a flood of settings", times(50_000, func(uint32) []byte { return frame(h2Settings, 0, 0, nil) })},
		{"rapid resets", times(20_000, func(i uint32) []byte {
			return slices.Concat(frame(h2Headers, h2EndHeaders, odd(i), callTo(get)), frame(h2Reset, 0, odd(i), make([]byte, 4)))
		})},
		{"headers without end", times(10_000, func(i uint32) []byte {
			if i == 0 {
				return frame(h2Headers, 0, 1, callTo(get))
			}
			return frame(h2Continuation, 0, 1, long)
		})},
		{"large headers", times(1000, func(i uint32) []byte {
			return slices.Concat(frame(h2Headers, 0, odd(i), callTo(get)), frame(h2Continuation, 0, odd(i), long), frame(h2Continuation, h2EndHeaders, odd(i), field("y", strings.Repeat("y", 15000))))
		})},
		{"calls that never send", times(3000, func(i uint32) []byte { return frame(h2Headers, h2EndHeaders, odd(i), callTo(get)) })},
		{"calls that claim much", times(3000, func(i uint32) []byte {
			return slices.Concat(frame(h2Headers, h2EndHeaders, odd(i), callTo(get)), frame(h2Data, 0, odd(i), []byte{0, 1, 0x7f, 0xff, 0xff, 1}))
		})},
		{"crumbs", func(yield func([]byte) bool) {
			head := slices.Concat(frame(h2Headers, h2EndHeaders, 1, callTo(get)), frame(h2Data, 0, 1, []byte{0, 1, 0x7f, 0xff, 0xff}))
			if yield(head) {
				times(60_000, func(uint32) []byte { return frame(h2Data, 0, 1, []byte{1}) })(yield)
			}
		}},
		{"watches that are not read", times(3000, func(i uint32) []byte {
			return slices.Concat(frame(h2Headers, h2EndHeaders, odd(i), callTo(health)), frame(h2Data, h2EndStream, odd(i), request))
		})},
	}
}

// What breaks the rules of HTTP/2, or keeps them and means harm, on twenty
// connections at once, keeps no server from its work.
func TestAttacksWithFrames(t *testing.T) {
	const clients = 20
	global := newGlobal(t, "--localhost-is-admin=false").start().ready()
	trust := global.trust()
	trust.ServerName = "127.0.0.1"
	preface := append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), frame(h2Settings, 0, 0, nil)...)
	for _, a := range attacks() {
		conns := openMany(t, clients, global.addresses()["grpc"], func(net.Conn) error { return nil })
		done := make(chan int, clients)
		for _, conn := range conns {
			go func() {
				out := bufio.NewWriterSize(tls.Client(conn, trust), 64<<10)
				_, err := out.Write(preface)
				sent := 0
				for f := range a.frames {
					if err == nil {
						_, err = out.Write(f)
					}
					if err != nil {
						break
					}
					sent++
				}
				_ = out.Flush()
				done <- sent
			}()
		}
		// While it lasts, whether the server still reads what comes or not.
		global.stands(a.name + ", under way")
		for _, conn := range conns {
			_ = conn.Close()
		}
		sent := 0
		for range clients {
			sent += <-done
		}
		require.Positive(t, sent)
		global.stands(fmt.Sprintf("%s, %d in all", a.name, sent))
	}
}
