package resource

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"meridian/internal/doctree"
)

// limited has a field of every kind of limit.
type limited struct {
	Count    *uint32  `json:"count,omitzero" min:"2"`
	Port     uint32   `json:"port,omitzero" min:"1" max:"65535"`
	Size     uint32   `json:"size,omitzero" max:"10"`
	Factor   *float64 `json:"factor,omitzero" above:"0"`
	Wait     Duration `json:"wait,omitzero" above:"0s"`
	Interval Duration `json:"interval,omitzero" min:"50ms"`
	Statuses []uint32 `json:"statuses,omitzero" min:"100" max:"599"`
	Name     string   `json:"name,omitzero" notEmpty:"true"`
	Path     *string  `json:"path,omitzero" format:"path"`
	Pattern  string   `json:"pattern,omitzero" format:"regex"`
	Bytes    []string `json:"bytes,omitzero" format:"base64"`
	Speed    string   `json:"speed,omitzero" format:"bandwidth"`
	Host     string   `json:"host,omitzero" format:"host"`
	Hosts    []string `json:"hosts,omitzero" format:"wildcardHost"`
}

func TestLimitsOfFields(t *testing.T) {
	for written, want := range map[string]string{
		`{}`: "",
		`{"count":2,"port":65535,"size":0,"factor":0.1,"wait":"1ns","interval":"50ms","statuses":[100,599],"name":"a","path":"/","pattern":"a+","bytes":["YQ=="],"speed":"50 mbps","host":"a.b","hosts":["*.a","b"]}`: "",
		`{"count":1}`:             "count: must be at least 2, got 1",
		`{"port":0}`:              "port: must be between 1 and 65535, got 0",
		`{"port":65536}`:          "port: must be between 1 and 65535, got 65536",
		`{"size":11}`:             "size: must be at most 10, got 11",
		`{"factor":0}`:            "factor: must be greater than 0",
		`{"wait":"0s"}`:           "wait: must be longer than 0s",
		`{"interval":"49ms"}`:     "interval: must be at least 50ms, got 49ms",
		`{"statuses":[200,99]}`:   "statuses[1]: must be between 100 and 599, got 99",
		`{"name":""}`:             "name: must not be empty",
		`{"path":"a"}`:            `path: must begin with /, got "a"`,
		`{"pattern":"("}`:         "pattern: is not a regular expression (RE2): missing closing ): `(`",
		`{"bytes":["YQ==","!"]}`:  `bytes[1]: must be base64 of the bytes, got "!"`,
		`{"speed":"fast"}`:        `speed: must be a number and kbps, mbps or gbps, such as "50 mbps", got "fast"`,
		`{"host":"*.a"}`:          `host: "*.a" is not a host name`,
		`{"hosts":["a","*.b."]}`:  "",
		`{"hosts":["a","*.*.b"]}`: `hosts[1]: "*.*.b" is neither a host name nor *. and one`,
		`{"wait":"soon"}`:         `wait: expected a duration such as 5s, 100ms or 1h30m, got "soon"`,
	} {
		values, _, err := doctree.ParseJSON([]byte(written))
		require.NoError(t, err)
		dec := &decoder{}
		dec.into(new(limited), values[0], Root)
		got := ""
		for _, p := range dec.report.Problems {
			got += p.String()
		}
		require.Equal(t, want, got, written)
	}
}

// The tags of every kind's spec can be read.
func TestLimitsCanBeRead(t *testing.T) {
	for _, d := range Kinds() {
		require.NotPanics(t, func() { Fields(d.Kind) }, d.Kind)
	}
	require.Panics(t, func() { limitsOf(reflect.StructTag(`format:"unheard-of"`)) })
}
