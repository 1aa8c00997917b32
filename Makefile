# One command a job; continuous integration calls the same ones. `make help` lists them.
#
#   make lab PORT=9000               JupyterLab on that port and no other
#   make lab LAB_ARGS="--ip=0.0.0.0" any further argument for JupyterLab
#   make test-unit ARGS="-k batch"   any further argument for pytest
#   make lab PYTHON=python3.12       the Python to make .venv with (otherwise the first one that is new enough)

.DEFAULT_GOAL := help
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

PREPARE = python=$$(sh tools/find_python.sh $(if $(PYTHON),"$(PYTHON)")) && "$$python" -m tools.prepare
PY      = .venv/bin/python
# The plugins of other suites are left out where they are not needed: loading them costs a second.
PYTEST  = $(PY) -m pytest -p no:nbval
# Two files side by side: the tests of one file share what is dear to start.
BOTH    = -n 2 --dist loadfile

##@ The course
lab: ## Set everything up, then open JupyterLab on the first notebook
	@$(PREPARE) install course
	@$(PY) -m tools.prepare lab $(if $(PORT),--port "$(PORT)") $(LAB_ARGS)

install: ## Set everything up without opening anything
	@$(PREPARE) install course

##@ The tests
test: install-test chromium lint test-repository test-unit test-bare test-panels test-training test-notebooks test-browser ## Set everything up, then run the style checks and every suite
	@echo "All checks and suites passed."

lint: install-test ## Check style, types, spelling and the direction of imports
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	PYTHONPATH=. .venv/bin/lint-imports
	.venv/bin/codespell

test-repository: install-test ## Test the repository itself: Makefile, sizes, versions, docstrings
	$(PYTEST) tests/repository $(ARGS)

test-unit: install-test ## Test the arithmetic and the diagnosis
	$(PYTEST) -n 2 tests/unit $(ARGS)

test-bare: install-bare ## Run the same unit tests where torch is not installed
	.venv-bare/bin/python -m pytest -n 2 tests/unit $(ARGS)

test-panels: install-test ## Test the panels, the pictures and the exports, without a browser
	$(PYTEST) tests/panels $(ARGS)

test-training: install-test ## Test real runs with DeepSpeed
	$(PYTEST) $(BOTH) tests/training $(ARGS)

test-notebooks: install-test ## Run every notebook and compare its outputs
	$(PY) -m pytest -n 2 tests/notebooks $(ARGS)

test-browser: install-test ## Use the panels in a real browser
	DSACCUM_CHROMIUM="$$($(PY) -m tools.prepare chromium)" && export DSACCUM_CHROMIUM && $(PYTEST) tests/browser $(ARGS)

##@ Development
install-test: ## Set up what the tests need
	@$(PREPARE) install test

install-bare: ## Set up .venv-bare, without torch
	@$(PREPARE) install bare

chromium: install-test ## Find a Chromium for the browser tests, or install one
	@$(PY) -m tools.prepare chromium > /dev/null

format: install-test ## Mend what the style checks can mend
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

notebooks: install-test ## Run every notebook from top to bottom and save its outputs
	$(PY) -m tools.run_notebooks $(ARGS)

benchmark: install-test ## Measure the speed of what a person waits for
	$(PY) -m benchmarks $(ARGS)

images: install ## Draw the figures of the README and the course from real runs
	$(PY) -m tools.make_images $(ARGS)

catalogue: install-test ## Write the table of what is done for each mismatch
	$(PY) -m tools.catalogue_table

known-keys: install ## Read the keys that the installed DeepSpeed knows into the doctor's table
	$(PY) -m tools.make_known_keys

constraints: ## Choose the exact versions in constraints.txt anew
	@$(PREPARE) constraints

clean: ## Remove what tests and tools leave behind
	rm -rf .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis .coverage htmlcov build dist
	find . -name .venv -prune -o -name .venv-bare -prune -o \
		\( -name __pycache__ -o -name .ipynb_checkpoints \) -type d -prune -exec rm -rf {} +

clean-all: clean ## Remove that and the environments too
	rm -rf .venv .venv-bare

help: ## Show this list
	@awk -F ':.*## ' '/^##@/ { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

.PHONY: lab install notebooks test lint test-repository test-unit test-bare test-panels test-training test-notebooks test-browser \
	install-test install-bare chromium format benchmark images catalogue known-keys constraints clean clean-all help
