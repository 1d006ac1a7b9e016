# What can be done here. `make` alone builds; `make help` lists the rest.

BIN      := bin/gregor
FUZZTIME ?= 30s
SEEDS    ?= 10000
BENCH    ?= .
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

.PHONY: build run test unit interop race sim lint fuzz bench gobench clean help

build: ## build bin/gregor
	CGO_ENABLED=0 go build -trimpath -o $(BIN) ./cmd/gregor

run: build ## run a node on localhost:9092, its data in ./data
	$(BIN) server

test: lint unit interop ## everything that has to be green: lint, unit tests, interop tests

unit: ## tests that need only Go
	go test -timeout 30m ./...

interop: ## tests with the real Kafka and other clients; installs what they need and says what
	scripts/setup-interop
	cd interop && go vet ./... && go test -p 1 -timeout 60m ./...

race: ## unit tests under the race detector
	go test -race -timeout 60m ./...

sim: ## simulated clusters and groups: SEEDS (10000) seeds of each, and every broken rule must be caught
	go test -timeout 0 -v -run 'TestSeeds|TestDataSeeds|TestMutationsAreCaught' ./internal/simtest -seeds $(SEEDS) -data-seeds $(SEEDS) -mutant-seeds 5000
	go test -timeout 0 -v -run 'TestSim$$|TestMutationsAreCaught' ./internal/coordinator/group -seeds $(SEEDS) -mutant-seeds 5000

lint: ## formatting, vet, staticcheck
	@out=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$out" ]; then echo "not gofmt-clean:"; echo "$$out"; exit 1; fi
	go vet ./...
	go run $(STATICCHECK) ./...

fuzz: ## every fuzz test for FUZZTIME (30s)
	scripts/fuzz $(FUZZTIME)

bench: ## gregor and Kafka 4.4.0 side by side, half an hour; BENCHFLAGS, e.g. -quick; writes bench/RESULTS.md
	bench/run $(BENCHFLAGS)

gobench: ## Go benchmarks; BENCH selects by name
	go test -run '^$$' -bench '$(BENCH)' -benchmem ./...

clean: ## remove what was built
	rm -rf bin

help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12
