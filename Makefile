# Each target sets up all it needs from nothing: python3, pip and make are enough (and npm, for test-clients).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SERVES := $(VENV)/.serves
LOCK := requirements/dev.lock
SERVE_LOCK := requirements/serve.lock
MODELS := .models
WORKERS ?= 4

# The tests start some hundred servers: each would compile the whole of antwort anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup serve test test-model test-slow test-ways test-upgrade test-clients check format coverage manifest reference house docs bench bench-websocket bench-eager bench-faults bench-attacks bench-runs bench-growth chaos bench-toolcalling bench-toolcalling-variants fuzz lock clean

help:  ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

# Whoever only serves is spared what development needs; the second lock holds the first.
INSTALL = @test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV); \
	echo "Setting up $(VENV) ..." && \
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r $(1) && \
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . && \
	touch $@

$(SERVES): $(SERVE_LOCK) pyproject.toml
	$(call INSTALL,$(SERVE_LOCK))

$(READY): $(LOCK) pyproject.toml
	$(call INSTALL,$(LOCK)) $(SERVES)

setup: $(READY)  ## set up .venv with antwort and all that its development needs
	@echo "Ready: source $(VENV)/bin/activate, then antwort --help"

serve: $(SERVES)  ## start the server with the demo tools; where ARGS and the settings name no backend or model: with the demo model, fetched once (93 MB)
	@$(BIN)/python scripts/fetch_model.py $(ARGS) >/dev/null
	$(BIN)/antwort serve --demo-tools $(ARGS)

test: $(READY)  ## run the tests; those that ask a real model fetch it once (93 MB), into .models
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup

test-model: $(READY)  ## have the demo model compact, truncate and fill its context: tests that take a real model some minutes
	$(BIN)/python -m pytest -q tests/local/live_compaction.py tests/local/live_truncation.py tests/local/live_context.py

test-slow: $(READY)  ## run the tests that take longest: chats in a terminal, clients that vanish, databases that hang, strict answers of every kind
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup $(wildcard tests/*/slow_*.py)

test-ways: $(READY)  ## run the end-to-end tests that can in every way to run a server: in process, by itself, mounted
	EVERY_WAY=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup tests/e2e

NODE_CLIENTS := tests/clients/node
NODE_READY := $(NODE_CLIENTS)/node_modules/.ready

$(NODE_READY): $(NODE_CLIENTS)/package.json $(NODE_CLIENTS)/package-lock.json
	@command -v npm >/dev/null || { echo "npm is needed for the clients that are written for Node." >&2; exit 1; }
	@echo "Setting up $(NODE_CLIENTS) (240 MB to fetch) ..."
	@cd $(NODE_CLIENTS) && npm ci --loglevel=error --no-progress >/dev/null
	@touch $@

FROM ?= HEAD~1

test-upgrade: $(READY)  ## install the version of commit FROM, and continue with this one what it has stored, also while it is stopped under load
	PYTHONPATH=tests $(BIN)/python -m upgrade.run --from $(FROM)

CLIENT ?=

test-clients: $(READY) $(NODE_READY)  ## try MCP servers for Node, take real clients through all cases, and tell of it in docs/reference/compatibility.md (needs npm; CLIENT=codex: one alone)
	@$(if $(CLIENT),:,$(BIN)/python -m pytest -q tests/clients/reference_servers.py tests/clients/python_clients.py tests/clients/client_pages.py)
	@PYTHONPATH=tests $(BIN)/python -m clients.run --out docs/assets/compatibility.jsonl $(if $(CLIENT),--only $(CLIENT)); \
	status=$$?; $(BIN)/python scripts/compatibility.py && exit $$status

check: $(READY)  ## ruff and the strict type checker, over src and tests
	$(BIN)/ruff format --check src tests scripts examples bench models
	$(BIN)/ruff check src tests scripts examples bench models
	$(BIN)/mypy

format: $(READY)  ## format the code
	$(BIN)/ruff format src tests scripts examples bench models
	$(BIN)/ruff check --fix-only --quiet src tests scripts examples bench models

coverage: $(READY)  ## branch coverage; fails under 95 % over api, schema, engine, tools
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q
	$(BIN)/coverage combine -q
	$(BIN)/coverage report --skip-covered
	$(BIN)/coverage report --include='src/antwort/api/*,src/antwort/schema/*,src/antwort/engine/*,src/antwort/tools/*' --fail-under=95

manifest: $(READY)  ## write the tests that carry each requirement id into the manifest
	$(BIN)/python scripts/manifest.py

reference: $(READY)  ## write what follows from the code into the pages of docs/reference
	$(BIN)/python scripts/reference.py
	MCP_VERSIONS=write $(BIN)/python -m pytest -q tests/tools/mcp/test_mcp_versions.py

house: $(READY)  ## measure the code, and what a request passes in it (ARGS=--write: renew the table in docs/architecture.md)
	@$(BIN)/python scripts/house.py $(ARGS)

docs: $(READY) reference  ## build the documentation into site/ and check its links
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	$(BIN)/python -m pytest -q tests/docs/test_site.py
	@echo "The site is in site/: open site/index.html"

BENCH := .bench
ROUNDS ?= 3
SCEN ?= a,b,c,d,g
CONC ?= 1,32,128
PEERS ?= direct,raw-fastest,antwort

$(BENCH)/.ready: requirements/bench.lock requirements/run.lock bench/mock/*.go bench/loadgen/*.go
	@echo "Setting up $(BENCH) ..."
	@$(PYTHON) -m venv $(BENCH)/pyraw
	@$(BENCH)/pyraw/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/bench.lock
	@$(PYTHON) -m venv $(BENCH)/antwort
	@$(BENCH)/antwort/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/run.lock
	@mkdir -p $(BENCH)/bin
	@cd bench && ../$(BENCH)/pyraw/bin/go build -o ../$(BENCH)/bin/ ./mock ./loadgen
	@touch $(BENCH)/.ready

bench: $(READY) $(BENCH)/.ready  ## measure against the backend itself and the least a Python gateway can do (SCEN=e,es: tool loops, not stored and stored)
	@$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation -w $(BENCH)/dist .
	@$(BENCH)/antwort/bin/pip install --quiet --disable-pip-version-check --no-deps --no-index --force-reinstall \
		-f $(BENCH)/dist antwort
	$(BIN)/python bench/run.py --bin $(CURDIR)/$(BENCH)/bin --dir $(CURDIR)/$(BENCH) --peers bench/servers.toml \
		--only $(PEERS) --scen $(SCEN) --rounds $(ROUNDS) --conc $(CONC) --lock $(BENCH)/lock --out $(BENCH)/results.jsonl
	$(BIN)/python bench/summarize.py $(BENCH)/results.jsonl

CONNECTIONS ?= 1000

bench-websocket: $(READY) $(BENCH)/.ready  ## hold CONNECTIONS=1000 WebSockets open with a turn on each, and as many SSE streams
	PYTHONPATH=bench $(BIN)/python -m connections.run --mock $(BENCH)/bin/mock --connections $(CONNECTIONS) --out $(BENCH)/websocket.json

bench-eager: $(READY)  ## time turns with tool calls, with calls that begin while the model still writes and without
	PYTHONPATH=bench $(BIN)/python -m eager.run

REQUESTS ?= 1000

bench-faults: $(READY)  ## time REQUESTS=1000 requests while MCP servers that others use are hung, down, huge or dying
	PYTHONPATH=bench:tests $(BIN)/python -m faults.run --requests $(REQUESTS)

ATTACK_SECONDS ?= 60

bench-attacks: $(READY)  ## time one tenant's requests while another one attacks the server in every way, alone and all together for ATTACK_SECONDS=60 (about 7 minutes)
	PYTHONPATH=bench:tests $(BIN)/python -m attacks.run --seconds $(ATTACK_SECONDS)

SECONDS ?= 120
RUNS ?= 200

chaos: $(READY)  ## kill servers and databases at random for SECONDS=120 under RUNS=200 runs at once, with SQLite and with PostgreSQL (SEED=…: the same plan again)
	PYTHONPATH=tests $(BIN)/python -m chaos.run --seconds $(SECONDS) --runs $(RUNS) $(if $(filter file,$(origin SEED)),,--seed $(SEED)) --out $(BENCH)

bench-runs: $(READY)  ## measure what runs cost that survive: takeover, append, tail, replay, memory and disk, in each home
	PYTHONPATH=bench:tests $(BIN)/python -m runlog.run --out $(BENCH)/runs.json

GROWTH_ROUNDS ?= 5

bench-growth: $(READY)  ## measure how the CPU of a request grows with its size and with what is stored, and put figures and plot into docs (some minutes, 3 GB of disk)
	PYTHONPATH=bench $(BIN)/python -m growth.run --out $(BENCH)/growth --rounds $(GROWTH_ROUNDS) --write

HALF ?= test

bench-toolcalling: $(READY)  ## measure tool choice of the demo model, native and constrained (HALF=dev|test)
	@$(BIN)/antwort model path >/dev/null || $(BIN)/antwort model pull
	PYTHONPATH=bench $(BIN)/python -m toolcalling.run --half $(HALF)

bench-toolcalling-variants: $(READY)  ## compare ways to ask the demo model for calls, on the half to choose by
	@$(BIN)/antwort model path >/dev/null || $(BIN)/antwort model pull
	PYTHONPATH=bench $(BIN)/python -m toolcalling.variants

COUNT ?= 10000
SEED ?= 0

fuzz: $(READY)  ## send a server COUNT=10000 requests of all kinds, made of its own document and by hand (SEED=0)
	PYTHONPATH=bench:tests $(BIN)/python -m fuzz.run --count $(COUNT) --seed $(SEED)

lock:  ## compile the lock files anew (needs uv)
	uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header -o requirements/run.lock pyproject.toml
	uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --extra demo --extra postgres --extra testing --group dev -o $(LOCK) pyproject.toml
	uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --extra demo --extra postgres --group build -o $(SERVE_LOCK) -c $(LOCK) pyproject.toml
	uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header -o requirements/bench.lock requirements/bench.in

clean:  ## remove what the targets made
	rm -rf $(VENV) $(BENCH) $(MODELS) $(NODE_CLIENTS)/node_modules site .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*
