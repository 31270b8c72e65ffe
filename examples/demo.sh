#!/usr/bin/env bash
# The tour: one global and two zones as real processes on loopback, the policies
# of this directory applied once and explained in each zone. Everything lives in
# a temporary directory and is stopped at the end; KEEP=1 leaves it running.
set -euo pipefail

cd "$(dirname "$0")/.."
bin=${MERIDIAN_BIN:-$PWD/bin}
keep=${KEEP:-}
dir=$(mktemp -d "${TMPDIR:-/tmp}/meridian-demo.XXXXXX")
pids=()

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
[ -t 1 ] && [ -z "${NO_COLOR:-}" ] || say() { printf '\n%s\n' "$*"; }
run() { printf '$ meridian %s\n' "$*"; "$bin/meridian" "$@"; }
global() { MERIDIAN_CONFIG=$dir/global/admin.yaml run "$@"; }
zone() { local z=$1; shift; MERIDIAN_CONFIG=$dir/$z/admin.yaml run "$@"; }

stop() {
  local status=$?
  trap - EXIT INT TERM
  if [ "$status" -ne 0 ]; then
    for log in "$dir"/*.log; do
      printf '\n--- %s\n' "$(basename "$log")" >&2
      tail -n 20 "$log" >&2
    done
  fi
  for pid in "${pids[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
  rm -rf "$dir"
  exit "$status"
}
trap stop EXIT
trap 'exit 130' INT TERM

# A server lists its addresses once it is ready.
await() {
  local name=$1 pid=$2
  for _ in $(seq 1 300); do
    [ -s "$dir/$name/addresses.json" ] && return 0
    kill -0 "$pid" 2>/dev/null || { echo "$name stopped before it was ready" >&2; return 1; }
    sleep 0.1
  done
  echo "$name is not ready after 30 s" >&2
  return 1
}

say "Starting one global and two zones under $dir"
"$bin/meridian-global" --data-dir "$dir/global" --grpc-addr 127.0.0.1:0 --http-addr 127.0.0.1:0 \
  --raft-addr 127.0.0.1:0 --gossip-addr 127.0.0.1:0 >"$dir/global.log" 2>&1 &
pids+=($!)
await global $!
for z in east west; do
  MERIDIAN_CONFIG=$dir/global/admin.yaml "$bin/meridian" generate zone-token --zone "$z" --valid-for 24h --bundle >"$dir/$z.bundle"
  "$bin/meridian-zone" --data-dir "$dir/$z" --name "$z" --join-bundle "$dir/$z.bundle" \
    --grpc-addr 127.0.0.1:0 --http-addr 127.0.0.1:0 >"$dir/$z.log" 2>&1 &
  pids+=($!)
  await "$z" $!
done

say "Each zone registers its own dataplanes"
zone east apply -f examples/dataplanes/east
zone west apply -f examples/dataplanes/west

say "The operator writes the policies once, on the global"
global apply -f examples/mesh.yaml -f examples/policies --wait=zones

say "Both zones have them"
global zones

say "What applies to web-aws-1 in the zone east, and why"
zone east inspect dataplane web-aws-1
zone east why web-aws-1 TrafficLog --to backend

say "What applies to backend-1 in the zone west, asked through the global"
global inspect dataplane backend-1 --zone west

say "May web talk to backend?"
zone west inspect connection --from-tags kuma.io/service=web --to backend-1

if [ -n "$keep" ]; then
  trap - EXIT INT TERM
  cat <<TXT

Left running, under $dir. Talk to it with

  export MERIDIAN_CONFIG=$dir/global/admin.yaml    # or east/admin.yaml, west/admin.yaml
  bin/meridian zones

and stop it with

  kill ${pids[*]}; rm -rf $dir
TXT
  exit 0
fi

say "Stopping"
