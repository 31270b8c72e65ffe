// Package shop is what the services of the tour have in common, however they talk to each
// other: a web shop that calls its backend as often as it is asked to, and who asks.
//
// A service NAME keeps its files in a directory: its port is in NAME.port.
package shop

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
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// Patience bounds one call: longer than any step of the tour has the backend take.
	Patience = 2 * time.Minute
	// Answered begins what became of a call that was answered.
	Answered = "answered by "
	// Failed begins what became of a call that was not.
	Failed = "failed: "

	// startTimeout bounds the wait for a file.
	startTimeout = 60 * time.Second
	// pause is between calls that are made until something becomes of one: what they wait
	// for is to have the machine.
	pause = time.Millisecond
	// maxCalls bounds the calls of one request.
	maxCalls = 100_000
)

// Listen listens on a port of loopback that is free, and writes it to a file.
func Listen(portFile string) (net.Listener, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	return listener, write(portFile, strconv.Itoa(listener.Addr().(*net.TCPAddr).Port))
}

// write writes a file, which is there with all of its text or not at all.
func write(path, text string) error {
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// Await returns what is in a file once it is there.
func Await(path string) ([]byte, error) {
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

// ServeWeb calls the backend for each request, as often as it says, until the listener
// fails. call calls it once, for a backend that takes as long as the request says, and
// says what became of that.
func ServeWeb(listener net.Listener, call func(ctx context.Context, delay time.Duration) string) error {
	handler := func(w http.ResponseWriter, r *http.Request) {
		calls, err := strconv.Atoi(r.FormValue("calls"))
		delay, delayErr := time.ParseDuration(r.FormValue("delay"))
		until := r.FormValue("until")
		if err := errors.Join(err, delayErr); err != nil || calls < 1 || calls > maxCalls {
			http.Error(w, "calls and delay say what to do", http.StatusBadRequest)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), Patience)
		defer cancel()
		done := report{Became: map[string]int{}}
		pace := time.NewTicker(pause)
		defer pace.Stop()
		for range calls {
			what := call(ctx, delay)
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
	server := &http.Server{Handler: http.HandlerFunc(handler), ReadHeaderTimeout: Patience}
	return server.Serve(listener)
}

// report is the answer to a request for calls.
type report struct {
	// Became counts the calls by what became of them.
	Became map[string]int
	// Ended is when the last one ended.
	Ended time.Time
}

// Get asks a service for calls and prints what became of them. It fails unless all of
// them succeed, or, with --failing, all of them fail. With --until the last one is to have
// that text, and with --failing those before may be anything.
func Get(portFile string, args []string) error {
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
		text, err := Await(*since)
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
		case strings.Contains(what, Failed) != *failing:
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
