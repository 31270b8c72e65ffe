package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	meridianv1 "meridian/api/meridian/v1"
	"meridian/internal/cli/client"
	"meridian/internal/cli/exit"
	"meridian/internal/cli/print"
	"meridian/internal/resource"
	"meridian/internal/rollout"
)

// rolloutOptions are the flags by which a change reaches the zones by stages.
type rolloutOptions struct {
	flags                *pflag.FlagSet
	stages, name, haltOn string
	interval             time.Duration
	manual               bool
}

// bindRollout defines them.
func bindRollout(cmd *cobra.Command, o *rolloutOptions) {
	o.flags = cmd.Flags()
	cmd.Flags().StringVar(&o.stages, "rollout", "", "have the change reach the zones by stages, such as zones=canary,then=25%,then=all: names of zones with *, shares, and all in the end")
	cmd.Flags().StringVar(&o.name, "rollout-name", "", "with --rollout: the name of the rollout (default: chosen)")
	cmd.Flags().StringVar(&o.haltOn, "halt-on", "", "with --rollout: halt where this CEL condition is true of a zone that has the change, such as 'zone.proxiesRejected > 0 || !zone.connected'")
	cmd.Flags().DurationVar(&o.interval, "interval", 0, "with --rollout: how long all connected zones of a stage must have the change before the next stage begins")
	cmd.Flags().BoolVar(&o.manual, "manual", false, "with --rollout: begin each stage by 'meridian rollout promote' only")
}

// given reports whether any of the flags is given, also with an empty value.
func (o *rolloutOptions) given() bool {
	return slices.ContainsFunc([]string{"rollout", "rollout-name", "halt-on", "interval", "manual"}, o.flags.Changed)
}

// options are those of a request; nil without --rollout. An empty --rollout or --halt-on
// is refused: with a variable that a script did not set, the change would reach all zones
// at once, or without a condition.
func (o *rolloutOptions) options(now time.Time) (*meridianv1.RolloutOptions, error) {
	switch {
	case !o.given():
		return nil, nil
	case !o.flags.Changed("rollout"):
		return nil, exit.Usagef("--rollout-name, --halt-on, --interval and --manual are about --rollout: give it, too")
	case o.stages == "":
		return nil, exit.Usagef("--rollout is empty: write stages such as zones=canary,then=25%%,then=all, or leave it out to change all zones at once")
	case o.flags.Changed("halt-on") && strings.TrimSpace(o.haltOn) == "":
		return nil, exit.Usagef("--halt-on is empty: write a condition such as '!zone.connected', or leave it out")
	}
	stages, err := rollout.ParseStages(o.stages)
	if err != nil {
		return nil, exit.Usagef("--rollout: %w", err)
	}
	conditions, err := rollout.NewConditions()
	if err != nil {
		return nil, err
	}
	if err := conditions.Check(o.haltOn); err != nil {
		return nil, exit.Usagef("--halt-on: %w", err)
	}
	if o.interval < 0 {
		return nil, exit.Usagef("--interval cannot be negative")
	}
	out := &meridianv1.RolloutOptions{Name: o.name, HaltOn: o.haltOn, Manual: o.manual}
	if out.Name == "" {
		out.Name = "r-" + now.UTC().Format("20060102-150405") + "-" + strings.ToLower(rand.Text()[:4])
	}
	if err := resource.CheckName(out.Name); err != nil {
		return nil, exit.Usagef("--rollout-name: %w", err)
	}
	if o.interval > 0 {
		out.Interval = durationpb.New(o.interval)
	}
	for _, stage := range stages {
		s := &meridianv1.RolloutStage{Zones: stage.Zones, All: stage.All}
		if stage.Percent != nil {
			s.Percent = *stage.Percent
		}
		out.Stages = append(out.Stages, s)
	}
	return out, nil
}

// tellRollout says what becomes of a change that reaches the zones by stages.
func (a *app) tellRollout(o *meridianv1.RolloutOptions, results []*meridianv1.Result) {
	if o == nil {
		return
	}
	if len(results) == 1 && results[0].GetKind() == string(resource.KindRollout) {
		a.Message("Rollout %s has begun; `meridian rollout status %s` shows how far it is.", o.GetName(), o.GetName())
		return
	}
	a.Message("Nothing changes: no rollout was begun.")
}

func newRolloutCommand(a *app) *cobra.Command {
	return newGroup("rollout", "Changes that reach the zones by stages",
		newRolloutList(a), newRolloutStatus(a),
		newRolloutPromote(a),
		newRolloutChange(a, "abort", "End a rollout: every zone has what it had before",
			`End a rollout that is not completed. Every zone has what it had before, and what the
rollout was to change can be changed again.`, (*app).abortRollout),
	)
}

func newRolloutList(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List rollouts and how far they are",
		Example: "  meridian rollout list",
		Args:    exactly(),
	}
	output := bindResults(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.showRollouts(cmd.Context(), output.Value, "")
	}
	return cmd
}

func newRolloutStatus(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status NAME",
		Short: "Show which zones have the change of a rollout",
		Long: `Show a rollout: its stages, what it changes, what it waits for, and for each zone
whether it has the change. The exit code is 3 where the rollout has halted.`,
		Example:           "  meridian rollout status canary-timeouts",
		Args:              exactly("NAME"),
		ValidArgsFunction: a.completeRollouts,
	}
	output := bindResults(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.showRollouts(cmd.Context(), output.Value, args[0])
	}
	return cmd
}

func newRolloutPromote(a *app) *cobra.Command {
	var skipTests bool
	cmd := newRolloutChange(a, "promote", "Begin the next stage of a rollout now, or complete it",
		`Begin the next stage of a rollout now, whatever its zones, its interval and its
condition say; in the last stage, complete it: the global has the change then. A
rollout that halted continues. Where tests fail that a mesh carries, it is refused.`,
		func(a *app, ctx context.Context, c *client.Client, name string) (*meridianv1.Rollout, uint64, error) {
			return a.promoteRollout(ctx, c, name, skipTests)
		})
	cmd.Flags().BoolVar(&skipTests, "skip-tests", false, "continue although tests fail that a mesh carries, here and in later stages; takes the right to delete them")
	return cmd
}

func newRolloutChange(a *app, use, short, long string, change func(*app, context.Context, *client.Client, string) (*meridianv1.Rollout, uint64, error)) *cobra.Command {
	cmd := &cobra.Command{
		Use:               use + " NAME",
		Short:             short,
		Long:              long,
		Example:           "  meridian rollout " + use + " canary-timeouts",
		Args:              exactly("NAME"),
		ValidArgsFunction: a.completeRollouts,
	}
	output := bindResults(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.connect()
		if err != nil {
			return err
		}
		defer c.Close()
		r, revision, err := change(a, cmd.Context(), c, args[0])
		if err != nil {
			return explainInterrupt(err, false)
		}
		return a.printRolloutChange(output.Value, r, revision)
	}
	return cmd
}

// promoteRollout begins the next stage after the one that was read: two operators who do
// so at once begin one stage.
func (a *app) promoteRollout(ctx context.Context, c *client.Client, name string, skipTests bool) (*meridianv1.Rollout, uint64, error) {
	listed, err := client.Ask(ctx, c, (*client.Client).ListRollouts, &meridianv1.ListRolloutsRequest{Name: name})
	if err != nil {
		return nil, 0, err
	}
	request := &meridianv1.PromoteRolloutRequest{Name: name, RequestId: rand.Text(), SkipTests: skipTests}
	for _, r := range listed.GetRollouts() {
		request.Stage = r.GetStage()
	}
	response, err := client.Ask(ctx, c, (*client.Client).PromoteRollout, request)
	for _, warning := range response.GetWarnings() {
		a.Warn(warning)
	}
	return response.GetRollout(), response.GetRevision(), err
}

func (a *app) abortRollout(ctx context.Context, c *client.Client, name string) (*meridianv1.Rollout, uint64, error) {
	response, err := client.Ask(ctx, c, (*client.Client).AbortRollout, &meridianv1.AbortRolloutRequest{Name: name, RequestId: rand.Text()})
	return response.GetRollout(), response.GetRevision(), err
}

func (a *app) printRolloutChange(f print.Format, r *meridianv1.Rollout, revision uint64) error {
	switch {
	case f.Structured():
		return a.WriteValue(f, struct {
			rolloutView
			Revision uint64 `json:"revision"`
		}{viewRollout(r), revision})
	case f == print.FormatName:
		return a.Println("Rollout/" + r.GetOptions().GetName())
	}
	return a.Println(fmt.Sprintf("rollout %s: %s\nrevision %d", r.GetOptions().GetName(), stageText(r), revision))
}

// rolloutView is a rollout as JSON.
type rolloutView struct {
	Name     string   `json:"name"`
	Phase    string   `json:"phase"`
	Stage    uint32   `json:"stage"`
	Stages   []string `json:"stages"`
	Interval string   `json:"interval,omitempty"`
	Manual   bool     `json:"manual,omitempty"`
	HaltOn   string   `json:"haltOn,omitempty"`
	Author   string   `json:"author,omitempty"`
	Created  string   `json:"created,omitempty"`
	Since    string   `json:"since,omitempty"`
	Settled  string   `json:"settled,omitempty"`
	Waiting  string   `json:"waiting,omitempty"`
	Reason   string   `json:"reason,omitempty"`
	// SkippedTests are the meshes whose tests do not stop it.
	SkippedTests []string `json:"skippedTests,omitempty"`

	Changes       []rolloutChangeView `json:"changes"`
	HiddenChanges uint32              `json:"hiddenChanges,omitempty"`
	Zones         []rolloutZoneView   `json:"zones"`
}

type rolloutChangeView struct {
	Type     string `json:"type"`
	Mesh     string `json:"mesh,omitempty"`
	Name     string `json:"name"`
	Action   string `json:"action"`
	Replaces uint64 `json:"replaces,omitempty"`
}

type rolloutZoneView struct {
	Name       string `json:"name"`
	State      string `json:"state"`
	Connection string `json:"connection"`
	Detail     string `json:"detail,omitempty"`
}

func viewRollout(r *meridianv1.Rollout) rolloutView {
	o := r.GetOptions()
	v := rolloutView{
		Name: o.GetName(), Phase: r.GetPhase(), Stage: r.GetStage(), Stages: stagesText(o), Manual: o.GetManual(), HaltOn: o.GetHaltOn(), Author: r.GetAuthor(),
		Created: timeText(r.GetCreationTime()), Since: timeText(r.GetSince()), Settled: timeText(r.GetSettled()), Waiting: r.GetWaiting(), Reason: r.GetReason(), SkippedTests: r.GetSkippedTests(),
		Changes: []rolloutChangeView{}, HiddenChanges: r.GetHiddenChanges(), Zones: []rolloutZoneView{},
	}
	if o.GetInterval() != nil {
		v.Interval = o.GetInterval().AsDuration().String()
	}
	for _, c := range r.GetChanges() {
		v.Changes = append(v.Changes, rolloutChangeView{c.GetKind(), c.GetMesh(), c.GetName(), changeWord(c), c.GetReplaces()})
	}
	for _, z := range r.GetZones() {
		v.Zones = append(v.Zones, rolloutZoneView{z.GetName(), z.GetState(), z.GetConnection(), z.GetDetail()})
	}
	return v
}

func changeWord(c *meridianv1.RolloutChange) string {
	switch {
	case c.GetDeleted():
		return "delete"
	case c.GetReplaces() == 0:
		return "create"
	}
	return "update"
}

func timeText(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().UTC().Format(time.RFC3339)
}

// stagesText are the stages as --rollout takes them.
func stagesText(o *meridianv1.RolloutOptions) []string {
	out := make([]string, len(o.GetStages()))
	for i, s := range o.GetStages() {
		stage := resource.RolloutStage{Zones: s.GetZones(), All: s.GetAll()}
		if percent := s.GetPercent(); percent != 0 {
			stage.Percent = &percent
		}
		out[i] = rollout.FormatStage(&stage)
	}
	return out
}

// stageText is how far a rollout is.
func stageText(r *meridianv1.Rollout) string {
	stages := stagesText(r.GetOptions())
	text := r.GetPhase()
	if i := int(r.GetStage()); i >= 1 && i <= len(stages) && (r.GetPhase() == string(resource.RolloutProgressing) || r.GetPhase() == string(resource.RolloutHalted)) {
		text += fmt.Sprintf(", stage %d of %d (%s)", i, len(stages), stages[i-1])
	}
	return text
}

// showRollouts shows all rollouts in a table, or one with its zones.
func (a *app) showRollouts(ctx context.Context, f print.Format, name string) error {
	listed, err := call(ctx, a, (*client.Client).ListRollouts, &meridianv1.ListRolloutsRequest{Name: name})
	if err != nil {
		return err
	}
	for _, note := range listed.GetNotes() {
		a.Warn(note)
	}
	if err := a.printRollouts(f, name, listed); err != nil || name == "" {
		return err
	}
	for _, r := range listed.GetRollouts() {
		if r.GetPhase() == string(resource.RolloutHalted) {
			return exit.Failf(exit.Conflict, "rollout %s has halted: %s", name, haltReason(r)).
				With("`meridian rollout abort " + name + "` returns every zone to what it had, `meridian rollout promote " + name + "` continues.")
		}
	}
	return nil
}

func (a *app) printRollouts(f print.Format, name string, listed *meridianv1.ListRolloutsResponse) error {
	switch {
	case f.Structured() && name != "":
		return a.WriteValue(f, viewRollout(listed.GetRollouts()[0]))
	case f.Structured():
		views := []rolloutView{}
		for _, r := range listed.GetRollouts() {
			views = append(views, viewRollout(r))
		}
		return a.WriteValue(f, struct {
			Items    []rolloutView `json:"items"`
			Revision uint64        `json:"revision"`
			Notes    []string      `json:"notes,omitempty"`
		}{views, listed.GetRevision(), listed.GetNotes()})
	case f == print.FormatName:
		for _, r := range listed.GetRollouts() {
			if err := a.Println("Rollout/" + r.GetOptions().GetName()); err != nil {
				return err
			}
		}
		return nil
	case name != "":
		return a.describeRollout(listed.GetRollouts()[0])
	case len(listed.GetRollouts()) == 0:
		a.Message("There are no rollouts. `meridian apply -f DIR --rollout zones=ZONE,then=all` begins one.")
		return nil
	}
	t := &print.Table{Header: []string{"NAME", "PHASE", "STAGE", "ZONES", "CHANGES", "AUTHOR", "SINCE"}}
	for _, r := range listed.GetRollouts() {
		stage, zones := "", ""
		if all := stagesText(r.GetOptions()); int(r.GetStage()) <= len(all) && r.GetStage() > 0 {
			stage = fmt.Sprintf("%d/%d %s", r.GetStage(), len(all), all[r.GetStage()-1])
		}
		if len(r.GetZones()) > 0 {
			zones = fmt.Sprintf("%d/%d", inState(r, "changed"), len(r.GetZones()))
		}
		changes := strconv.Itoa(len(r.GetChanges()) + int(r.GetHiddenChanges()))
		t.Add(r.GetOptions().GetName(), r.GetPhase(), stage, zones, changes, r.GetAuthor(), a.ago(r.GetSince()))
	}
	return a.Table(t)
}

// haltReason is why a rollout has halted, as far as the caller may know, in one line: a
// condition may have several.
func haltReason(r *meridianv1.Rollout) string {
	return cmp.Or(strings.Join(strings.Fields(r.GetReason()), " "), "the reason may not be read")
}

// inState counts the zones of a rollout in a state.
func inState(r *meridianv1.Rollout, state string) (n int) {
	for _, z := range r.GetZones() {
		if z.GetState() == state {
			n++
		}
	}
	return n
}

// describeRollout shows one rollout on a page.
func (a *app) describeRollout(r *meridianv1.Rollout) error {
	v := viewRollout(r)
	var b strings.Builder
	line := func(name, value string) {
		if value != "" {
			// What another caller wrote never looks like a line of this page.
			fmt.Fprintf(&b, "%-10s %s\n", name+":", strings.ReplaceAll(value, "\n", "\n"+strings.Repeat(" ", 11)))
		}
	}
	line(string(resource.KindRollout), v.Name)
	line("Phase", stageText(r))
	line("Stages", strings.Join(v.Stages, ", then "))
	line("Interval", v.Interval)
	if v.Manual {
		line("Manual", "yes")
	}
	line("Halts on", v.HaltOn)
	line("Author", v.Author)
	line("Since", v.Since)
	line("Waits for", v.Waiting)
	line("Reason", v.Reason)
	line("Tests", skippedText(v.SkippedTests))
	b.WriteString("Changes:\n")
	for _, c := range v.Changes {
		mesh := ""
		if c.Mesh != "" {
			mesh = " in mesh " + c.Mesh
		}
		fmt.Fprintf(&b, "  %s %s/%s%s\n", c.Action, c.Type, c.Name, mesh)
	}
	if v.HiddenChanges > 0 {
		fmt.Fprintf(&b, "  %s that you may not read\n", print.Plural(int(v.HiddenChanges), "change"))
	}
	if err := a.Output([]byte(b.String())); err != nil || len(v.Zones) == 0 {
		return err
	}
	t := &print.Table{Header: []string{"ZONE", "STATE", "CONNECTION", "DETAIL"}}
	for _, z := range v.Zones {
		t.Add(z.Name, z.State, z.Connection, z.Detail)
	}
	return a.Table(t)
}

// skippedText says which tests do not stop a rollout.
func skippedText(meshes []string) string {
	if len(meshes) == 0 {
		return ""
	}
	return "skipped of " + strings.Join(meshes, ", ")
}

// completeRollouts offers the names of the rollouts that are not finished.
func (a *app) completeRollouts(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	listed, err := call(ctx, a, (*client.Client).ListRollouts, &meridianv1.ListRolloutsRequest{Consistency: meridianv1.Consistency_CONSISTENCY_STALE})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []cobra.Completion
	for _, r := range listed.GetRollouts() {
		if phase := resource.RolloutPhase(r.GetPhase()); !phase.Finished() {
			names = append(names, cobra.CompletionWithDesc(r.GetOptions().GetName(), stageText(r)))
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
