# make demo and make test set up everything by themselves (tools/setup.sh) on a Debian 12 machine as root.

PYTHON := .venv/bin/python
AT_HAND := $(if $(wildcard $(PYTHON)),$(PYTHON),python3)
# As root the sandbox must work, so a test that would be skipped for want of it is a failure.
REQUIRE_CLUSTER := $(shell [ "$$(id -u)" = 0 ] && echo 1)
SOAK_S ?= 3600
# Tests start hundreds of processes: without bytecode each would compile the package anew, and with several threads of
# PyTorch they would only be in the way of each other.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 SROBUST_REQUIRE_CLUSTER=$(REQUIRE_CLUSTER) $(PYTHON) -m pytest
SIDE_BY_SIDE := --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup lint docs test test-unit test-cluster test-gpu test-slurm test-versions demo bench bench-gpu matrix matrix-code soak packages release clean

help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what is missing: Slurm packages (as root), .venv, PyTorch, this package.
	@tools/setup.sh

lint: setup ## Ruff and mypy (strict).
	.venv/bin/ruff check .
	.venv/bin/mypy

# Needs no network. NO_MKDOCS_2_WARNING: the theme's notice of its own end (2027), not a warning of these pages.
docs: setup ## Write the generated pages anew, and build the documentation as a site into build/site.
	$(PYTHON) -m tools.reference_pages
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict --quiet
	@echo "build/site/index.html (the search needs a server: $(PYTHON) -m http.server -d build/site)"

test: lint test-unit test-cluster ## Everything: lint, unit tests, tests on a real Slurm in the sandbox.

# As root it installs Prometheus, which some tests ask; without it they are skipped.
test-unit: setup ## Tests that need neither root nor Slurm.
	@tools/setup.sh promtool prometheus
	$(PYTEST) -n 4 $(SIDE_BY_SIDE) tests/unit

# Sandboxes know nothing of each other, and these tests mostly wait: three files run side by side.
test-cluster: setup ## Tests that boot a real Slurm in the sandbox (root).
	$(PYTEST) -n 3 $(SIDE_BY_SIDE) tests/cluster

# Prints what it measures; all is skipped where torch sees no CUDA device. Neither this nor the next sets anything up:
# machines with GPUs often have no network, and a torch of their own.
test-gpu: ## Tests that need an NVIDIA GPU, some GB of its memory and of /dev/shm; with the Python at hand, without network.
	$(AT_HAND) -m tools.lacks pytest pytest-timeout hypothesis
	PYTHONDONTWRITEBYTECODE= $(AT_HAND) -m pytest -s tests/gpu

bench-gpu: ## Measure what only a GPU shows, in less than 8 minutes; with the Python at hand, without network (GPU_ARGS="recorder --cpu").
	$(AT_HAND) -m benchmarks.gpu $(GPU_ARGS)

test-slurm: setup ## Tests and a short demo on another release of Slurm: RELEASE=22.05, 24.11 or 26.05 (root, Debian).
	@tools/setup.sh debootstrap debootstrap
	SROBUST_REQUIRE_CLUSTER=$(REQUIRE_CLUSTER) tools/slurm_release.sh $(RELEASE)

# Needs neither root nor .venv; fetches some GB of PyTorch for each pair.
test-versions: ## Unit tests that touch PyTorch with the oldest and the newest Python and PyTorch (TESTS="files").
	tools/test_versions.sh

demo: setup ## A training on a real Slurm of six nodes loses a rank, then a node, and ends bitwise the same.
	$(PYTHON) demo/run.py

bench: setup ## Measure the numbers of the README on this machine (BENCH_ARGS="restart --reps 5").
	$(PYTHON) -m benchmarks.run_all $(BENCH_ARGS)

matrix: setup ## Plant every fault in a training on a real Slurm: who is blamed, and how soon (root, 40 minutes).
	$(PYTHON) -m benchmarks.fault_matrix $(MATRIX_ARGS)

matrix-code: setup ## Faults of the code, once and in every attempt: ends, attempts, innocents (root).
	$(PYTHON) -m benchmarks.code_matrix $(MATRIX_ARGS)

soak: setup ## Node health with faults, living nodes that seem dead, a storm of faults, then the recovery tests for SOAK_S s; needs root.
	$(PYTHON) -m benchmarks.soak_health
	$(PYTHON) -m benchmarks.soak_liveness --minutes 10
	$(PYTHON) -m benchmarks.fault_storm --faults 10 --minutes 10
	$(PYTEST) -m soak tests/cluster
	@end=$$(($$(date +%s) + $(SOAK_S))); round=0; \
	while [ "$$(date +%s)" -lt "$$end" ]; do \
	    round=$$((round + 1)); echo "soak: round $$round"; \
	    $(PYTEST) -q tests/cluster/test_recovery.py || exit 1; \
	done; echo "soak: $$round rounds without a failure"

packages: ## Build the .deb and the .rpm of the side of nodes into dist/ (root installs rpmbuild).
	@tools/setup.sh rpmbuild rpm
	packaging/build.sh deb rpm

# Pushes and uploads nothing. VERSION is in slurm_robust/version.py and has notes in CHANGELOG.md.
release: setup ## Test and build wheel, sdist, .deb and .rpm into dist/, and tag the commit: VERSION=0.2.0.
	tools/release.sh "$(VERSION)"

clean: ## Remove what was built, except .venv.
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find slurm_robust tests demo benchmarks examples tools -name __pycache__ -type d -prune -exec rm -rf {} +
