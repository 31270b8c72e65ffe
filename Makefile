# Everything here works from a fresh clone with Go, make and git: tools are
# built from the versions pinned in tools/go.mod into .cache/tools.

GO      ?= go
TOOLS   := $(CURDIR)/.cache/tools
BIN     := $(CURDIR)/bin
# Without this tag raft reports metrics to the sink of armon/go-metrics.
TAGS    := hashicorpmetrics
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)
LDFLAGS := -X meridian/internal/version.stamped=$(VERSION)
# Programs are static: no C compiler is needed, and the host does not matter.
GOBUILD := CGO_ENABLED=0 $(GO) build -trimpath -tags $(TAGS) -ldflags '$(LDFLAGS)'

# Time limits of the tests; multi-process tests have their own.
TEST_TIMEOUT      ?= 15m
MULTIZONE_TIMEOUT ?= 15m
# Virtual minutes for which `make sim` runs each fault profile: at the product's
# timing, and ten times slower.
SIM_MINUTES ?= 10
SIM_LONG    ?= 400
# The Envoy of the tests: what `make envoy` installs, unless ENVOY_BIN names another.
ENVOY := $(CURDIR)/.cache/envoy/envoy
# The start of a command that tests with it, and says whether there is one.
WITH_ENVOY = if [ -z "$$ENVOY_BIN" ] && [ -x $(ENVOY) ]; then export ENVOY_BIN=$(ENVOY); fi; \
	if [ -n "$$ENVOY_BIN" ]; then echo "Envoy: $$ENVOY_BIN"; \
	else echo 'Envoy: none, so that the tests with it are LEFT OUT (make envoy installs one)'; fi
# Which packages and how the runner reports.
PKGS        ?= ./...
TEST_FORMAT ?= pkgname
TEST_FLAGS  ?=
# Where the runner's events go, for the summary of a whole run.
EVENTS_DIR  := $(CURDIR)/.cache/test

# Duration, seed and number of clients of `make torture`, and the time without
# faults after each round. With DISKS=1 each server has a file system of its own,
# which takes the superuser, and disks become slow as well.
DURATION ?= 1h
SEED     ?= 1
CLIENTS  ?= 32
REST     ?= 0s
DISKS    ?=

FUZZTIME  ?= 10s
BENCHTIME ?= 200ms
BENCH     ?= .
# How often each benchmark runs: the report has the median, and from five runs on it says
# what differs from the baseline by more than chance.
BENCHCOUNT ?= 1
BENCH_DIR  := $(CURDIR)/.cache/bench
# The commit or tag that protobuf changes must not break: the last release.
AGAINST   ?= $(shell git describe --tags --abbrev=0 --match 'v*' 2>/dev/null)

# True where cgo, and so the race detector, can be used.
HAS_CC = [ "$$($(GO) env CGO_ENABLED)" = 1 ] && \
	printf '\#include <stdlib.h>\nint main(void){return 0;}\n' | $$($(GO) env CC) -x c -o /dev/null - >/dev/null 2>&1

.DEFAULT_GOAL := help
.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-11s %s\n", $$1, $$2}'

.PHONY: build
build: ## Build bin/meridian, bin/meridian-global and bin/meridian-zone
	$(GOBUILD) -o $(BIN)/meridian ./cmd/meridian
	$(GOBUILD) -o $(BIN)/meridian-global ./cmd/global
	$(GOBUILD) -o $(BIN)/meridian-zone ./cmd/zone

.PHONY: test
test: $(TOOLS)/gotestsum ## Run all tests, under the race detector where a C compiler exists
	@mkdir -p $(EVENTS_DIR); race=; \
	if $(HAS_CC); then race=-race; echo 'race detector: on'; \
	else export CGO_ENABLED=0; echo 'race detector: off (it needs cgo and a C compiler)'; fi; \
	$(WITH_ENVOY); \
	$(TOOLS)/gotestsum --format $(TEST_FORMAT) --jsonfile $(EVENTS_DIR)/test.json -- \
		$$race -tags $(TAGS) -timeout $(TEST_TIMEOUT) $(TEST_FLAGS) $(PKGS)

.PHONY: envoy
envoy: ## Install the Envoy of the tests into .cache/envoy, or use the one of ENVOY_BIN
	@tools/envoy/install.sh $(ENVOY)

.PHONY: race
race: $(TOOLS)/gotestsum ## Run all tests uncached under the race detector, or fail where it cannot run
	@$(HAS_CC) || { echo 'the race detector needs cgo and a C compiler' >&2; exit 1; }
	$(TOOLS)/gotestsum --format $(TEST_FORMAT) -- \
		-race -count=1 -tags $(TAGS) -timeout $(TEST_TIMEOUT) $(TEST_FLAGS) $(PKGS)

.PHONY: multizone
multizone: build $(TOOLS)/gotestsum ## Run the tests that start whole clusters as processes
	@mkdir -p $(EVENTS_DIR); $(WITH_ENVOY); \
	MERIDIAN_BIN=$(BIN) $(TOOLS)/gotestsum --format $(TEST_FORMAT) --jsonfile $(EVENTS_DIR)/multizone.json -- \
		-count=1 -parallel 4 -tags $(TAGS),multizone -timeout $(MULTIZONE_TIMEOUT) $(TEST_FLAGS) ./test/multizone/... ./test/pages

# One summary of what `test` and `multizone` last ran.
.PHONY: summary
summary: $(TOOLS)/gotestsum
	@$(TOOLS)/gotestsum --format none --hide-summary=skipped --raw-command -- cat $(EVENTS_DIR)/*.json

.PHONY: lint
lint: $(TOOLS)/golangci-lint $(TOOLS)/buf ## Check style, layers and protobuf compatibility
	$(TOOLS)/golangci-lint run
	$(TOOLS)/buf lint
	@if [ -n '$(AGAINST)' ]; then $(MAKE) --no-print-directory breaking AGAINST='$(AGAINST)'; \
	else echo 'buf breaking: nothing is released yet; make breaking AGAINST=main compares with a branch'; fi

.PHONY: breaking
breaking: $(TOOLS)/buf
	$(TOOLS)/buf breaking --against '.git#ref=$(AGAINST)'

.PHONY: fmt
fmt: $(TOOLS)/golangci-lint $(TOOLS)/buf ## Format Go and protobuf sources
	$(TOOLS)/golangci-lint fmt
	$(TOOLS)/buf format -w

.PHONY: fmt-check
fmt-check: $(TOOLS)/golangci-lint $(TOOLS)/buf
	$(TOOLS)/golangci-lint fmt --diff
	$(TOOLS)/buf format --diff --exit-code

.PHONY: gen
gen: $(TOOLS)/buf $(TOOLS)/protoc-gen-go $(TOOLS)/protoc-gen-go-grpc ## Generate the Go code of every .proto under api/
	PATH='$(TOOLS)':"$$PATH" $(TOOLS)/buf generate

# Generates into a temporary directory and compares, so that the tree is not changed.
.PHONY: gen-check
gen-check: $(TOOLS)/buf $(TOOLS)/protoc-gen-go $(TOOLS)/protoc-gen-go-grpc
	@out=$$(mktemp -d) && trap 'rm -rf "$$out"' EXIT && \
	PATH='$(TOOLS)':"$$PATH" $(TOOLS)/buf generate -o "$$out" && \
	diff -ru -x '*.proto' api "$$out/api" || \
	{ echo 'generated code is out of date: run make gen and commit the result' >&2; exit 1; }

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME each (default 10s)
	@set -e; for pkg in $$(grep -rl --include='*_test.go' '^func Fuzz' internal cmd test | xargs -r -n1 dirname | sort -u); do \
		list=$$($(GO) test -tags $(TAGS) -list '^Fuzz' "./$$pkg"); \
		for target in $$(printf '%s\n' "$$list" | grep '^Fuzz' || true); do \
			echo "== $$pkg $$target"; \
			$(GO) test -tags $(TAGS) -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x "./$$pkg"; \
		done; \
	done

.PHONY: bench
bench: build ## Run the benchmarks (BENCH=regexp, BENCHTIME per benchmark, BENCHCOUNT runs)
	@mkdir -p $(BENCH_DIR)
	@{ MERIDIAN_BIN=$(BIN) $(GO) test -tags $(TAGS) -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) -benchmem -count $(BENCHCOUNT) -timeout 60m $(PKGS); \
		echo $$? >$(BENCH_DIR)/status; } | tee $(BENCH_DIR)/output.txt
	@$(GO) run -tags $(TAGS) ./bench/report $(addprefix --baseline ,$(wildcard bench/baseline.json)) \
		--json $(BENCH_DIR)/report.json $(BENCH_DIR)/output.txt >$(BENCH_DIR)/report.md
	@echo "The figures are in $(BENCH_DIR)/report.md and report.json; bench/README.md says how to read them."
	@exit $$(cat $(BENCH_DIR)/status)

.PHONY: bench-etcd
bench-etcd: build ## Compare writes with an etcd found on PATH, and measure failovers
	MERIDIAN_BIN=$(BIN) $(GO) test -tags $(TAGS) -run '^$$' -bench 'WritesAgainstEtcd|Failover' -benchtime 1x -timeout 60m -v ./bench

.PHONY: torture
torture: build ## Inject faults into a cluster of processes for DURATION from SEED and check the invariants
	MERIDIAN_BIN=$(BIN) MERIDIAN_TORTURE_DURATION=$(DURATION) MERIDIAN_TORTURE_SEED=$(SEED) MERIDIAN_TORTURE_CLIENTS=$(CLIENTS) MERIDIAN_TORTURE_REST=$(REST) MERIDIAN_TORTURE_DISKS=$(DISKS) \
		$(GO) test -count=1 -tags $(TAGS),multizone -timeout 0 -run '^TestTorture$$' -v ./test/multizone

.PHONY: sim
sim: $(TOOLS)/gotestsum ## Simulate clusters in virtual time under faults, for longer than `test` does, from SIM_SEED
	@mkdir -p $(EVENTS_DIR)
	SIM_MINUTES=$(SIM_MINUTES) SIM_LONG=$(SIM_LONG) $(TOOLS)/gotestsum --format standard-verbose --jsonfile $(EVENTS_DIR)/sim.json -- \
		-count=1 -tags $(TAGS) -timeout 30m ./test/sim

.PHONY: mutants
mutants: $(TOOLS)/gotestsum ## Run the tests with one deliberate bug at a time and check that each is detected
	@mkdir -p $(EVENTS_DIR)
	$(TOOLS)/gotestsum --format testname --jsonfile $(EVENTS_DIR)/mutants.json -- \
		-count=1 -tags $(TAGS),mutants -timeout 20m ./test/mutants

# The Kubernetes programs have their own module, and are built only here.
KUBERNETES := $(CURDIR)/.cache/kubernetes
.PHONY: kubernetes
kubernetes: build $(KUBERNETES)/kube-apiserver ## Test the admission webhook with a real API server (RECORD=1 records its requests); builds Kubernetes first
	KUBERNETES_BIN=$(KUBERNETES) MERIDIAN_BIN=$(BIN) RECORD=$(if $(RECORD),$(CURDIR)/internal/service/webhook/testdata/reviews) \
		$(GO) test -count=1 -tags $(TAGS),kubernetes ./test/kubernetes

$(KUBERNETES)/kube-apiserver: tools/kubernetes/go.mod tools/kubernetes/go.sum
	@mkdir -p $(KUBERNETES)
	cd tools/kubernetes && CGO_ENABLED=0 $(GO) build -trimpath -o $(KUBERNETES)/ tool
	@touch $@

.PHONY: demo
demo: build ## Start a global, two zones and three gRPC services, apply examples/, show what is effective (KEEP=1 leaves it running)
	$(GOBUILD) -o $(BIN)/examples/shop-grpc ./examples/traffic/grpc
	@MERIDIAN_BIN=$(BIN) KEEP='$(KEEP)' ./examples/demo.sh

.PHONY: demo-envoy
demo-envoy: build envoy ## Start a global, a zone and three HTTP services beside Envoy, show the policies that Envoy obeys (KEEP=1 leaves it running)
	$(GOBUILD) -o $(BIN)/examples/shop-http ./examples/traffic/http
	@MERIDIAN_BIN=$(BIN) ENVOY_BIN=$(ENVOY) KEEP='$(KEEP)' ./examples/demo.sh envoy

.PHONY: check
check: ## Run everything that CI runs
	@.ci/run

.PHONY: tools
tools: $(addprefix $(TOOLS)/,buf protoc-gen-go protoc-gen-go-grpc gotestsum golangci-lint)

# Tools have their own module, so that the product's go.mod lists only what it uses.
TOOL_PKG_buf                := github.com/bufbuild/buf/cmd/buf
TOOL_PKG_protoc-gen-go      := google.golang.org/protobuf/cmd/protoc-gen-go
TOOL_PKG_protoc-gen-go-grpc := google.golang.org/grpc/cmd/protoc-gen-go-grpc
TOOL_PKG_gotestsum          := gotest.tools/gotestsum
TOOL_PKG_golangci-lint      := github.com/golangci/golangci-lint/v2/cmd/golangci-lint

$(TOOLS)/%: tools/go.mod tools/go.sum
	@mkdir -p $(TOOLS)
	cd tools && CGO_ENABLED=0 $(GO) build -o $@ $(TOOL_PKG_$*)
	@touch $@
