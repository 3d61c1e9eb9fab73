# Two commands set up everything on a fresh machine: `make demo` and `make test`.
# GPU users: make demo TORCH="torch" (plain torch brings CUDA, about 3 GB).

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0+cpu
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
OUT ?= runs/demo

BIN := $(VENV)/bin

.PHONY: demo test check clean

demo: $(VENV)/.installed
	$(BIN)/ddtree bench run --preset demo --out $(OUT)

test: $(VENV)/.installed-dev
	PATH="$(abspath $(BIN)):$$PATH" scripts/check

check: test

$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet "$(TORCH)" || $(BIN)/pip install --quiet "$(TORCH)" --index-url $(TORCH_INDEX)
	touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml
	$(BIN)/pip install --quiet --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) runs
