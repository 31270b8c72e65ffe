package cli

import (
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/exit"
	"meridian/internal/past"
)

// atFlag is a point in time on the command line: a revision, or how long ago.
type atFlag struct{ point *meridianv1.PointInTime }

var _ pflag.Value = (*atFlag)(nil)

// bind defines --at.
func (f *atFlag) bind(cmd *cobra.Command) {
	cmd.Flags().Var(f, "at", "as it was at a revision, such as 1841, or so long ago, such as 2h or 1d")
}

// given reports whether the flag was given.
func (f *atFlag) given() bool { return f.point != nil }

// String implements pflag.Value.
func (f *atFlag) String() string {
	switch p := f.point.GetPoint().(type) {
	case *meridianv1.PointInTime_Revision:
		return strconv.FormatUint(p.Revision, 10)
	case *meridianv1.PointInTime_Ago:
		return p.Ago.AsDuration().String()
	}
	return ""
}

// Type implements pflag.Value.
func (*atFlag) Type() string { return "revision|duration" }

// Set implements pflag.Value.
func (f *atFlag) Set(text string) (err error) {
	var days time.Duration
	if _, notNumber := strconv.ParseUint(text, 10, 64); notNumber != nil && (durationValue{&days}).Set(text) == nil {
		text = days.String()
	}
	f.point, err = past.Parse(text)
	return err
}

// diffStates are the states that diff compares.
type diffStates struct{ from, to atFlag }

func (d *diffStates) bind(cmd *cobra.Command) {
	cmd.Flags().Var(&d.from, "from", "compare this state of the control plane: a revision, or how long ago")
	cmd.Flags().Var(&d.to, "to", "with --from: with this state; what is stored now, when absent")
}

func (d *diffStates) given() bool { return d.from.given() || d.to.given() }

func (d *diffStates) check() error {
	if !d.from.given() {
		return exit.Usagef("--to goes with --from: the state to compare it with")
	}
	return nil
}
