package rollout

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"

	"meridian/internal/policy/condition"
)

// Health is what is known of a zone, for the condition that halts a rollout.
type Health struct {
	// State is as in `meridian zones`, Connected that an instance is connected.
	State     string
	Connected bool
	// Instances counts the connected ones.
	Instances int
	// Lag counts the synced changes that the zone should have acknowledged, Quarantined the
	// resources that it cannot use.
	Lag         uint64
	Quarantined int
	// SilentSeconds is for how long it has said nothing.
	SilentSeconds float64
	// LastError is what last went wrong in it; empty when all is well.
	LastError string
	// ProxiesPending and ProxiesRejected count the connected proxies that the change
	// touched and that have yet to accept it, or have rejected it.
	ProxiesPending, ProxiesRejected int
	// ProxiesUnknown is why these two are not known; empty where they are.
	ProxiesUnknown string
}

// fields are the variables of a condition, with what a zone has for each.
var fields = map[string]struct {
	of    *cel.Type
	value func(*Zone) any
}{
	"zone.name":            {cel.StringType, func(z *Zone) any { return string(z.Name) }},
	"zone.state":           {cel.StringType, func(z *Zone) any { return z.Health.State }},
	"zone.connected":       {cel.BoolType, func(z *Zone) any { return z.Health.Connected }},
	"zone.instances":       {cel.IntType, func(z *Zone) any { return int64(z.Health.Instances) }},
	"zone.lag":             {cel.IntType, func(z *Zone) any { return int64(min(z.Health.Lag, 1<<62)) }}, //nolint:gosec // bounded
	"zone.quarantined":     {cel.IntType, func(z *Zone) any { return int64(z.Health.Quarantined) }},
	"zone.silentSeconds":   {cel.DoubleType, func(z *Zone) any { return z.Health.SilentSeconds }},
	"zone.lastError":       {cel.StringType, func(z *Zone) any { return z.Health.LastError }},
	"zone.proxiesPending":  {cel.IntType, func(z *Zone) any { return int64(z.Health.ProxiesPending) }},
	"zone.proxiesRejected": {cel.IntType, func(z *Zone) any { return int64(z.Health.ProxiesRejected) }},
}

// Variables are the names that a condition may use, sorted.
func Variables() []string { return slices.Sorted(maps.Keys(fields)) }

// aboutProxies begins the names of what a zone is asked for. Everything else it reports
// by itself.
const aboutProxies = "zone.proxies"

// Conditions compiles the conditions that halt rollouts. It is safe for concurrent use.
type Conditions struct {
	compiler *condition.Compiler
	// reported compiles those that are about nothing that zones are asked for.
	reported *condition.Compiler
}

// NewConditions returns a compiler of conditions, with the bounds of the conditions of
// policies.
func NewConditions() (*Conditions, error) {
	options := condition.DefaultOptions()
	options.Variables = []string{}
	options.CacheBytes = 1 << 20
	of := func(named func(string) bool) (*condition.Compiler, error) {
		options.Fields = map[string]*cel.Type{}
		for name, field := range fields {
			if named(name) {
				options.Fields[name] = field.of
			}
		}
		return condition.NewCompiler(options)
	}
	compiler, err := of(func(string) bool { return true })
	if err != nil {
		return nil, err
	}
	reported, err := of(func(name string) bool { return !strings.HasPrefix(name, aboutProxies) })
	return &Conditions{compiler, reported}, err
}

// AsksProxies reports whether a condition is about the proxies of a zone.
func (c *Conditions) AsksProxies(text string) bool {
	if text == "" {
		return false
	}
	_, err := c.reported.Compile(text)
	return err != nil
}

// Check says what is wrong with a condition; empty is none and fine.
func (c *Conditions) Check(text string) error {
	if text == "" {
		return nil
	}
	_, err := c.compiler.Compile(text)
	var invalid *condition.InvalidError
	if errors.As(err, &invalid) {
		return fmt.Errorf("%s; the variables are %s", invalid.Message, strings.Join(Variables(), ", "))
	}
	return err
}

// Verdict is what a condition says of a zone.
type Verdict struct {
	// Halts is why the rollout halts; empty where it does not.
	Halts string
	// Unknown is what is not known of the zone, without which that cannot be decided.
	Unknown string
}

// Halts reports whether a condition halts a rollout on account of a zone. One that cannot
// be decided does, since what it was to guard against is not known, unless what it is
// about is unknown of the zone for now.
func (c *Conditions) Halts(ctx context.Context, text string, zone *Zone) Verdict {
	if text == "" {
		return Verdict{}
	}
	compiled, err := c.compiler.Compile(text)
	if err != nil {
		return Verdict{Halts: fmt.Sprintf("the condition that halts the rollout cannot be used: %s", err)}
	}
	// Where a value is left out, the expression fails, unless the others decide it (CEL).
	values := make(map[string]any, len(fields))
	for name, field := range fields {
		if zone.Health.ProxiesUnknown == "" || !strings.HasPrefix(name, aboutProxies) {
			values[name] = field.value(zone)
		}
	}
	switch verdict := compiled.EvalWith(ctx, values); verdict.Outcome {
	case condition.Matched:
		return Verdict{Halts: fmt.Sprintf("%s is true of zone %s%s", text, zone.Name, zone.told(text))}
	case condition.Failed:
		if ctx.Err() != nil {
			return Verdict{} // the caller gave up
		}
		if zone.Health.ProxiesUnknown != "" {
			return Verdict{Unknown: fmt.Sprintf("the proxies of zone %s (%s)", zone.Name, zone.Health.ProxiesUnknown)}
		}
		return Verdict{Halts: fmt.Sprintf("the condition that halts the rollout could not be decided for zone %s: %s", zone.Name, verdict.Reason)}
	default:
		return Verdict{}
	}
}

// told are the values of the variables that a condition names, for people.
func (z *Zone) told(text string) string {
	var values []string
	for _, name := range Variables() {
		if name == "zone.name" || !strings.Contains(text, name) {
			continue
		}
		if z.Health.ProxiesUnknown != "" && strings.HasPrefix(name, aboutProxies) {
			continue
		}
		value := fields[name].value(z)
		if s, ok := value.(string); ok {
			value = fmt.Sprintf("%q", clip(s))
		}
		values = append(values, fmt.Sprintf("%s = %v", name, value))
	}
	if len(values) == 0 {
		return ""
	}
	return " (" + strings.Join(values, ", ") + ")"
}

// maxReason bounds a reason that is stored, in bytes; a stored condition fits in half.
const maxReason = 2 << 10

// clip bounds a text that is stored.
func clip(text string) string {
	if len(text) <= maxReason {
		return text
	}
	return strings.ToValidUTF8(text[:maxReason], "") + "…"
}
