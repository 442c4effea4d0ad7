# Everything a newcomer needs: `make demo` shows the main job on the sample, `make test` passes the tests.
# Both set up what they need in $(VENV); Python 3.11 or newer and git are enough.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -q
MARKERS := scale browser cron faults bench
AS_OF := 2026-11-20T00:00:00Z

.PHONY: help setup demo test lint sample coverage fuzz lowest clean faults-short scale-short scale-bench $(MARKERS)

help:
	@echo "make demo      ingest data/sample and show the lift"
	@echo "make test      all tests that need Python alone"
	@echo "make lint      ruff and mypy"
	@echo "make sample    write data/sample anew (seeded)"
	@echo "make coverage  check the statistics' claims by simulation (minutes)"
	@echo "make fuzz      random input for formats, masks, lexer, times and hook: LOOPSTATS_FUZZ examples each, default 500"
	@echo "make lowest    the tests with the lowest versions that pyproject.toml declares"
	@echo "make scale | browser | cron | faults | bench   tests that need more than Python"
	@echo "make scale-short   a cluster, a killed worker, lift, ingest and a wrong Python; scale adds the shuffle and Connect"
	@echo "make scale-bench   the rows and the cost of further steps on Spark, beside one process"
	@echo "make faults-short   the same kills, full disks and ruined logs as faults, a few of each"

$(VENV)/ready: pyproject.toml requirements/test.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/test.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

setup: $(VENV)/ready

demo: setup
	rm -rf .demo
	$(BIN)/loopstats --lake .demo/lake ingest data/sample
	$(BIN)/loopstats --lake .demo/lake lift --since 7d --as-of $(AS_OF)

test: setup
	@echo "not selected here, each has its own target: $(MARKERS)"
	$(PYTEST) --numprocesses auto --dist worksteal

lint: setup
	$(BIN)/ruff check pipeline tests
	$(BIN)/mypy

$(filter-out scale,$(MARKERS)): setup
	$(PYTEST) -o addopts="-ra --strict-markers --strict-config" -m $@

# -s shows the figures
faults faults-short: PYTEST += -s
faults: export LOOPSTATS_FAULTS := long
faults-short: setup
	$(PYTEST) -o addopts="-ra --strict-markers --strict-config" -m faults

# Its own environment: pyspark wants an older pandas than the other tests. All else is that of $(VENV), by a .pth file.
$(VENV)-scale/ready: requirements/scale.txt $(VENV)/ready
	@command -v java >/dev/null || { echo "java is missing: apt-get install openjdk-17-jre-headless"; exit 1; }
	$(PYTHON) -m venv --without-pip $(VENV)-scale
	$(BIN)/python -m pip --python $(VENV)-scale/bin/python install --quiet --disable-pip-version-check --no-deps -r requirements/scale.txt
	$(BIN)/python -c "import sysconfig; print('import site; site.addsitedir(' + repr(sysconfig.get_path('purelib')) + ')')" \
		> "$$($(VENV)-scale/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/all_else.pth"
	touch $@

scale: export LOOPSTATS_SCALE := long
scale scale-short: $(VENV)-scale/ready
	@command -v java >/dev/null || { echo "java is missing: apt-get install openjdk-17-jre-headless"; exit 1; }
	$(VENV)-scale/bin/python -m pytest -q -o addopts="-ra --strict-markers --strict-config" -m scale

scale-bench: $(VENV)-scale/ready
	$(VENV)-scale/bin/python -m pytest -q -s -o addopts="-ra --strict-markers --strict-config" -m bench tests/bench/test_spark_bench.py

sample: setup
	$(BIN)/python tests/make_sample.py

coverage: setup
	$(BIN)/python tests/coverage_claims.py

fuzz: setup
	LOOPSTATS_FUZZ=$${LOOPSTATS_FUZZ:-500} $(PYTEST) tests/test_fuzz.py --hypothesis-show-statistics

lowest: requirements/lowest.txt
	$(PYTHON) -m venv $(VENV)-lowest
	$(VENV)-lowest/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/lowest.txt
	$(VENV)-lowest/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	$(VENV)-lowest/bin/python -m pytest -q

clean:
	rm -rf .demo .venv .venv-lowest .venv-scale build dist
