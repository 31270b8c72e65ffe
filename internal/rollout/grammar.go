package rollout

import (
	"fmt"
	"strconv"
	"strings"

	"meridian/internal/doctree"
	"meridian/internal/resource"
)

// The words of the grammar of stages.
const (
	wordFirst = "zones"
	wordThen  = "then"
	wordAll   = "all"
)

// maxStagesText bounds the text of stages, in bytes: it fits into one message of a
// request.
const maxStagesText = 32 << 10

// example shows the grammar in messages.
const example = "zones=canary,then=25%,then=all"

// ParseStages reads stages as `meridian apply --rollout` takes them:
//
//	zones=STAGE[,then=STAGE]...
//	STAGE: all | N% | ZONE[,ZONE]...
//
// A ZONE is a name, in which * stands for any characters. The last stage must be all.
func ParseStages(text string) ([]resource.RolloutStage, error) {
	if len(text) > maxStagesText {
		return nil, fmt.Errorf("the stages take %d bytes; at most %d are allowed", len(text), maxStagesText)
	}
	var stages []resource.RolloutStage
	for i, item := range strings.Split(text, ",") {
		item = strings.TrimSpace(item)
		word, value, named := strings.Cut(item, "=")
		switch {
		case i == 0 && (!named || word != wordFirst):
			return nil, fmt.Errorf("stages begin with zones=, such as %s; got %q", example, doctree.Clip(item))
		case i > 0 && named && word != wordThen:
			return nil, fmt.Errorf("%q: a further stage is written then=, such as %s", doctree.Clip(item), example)
		case named:
			stage, err := parseStage(value)
			if err != nil {
				return nil, err
			}
			if stages = append(stages, stage); len(stages) > resource.MaxRolloutStages {
				return nil, fmt.Errorf("a rollout has at most %d stages", resource.MaxRolloutStages)
			}
			continue
		}
		last := &stages[len(stages)-1]
		if last.Zones == nil {
			return nil, fmt.Errorf("%q: a stage is all, a share such as 25%%, or names of zones; write then= before another stage", doctree.Clip(item))
		}
		if err := checkZone(item); err != nil {
			return nil, err
		}
		last.Zones = append(last.Zones, item)
	}
	return stages, CheckStages(stages)
}

func parseStage(value string) (resource.RolloutStage, error) {
	share, isShare := strings.CutSuffix(value, "%")
	switch {
	case value == wordAll:
		return resource.RolloutStage{All: true}, nil
	case isShare:
		percent, err := strconv.ParseUint(share, 10, 32)
		if err != nil || percent < 1 || percent > 100 {
			return resource.RolloutStage{}, fmt.Errorf("%q: a share of the zones is 1%% to 100%%", doctree.Clip(value))
		}
		n := uint32(percent)
		return resource.RolloutStage{Percent: &n}, nil
	}
	return resource.RolloutStage{Zones: []string{value}}, checkZone(value)
}

func checkZone(pattern string) error {
	if err := resource.CheckName(strings.ReplaceAll(pattern, resource.AnyValue, "x")); err != nil {
		return fmt.Errorf("zone %q: %w", doctree.Clip(pattern), err)
	}
	return nil
}

// CheckStages refuses stages that no rollout can have: none, too many, a stage that is
// not exactly one of names, a share and all, and stages that do not end with all.
func CheckStages(stages []resource.RolloutStage) error {
	if len(stages) == 0 || len(stages) > resource.MaxRolloutStages {
		return fmt.Errorf("a rollout has 1 to %d stages, got %d", resource.MaxRolloutStages, len(stages))
	}
	for i, stage := range stages {
		ways := 0
		for _, chosen := range []bool{len(stage.Zones) > 0, stage.Percent != nil, stage.All} {
			if chosen {
				ways++
			}
		}
		switch {
		case ways != 1:
			return fmt.Errorf("stage %d: it is all, a share of the zones, or names of zones", i+1)
		case stage.All && i < len(stages)-1:
			return fmt.Errorf("stage %d has all zones: nothing comes after it", i+1)
		case !stage.All && i == len(stages)-1:
			return fmt.Errorf("the last stage must be all: add ,then=all")
		case stage.Percent != nil && (*stage.Percent < 1 || *stage.Percent > 100):
			return fmt.Errorf("stage %d: a share of the zones is 1%% to 100%%", i+1)
		}
		for _, zone := range stage.Zones {
			if err := checkZone(zone); err != nil {
				return fmt.Errorf("stage %d: %w", i+1, err)
			}
		}
	}
	return nil
}

// FormatStages is the inverse of ParseStages.
func FormatStages(stages []resource.RolloutStage) string {
	var b strings.Builder
	for i := range stages {
		if i > 0 {
			b.WriteString(",")
			b.WriteString(wordThen)
		} else {
			b.WriteString(wordFirst)
		}
		b.WriteString("=")
		b.WriteString(FormatStage(&stages[i]))
	}
	return b.String()
}

// FormatStage is one stage as ParseStages takes it.
func FormatStage(stage *resource.RolloutStage) string {
	switch {
	case stage.All:
		return wordAll
	case stage.Percent != nil:
		return strconv.FormatUint(uint64(*stage.Percent), 10) + "%"
	}
	return strings.Join(stage.Zones, ",")
}
