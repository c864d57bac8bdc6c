# Thin: each target is a line that you could type. ARGS are passed on: make up ARGS="--only text,gateway"
VENV := .venv
BIN := $(VENV)/bin
CLIENTS := .venv-clients
PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11,$(if $(shell $(name) -c "import sys; print(sys.version_info >= (3, 11) or '')" 2>/dev/null),$(name))))
# Not compiled: that would take longer than all the rest, and most files are never imported. Those that are, are
# compiled at their first import, also where the environment says otherwise: the virtual environment is ours.
RUN := env -u PYTHONDONTWRITEBYTECODE
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --no-compile -qq --constraint .ci/constraints.txt --editable
CLIENT_PIP := $(CLIENTS)/bin/python -m pip install --disable-pip-version-check --retries 10 --timeout 120 -qq
INPUTS := pyproject.toml .ci/constraints.txt
ARGS ?=

.PHONY: up test quick lint bench format clients

up: $(VENV)/all.stamp
	@$(RUN) $(BIN)/tessera up $(ARGS)

test: $(VENV)/dev.stamp
	@$(RUN) $(BIN)/pytest -n 2 --dist loadgroup $(ARGS)

# What runs while you work, in under two minutes on two cores. `make test` runs everything.
quick: $(VENV)/dev.stamp
	@$(RUN) $(BIN)/pytest -n 2 --dist loadgroup -m "not slow and not e2e" tests/structure tests/kernels tests/shared $(ARGS)

# The real packages that people use with the suite, in an environment of their own, against a running gateway.
clients: $(CLIENTS)/clients.stamp
	@$(RUN) $(CLIENTS)/bin/pytest --confcutdir tests/clients tests/clients $(ARGS)

lint: $(VENV)/dev.stamp
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: $(VENV)/all.stamp
	@$(RUN) $(BIN)/python -m tessera_bench $(ARGS)

format: $(VENV)/dev.stamp
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

$(VENV)/all.stamp: $(BIN)/python $(INPUTS)
	@echo "installing the suite into $(VENV), once: about 1.6 GB"
	@started=$$(date +%s); $(INSTALL) '.[all]' && echo "installed in $$(($$(date +%s) - started)) s"
	@touch $@

$(VENV)/dev.stamp: $(BIN)/python $(INPUTS)
	@echo "installing the suite and its development tools into $(VENV), once: about 3.4 GB"
	@started=$$(date +%s); $(INSTALL) '.[dev]' && echo "installed in $$(($$(date +%s) - started)) s"
	@touch $(VENV)/all.stamp $@

# uv takes a quarter of pip's time; pip is asked where uv cannot reach the index, whose address may be pip's alone to know.
$(CLIENTS)/clients.stamp: tests/clients/requirements.txt tests/clients/node/package-lock.json $(VENV)/all.stamp
	@echo "installing the clients into $(CLIENTS), once: about 1.9 GB"
	@$(BIN)/python -m venv $(CLIENTS) && $(CLIENT_PIP) uv
	@UV_HTTP_TIMEOUT=120 UV_HTTP_RETRIES=5 $(CLIENTS)/bin/uv pip install -q --no-deps --python $(CLIENTS)/bin/python -r $< || $(CLIENT_PIP) --no-deps --no-compile -r $<
	@$(CLIENTS)/bin/python tests/clients/borrow_torch.py $(VENV)
	@if ! command -v npm >/dev/null; then echo "there is no npm here: the clients from npm will be skipped"; else \
	  mkdir -p $(CLIENTS)/node && cp tests/clients/node/*.json $(CLIENTS)/node/ && \
	  npm ci --prefix $(CLIENTS)/node --no-audit --no-fund --loglevel error --fetch-retries 5 --fetch-timeout 120000; fi
	@touch $@

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then echo "Tessera needs Python 3.11 or newer, and there is none here. Debian and Ubuntu: sudo apt install python3 python3-venv"; exit 1; fi
	@$(PYTHON) -c "import ensurepip, venv" 2>/dev/null || { echo "$(PYTHON) cannot make environments. Debian and Ubuntu: sudo apt install python3-venv"; exit 1; }
	@$(PYTHON) -m venv $(VENV)
