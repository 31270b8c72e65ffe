package history

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"meridian/internal/resource"
)

// model is what one key does: a register with versions. The state is a State; a
// revision of zero in it is not known yet.
var model = porcupine.Model{
	Init: func() any { return State{} },
	Step: func(state, input, _ any) (bool, any) {
		s, _ := state.(State)
		op, _ := input.(*Op)
		return step(s, op)
	},
	DescribeOperation: func(input, _ any) string { return fmt.Sprint(input) },
	DescribeState:     func(state any) string { return fmt.Sprint(state) },
}

// step says whether an operation can have been answered as it was when it took
// effect on a state, and what it leaves.
func step(s State, op *Op) (bool, State) {
	switch op.Kind {
	case Read:
		return s.agrees(op.State), op.State
	case Restore:
		return true, op.Restored[op.Key]
	}
	met := op.If == nil || *op.If == s.Version
	switch op.Outcome {
	case Conflict:
		return !met, s
	case Unknown:
		if !met {
			return true, s
		}
		if op.Kind == Delete {
			return true, State{}
		}
		return true, State{Version: s.Version + 1, Value: op.Value}
	}
	next := op.State
	if op.Kind == Delete {
		return met && next.Version == 0, State{}
	}
	return met && next.Version == s.Version+1 && next.Value == op.Value, next
}

// agrees says whether a state can have been read as another.
func (s State) agrees(read State) bool {
	return s.Version == read.Version && s.Value == read.Value && (s.Revision == 0 || s.Revision == read.Revision)
}

// Linearizable checks that what clients were told of each key can be explained
// by one order of the operations, in which each takes effect between its call
// and its return. limit bounds the search per key in real time, so it must not
// run on virtual time. Zero does not bound; a search that is cut short is a
// violation of its own.
func Linearizable(h *History, limit time.Duration) []Violation {
	var out []Violation
	byKey := perKey(h)
	for _, key := range slices.SortedFunc(maps.Keys(byKey), resource.Key.Compare) {
		ops := byKey[key]
		switch porcupine.CheckOperationsTimeout(model, ops, limit) {
		case porcupine.Illegal:
			out = append(out, Violation{
				Promise: "linearizable", At: firstImpossible(ops),
				What: fmt.Sprintf("no order of the %d operations on %s explains their answers", len(ops), key),
			})
		case porcupine.Unknown:
			out = append(out, Violation{
				Promise: "linearizable", At: Never,
				What: fmt.Sprintf("whether the %d operations on %s are linearizable was not decided within %s", len(ops), key, limit),
			})
		}
	}
	return out
}

// perKey returns the operations on each key as porcupine takes them.
func perKey(h *History) map[resource.Key][]porcupine.Operation {
	byKey := map[resource.Key][]porcupine.Operation{}
	var restores, several []*Op
	for _, op := range h.Ops {
		switch {
		case op.Kind == Restore && op.Outcome != Refused:
			restores = append(restores, op)
			continue
		case op.Kind == Rollback, op.Kind == Rollout:
			several = append(several, writesOf(h, op)...)
			continue
		}
		for _, op := range settle(h, op) {
			byKey[op.Key] = append(byKey[op.Key], porcupine.Operation{
				ClientId: op.Client, Input: op, Call: int64(op.Call), Return: int64(op.Return),
			})
		}
	}
	for _, op := range several {
		if ops, ok := byKey[op.Key]; ok { // else no client reads it, and others write it
			byKey[op.Key] = append(ops, porcupine.Operation{ClientId: op.Client, Input: op, Call: int64(op.Call), Return: int64(op.Return)})
		}
	}
	for key := range byKey {
		for _, op := range restores {
			one := *op
			one.Key = key
			byKey[key] = append(byKey[key], porcupine.Operation{
				ClientId: op.Client, Input: &one, Call: int64(op.Call), Return: int64(op.Return),
			})
		}
	}
	return byKey
}

// writesOf returns what the commits of an operation on several keys wrote, as operations
// on single ones.
func writesOf(h *History, op *Op) []*Op {
	var out []*Op
	for _, c := range h.Source.Made(op.Request) {
		end := max(op.Call, c.Seen)
		if op.Outcome == Done && op.Revision == c.Revision {
			end = op.Return
		}
		for _, ch := range c.Changes {
			one := &Op{
				Client: op.Client, Server: op.Server, Kind: Put, Key: ch.Key, Request: op.Request, Value: ch.State.Value,
				Call: op.Call, Return: end, Outcome: Done, State: ch.State, Revision: c.Revision,
			}
			if ch.State.Version == 0 {
				one.Kind = Delete
			}
			out = append(out, one)
		}
	}
	return out
}

// settle returns an operation as it is checked: nothing if it says nothing.
// Where the whole history of the global is known, so is what became of an
// operation that its client knows nothing of: it took effect before its commit
// was first seen, or not at all. An operation that was tried again after a
// restore, which forgets requests, can have taken effect before it too.
func settle(h *History, op *Op) []*Op {
	switch {
	case op.Outcome == Refused, op.Kind == Read && op.Outcome != Done:
		return nil
	case op.Kind == Read, op.Request == "", op.Outcome == Conflict, op.Outcome == Unknown && !h.Complete:
		return []*Op{op}
	}
	var out []*Op
	if op.Outcome == Done {
		out = append(out, op)
	}
	for _, c := range h.Source.Made(op.Request) {
		if op.Outcome == Done && (op.Revision == 0 || op.Revision == c.Revision) {
			continue // what the client was told
		}
		for _, ch := range c.Changes {
			if ch.Key == op.Key { // else a deletion of what was not there
				known := *op
				known.Outcome, known.State, known.Revision, known.Return = Done, ch.State, c.Revision, max(op.Call, c.Seen)
				out = append(out, &known)
			}
		}
	}
	return out
}

// firstImpossible is when the shortest beginning of a history ends that is not
// linearizable, found by halving.
func firstImpossible(ops []porcupine.Operation) Time {
	returns := make([]int64, 0, len(ops))
	for _, op := range ops {
		returns = append(returns, op.Return)
	}
	slices.Sort(returns)
	i := sort.Search(len(returns), func(i int) bool {
		return porcupine.CheckOperationsTimeout(model, until(ops, returns[i]), time.Second) == porcupine.Illegal
	})
	if i == len(returns) {
		return Never
	}
	return Time(returns[i])
}

// until returns a history as it stood at a time: what had not returned by then
// is unknown.
func until(ops []porcupine.Operation, at int64) []porcupine.Operation {
	var begun []porcupine.Operation
	for _, op := range ops {
		in, _ := op.Input.(*Op)
		switch {
		case op.Call > at:
			continue
		case op.Return > at && (in.Kind == Read || in.Outcome == Conflict):
			continue
		case op.Return > at && in.Kind != Restore:
			open := *in
			open.Outcome = Unknown
			op.Input, op.Return = &open, int64(Never)
		}
		begun = append(begun, op)
	}
	return begun
}

// Visualize writes, for every key whose operations are not linearizable, a page
// that shows them into a directory, and returns the pages' paths.
func Visualize(h *History, dir string) ([]string, error) {
	var paths []string
	byKey := perKey(h)
	for _, key := range slices.SortedFunc(maps.Keys(byKey), resource.Key.Compare) {
		result, info := porcupine.CheckOperationsVerbose(model, byKey[key], 10*time.Second)
		if result == porcupine.Ok {
			continue
		}
		path := filepath.Join(dir, strings.ReplaceAll(key.String(), "/", "_")+".html")
		if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // a report for people
			return paths, fmt.Errorf("history: %w", err)
		}
		if err := porcupine.VisualizePath(model, info, path); err != nil {
			return paths, fmt.Errorf("history: draw %s: %w", key, err)
		}
		paths = append(paths, path)
	}
	return paths, nil
}
