package doctree

import (
	"math/big"
	"strconv"
	"strings"
)

// Numbers are kept as decimal text, never as floating point, so that none loses
// digits on its way from the document to the store. One value has one text.

const (
	// maxNumberText bounds the length of a number in a document.
	maxNumberText = 400
	// maxPlainDigits is how long a number may get without an exponent.
	maxPlainDigits = 25
	// maxExponent bounds exponents: what exceeds it is no configuration.
	maxExponent = 400
)

// normalNumber brings a decimal literal (JSON's grammar, leading zeros and a
// leading + allowed) to its normal form: no exponent where plain digits will
// do, no trailing zeros in a fraction, no negative zero. It reports false when
// the number is out of range.
func normalNumber(literal string) (string, bool) {
	if plainInteger(literal) {
		return literal, true
	}
	if len(literal) > maxNumberText {
		return "", false
	}
	negative := strings.HasPrefix(literal, "-")
	mantissa, exponentText, scientific := strings.Cut(strings.ToLower(strings.TrimLeft(literal, "+-")), "e")
	exponent := 0
	if scientific {
		var err error
		if exponent, err = strconv.Atoi(exponentText); err != nil || exponent > maxExponent || exponent < -maxExponent {
			return "", false
		}
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	exponent -= len(fraction)
	trimmed := strings.TrimRight(digits, "0")
	exponent += len(digits) - len(trimmed)
	if trimmed == "" {
		return "0", true
	}
	text := layoutNumber(trimmed, exponent)
	if negative {
		text = "-" + text
	}
	return text, true
}

// plainInteger reports whether a literal is already in normal form, the common
// case.
func plainInteger(literal string) bool {
	digits := strings.TrimPrefix(literal, "-")
	if digits == "" || len(digits) > maxPlainDigits || (digits[0] == '0' && literal != "0") {
		return false
	}
	for i := 0; i < len(digits); i++ {
		if digits[i] < '0' || digits[i] > '9' {
			return false
		}
	}
	return true
}

// layoutNumber writes digits × 10^exponent, digits having no zeros at its ends.
func layoutNumber(digits string, exponent int) string {
	point := len(digits) + exponent // where the decimal point stands
	switch {
	case exponent >= 0 && point <= maxPlainDigits:
		return digits + strings.Repeat("0", exponent)
	case exponent < 0 && point > 0 && len(digits) <= maxPlainDigits:
		return digits[:point] + "." + digits[point:]
	case exponent < 0 && point <= 0 && -exponent <= maxPlainDigits:
		return "0." + strings.Repeat("0", -point) + digits
	}
	text := digits[:1]
	if len(digits) > 1 {
		text += "." + digits[1:]
	}
	return text + "e" + strconv.Itoa(point-1)
}

// radixNumber reads YAML's 0o17 and 0x1F.
func radixNumber(literal string) (string, bool) {
	if len(literal) > maxNumberText {
		return "", false
	}
	base, digits := 8, strings.TrimPrefix(literal, "0o")
	if strings.HasPrefix(literal, "0x") {
		base, digits = 16, literal[2:]
	}
	value, ok := new(big.Int).SetString(digits, base)
	if !ok {
		return "", false
	}
	return normalNumber(value.String())
}
