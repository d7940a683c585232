# make demo: the main job on this machine. make test: all tests. Everything is installed into .venv from requirements.lock.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

.PHONY: demo test check bench soak lock protos clean

$(READY): requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(BIN)/python -m compileall -q src
	touch $(READY)

demo: $(READY)
	$(BIN)/bayplan demo

test: $(READY)
	$(BIN)/pytest

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)
	for b in bench/*.py; do $(BIN)/python $$b || exit 1; done

soak: $(READY)
	BAYPLAN_SOAK=1 $(BIN)/pytest

# Resolve pyproject.toml again; the only way requirements.lock changes.
lock:
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes \
	    --no-header --emit-build-options -o requirements.lock build-requirements.in

clean:
	rm -rf .venv build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
