// Package version says which build is running.
//
// It prefers what the build stamped, then what the Go toolchain recorded, and
// never guesses: a build that recorded nothing calls itself "devel".
package version

import "runtime/debug"

// stamped is set by the linker (-X meridian/internal/version.stamped=…).
var stamped string

// String returns the version of the running binary: the stamp, else the module
// version, else the commit it was built from with "-dirty" for a modified tree,
// else "devel".
func String() string {
	if stamped != "" {
		return stamped
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	return fromBuildInfo(info)
}

// GoVersion returns the toolchain that built the binary, such as "go1.26.0", or
// "unknown".
func GoVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return info.GoVersion
}

func fromBuildInfo(info *debug.BuildInfo) string {
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	var revision, dirty string
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value[:min(len(s.Value), 12)]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "-dirty"
		}
	}
	if revision == "" {
		return "devel"
	}
	return revision + dirty
}
