# Two commands matter: `make demo` trains and prints the reproduction, `make test` runs the suite; `make docs` builds the
# guide and the API pages into site/. They need only Python 3.11+ and a package index.
SHELL := /bin/sh
PYTHON ?= python3
OUT ?= runs/table1
.PHONY: demo test check docs env clean

env: .venv/.viewspan

.venv/.viewspan: pyproject.toml Makefile .ci/env
	@sh .ci/env $(PYTHON)

demo: env
	@.venv/bin/viewspan demo --out $(OUT)

# PYTEST_ARGS adds to or overrides what pyproject.toml says, e.g. PYTEST_ARGS="-m slow"
test: env
	@OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n auto --dist worksteal $(PYTEST_ARGS)

check: env
	@.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy

docs: env
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet && echo "docs: site/index.html"

clean:
	rm -rf .venv .tools runs site
