#!/usr/bin/env bash
# The tour: one global and two zones as real processes on loopback, the policies
# of this directory applied once and explained in each zone; then three services,
# stock gRPC programs, that obey the policies of their mesh. Everything lives in
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

# Start the zone NAME, or start it again.
start_zone() {
  rm -f "$dir/$1/addresses.json"
  "$bin/meridian-zone" --data-dir "$dir/$1" --name "$1" --join-bundle "$dir/$1.bundle" \
    --grpc-addr 127.0.0.1:0 --http-addr 127.0.0.1:0 >>"$dir/$1.log" 2>&1 &
  pids+=($!)
  zone_pid=$!
  await "$1" $!
}

# A file that a program writes once it has come so far.
await_file() {
  for _ in $(seq 1 300); do
    [ -s "$1" ] && return 0
    sleep 0.1
  done
  echo "$1 is not there after 30 s" >&2
  return 1
}

# Start the service NAME with the tags of its inbound, and the agent beside it.
service() {
  local role=$1 name=$2 tags=$3 outbound=$4 address
  "$bin/examples/traffic" "$role" "$dir/shop" "$name" >"$dir/$name.log" 2>&1 &
  pids+=($!)
  await_file "$dir/shop/$name.port"
  cat >"$dir/shop/$name.yaml" <<YAML
{type: Dataplane, mesh: shop, name: $name, networking: {address: 127.0.0.1,
  inbound: [{port: $(cat "$dir/shop/$name.port"), tags: {$tags}}], outbound: [$outbound]}}
YAML
  MERIDIAN_CONFIG=$dir/east/admin.yaml "$bin/meridian" generate dataplane-token --mesh shop --name "$name" \
    --tag "kuma.io/service=$role" --valid-for 1h >"$dir/shop/$name.token"
  address=$(sed -n 's/.*"grpc": *"\([^"]*\)".*/\1/p' "$dir/east/addresses.json")
  "$bin/meridian" proxy run -f "$dir/shop/$name.yaml" --token-file "$dir/shop/$name.token" --zone-address "$address" \
    --ca-file "$dir/east/pki/ca.pem" --grpc-bootstrap "$dir/shop/$name.json" --drain-time 1s >"$dir/$name-agent.log" 2>&1 &
  pids+=($!)
  await_file "$dir/shop/$name.json"
}

# The proxy of a dataplane follows its zone, and has accepted everything.
await_synced() {
  for _ in $(seq 1 300); do
    [ "$(MERIDIAN_CONFIG=$dir/east/admin.yaml "$bin/meridian" proxy status "$1" -m shop | grep -o SYNCED | wc -l)" -eq 4 ] && return 0
    sleep 0.1
  done
  echo "the proxy of $1 has not come back within 30 s" >&2
  return 1
}

# Have web call the backend, and say what became of it.
get() { "$bin/examples/traffic" get "$dir/shop" web-1 "$@"; }
calls() { printf '$ web calls the backend: %s\n' "$*"; get "$@"; }

# Both versions of the backend answer web.
await_backend() {
  for name in backend-v1 backend-v2; do
    get --until "answered by $name" --failing >"$dir/await.log"
  done
}

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
  start_zone "$z"
  [ "$z" != east ] || zone_east=$zone_pid
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

say "Three services, stock gRPC programs that take their configuration from the zone east"
global apply -f examples/traffic/mesh.yaml --wait=zones
mkdir -m 700 "$dir/shop"
service backend backend-v1 'kuma.io/service: backend, version: v1' ''
service backend backend-v2 'kuma.io/service: backend, version: v2' ''
service web web-1 'kuma.io/service: web' '{port: 10001, tags: {kuma.io/service: backend}}'
await_backend
calls --calls 100

say "They know each other by certificates: a permission denies web, and its error names it"
printf '$ web calls the backend until it is denied\n'
"$bin/examples/traffic" get "$dir/shop" web-1 --until 'deny policy "MeshTrafficPermission no-web"' \
  --begun "$dir/begun" --since "$dir/written" &
denied=$!
pids+=($denied)
await_file "$dir/begun"
# What is measured begins when the global takes the write, before it is on disk.
global apply -f examples/traffic/no-web.yaml
MERIDIAN_CONFIG=$dir/global/admin.yaml "$bin/meridian" get mesh-traffic-permission no-web -m shop \
  -o 'jsonpath={.modificationTime}' >"$dir/written.new"
mv "$dir/written.new" "$dir/written"
wait "$denied"
zone east inspect connection -m shop --from web-1 --to backend-v1 --expect denied
zone east why backend-v1 MeshTrafficPermission -m shop --from kuma.io/service=web

say "Without that permission, web is allowed again"
global delete mesh-traffic-permission no-web -m shop
await_backend
calls --calls 100
zone east inspect connection -m shop --from web-1 --to backend-v1 --expect allowed

say "A route sends one call of ten to the new version"
global apply -f examples/traffic/route.yaml --wait=enforced
calls --calls 1000
zone east why web-1 TrafficRoute -m shop --to backend

say "The zone is killed, and calls continue"
kill -9 "$zone_east" && wait "$zone_east" 2>/dev/null || true
calls --calls 1000
start_zone east
await_synced web-1

say "A timeout ends calls that take too long, also on proxies that follow the zone again"
global apply -f examples/traffic/timeout.yaml --wait=enforced
calls --calls 3 --delay 1m --failing
zone east why web-1 Timeout -m shop --to backend

say "What the proxy of web does with each policy"
zone east inspect dataplane web-1 -m shop
zone east proxy status -m shop

if [ -n "$keep" ]; then
  trap - EXIT INT TERM
  running=()
  for pid in "${pids[@]}"; do ! kill -0 "$pid" 2>/dev/null || running+=("$pid"); done
  cat <<TXT

Left running, under $dir. Talk to it with

  export MERIDIAN_CONFIG=$dir/global/admin.yaml    # or east/admin.yaml, west/admin.yaml
  bin/meridian zones

and stop it with

  kill ${running[*]}; rm -rf $dir
TXT
  exit 0
fi

say "Stopping"
