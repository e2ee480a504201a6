# allranks. `make help` lists the targets; each target installs what it needs.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS := build/docs-venv

.DEFAULT_GOAL := help
.PHONY: help demo test test-all check lint generate verify docs docs-serve dist bench compare recovery golden controlplane images cluster \
  cluster-down e2e clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@printf '\nThe targets install allranks into %s. To use it:\n  export PATH="$$PWD/%s:$$PATH"\n' $(VENV) $(BIN)

$(STAMP): pyproject.toml images/operator/requirements.txt
	@tools/venv.sh $(VENV) $(PYTHON) dev

$(DOCS)/.installed: pyproject.toml
	@tools/venv.sh $(DOCS) $(PYTHON) docs

demo: $(STAMP) ## Train on penguins with three real PyTorch ranks on this machine
	@tools/demo.sh

test: $(STAMP) ## Set up and run what every change must pass (docs/dev/testing.md); SINCE=main: what the changes since then need
	@$(BIN)/python -E tools/test.py $(if $(SINCE),--since $(SINCE))

test-all: $(STAMP) ## Run every test: all frameworks, faults, images, nodes and real pods (hours; as root)
	@$(BIN)/python -E tools/test.py all

check: $(STAMP) ## The fast part of `make test`: lint, types, generated files, tests in memory
	@$(BIN)/python -E tools/test.py static unit

lint: $(STAMP) ## ruff, mypy --strict, import-linter, wording
	@$(BIN)/ruff check --no-cache .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python tools/language.py

generate: $(STAMP) ## Generate the CRDs, the reference pages and the chart's copies from the types
	@$(BIN)/python -m allranks.api.crd DistributedTraining > $(STAMP).crd && mv $(STAMP).crd crds/distributedtrainings.yaml
	@$(BIN)/python -m allranks.api.crd TrainingPool > $(STAMP).crd && mv $(STAMP).crd crds/trainingpools.yaml
	@$(BIN)/python -m allranks.api.crd TrainingSweep > $(STAMP).crd && mv $(STAMP).crd crds/trainingsweeps.yaml
	@$(BIN)/python tools/reference.py
	@$(BIN)/python tools/rules.py
	@$(BIN)/python tools/chart.py
	@$(BIN)/python tools/image_tags.py
	@$(BIN)/python tools/test.py --update

docs: $(DOCS)/.installed ## Build the documentation as a web site in build/site; a warning is an error
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet --strict
	@echo "build/site/index.html"

docs-serve: $(DOCS)/.installed ## Serve the documentation at http://127.0.0.1:8000, rebuilt at every change
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs serve

dist: ## Build the files of a release in dist/ (docs/dev/releasing.md); ARGS='--images none'
	@$(PYTHON) tools/dist.py $(ARGS)

golden: $(STAMP) ## Rewrite the golden files; review the difference before you commit it
	@$(BIN)/python -m pytest -q tests/model/golden --update-golden

verify: $(STAMP) ## Fail if a generated file does not match the types
	@$(BIN)/python -m allranks.api.crd DistributedTraining | diff -u crds/distributedtrainings.yaml - && \
	  $(BIN)/python -m allranks.api.crd TrainingPool | diff -u crds/trainingpools.yaml - && \
	  $(BIN)/python -m allranks.api.crd TrainingSweep | diff -u crds/trainingsweeps.yaml - && \
	  $(BIN)/python tools/reference.py --check && $(BIN)/python tools/rules.py --check && $(BIN)/python tools/chart.py --check && \
	  $(BIN)/python tools/image_tags.py --check && \
	  $(BIN)/python tools/test.py --check || \
	  { echo "a generated file does not match the types: run 'make generate'"; exit 1; }

controlplane: ## Build etcd, API server, controller manager and kubectl for the tests (once; needs Go)
	@tools/controlplane.sh

images: ## Build the images of the operator and the frameworks (docs/platform/images.md)
	@tools/images.sh

cluster: ## Start a Kubernetes cluster with nodes on this machine (docs/dev/cluster.md); ARGS='--nodes 2 --gpus 4'
	@tools/cluster.sh up $(ARGS)

cluster-down: ## Stop the cluster, and check that nothing is left
	@tools/cluster.sh down

e2e: $(STAMP) ## Build the images, and run every example and fault in real pods, as root (docs/dev/e2e.md)
	@$(BIN)/python -E tools/test.py pods

bench: $(STAMP) ## Measure the core, the operator on a real API server, training speed, and recovery
	@$(BIN)/python -m bench
	@$(BIN)/python bench/core.py
	@$(BIN)/python bench/report_call.py
	@$(BIN)/python bench/reports.py
	@PATH="$$(tools/frameworks.sh)/bin:$$PATH" $(BIN)/python bench/train.py
	@PATH="$$(tools/frameworks.sh pytorch)/bin:$$PATH" $(BIN)/python bench/elastic.py

compare: $(STAMP) ## Measure allranks beside Indexed Job and training-operator, into docs/platform/compare.md
	@$(BIN)/python bench/compare.py $(ARGS)

recovery: $(STAMP) ## Inject faults into real ranks of each framework, and record the results (docs/reference/recovery.md)
	@PATH="$$(tools/frameworks.sh)/bin:$$PATH" $(BIN)/python tools/recovery.py

clean: ## Remove build outputs (not the cache outside the repository)
	rm -rf $(VENV) build dist runs *.egg-info operator/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
