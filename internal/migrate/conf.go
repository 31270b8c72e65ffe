package migrate

import (
	"fmt"
	"maps"
	"slices"

	"meridian/internal/policy"
	"meridian/internal/resource"
)

// kinds are the translations of kinds: what a configuration becomes. A reason says why one
// cannot be said in the successor.
var kinds = map[resource.Kind]func(policy.Tree) (conf policy.Tree, reason string){
	resource.KindTrafficPermission: func(policy.Tree) (policy.Tree, string) { return policy.Tree{"action": resource.ActionAllow}, "" },
	resource.KindTimeout:           timeoutConf,
	resource.KindFaultInjection: func(c policy.Tree) (policy.Tree, string) {
		if len(c) == 0 {
			return policy.Tree{}, ""
		}
		return policy.Tree{"http": []any{c}}, ""
	},
	resource.KindRateLimit:       rateLimitConf,
	resource.KindTrafficLog:      backendConf,
	resource.KindTrafficTrace:    backendConf,
	resource.KindCircuitBreaker:  circuitBreakerConf,
	resource.KindRetry:           retryConf,
	resource.KindHealthCheck:     same,
	resource.KindProxyTemplate:   same,
	resource.KindVirtualOutbound: same,
}

func same(c policy.Tree) (policy.Tree, string) { return c, "" }

// unknown names the first member of a tree that is not among those known.
func unknown(c policy.Tree, known ...string) string {
	for _, name := range slices.Sorted(maps.Keys(c)) {
		if !slices.Contains(known, name) {
			return fmt.Sprintf("the successor has no field for %s", name)
		}
	}
	return ""
}

func timeoutConf(c policy.Tree) (policy.Tree, string) {
	if why := unknown(c, "connectTimeout", "tcp", "http"); why != "" {
		return nil, why
	}
	out := maps.Clone(c)
	delete(out, "tcp")
	if tcp, ok := c["tcp"].(policy.Tree); ok {
		if idle, ok := tcp["idleTimeout"]; ok {
			out["idleTimeout"] = idle
		}
	}
	return out, ""
}

func rateLimitConf(c policy.Tree) (policy.Tree, string) {
	http, ok := c["http"].(policy.Tree)
	if !ok {
		return policy.Tree{}, ""
	}
	limit := policy.Tree{"requestRate": policy.Tree{"num": http["requests"], "interval": http["interval"]}}
	if on, ok := http["onRateLimit"].(policy.Tree); ok {
		answered := policy.Tree{}
		if status, ok := on["status"]; ok {
			answered["status"] = status
		}
		var add, set []any
		headers, _ := on["headers"].([]any)
		for _, h := range headers {
			header := h.(policy.Tree)
			made := policy.Tree{"name": header["key"], "value": header["value"]}
			if header["append"] == true {
				add = append(add, made)
			} else {
				set = append(set, made)
			}
		}
		modifier := policy.Tree{}
		if add != nil {
			modifier["add"] = add
		}
		if set != nil {
			modifier["set"] = set
		}
		if len(modifier) > 0 {
			answered["headers"] = modifier
		}
		if len(answered) > 0 {
			limit["onRateLimit"] = answered
		}
	}
	return policy.Tree{"local": policy.Tree{"http": limit}}, ""
}

func backendConf(c policy.Tree) (policy.Tree, string) {
	name, ok := c["backend"].(string)
	if !ok || name == "" {
		return nil, "it uses the default backend of the mesh, which the successor does not know: name the backend"
	}
	return policy.Tree{"backends": []any{policy.Tree{"name": name}}}, ""
}

// renamed returns a tree with the members that have another name in the successor.
func renamed(c policy.Tree, names map[string]string) policy.Tree {
	out := policy.Tree{}
	for name, value := range c {
		if to, ok := names[name]; ok {
			name = to
		}
		out[name] = value
	}
	return out
}

func circuitBreakerConf(c policy.Tree) (policy.Tree, string) {
	out, outlier := policy.Tree{}, maps.Clone(c)
	if limits, ok := c["thresholds"].(policy.Tree); ok {
		out["connectionLimits"] = limits
	}
	delete(outlier, "thresholds")
	if detectors, ok := c["detectors"].(policy.Tree); ok {
		made := renamed(detectors, map[string]string{
			"totalErrors": "totalFailures", "gatewayErrors": "gatewayFailures", "localErrors": "localOriginFailures",
			"standardDeviation": "successRate", "failure": "failurePercentage",
		})
		if rate, ok := made["successRate"].(policy.Tree); ok {
			made["successRate"] = renamed(rate, map[string]string{"factor": "standardDeviationFactor"})
		}
		outlier["detectors"] = made
	}
	if len(outlier) > 0 {
		out["outlierDetection"] = outlier
	}
	return out, ""
}

func retryConf(c policy.Tree) (policy.Tree, string) {
	out := policy.Tree{}
	for _, protocol := range []string{"http", "grpc"} {
		conf, ok := c[protocol].(policy.Tree)
		if !ok {
			continue
		}
		if why := unknown(conf, "numRetries", "perTryTimeout", "backOff"); why != "" {
			return nil, protocol + ": " + why
		}
		out[protocol] = conf
	}
	if tcp, ok := c["tcp"].(policy.Tree); ok {
		out["tcp"] = renamed(tcp, map[string]string{"maxConnectAttempts": "maxConnectAttempt"})
	}
	return out, ""
}
