package print

import (
	"fmt"
	"strconv"
	"strings"
)

// Plural prints a count and its noun.
func Plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if strings.HasSuffix(noun, "ch") || strings.HasSuffix(noun, "sh") {
		noun += "e"
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// YesNo prints a boolean.
func YesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

// Size is a number of bytes for people.
func Size(n int64) string {
	const unit = 1024
	switch {
	case n < unit:
		return Plural(int(n), "byte")
	case n < unit*unit:
		return fmt.Sprintf("%.1f KiB", float64(n)/unit)
	case n < unit*unit*unit:
		return fmt.Sprintf("%.1f MiB", float64(n)/unit/unit)
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/unit/unit/unit)
}
