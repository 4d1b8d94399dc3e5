# `make run` sets up and runs the main job; `make test` sets up and passes the tests.
RECIPE ?= laptop
PY = .venv/bin/python

run: setup
	.venv/bin/woodshed run $(RECIPE)

test: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} .venv/bin/pytest -n auto --dist loadfile --no-loadscope-reorder --max-worker-restart 1

# What takes a minute or more for each test, and is not part of `make test`.
test-long: setup
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} .venv/bin/pytest -m long

setup:
	@scripts/setup

.PHONY: run test test-long setup
