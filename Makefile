# Every target sets up what it needs, quietly and only when needed.
PYTHON ?= python3
BIN := .venv/bin
BENCHES := replay restart write decide fence transitions failover api dataplane microbatch
TESTS_AT_ONCE ?= 2
SOAK_MINUTES ?= 30
SOAK_STREAMING_MINUTES ?= 60
SOAK_SEEDS ?= 100000

.PHONY: setup demo test check bench soak lock records docs clean help

help:            ## this list
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/:[^#]*##/\t/' | expand -t 12

setup: .venv/.ready  ## .venv from the hashed requirements, the jars of broker and Spark, Spark's class archive
	@$(BIN)/python -m events.jars --quiet
	@$(BIN)/python -m workers.spark.class_archive --quiet

.venv/.ready: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Detent needs Python 3.11 or newer; set PYTHON=/path/to/it")'
	@echo "setting up .venv (once; about a minute)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	@touch $@

demo: setup      ## see it work, with a kill -9 in the middle; KEEP=1 leaves it running
	@$(BIN)/python -m detent demo $(if $(KEEP),--keep)

test: check      ## all tests, TESTS_AT_ONCE (2) files at a time: most of them wait for other processes; 0: one after the other
	@$(BIN)/python -m pytest --numprocesses $(TESTS_AT_ONCE) --dist loadfile --no-loadscope-reorder

check: setup     ## lint, format and strict types
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy --no-error-summary

bench: setup     ## all benchmarks; non-zero when a bar is missed
	@for b in $(BENCHES); do $(BIN)/python -m bench.$$b || exit 1; done

soak: setup      ## long runs: SOAK_MINUTES (30) of real processes with faults, an hour of streaming, SOAK_SEEDS of the simulation, the laws
	@$(BIN)/python -m tests.soak --minutes $(SOAK_MINUTES) --streaming-minutes $(SOAK_STREAMING_MINUTES)
	@$(BIN)/python -m tests.simulation --seeds $(SOAK_SEEDS) --jobs 2
	@HYPOTHESIS_PROFILE=soak $(BIN)/python -m pytest tests/test_laws.py tests/test_codec.py --timeout 7200

lock:            ## resolve the requirements anew (needs uv)
	uv pip compile pyproject.toml --extra connect --extra dev --universal --python-version 3.11 \
	  --generate-hashes --no-annotate --no-header --quiet --upgrade -o requirements.txt

records: setup   ## write events/records.py and docs/asyncapi.yaml anew from schemas/*.avsc
	@$(BIN)/python -m schemas.generate
	@$(BIN)/python -m detent.contract > docs/asyncapi.yaml

docs: setup      ## write the generated pages anew: life cycles, configuration, jobs and their schema
	@$(BIN)/python -c 'from coordinator import lifecycle; print(lifecycle.page(), end="")' > docs/lifecycles.md
	@$(BIN)/python -m detent config docs > docs/configuration.md
	@$(BIN)/python -m detent.job_schema --page > docs/jobs.md
	@$(BIN)/python -m detent.job_schema > schemas/job.schema.json
	@$(BIN)/python -m detent.contract > docs/asyncapi.yaml

clean:           ## remove what setup and runs left in this folder
	rm -rf .venv .detent .hypothesis .mypy_cache .pytest_cache .ruff_cache *.egg-info
