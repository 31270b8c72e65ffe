package envoy

import (
	"strconv"

	"google.golang.org/protobuf/proto"

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
		f, parts := generate.Fault(&list[i])
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
