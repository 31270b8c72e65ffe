#!/usr/bin/env bash
# The tour: one global and two zones as real processes on loopback, the policies
# of this directory applied once and explained in each zone; then three services,
# stock gRPC programs, that obey the policies of their mesh. With the argument
# envoy: one global, one zone, and three services that speak HTTP, each beside the
# Envoy that ENVOY_BIN names. Everything lives in a temporary directory and is
# stopped at the end; KEEP=1 leaves it running.
set -euo pipefail

cd "$(dirname "$0")/.."
case ${1:-grpc} in
  grpc) proxy=grpc zones=(east west) ;;
  envoy) proxy=envoy zones=(east) envoy=${ENVOY_BIN:-$PWD/.cache/envoy/envoy} ;;
  *) echo "usage: $0 [grpc|envoy]" >&2; exit 2 ;;
esac
bin=${MERIDIAN_BIN:-$PWD/bin}
keep=${KEEP:-}
dir=$(mktemp -d "${TMPDIR:-/tmp}/meridian-demo.XXXXXX")
services=$bin/examples/shop-${proxy/envoy/http}
pids=()

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
[ -t 1 ] && [ -z "${NO_COLOR:-}" ] || say() { printf '\n%s\n' "$*"; }
run() { printf '$ meridian %s\n' "$*"; "$bin/meridian" "$@"; }
global() { MERIDIAN_CONFIG=$dir/global/admin.yaml run "$@"; }
zone() { local z=$1; shift; MERIDIAN_CONFIG=$dir/$z/admin.yaml run "$@"; }

stop() {
  local status=$?
  trap - EXIT
  trap '' INT TERM # it ends soon, and completely
  if [ "$status" -ne 0 ] && [ "$status" -ne 130 ]; then
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

# Start a program in the background, which logs to NAME.log. It has a process group of
# its own: what is typed at the terminal reaches this script only, which then stops it.
start() {
  local log=$dir/$1.log
  shift
  set -m
  "$@" </dev/null >>"$log" 2>&1 &
  set +m
  started=$!
  pids+=("$started")
}

# Start the zone NAME, or start it again.
start_zone() {
  rm -f "$dir/$1/addresses.json"
  start "$1" "$bin/meridian-zone" --data-dir "$dir/$1" --name "$1" --join-bundle "$dir/$1.bundle" \
    --grpc-addr 127.0.0.1:0 --http-addr 127.0.0.1:0
  zone_pid=$started
  await "$1" "$started"
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

# Start the service NAME, an instance of ROLE with more tags, and the agent beside it.
# web calls the backend.
service() {
  local role=$1 name=$2 tags=${3:-} inbound outbound='' address way
  case $proxy-$role in
    envoy-web)
      outbound=$("$services" port)
      start "$name" "$services" web "$dir/shop" "$name" "127.0.0.1:$outbound" ;;
    *-web)
      outbound=10001 # gRPC calls by the name of the service
      start "$name" "$services" web "$dir/shop" "$name" ;;
    *)
      start "$name" "$services" "$role" "$dir/shop" "$name" ;;
  esac
  await_file "$dir/shop/$name.port"
  case $proxy in
    envoy)
      inbound="port: $("$services" port), servicePort: $(cat "$dir/shop/$name.port")"
      tags="kuma.io/protocol: http${tags:+, $tags}"
      way=(--envoy "$envoy") ;;
    *)
      inbound="port: $(cat "$dir/shop/$name.port")"
      tags="kuma.io/protocol: grpc${tags:+, $tags}"
      way=(--grpc-bootstrap "$dir/shop/$name.json") ;;
  esac
  cat >"$dir/shop/$name.yaml" <<YAML
{type: Dataplane, mesh: shop, name: $name, networking: {address: 127.0.0.1,
  inbound: [{$inbound, tags: {kuma.io/service: $role, $tags}}],
  outbound: [${outbound:+{port: $outbound, tags: {kuma.io/service: backend\}\}}]}}
YAML
  MERIDIAN_CONFIG=$dir/east/admin.yaml "$bin/meridian" generate dataplane-token --mesh shop --name "$name" \
    --tag "kuma.io/service=$role" --valid-for 1h >"$dir/shop/$name.token"
  address=$(sed -n 's/.*"grpc": *"\([^"]*\)".*/\1/p' "$dir/east/addresses.json")
  start "$name-agent" "$bin/meridian" proxy run -f "$dir/shop/$name.yaml" --token-file "$dir/shop/$name.token" \
    --zone-address "$address" --ca-file "$dir/east/pki/ca.pem" "${way[@]}" --drain-time 1s
  [ "$proxy" = envoy ] || await_file "$dir/shop/$name.json"
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
get() { "$services" get "$dir/shop" web-1 "$@"; }
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

# The tour of policies: what is matched in two zones, and why.
policies() {
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
}

# A permission denies web, and its error is the policy's. $1 is text of the error.
denial() {
  local denied
  say "They know each other by certificates: a permission denies web, and its error names it"
  printf '$ web calls the backend until it is denied\n'
  get --until "$1" --begun "$dir/begun" --since "$dir/written" >"$dir/denied" &
  denied=$!
  pids+=($denied)
  await_file "$dir/begun"
  # What is measured begins when the global takes the write, before it is on disk.
  global apply -f examples/traffic/no-web.yaml
  MERIDIAN_CONFIG=$dir/global/admin.yaml "$bin/meridian" get mesh-traffic-permission no-web -m shop \
    -o 'jsonpath={.modificationTime}' >"$dir/written.new"
  mv "$dir/written.new" "$dir/written"
  wait "$denied" || { cat "$dir/denied"; return 1; }
  cat "$dir/denied"
  zone east inspect connection -m shop --from web-1 --to backend-v1 --expect denied
  zone east why backend-v1 MeshTrafficPermission -m shop --from kuma.io/service=web
  if [ "$proxy" = grpc ]; then # what Envoy's log has of a denial is not in its answer
    grep failed "$dir/denied" | zone east why backend-v1 -m shop --from kuma.io/service=web --log -
  fi

  say "Without that permission, web is allowed again"
  global delete mesh-traffic-permission no-web -m shop
  await_backend
  calls --calls 100
  zone east inspect connection -m shop --from web-1 --to backend-v1 --expect allowed
}

say "Starting a global, and zones: ${zones[*]}. Everything is under $dir"
start global "$bin/meridian-global" --data-dir "$dir/global" --grpc-addr 127.0.0.1:0 --http-addr 127.0.0.1:0 \
  --raft-addr 127.0.0.1:0 --gossip-addr 127.0.0.1:0
await global "$started"
for z in "${zones[@]}"; do
  MERIDIAN_CONFIG=$dir/global/admin.yaml "$bin/meridian" generate zone-token --zone "$z" --valid-for 24h --bundle >"$dir/$z.bundle"
  start_zone "$z"
  [ "$z" != east ] || zone_east=$zone_pid
done

case $proxy in
  envoy)
    say "Three services that speak HTTP and know of no mesh, each beside an Envoy" ;;
  *)
    policies
    say "Three services, stock gRPC programs that take their configuration from the zone east" ;;
esac
global apply -f examples/traffic/mesh.yaml --wait=zones
mkdir -m 700 "$dir/shop"
service backend backend-v1 'version: v1'
service backend backend-v2 'version: v2'
service web web-1
await_backend
calls --calls 100
case $proxy in
  envoy) denial 'denied_matched_policy[MeshTrafficPermission_no-web]' ;;
  *) denial 'deny policy "MeshTrafficPermission no-web"' ;;
esac

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

  export MERIDIAN_CONFIG=$dir/global/admin.yaml    # or admin.yaml of a zone: ${zones[*]}
  bin/meridian zones

and stop it with

  kill ${running[*]}; rm -rf $dir
TXT
  exit 0
fi

say "Stopping"
