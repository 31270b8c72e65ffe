// The services of the tour that speak HTTP. They know nothing of a mesh: the Envoy beside
// each of them does what policies say.
//
//	shop-http backend DIR NAME      answers requests with its name
//	shop-http web DIR NAME ADDRESS  calls the backend at ADDRESS for each request
//	shop-http get DIR NAME          sends such a request and prints what became of the calls
//	shop-http port                  prints a port of loopback that is free
//
// A service writes its port to DIR/NAME.port.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"meridian/examples/traffic/shop"
)

const (
	// maxBody bounds what is read of an answer, in bytes.
	maxBody = 1024
	// The ports for Envoy to listen on are below those that systems give to connections,
	// so that one that is free stays so.
	firstPort, lastPort = 15_000, 32_000
	// delayParameter is how long the backend is to take.
	delayParameter = "delay"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 1 && args[0] == "port" {
		return printPort()
	}
	if len(args) < 3 {
		return errors.New("usage: shop-http backend|web|get DIR NAME, or shop-http port")
	}
	role, path, name := args[0], filepath.Join(args[1], args[2]), args[2]
	if role == "get" {
		return shop.Get(path+".port", args[3:])
	}
	if role == "web" && len(args) != 4 {
		return errors.New("usage: shop-http web DIR NAME ADDRESS")
	}
	listener, err := shop.Listen(path + ".port")
	if err != nil {
		return err
	}
	switch role {
	case "backend":
		return serveBackend(listener, name)
	case "web":
		return shop.ServeWeb(listener, func(ctx context.Context, delay time.Duration) string { return call(ctx, args[3], delay) })
	default:
		return fmt.Errorf("there is no %q: backend, web, get and port are", role)
	}
}

// serveBackend answers every request with a name, after the time that it asks for.
func serveBackend(listener net.Listener, name string) error {
	handler := func(w http.ResponseWriter, r *http.Request) {
		delay, err := time.ParseDuration(r.FormValue(delayParameter))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
			_, _ = io.WriteString(w, name)
		case <-r.Context().Done():
		}
	}
	server := &http.Server{Handler: http.HandlerFunc(handler), ReadHeaderTimeout: shop.Patience}
	return server.Serve(listener)
}

// call calls the backend and says what answered, or why nothing did.
func call(ctx context.Context, address string, delay time.Duration) string {
	ctx, cancel := context.WithTimeout(ctx, shop.Patience)
	defer cancel()
	ask := url.URL{Scheme: "http", Host: address, Path: "/", RawQuery: url.Values{delayParameter: {delay.String()}}.Encode()}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, ask.String(), http.NoBody)
	if err != nil {
		return shop.Failed + err.Error()
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return shop.Failed + err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxBody))
	text := strings.TrimSpace(string(body))
	switch {
	case err != nil:
		return shop.Failed + err.Error()
	case response.StatusCode != http.StatusOK:
		return shop.Failed + response.Status + ": " + text
	}
	return shop.Answered + text
}

// printPort prints a port on which nothing listens.
func printPort() error {
	const attempts = 100
	var err error
	for range attempts {
		port := firstPort + rand.IntN(lastPort-firstPort)
		var listener net.Listener
		if listener, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			fmt.Println(port)
			return listener.Close()
		}
	}
	return err
}
