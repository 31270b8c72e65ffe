package cli

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// durationValue is a duration on the command line, which may begin with days.
type durationValue struct{ d *time.Duration }

var _ pflag.Value = durationValue{}

// bindDuration defines a duration flag: as Go writes them, or with days, as in 30d
// or 1d12h.
func bindDuration(flags *pflag.FlagSet, d *time.Duration, name string, usage string) {
	flags.Var(durationValue{d}, name, usage)
}

// String implements pflag.Value.
func (v durationValue) String() string {
	if v.d == nil || *v.d == 0 {
		return ""
	}
	return v.d.String()
}

// Type implements pflag.Value.
func (durationValue) Type() string { return "duration" }

// Set implements pflag.Value.
func (v durationValue) Set(text string) error {
	var days time.Duration
	rest := text
	if head, tail, ok := strings.Cut(text, "d"); ok {
		n, err := strconv.ParseUint(head, 10, 16)
		if err != nil {
			return errors.New("not a duration")
		}
		days, rest = time.Duration(n)*24*time.Hour, tail //nolint:gosec // 16 bits
		if rest == "" {
			*v.d = days
			return nil
		}
	}
	d, err := time.ParseDuration(rest)
	if err != nil {
		return errors.New("not a duration")
	}
	*v.d = days + d
	return nil
}
