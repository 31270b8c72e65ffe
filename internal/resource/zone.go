package resource

// Zone is a zone that may connect to the global (§7.7).
type Zone struct {
	Enabled *bool `json:"enabled,omitzero" doc:"Whether the zone may connect; true when absent. Disabling a zone ends its stream."`
}

// Validate implements Spec; there is nothing a Zone could get wrong.
func (*Zone) Validate(Path, *Report) {}

// IsEnabled reports whether the zone may connect.
func (z *Zone) IsEnabled() bool { return z.Enabled == nil || *z.Enabled }
