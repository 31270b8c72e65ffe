package global

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"meridian/internal/authn"
	"meridian/internal/commit"
	"meridian/internal/controlplane/cluster"
	"meridian/internal/policy/answer"
	"meridian/internal/question"
	"meridian/internal/resource"
	"meridian/internal/rollout"
	"meridian/internal/service/admin"
	"meridian/internal/store"
	zonesync "meridian/internal/sync"
)

// rolloutInterval is how often the leader looks whether rollouts can continue.
const rolloutInterval = time.Second

// rolloutController carries rollouts on, while its server leads: it begins stages, halts,
// completes, and removes old ones. All that it decides on is in the store and in what
// zones say, so it may stop at any time and continue in another server.
type rolloutController struct {
	store *store.Store
	log   commit.Log
	leads func() bool
	// observe says what is known of the zones with regard to rollouts, in their order.
	observe    func(context.Context, []*resource.Resource) []rollout.Observation
	conditions *rollout.Conditions
	// tests runs the tests that meshes carry on the whole change of a rollout.
	tests  func(context.Context, *resource.Resource) (admin.RolloutTests, error)
	now    func() time.Time
	logger *slog.Logger
	// failed are the errors that were logged last, by rollout.
	failed map[string]string
}

// run carries rollouts on until ctx ends.
func (c *rolloutController) run(ctx context.Context) error {
	for ctx.Err() == nil {
		view := c.store.View()
		if c.leads() && view.Count(resource.KindRollout) > 0 {
			c.step(ctx, view)
		}
		c.await(ctx, view)
	}
	return nil
}

// await returns when the rollouts are not those of a view, or after rolloutInterval.
func (c *rolloutController) await(ctx context.Context, seen *store.View) {
	ctx, cancel := context.WithTimeout(ctx, rolloutInterval)
	defer cancel()
	_, _ = c.store.AwaitKinds(ctx, seen, resource.KindRollout) // whatever ends it, the newest state is looked at next
}

// step does what is to be done about each rollout of a view, once.
func (c *rolloutController) step(ctx context.Context, view *store.View) {
	all := slices.Collect(view.List(resource.KindRollout, ""))
	var progressing []*resource.Resource
	for _, r := range all {
		if spec, ok := rollout.SpecOf(r); ok && spec.Status.Phase == resource.RolloutProgressing {
			progressing = append(progressing, r)
		}
	}
	if len(progressing) > 0 {
		observed := c.observe(ctx, progressing)
		for i, r := range progressing {
			if ctx.Err() != nil {
				return
			}
			c.note(ctx, r.Key().Name, c.carryOn(ctx, r, observed[i]))
		}
	}
	surplus := rollout.Surplus(all)
	tried := slices.Concat(progressing, surplus)
	for _, r := range surplus {
		m := r.Meta()
		result, err := c.log.Propose(ctx, store.Txn{
			Time: c.now(), Ops: []store.Op{store.Delete(m.Key)},
			Preconditions: []store.Precondition{{Key: m.Key, Version: m.Version, Revision: m.Revision}},
		})
		c.note(ctx, m.Name, cmp.Or(err, result.Err))
	}
	maps.DeleteFunc(c.failed, func(name, _ string) bool {
		return !slices.ContainsFunc(tried, func(r *resource.Resource) bool { return r.Key().Name == name })
	})
}

// note logs why a rollout could not be carried on, once for each reason.
func (c *rolloutController) note(ctx context.Context, name string, err error) {
	if c.failed == nil {
		c.failed = map[string]string{}
	}
	if err == nil {
		delete(c.failed, name)
		return
	}
	if ctx.Err() == nil && c.leads() && c.failed[name] != err.Error() {
		c.failed[name] = err.Error()
		c.logger.Warn("a rollout cannot be carried on; it is tried again", "rollout", name, "error", err)
	}
}

// carryOn does what is to be done about a rollout.
func (c *rolloutController) carryOn(ctx context.Context, r *resource.Resource, o rollout.Observation) error {
	spec, _ := rollout.SpecOf(r)
	step, err := rollout.Decide(r, o, func(zone *rollout.Zone) rollout.Verdict {
		return c.conditions.Halts(ctx, spec.HaltOn, zone)
	})
	switch {
	case err != nil:
		return c.halt(ctx, r, o.Now, fmt.Sprintf("its next state cannot be stored: %s", err))
	case step.Next == nil:
		return nil
	}
	var tests admin.RolloutTests
	if rollout.GivesMore(r, step.Next) {
		if tests, err = c.tests(ctx, r); err != nil {
			return fmt.Errorf("run the tests that its meshes carry: %w", err)
		}
		if fails := tests.Fails(); fails != "" {
			return c.halt(ctx, r, o.Now, fails)
		}
	}
	written, err := c.write(ctx, r, step.Next, o.Now, tests)
	next, _ := rollout.SpecOf(step.Next)
	if next.Status.Phase == resource.RolloutCompleted && c.refused(r, err) {
		return c.halt(ctx, r, o.Now, fmt.Sprintf("it cannot be completed: %s", err))
	}
	if written {
		c.logger.Info("rollout", "rollout", r.Key().Name, "phase", next.Status.Phase, "stage", next.Status.Stage, "zones", len(next.Status.Zones), "reason", next.Status.Reason)
	}
	return err
}

// refused reports whether the completion of a rollout was refused for what is stored
// beside it: nothing but another state can change that.
func (c *rolloutController) refused(r *resource.Resource, err error) bool {
	var (
		conflict *store.ConflictError
		noMesh   *store.MeshMissingError
		notEmpty *store.MeshNotEmptyError
		held     *store.HeldError
	)
	return errors.As(err, &conflict) && changesKey(r, conflict.Key) ||
		errors.As(err, &noMesh) || errors.As(err, &notEmpty) || errors.As(err, &held)
}

// changesKey reports whether a rollout is to change a resource.
func changesKey(r *resource.Resource, key resource.Key) bool {
	spec, ok := rollout.SpecOf(r)
	return ok && slices.ContainsFunc(spec.Changes, func(c resource.RolloutChange) bool { return c.Key() == key })
}

func (c *rolloutController) halt(ctx context.Context, r *resource.Resource, now time.Time, reason string) error {
	next, err := rollout.Halt(r, now, reason)
	if err != nil {
		return err
	}
	written, err := c.write(ctx, r, next, now, admin.RolloutTests{})
	if written {
		c.logger.Warn("a rollout halts", "rollout", r.Key().Name, "reason", reason)
	}
	return err
}

// write stores the next state of a rollout, if its tests would say the same. That another
// one was stored meanwhile is no error: it is decided on next.
func (c *rolloutController) write(ctx context.Context, r, next *resource.Resource, now time.Time, tests admin.RolloutTests) (written bool, err error) {
	ctx = authn.CollectReasons(ctx)
	admin.BegunBy(ctx, r)
	txn := rollout.Txn(r, next, now)
	txn.Preconditions, txn.Parts = slices.Concat(txn.Preconditions, tests.Preconditions), tests.Parts
	// The id is what the history of the changed resources names their batch by.
	txn.RequestID = fmt.Sprintf("rollout %s@%d", r.Key().Name, r.Meta().Revision)
	result, err := c.log.Propose(ctx, txn)
	if err == nil {
		err = result.Err
	}
	var conflict *store.ConflictError
	if errors.As(err, &conflict) && !changesKey(r, conflict.Key) {
		return false, nil
	}
	return err == nil, err
}

// rollouts returns the controller of this server.
func (g *global) rollouts() *rolloutController {
	return &rolloutController{
		store: g.Store, log: g.Writer, leads: g.Node.IsLeader, observe: g.observeRollouts, conditions: g.rolloutConditions, tests: g.admin().TestRollout, now: g.Now, logger: g.Log,
	}
}

// rolloutConfig is what the service knows of rollouts.
func (g *global) rolloutConfig() *admin.RolloutConfig {
	return &admin.RolloutConfig{Enabled: g.enabledZones, Conditions: g.rolloutConditions, Observe: g.observeRollouts}
}

// observeRollouts says what is known of the zones with regard to rollouts.
func (g *global) observeRollouts(ctx context.Context, rollouts []*resource.Resource) []rollout.Observation {
	out := make([]rollout.Observation, len(rollouts))
	if len(rollouts) == 0 {
		return out
	}
	known := g.zonesEverywhere(ctx)
	for i, r := range rollouts {
		out[i] = observation(known, r, g.Store.View().Epoch(), g.Now())
		if spec, ok := rollout.SpecOf(r); ok && spec.Status.Phase == resource.RolloutProgressing && g.rolloutConditions.AsksProxies(spec.HaltOn) {
			g.askProxies(ctx, known, r, &out[i])
		}
	}
	return out
}

// observation is what a survey says of the zones with regard to a rollout.
func observation(known fleetStatus, r *resource.Resource, epoch store.Epoch, now time.Time) rollout.Observation {
	o := rollout.Observation{Now: now}
	for _, u := range known.silent {
		if time.Since(u.since) < silentGrace {
			o.Unknown = fmt.Sprintf("server %s, which could not be asked for its zones: %s", u.name, cluster.DescribeError(u.err))
		}
	}
	m := r.Meta()
	for _, z := range known.zones {
		if z.State == stateDisabled {
			continue
		}
		zone := rollout.Zone{Name: z.Name, Health: rollout.Health{
			State: string(z.State), Connected: len(z.Instances) > 0, Instances: len(z.Instances),
			Lag: z.Lag, Quarantined: len(z.Quarantined), LastError: z.LastError,
		}}
		if !z.LastSeen.IsZero() {
			zone.Health.SilentSeconds = max(0, now.Sub(z.LastSeen).Seconds())
		}
		zone.Applied = zone.Health.Connected
		for _, in := range known.instances[z.Name] {
			zone.Applied = zone.Applied && in.Epoch == epoch && in.Revision >= m.Revision
		}
		if i := slices.IndexFunc(z.Quarantined, func(q zonesync.Quarantined) bool { return q.Key == m.Key }); i >= 0 {
			zone.Refuses = z.Quarantined[i].Message
		}
		o.Zones = append(o.Zones, zone)
	}
	return o
}

// askProxies adds what the zones that have the change of a rollout say of their proxies,
// or why they do not.
func (g *global) askProxies(ctx context.Context, known fleetStatus, r *resource.Resource, o *rollout.Observation) {
	spec, _ := rollout.SpecOf(r)
	only := known
	only.servers = map[resource.ZoneName]string{}
	for zone, server := range known.servers {
		if spec.Status.Shows(zone) {
			only.servers[zone] = server
		}
	}
	asked := g.questions().askEach(ctx, only, question.Request(question.Proxies{Behind: r.Meta().Revision}, "", ""))
	addProxies(o, asked)
}

// addProxies adds the answers of zones about their proxies to what is known of them.
func addProxies(o *rollout.Observation, asked replies) {
	unknown := map[resource.ZoneName]string{}
	for zone, err := range asked.missing {
		unknown[zone] = failureReason(err)
	}
	for _, absence := range asked.absent {
		unknown[absence.Zone] = absence.Reason
	}
	answers := map[resource.ZoneName]*answer.ProxiesBehind{}
	for _, reply := range asked.found {
		var list answer.ProxiesAnswer
		switch err := answer.Unmarshal(reply.response.GetJson(), &list); {
		case err != nil:
			unknown[reply.zone] = "its answer cannot be read: it may be of another release"
		case list.Behind == nil:
			unknown[reply.zone] = "it does not say: it is of an older release"
		default:
			answers[reply.zone] = list.Behind
		}
	}
	for i := range o.Zones {
		health := &o.Zones[i].Health
		if behind := answers[o.Zones[i].Name]; behind != nil {
			health.ProxiesRejected, health.ProxiesPending = behind.Rejected, behind.Count-behind.Rejected
			continue
		}
		health.ProxiesUnknown = cmp.Or(unknown[o.Zones[i].Name], "not connected")
	}
}

// rolloutCollector counts the rollouts that are stored, by phase.
type rolloutCollector struct {
	view     func() *store.View
	rollouts *prometheus.Desc
}

func newRolloutCollector(view func() *store.View) *rolloutCollector {
	return &rolloutCollector{view, prometheus.NewDesc("meridian_rollouts", "Rollouts that are stored, by phase: Progressing, Halted, Completed or Aborted.", []string{"phase"}, nil)}
}

// Describe implements prometheus.Collector.
func (c *rolloutCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.rollouts }

// Collect implements prometheus.Collector.
func (c *rolloutCollector) Collect(ch chan<- prometheus.Metric) {
	count := map[resource.RolloutPhase]int{}
	for r := range c.view().List(resource.KindRollout, "") {
		if spec, ok := rollout.SpecOf(r); ok {
			count[spec.Status.Phase]++
		}
	}
	for _, phase := range []resource.RolloutPhase{resource.RolloutProgressing, resource.RolloutHalted, resource.RolloutCompleted, resource.RolloutAborted} {
		ch <- prometheus.MustNewConstMetric(c.rollouts, prometheus.GaugeValue, float64(count[phase]), string(phase))
	}
}
