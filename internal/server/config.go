package server

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"meridian/internal/resource"
)

// ConfigFlag names the flag that holds the path of the configuration file.
const ConfigFlag = "config"

// UsageError means that the command line, the environment or the configuration
// file is wrong: nothing was started. The process exits with 2.
type UsageError struct{ Err error }

// Error returns the message of the cause.
func (e *UsageError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *UsageError) Unwrap() error { return e.Err }

func usagef(format string, args ...any) error {
	return &UsageError{Err: fmt.Errorf(format, args...)}
}

// ParseFlags fills flags from, in this order of precedence, the command line,
// the environment (envPrefix + the flag's name in upper case with underscores)
// and the YAML file that --config names, whose keys are the flags' names. Every
// error is a *UsageError; pflag.ErrHelp passes through.
func ParseFlags(flags *pflag.FlagSet, args []string, envPrefix string, env []string) error {
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return err
		}
		return &UsageError{Err: suggestFlag(flags, err)}
	}
	if flags.NArg() > 0 {
		return usagef("unexpected argument %q: this command takes flags only", flags.Arg(0))
	}
	onCommandLine := map[string]bool{}
	flags.Visit(func(f *pflag.Flag) { onCommandLine[f.Name] = true })
	fromEnv, err := setFromEnvironment(flags, onCommandLine, envPrefix, env)
	if err != nil {
		return err
	}
	path := flags.Lookup(ConfigFlag).Value.String()
	if path == "" {
		return nil
	}
	return setFromFile(flags, path, func(name string) bool { return onCommandLine[name] || fromEnv[name] })
}

func setFromEnvironment(flags *pflag.FlagSet, skip map[string]bool, prefix string, env []string) (map[string]bool, error) {
	values := map[string]string{}
	for _, entry := range env {
		if name, value, ok := strings.Cut(entry, "="); ok && strings.HasPrefix(name, prefix) {
			values[name] = value
		}
	}
	set := map[string]bool{}
	var failed error
	flags.VisitAll(func(f *pflag.Flag) {
		name := prefix + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		value, ok := values[name]
		delete(values, name)
		if !ok || skip[f.Name] || failed != nil {
			return
		}
		if err := flags.Set(f.Name, value); err != nil {
			failed = usagef("environment variable %s: %q is not a value of --%s (%s)", name, value, f.Name, f.Value.Type())
			return
		}
		set[f.Name] = true
	})
	return set, failed
}

func setFromFile(flags *pflag.FlagSet, path string, skip func(string) bool) error {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return usagef("--config: there is no file %s", path)
	}
	if err != nil {
		return usagef("--config: %w", err)
	}
	var values map[string]any
	if err := yaml.UnmarshalStrict(data, &values); err != nil {
		return usagef("--config %s: not a YAML map of settings: %w", path, err)
	}
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		f := flags.Lookup(name)
		if f == nil || name == ConfigFlag || name == "help" || name == "version" {
			return usagef("--config %s: there is no setting %q%s", path, name, didYouMean(flags, name))
		}
		if skip(name) {
			continue
		}
		text, err := settingText(values[name])
		if err != nil {
			return usagef("--config %s: %s: %w", path, name, err)
		}
		if err := flags.Set(name, text); err != nil {
			return usagef("--config %s: %s: %q is not a value of this setting (%s)", path, name, text, f.Value.Type())
		}
	}
	return nil
}

// settingText turns a value of the configuration file into what would be
// written on the command line.
func settingText(value any) (string, error) {
	switch v := value.(type) {
	case string:
		return v, nil
	case bool, float64, int64:
		return fmt.Sprint(v), nil
	case []any:
		parts := make([]string, len(v))
		for i, element := range v {
			text, err := settingText(element)
			if err != nil {
				return "", err
			}
			parts[i] = text
		}
		return strings.Join(parts, ","), nil
	default:
		return "", fmt.Errorf("expected a string, number, boolean or list, got %T", value)
	}
}

func suggestFlag(flags *pflag.FlagSet, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() != "" {
		return fmt.Errorf("unknown flag -%s: flags are written with two dashes", unknown.GetSpecifiedName())
	}
	if errors.As(err, &unknown) {
		return fmt.Errorf("unknown flag --%s%s", unknown.GetSpecifiedName(), didYouMean(flags, unknown.GetSpecifiedName()))
	}
	return err
}

func didYouMean(flags *pflag.FlagSet, name string) string {
	var names []string
	flags.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if nearest, ok := resource.Nearest(name, names); ok {
		return fmt.Sprintf("; did you mean %q?", nearest)
	}
	return ""
}
