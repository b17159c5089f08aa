# `make demo` and `make test` need Python 3.11 or newer and nothing else: they build .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_ARGS ?=
PYTEST_ARGS ?=
JOBS ?= 2
# Which tests: MARK=slow for the long ones, MARK= for all.
MARK ?= not slow
# 0 leaves the code of pages out of the site.
EXECUTE ?= 1

.PHONY: demo test test-gpu test-oldest test-newest test-kernels test-upstream quick lint format docs notebooks dist clean

# Half of an installation is bytecode of files that nobody imports: here it is written when they are.
$(VENV)/.ready-examples: COMPILE = --no-compile
demo: $(VENV)/.ready-examples
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m examples.demo $(DEMO_ARGS)

# One thread in each of two processes: the tests are many small problems, for which more
# threads only get in each other's way.
test: $(VENV)/.ready-test,networks
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m '$(MARK)' $(PYTEST_ARGS)

# What makes sense on a GPU, in the environment of PYTHON_GPU, which has builds of torch and jax for it, in parts:
# ten fits in each PPL beside the CPU's, waits and devices of steps; and in JAX, whose arrays are on the GPU by
# default, the suites of families, and of curvature, bound, guide and networks. A part is meant to end within ten
# minutes, with GPU_JOBS processes. The compiler does not tune kernels for such small arrays. Without a GPU all is skipped.
PYTHON_GPU ?= $(BIN)/python
GPU_JOBS ?= 12
PART ?= fits families guides
GPU_fits = tests/test_gpu.py tests/test_cuda.py
GPU_families = -k 'not pyro or numpyro' -m 'not slow' tests/families
GPU_guides = -k 'not pyro or numpyro' -m 'not slow' tests/estimators tests/elbo tests/guide tests/networks
test-gpu: $(PART:%=test-gpu-%)
test-gpu-%:
	if $(PYTHON_GPU) -c "import jax, sys; sys.exit(jax.default_backend() == 'cpu')" 2>/dev/null; then \
		OMP_NUM_THREADS=1 XLA_PYTHON_CLIENT_PREALLOCATE=false XLA_FLAGS=--xla_gpu_autotune_level=0 $(PYTHON_GPU) \
		-m pytest -n $(GPU_JOBS) --dist worksteal -rs -p no:cacheprovider $(GPU_$*) $(PYTEST_ARGS); \
	else echo "JAX sees no GPU: the tests for it are skipped"; fi

# The same in the oldest versions of everything, in an environment of its own. Torch is the CPU build;
# OLDEST_TORCH= takes another, where there is no way to PyTorch's own index.
OLDEST_TORCH ?= 2.4.0 --extra-index-url https://download.pytorch.org/whl/cpu
test-oldest: $(VENV)-oldest/.ready
	OMP_NUM_THREADS=1 $(VENV)-oldest/bin/python -m pytest -n $(JOBS) --dist worksteal -m '$(MARK)' \
		$(PYTEST_ARGS)

# The same in the newest versions of everything: no constraints, and the newest Python that is here with
# all that `venv` needs, on the PATH or pyenv's. What is newest changes: pip looks again every time, and
# `make clean` makes way for another Python.
# Torch as above; NEWEST_TORCH=torch takes PyPI's, several gigabytes with CUDA.
NEWEST_TORCH ?= torch --extra-index-url https://download.pytorch.org/whl/cpu
PYTHON_NEWEST ?= $(shell \
	for minor in 14 13 12 11; do \
		for python in python3.$$minor "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.$$minor.*/bin/python; do \
			"$$python" -c "import ensurepip, ssl" 2>/dev/null && echo "$$python" && exit; \
		done; \
	done; \
	echo python3)
test-newest:
	[ -x $(VENV)-newest/bin/python ] || $(PYTHON_NEWEST) -m venv $(VENV)-newest
	$(VENV)-newest/bin/python -m pip install --disable-pip-version-check --quiet \
		--upgrade --upgrade-strategy eager $(NEWEST_TORCH) -e '.[test]'
	$(VENV)-newest/bin/python --version
	$(VENV)-newest/bin/python -m pip freeze | \
		grep -iE '^(torch|pyro-ppl|jax|jaxlib|numpyro|optax|numpy|scipy|arviz|pandas|scikit-learn)=='
	OMP_NUM_THREADS=1 $(VENV)-newest/bin/python -m pytest -n $(JOBS) --dist worksteal -m '$(MARK)' \
		$(PYTEST_ARGS)

# Numerical tests with other kernels of BLAS, ATen, XLA and numpy, as older and newer processors have
# them: nothing may depend on the last bits. A kernel that this processor cannot run is named.
test-kernels: $(VENV)/.ready-test
	OMP_NUM_THREADS=1 $(BIN)/python tests/kernels.py -n $(JOBS) $(PYTEST_ARGS)

# Pyro's and NumPyro's own tests, with our guide in the place of two of theirs, from clones or from an
# archive of both, which may lie beside this checkout: make test-upstream CHECKOUTS="../pyro ../numpyro"
CHECKOUTS ?= $(firstword $(wildcard ../upstream.tar.gz ../*/upstream/upstream.tar.gz))
test-upstream: $(VENV)/.ready-test
ifeq ($(CHECKOUTS),)
	@echo "ngvi: upstream's tests are skipped: give their clones or archive, CHECKOUTS=../upstream.tar.gz"
else
	OMP_NUM_THREADS=1 $(BIN)/python tests/upstream/run.py $(CHECKOUTS) -- -q -n $(JOBS) $(PYTEST_ARGS)
endif

# Whether fits became worse than those of docs/benchmarks/quick.csv: a dozen models in minutes.
quick: $(VENV)/.ready-test
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks --quick $(QUICK_ARGS)

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell $$(git ls-files "*.py" "*.md")
	$(BIN)/python docs/prose.py
	$(BIN)/proselint check --config .ci/proselint.json $$($(BIN)/python docs/prose.py --list)
	$(BIN)/mypy

format: $(VENV)/.ready-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site, in docs/_build/html. The pages' own code runs once, and again when its page changes.
docs: $(VENV)/.ready-docs
	@echo "The code of all pages runs, the first time for many minutes; each page says how long it takes."
	@echo "Later only pages that have changed run. make docs EXECUTE=0 leaves the code out."
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going -q -j $(JOBS) -D execute=$(EXECUTE) docs docs/_build/html

# Tutorials and stories as notebooks, beside their pages.
notebooks: $(VENV)/.ready-docs
	$(BIN)/python docs/notebooks.py

# Wheel and sdist, each installed where nothing else is.
dist: $(VENV)/.ready-dev
	rm -rf build dist
	$(BIN)/python -m build --outdir dist
	for file in dist/*.whl dist/*.tar.gz; do \
		$(PYTHON) -m venv --clear build/empty && \
		build/empty/bin/python -m pip install --disable-pip-version-check --quiet $$file && \
		build/empty/bin/python -I .ci/installed.py || exit 1; \
	done

clean:
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-newest demo_output build dist docs/_build docs/_executed

# .ready-X: the extra X of pyproject.toml is installed, in the tested versions. With an open
# range of torch versions pip may choose a newer CUDA build of several gigabytes.
$(VENV)/.ready-%: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check --quiet $(COMPILE) -c constraints.txt -e '.[$*]'
	touch $@

$(VENV)-oldest/.ready: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install --disable-pip-version-check --quiet torch==$(OLDEST_TORCH)
	$(VENV)-oldest/bin/python -m pip install --disable-pip-version-check --quiet \
		-c constraints-oldest.txt -e '.[test]'
	touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

.PRECIOUS: $(VENV)/.ready-%
