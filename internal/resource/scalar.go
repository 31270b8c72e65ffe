package resource

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"meridian/internal/doctree"
)

// Duration is a span of time that remembers how its author wrote it: "90s"
// stays "90s" and never becomes "1m30s" (§1.2). The zero value is no
// duration at all; fields where "0s" differs from absence use a pointer.
type Duration struct {
	text  string
	value time.Duration
}

// ParseDuration reads a duration such as "5s", "1h30m" or "0s". The error is a
// clause for the author of the document. Negative durations are refused: no
// field of any kind has a use for one.
func ParseDuration(text string) (Duration, error) {
	value, err := time.ParseDuration(text)
	if err != nil {
		return Duration{}, fmt.Errorf("expected a duration such as 5s, 100ms or 1h30m, got %q", doctree.Clip(text))
	}
	if value < 0 {
		return Duration{}, fmt.Errorf("a duration cannot be negative, got %q", doctree.Clip(text))
	}
	return Duration{text: text, value: value}, nil
}

// MustDuration is ParseDuration for constants and tests; it panics on an error.
func MustDuration(text string) Duration {
	d, err := ParseDuration(text)
	if err != nil {
		panic(err)
	}
	return d
}

// String returns the duration as it was written.
func (d Duration) String() string { return d.text }

// Value returns the span of time.
func (d Duration) Value() time.Duration { return d.value }

// MarshalJSON writes the duration as it was written.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.text) }

// UnmarshalJSON implements json.Unmarshaler.
func (d *Duration) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	parsed, err := ParseDuration(text)
	if err != nil {
		return err
	}
	*d = parsed
	return nil
}

func (d *Duration) decodeNode(n *doctree.Node, dec *decoder) {
	if n.Shape == doctree.Number {
		dec.errorf("expected a duration with its unit, such as %ss, got %s", unitless(n.Text), n.Describe())
		return
	}
	if n.Shape != doctree.Text {
		dec.errorf("expected a duration such as 5s, 100ms or 1h30m, got %s", n.Describe())
		return
	}
	parsed, err := ParseDuration(n.Text)
	if err != nil {
		dec.errorf("%s", err)
		return
	}
	*d = parsed
}

// unitless is the number to show in front of a unit in an example.
func unitless(number string) string {
	if len(number) > 12 || number[0] == '-' {
		return "5"
	}
	return number
}

// Percentage is a share between 0 and 100, such as 50 or 99.9.
type Percentage float64

func (p *Percentage) decodeNode(n *doctree.Node, dec *decoder) {
	if n.Shape != doctree.Number {
		dec.errorf("expected a percentage between 0 and 100, such as 50 or 99.9, got %s", n.Describe())
		return
	}
	value, err := strconv.ParseFloat(n.Text, 64)
	if err != nil || value < 0 || value > 100 {
		dec.errorf("a percentage lies between 0 and 100, got %s", n.Text)
		return
	}
	*p = Percentage(value)
}
