package envoy

import (
	"math"
	"strconv"
	"strings"

	commonfaultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/fault/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"meridian/internal/policy"
	"meridian/internal/resource"
	"meridian/internal/xds/generate"
)

// maxDelays bounds the entries of a list of faults that delay: Envoy does not come back to
// filters of a slot behind one that has waited, so that each takes a slot of its own.
const maxDelays = 4

// faultFills are the slots in which requests are made to fail on purpose.
func faultFills() []fill {
	fills := make([]fill, maxDelays)
	for i := range fills {
		fills[i] = fill{
			"faults-" + strconv.Itoa(i+1),
			func(c *generate.Conf) ([]proto.Message, []policy.Pointer) {
				groups := faultsOf(c)
				if i >= len(groups) {
					return nil, nil
				}
				return groups[i].filters, groups[i].fields
			},
			[2]resource.Kind{resource.KindFaultInjection, resource.KindMeshHTTPFault},
			resource.KindMeshHTTPFault,
		}
	}
	return fills
}

// faultGroup is filters for one slot, of which the last may delay, and the fields that they
// are from.
type faultGroup struct {
	filters []proto.Message
	fields  []policy.Pointer
}

// leastStatus is the least status that Envoy answers with: those below are no answers.
const leastStatus = 200

// faultsOf are the faults of a configuration, one filter for each entry, as each strikes on
// its own.
func faultsOf(c *generate.Conf) (groups []faultGroup) {
	var list []resource.FaultInjectionConf
	at := func(i int) policy.Pointer { return policy.Pointer("/http/" + strconv.Itoa(i)) }
	var err error
	if c != nil && c.Kind == resource.KindFaultInjection {
		list, at = make([]resource.FaultInjectionConf, 1), func(int) policy.Pointer { return "" }
		_, err = c.Decode("", &list[0])
	} else {
		_, err = c.Decode("/http", &list)
	}
	if err != nil {
		return nil // it was decoded before
	}
	delays := true
	for i := range list {
		f, parts := faultOf(&list[i])
		if len(parts) == 0 {
			continue
		}
		if delays {
			groups = append(groups, faultGroup{})
		}
		g := &groups[len(groups)-1]
		g.filters = append(g.filters, f)
		for _, part := range parts {
			g.fields = append(g.fields, at(i).Field(part))
		}
		delays = f.GetDelay() != nil
	}
	return groups
}

// faultOf is the filter of one entry, and the parts of it that it has.
func faultOf(entry *resource.FaultInjectionConf) (f *faultv3.HTTPFault, parts []string) {
	f = &faultv3.HTTPFault{DisableDownstreamClusterStats: true}
	if d := entry.Delay; d != nil {
		f.Delay = &commonfaultv3.FaultDelay{
			FaultDelaySecifier: &commonfaultv3.FaultDelay_FixedDelay{FixedDelay: durationpb.New(shortest(d.Value.Value()))}, Percentage: percent(d.Percentage),
		}
		parts = append(parts, "delay")
	}
	if a := entry.Abort; a != nil && a.HTTPStatus >= leastStatus {
		f.Abort = &faultv3.FaultAbort{ErrorType: &faultv3.FaultAbort_HttpStatus{HttpStatus: a.HTTPStatus}, Percentage: percent(a.Percentage)}
		parts = append(parts, "abort")
	}
	if w := entry.ResponseBandwidth; w != nil {
		if limit, ok := kibibytes(w.Limit); ok {
			f.ResponseRateLimit = &commonfaultv3.FaultRateLimit{
				LimitType: &commonfaultv3.FaultRateLimit_FixedLimit_{FixedLimit: &commonfaultv3.FaultRateLimit_FixedLimit{LimitKbps: limit}}, Percentage: percent(w.Percentage),
			}
			parts = append(parts, "responseBandwidth")
		}
	}
	return f, parts
}

// percent is a share of requests, to a ten-thousandth of a percent.
func percent(p resource.Percentage) *typev3.FractionalPercent {
	return &typev3.FractionalPercent{Numerator: uint32(math.Round(float64(p) * 10_000)), Denominator: typev3.FractionalPercent_MILLION}
}

// kibibytes reads a bandwidth, which is in bits per second by thousands, in kibibytes per
// second, the only unit that Envoy has: rounded down, at least one.
func kibibytes(text string) (uint64, bool) {
	const bitsInByte, kibi = 8, 1024
	for unit, bits := range map[string]float64{"kbps": 1e3, "mbps": 1e6, "gbps": 1e9} {
		number, ok := strings.CutSuffix(text, unit)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if err != nil {
			return 0, false
		}
		return uint64(min(max(n*bits/bitsInByte/kibi, 1), 1<<40)), true
	}
	return 0, false
}
