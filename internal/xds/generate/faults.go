package generate

import (
	"math"
	"strconv"
	"strings"
	"time"

	commonfaultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/fault/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"meridian/internal/resource"
)

// leastStatus is the least status that proxies answer with: those below are no answers.
const leastStatus = 200

// Fault is one entry of faults, and the parts of it that proxies can make.
func Fault(entry *resource.FaultInjectionConf) (f *faultv3.HTTPFault, parts []string) {
	f = &faultv3.HTTPFault{DisableDownstreamClusterStats: true}
	if d := entry.Delay; d != nil {
		f.Delay = &commonfaultv3.FaultDelay{
			FaultDelaySecifier: &commonfaultv3.FaultDelay_FixedDelay{FixedDelay: durationpb.New(max(d.Value.Value(), time.Millisecond))}, Percentage: percent(d.Percentage),
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
