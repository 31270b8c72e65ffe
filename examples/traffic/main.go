// The services of the tour: stock gRPC programs that take their endpoints, routes,
// timeouts and permissions from a zone over xDS.
//
//	traffic backend DIR NAME   answers calls with its name
//	traffic web DIR NAME       calls the backend for each HTTP request
//	traffic get DIR NAME       sends such a request and prints what became of the calls
//
// A service writes its port to DIR/NAME.port, and waits for its bootstrap file
// DIR/NAME.json, which `meridian proxy run` writes once the zone knows the service.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	xdscredentials "google.golang.org/grpc/credentials/xds"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/xds"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	// patience bounds one call: longer than any step of the tour has the backend take.
	patience = 2 * time.Minute
	// startTimeout bounds the wait for a bootstrap file.
	startTimeout = 60 * time.Second
	// pause is between calls that are made until something becomes of one: what they wait
	// for is to have the machine.
	pause = time.Millisecond
	// maxCalls bounds the calls of one request.
	maxCalls = 100_000
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 3 {
		return errors.New("usage: traffic backend|web|get DIR NAME")
	}
	role, path, name := args[0], filepath.Join(args[1], args[2]), args[2]
	if role == "get" {
		return get(path+".port", args[3:])
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	port := listener.Addr().(*net.TCPAddr).Port
	if err := write(path+".port", strconv.Itoa(port)); err != nil {
		return err
	}
	bootstrap, err := await(path + ".json")
	if err != nil {
		return err
	}
	switch role {
	case "backend":
		return serveBackend(listener, bootstrap, name)
	case "web":
		return serveWeb(listener, bootstrap)
	default:
		return fmt.Errorf("there is no %q: backend, web and get are", role)
	}
}

// write writes a file, which is there with all of its text or not at all.
func write(path, text string) error {
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// await returns what is in a file once it is there.
func await(path string) ([]byte, error) {
	again, patience := time.NewTicker(10*time.Millisecond), time.NewTimer(startTimeout)
	defer again.Stop()
	defer patience.Stop()
	for {
		data, err := os.ReadFile(path)
		if !errors.Is(err, os.ErrNotExist) {
			return data, err
		}
		select {
		case <-again.C:
		case <-patience.C:
			return nil, fmt.Errorf("%w after %s", err, startTimeout)
		}
	}
}

// serveBackend answers every call with a name, after the time that the call asks for.
// With XDS credentials it takes part in mutual TLS where its mesh has that.
func serveBackend(listener net.Listener, bootstrap []byte, name string) error {
	credentials, err := xdscredentials.NewServerCredentials(xdscredentials.ServerOptions{FallbackCreds: insecure.NewCredentials()})
	if err != nil {
		return err
	}
	answer := func(_ any, stream grpc.ServerStream) error {
		var delay durationpb.Duration
		if err := stream.RecvMsg(&delay); err != nil {
			return err
		}
		timer := time.NewTimer(delay.AsDuration())
		defer timer.Stop()
		select {
		case <-timer.C:
			return stream.SendMsg(wrapperspb.String(name))
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		}
	}
	server, err := xds.NewGRPCServer(grpc.Creds(credentials), grpc.UnknownServiceHandler(answer), xds.BootstrapContentsForTesting(bootstrap))
	if err != nil {
		return err
	}
	return server.Serve(listener)
}

// serveWeb calls the backend for each HTTP request, as often as it says.
func serveWeb(listener net.Listener, bootstrap []byte) error {
	resolver, err := xds.NewXDSResolverWithConfigForTesting(bootstrap)
	if err != nil {
		return err
	}
	credentials, err := xdscredentials.NewClientCredentials(xdscredentials.ClientOptions{FallbackCreds: insecure.NewCredentials()})
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("xds:///backend", grpc.WithResolvers(resolver), grpc.WithTransportCredentials(credentials))
	if err != nil {
		return err
	}
	handler := func(w http.ResponseWriter, r *http.Request) {
		calls, err := strconv.Atoi(r.FormValue("calls"))
		delay, delayErr := time.ParseDuration(r.FormValue("delay"))
		until := r.FormValue("until")
		if err := errors.Join(err, delayErr); err != nil || calls < 1 || calls > maxCalls {
			http.Error(w, "calls and delay say what to do", http.StatusBadRequest)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), patience)
		defer cancel()
		done := report{Became: map[string]int{}}
		pace := time.NewTicker(pause)
		defer pace.Stop()
		for range calls {
			what := call(ctx, conn, delay)
			done.Ended = time.Now()
			done.Became[what]++
			if until != "" && strings.Contains(what, until) || ctx.Err() != nil {
				break
			}
			if until != "" {
				_ = http.NewResponseController(w).Flush() // who asked learns that it has begun
				<-pace.C
			}
		}
		_ = json.NewEncoder(w).Encode(done)
	}
	server := &http.Server{Handler: http.HandlerFunc(handler), ReadHeaderTimeout: patience}
	return server.Serve(listener)
}

// report is the answer to a request for calls.
type report struct {
	// Became counts the calls by what became of them.
	Became map[string]int
	// Ended is when the last one ended.
	Ended time.Time
}

// failed begins the outcome of a call that failed.
const failed = "failed: "

// call calls the backend and says what answered, or why nothing did.
func call(ctx context.Context, conn *grpc.ClientConn, delay time.Duration) string {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var name wrapperspb.StringValue
	err := conn.Invoke(ctx, "/shop.Backend/Get", durationpb.New(delay), &name)
	if err != nil {
		code := status.Code(err)
		if code == codes.DeadlineExceeded {
			return failed + code.String()
		}
		return failed + code.String() + ": " + status.Convert(err).Message()
	}
	return "answered by " + name.GetValue()
}

// get asks a service for calls and prints what became of them. It fails unless all of
// them succeed, or, with --failing, all of them fail. With --until the last one is to have
// that text, and with --failing those before may be anything.
func get(portFile string, args []string) error {
	flags := flag.NewFlagSet("get", flag.ContinueOnError)
	calls := flags.Int("calls", 1, "how many `calls` to make")
	delay := flags.Duration("delay", 0, "how long the backend takes for each")
	failing := flags.Bool("failing", false, "the calls are expected to fail")
	until := flags.String("until", "", "make calls until what became of one has this `text`")
	begun := flags.String("begun", "", "write this `file` once the first call has ended")
	since := flags.String("since", "", "say how long after the time in this `file`, once it is there, the last call ended")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *until != "" {
		*calls = maxCalls
	}
	port, err := os.ReadFile(portFile)
	if err != nil {
		return err
	}
	ask := url.URL{Scheme: "http", Host: "127.0.0.1:" + string(port), Path: "/", RawQuery: url.Values{
		"calls": {strconv.Itoa(*calls)}, "delay": {delay.String()}, "until": {*until},
	}.Encode()}
	response, err := http.Get(ask.String())
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	if *begun != "" {
		if err := write(*begun, "begun"); err != nil {
			return err
		}
	}
	var done report
	if err := json.NewDecoder(response.Body).Decode(&done); err != nil {
		return err
	}
	written := done.Ended
	if *since != "" {
		text, err := await(*since)
		if err != nil {
			return err
		}
		if written, err = time.Parse(time.RFC3339Nano, strings.TrimSpace(string(text))); err != nil {
			return err
		}
	}
	expected, ended := true, *until == ""
	for _, what := range slices.SortedFunc(maps.Keys(done.Became), func(a, b string) int {
		return cmp.Or(cmp.Compare(done.Became[b], done.Became[a]), cmp.Compare(a, b))
	}) {
		fmt.Printf("%6d  %s\n", done.Became[what], what)
		switch {
		case *until != "" && strings.Contains(what, *until):
			ended = true
		case *until != "" && *failing:
		case strings.Contains(what, failed) != *failing:
			expected = false
		}
	}
	if !expected || !ended {
		return errors.New("that is not what was expected")
	}
	if *since != "" {
		fmt.Printf("The last of them ended %.1f ms after the write.\n", float64(done.Ended.Sub(written).Microseconds())/1000)
	}
	return nil
}
