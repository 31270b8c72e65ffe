// Command dataplane is a small reference client of a zone's DataplaneService: it
// connects as a proxy would, keeps the configuration that it receives, acknowledges
// it, and prints it. It uses only the public API, as an example for proxies.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	meridianv1 "meridian/api/meridian/v1"
)

// maxMessage is what a zone may send at most, in bytes.
const maxMessage = 24 << 20

// options are the settings of the client.
type options struct {
	address, caFile, tokenFile string
	dataplane, mesh, name      string
	format                     string
	once                       bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", words(err))
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	var o options
	flags := pflag.NewFlagSet("dataplane", pflag.ContinueOnError)
	flags.StringVar(&o.address, "address", "127.0.0.1:5678", "host:port of the zone")
	flags.StringVar(&o.caFile, "ca-file", "", "PEM certificate of the zone's CA: pki/ca.pem in its data directory (required)")
	flags.StringVar(&o.tokenFile, "token-file", "", "file with the dataplane token (required)")
	flags.StringVar(&o.dataplane, "dataplane", "", "YAML file with the Dataplane to register")
	flags.StringVarP(&o.mesh, "mesh", "m", "default", "mesh of a dataplane that an operator has applied, in place of --dataplane")
	flags.StringVar(&o.name, "name", "", "its name")
	flags.StringVarP(&o.format, "output", "o", "text", "text, or json: a line for each configuration")
	flags.BoolVar(&o.once, "once", false, "leave after the first configuration")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return nil
		}
		return err
	}
	if o.format != "text" && o.format != "json" {
		return fmt.Errorf("--output is text or json, not %q", o.format)
	}
	c, err := newClient(o)
	if err != nil {
		return err
	}
	return c.stay(ctx)
}

// longestPause is about how long a proxy waits at most before it tries again: half
// of it to one and a half. It is well below the zone's --dataplane-grace, so that
// what a proxy registered is still there when it finds the zone back.
const longestPause = 10 * time.Second

// client is a proxy without traffic.
type client struct {
	options
	dial  []grpc.DialOption
	hello *meridianv1.DataplaneHello
	table table
	// token is the one of the last attempt.
	token string
}

func newClient(o options) (*client, error) {
	hello, err := readHello(o)
	if err != nil {
		return nil, err
	}
	if _, _, err := net.SplitHostPort(o.address); err != nil {
		return nil, fmt.Errorf("--address: %w", err)
	}
	pem, err := os.ReadFile(o.caFile)
	if err != nil {
		return nil, fmt.Errorf("--ca-file: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("--ca-file %s: there is no certificate in it", o.caFile)
	}
	dial := []grpc.DialOption{
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13})),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		// A zone that vanished without a word is noticed.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
	}
	return &client{options: o, dial: dial, hello: hello}, nil
}

// stay connects again and again, until ctx ends or the zone says that there is
// no point. What the proxy has stays in force in between.
func (c *client) stay(ctx context.Context) error {
	wait := time.Second
	for {
		connected := time.Now()
		err := c.connect(ctx)
		switch {
		case ctx.Err() != nil || (err == nil && c.once):
			return nil
		case !worthRetrying(err) && !c.renewed(err):
			return err
		}
		if time.Since(connected) > time.Minute {
			wait = time.Second
		}
		// Thousands of proxies lose a zone at the same moment: they must not come
		// back at the same moment too.
		pause := wait/2 + rand.N(wait)
		c.note("disconnected: %s; again in %s", words(err), pause.Round(time.Millisecond))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		wait = min(2*wait, longestPause)
	}
}

// words are an error as people read it.
func words(err error) string {
	if s, ok := status.FromError(err); ok {
		return fmt.Sprintf("%s (%s)", s.Message(), s.Code())
	}
	return err.Error()
}

// errNoToken means that there is nothing to connect with.
var errNoToken = errors.New("--token-file")

// readToken reads the token anew for each connection, so that it can be replaced
// in its file.
func (c *client) readToken() (string, error) {
	content, err := os.ReadFile(c.tokenFile)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errNoToken, err)
	}
	token := strings.TrimSpace(string(content))
	if token == "" {
		return "", fmt.Errorf("%w: %s is empty", errNoToken, c.tokenFile)
	}
	return token, nil
}

// renewed reports whether a token was refused that has been replaced since: a
// stream ends with the token it began with.
func (c *client) renewed(refusal error) bool {
	if code := status.Code(refusal); code != codes.Unauthenticated && code != codes.PermissionDenied {
		return false
	}
	token, err := c.readToken()
	return err == nil && token != c.token
}

// worthRetrying tells a zone that cannot be reached, or was asked to remove the
// dataplane, from one that has refused this proxy.
func worthRetrying(err error) bool {
	if errors.Is(err, errNoToken) {
		return false
	}
	switch status.Code(err) {
	case codes.Unauthenticated, codes.PermissionDenied, codes.InvalidArgument, codes.FailedPrecondition, codes.Unimplemented:
		return false
	}
	return true
}

// connect is one stream: hello, then configurations and their answers.
func (c *client) connect(ctx context.Context) error {
	token, err := c.readToken()
	if err != nil {
		return err
	}
	c.token = token
	// Each stream has a connection of its own: one that is kept has pauses of its
	// own, up to two minutes, in which it does not try.
	conn, err := grpc.NewClient(c.address, c.dial...)
	if err != nil {
		return fmt.Errorf("--address: %w", err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	stream, err := meridianv1.NewDataplaneServiceClient(conn).Connect(ctx)
	if err != nil {
		return err
	}
	hello := &meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Hello{Hello: c.hello}}
	if err := stream.Send(hello); err != nil {
		_, err = stream.Recv() // says why
		return err
	}
	for {
		configuration, err := stream.Recv()
		if err != nil {
			return err
		}
		ack := &meridianv1.DataplaneAck{Sequence: configuration.GetSequence()}
		if err := c.table.take(configuration); err != nil {
			ack.Error = err.Error()
		}
		if err := c.print(configuration, ack.GetError()); err != nil {
			return err
		}
		if err := stream.Send(&meridianv1.ConnectRequest{Message: &meridianv1.ConnectRequest_Ack{Ack: ack}}); err != nil {
			_, err = stream.Recv()
			return err
		}
		if c.once {
			// Hang up in order, so that the answer arrives.
			if err := stream.CloseSend(); err != nil {
				return err
			}
			for err == nil {
				_, err = stream.Recv()
			}
			return nil
		}
	}
}
