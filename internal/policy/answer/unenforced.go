package answer

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"meridian/internal/resource"
)

// Unenforced is what a warning says of the proxies that do not, or not quite, obey a
// field of a resource that holds on them.
type Unenforced struct {
	// Dialect is the kind of proxies, "grpc" or "envoy".
	Dialect string `json:"dialect"`
	// Status is "unsupported" or "approximated".
	Status string `json:"status"`
	// Note is why, or what they do instead; it may be empty.
	Note string `json:"note,omitempty"`
	// Zones are the zones with such proxies, by name, each once.
	Zones []UnenforcedIn `json:"zones"`
}

// UnenforcedIn counts the proxies of one zone.
type UnenforcedIn struct {
	Zone    resource.ZoneName `json:"zone"`
	Proxies int               `json:"proxies"`
}

const (
	// maxUnenforced bounds the warnings about proxies in one answer.
	maxUnenforced = 16
	// zonesNamed is how many zones such a warning names.
	zonesNamed = 3
)

// UnenforcedWarning is the warning about a field, or about the whole with an empty path.
func UnenforcedWarning(path string, u *Unenforced) Warning {
	return Warning{Path: path, Message: u.message(), OfDataplanes: true, Unenforced: u}
}

// Cause is the message without the proxies that there are.
func (u *Unenforced) Cause() string {
	return u.effect() + dialectName(u.Dialect) + " proxies" + u.why()
}

// message says what a field does on how many proxies.
func (u *Unenforced) message() string {
	var b strings.Builder
	b.WriteString(u.effect())
	others := 0
	for i, in := range u.Zones {
		switch {
		case i == 0:
			fmt.Fprintf(&b, "%s in zone %s", countOf(in.Proxies, dialectName(u.Dialect)), in.Zone)
		case i < zonesNamed:
			fmt.Fprintf(&b, ", %d in zone %s", in.Proxies, in.Zone)
		default:
			others += in.Proxies
		}
	}
	if more := len(u.Zones) - zonesNamed; more == 1 {
		fmt.Fprintf(&b, ", %d in another zone", others)
	} else if more > 1 {
		fmt.Fprintf(&b, ", %d in %d other zones", others, more)
	}
	return b.String() + u.why()
}

func (u *Unenforced) effect() string {
	if u.Status == "approximated" {
		return "is only approximated on "
	}
	return "has no effect on "
}

func (u *Unenforced) why() string {
	if u.Note == "" {
		return ""
	}
	return ": " + u.Note
}

func countOf(n int, dialect string) string {
	if n == 1 {
		return fmt.Sprintf("1 %s proxy", dialect)
	}
	return fmt.Sprintf("%d %s proxies", n, dialect)
}

func dialectName(dialect string) string {
	switch dialect {
	case "grpc":
		return "gRPC"
	case "envoy":
		return "Envoy"
	}
	return dialect
}

// unenforced puts together what zones say of one field and one kind of proxies, in the
// order of the first that says it.
func unenforced(all []said) []Warning {
	type about struct{ path, dialect, status, note string }
	var merged []Warning
	known := map[about]*Unenforced{}
	for _, s := range all {
		taken := 0
		for _, w := range s.warnings {
			u := w.Unenforced
			if u == nil || s.own || taken == maxUnenforced || len(w.Path)+len(u.Dialect)+len(u.Status)+len(u.Note) > maxWarning {
				continue
			}
			taken++
			proxies := 0
			for _, in := range u.Zones {
				proxies += in.Proxies
			}
			key := about{w.Path, u.Dialect, u.Status, u.Note}
			if known[key] == nil {
				if len(merged) == maxUnenforced {
					continue
				}
				known[key] = &Unenforced{Dialect: u.Dialect, Status: u.Status, Note: u.Note}
				merged = append(merged, Warning{Path: w.Path, Unenforced: known[key]})
			}
			if zones := &known[key].Zones; !slices.ContainsFunc(*zones, func(in UnenforcedIn) bool { return in.Zone == s.zone }) {
				*zones = append(*zones, UnenforcedIn{Zone: s.zone, Proxies: proxies}) // whatever zone it says
			}
		}
	}
	for i, w := range merged {
		slices.SortFunc(w.Unenforced.Zones, func(a, b UnenforcedIn) int { return cmp.Compare(a.Zone, b.Zone) })
		merged[i] = UnenforcedWarning(w.Path, w.Unenforced)
	}
	return merged
}

// hideUnenforced hides the zones that the reader may not read in the warnings about
// proxies.
func (may May) hideUnenforced(warnings []Warning) {
	for i, w := range warnings {
		if w.Unenforced == nil {
			continue
		}
		u := *w.Unenforced
		u.Zones = slices.Clone(u.Zones)
		for j := range u.Zones {
			if read, _ := may(resource.Key{Kind: resource.KindZone, Name: string(u.Zones[j].Zone)}); !read {
				u.Zones[j].Zone = hiddenZone
			}
		}
		warnings[i] = UnenforcedWarning(w.Path, &u)
	}
}
