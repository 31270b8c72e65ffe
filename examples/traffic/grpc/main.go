// The services of the tour that speak gRPC: stock programs that take their endpoints,
// routes, timeouts and permissions from a zone over xDS.
//
//	shop-grpc backend DIR NAME   answers calls with its name
//	shop-grpc web DIR NAME       calls the backend for each HTTP request
//	shop-grpc get DIR NAME       sends such a request and prints what became of the calls
//
// A service writes its port to DIR/NAME.port, and waits for its bootstrap file
// DIR/NAME.json, which `meridian proxy run` writes once the zone knows the service.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	xdscredentials "google.golang.org/grpc/credentials/xds"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/xds"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meridian/examples/traffic/shop"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 3 {
		return errors.New("usage: shop-grpc backend|web|get DIR NAME")
	}
	role, path, name := args[0], filepath.Join(args[1], args[2]), args[2]
	if role == "get" {
		return shop.Get(path+".port", args[3:])
	}
	listener, err := shop.Listen(path + ".port")
	if err != nil {
		return err
	}
	bootstrap, err := shop.Await(path + ".json")
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
	return shop.ServeWeb(listener, func(ctx context.Context, delay time.Duration) string { return call(ctx, conn, delay) })
}

// call calls the backend and says what answered, or why nothing did.
func call(ctx context.Context, conn *grpc.ClientConn, delay time.Duration) string {
	ctx, cancel := context.WithTimeout(ctx, shop.Patience)
	defer cancel()
	var name wrapperspb.StringValue
	err := conn.Invoke(ctx, "/shop.Backend/Get", durationpb.New(delay), &name)
	if err != nil {
		code := status.Code(err)
		if code == codes.DeadlineExceeded {
			return shop.Failed + code.String()
		}
		return shop.Failed + code.String() + ": " + status.Convert(err).Message()
	}
	return shop.Answered + name.GetValue()
}
