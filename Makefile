# Entry point. `make run` and `make test` work as the first command on a bare Debian 12, as root or with sudo.
#
#   make run      install dependencies, build, train the digits on 2 ranks, print where the results are
#   make test     install, build and run the tests, in 8 minutes on 2 cores; SLOW=1 adds those of tests/slow_tests.txt,
#                 TEST_LIMIT_S=900 fails if they take more seconds of CPU time, as in CI
#   make build    build only              make bench    paired timings (bench-recipe: of pruning, bench-sync: of steps,
#                                                       bench-checkpoint: of saves)
#                 RESULT=FILE keeps the output, BENCH="--rounds 2 --max-load 99" are options of bench/all
#   make package  a Debian package and an archive, with LibTorch's libraries, in build/default/package/
#   make wheel    a Python wheel for an environment that has the linked torch, in build/default/package/
#   make soak     kills a small job 200 times and fills its disk; no data may be lost (SOAK="--kills 20" for less);
#                 then every round of the tests, tools/mutants, and ten minutes of each fuzzer (SOAK="--parts fuzz --fuzz-minutes 1")
#   make format   clang-format            make style    formatting check, shellcheck, rules of the repository
#   make lint     make style, folder dependencies, clang-tidy (a quarter of an hour at first; results are cached)
#   make clean    remove build/ (runs/ and the virtual environments remain)
#
# PRESET=default|develop|debug|asan|tsan chooses the build: default compiles sources in batches, develop one by one; LOCKSTEP_CUDA=on|off|auto the CUDA module.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help run test build programs setup configure bench bench-recipe bench-sync bench-checkpoint package wheel soak format style lint clean plots

PRESET ?= default
LOCKSTEP_CUDA ?= auto
SLOW ?=
TEST_LIMIT_S ?=
CONFIGURE_HIDES := ^-- (Detecting|Check|Looking|Performing|Found|The C|Configuring|Generating|Build files)
export LOCKSTEP_CUDA
BUILD := build/$(PRESET)
OWN_SOURCES = $(shell git ls-files -co --exclude-standard '*.h' '*.cpp')

help:
	@sed -n '2,/^SHELL/{/^SHELL/d;s/^# \{0,1\}//;p}' Makefile

setup:
	@tools/setup build

configure:
	@set -o pipefail; cmake --preset $(PRESET) -DLOCKSTEP_CUDA=$(LOCKSTEP_CUDA) | \
	  { grep -vE '$(CONFIGURE_HIDES)' || true; }

build: setup configure
	@cmake --build --preset $(PRESET)

run: CONFIGURE_HIDES := .
run: setup configure
	@echo "run: building lockstepd and lockstep in $(BUILD) (6 to 15 minutes on two cores at first), then training the digits on 2 ranks"
	@cmake --build --preset $(PRESET) --target lockstepd_program lockstep_program
	@tools/run_digits $(BUILD)

test:
	@tools/setup test
	@$(MAKE) --no-print-directory configure
	@cmake --build --preset $(PRESET)
	@tools/run_tests $(PRESET) $(if $(TEST_LIMIT_S),--limit-s $(TEST_LIMIT_S)) $(if $(SLOW),--slow)

bench: build
	@tools/setup test
	@set -o pipefail; bench/all $(BUILD) $(BENCH) $(if $(RESULT),| tee $(RESULT))

bench-recipe: setup configure
	@cmake --build --preset $(PRESET) --target bench_prune_ops
	@$(BUILD)/bench/prune_ops

bench-sync: build
	@tools/setup test
	@bench/sync $(BUILD) $(BENCH)

bench-checkpoint: build
	@tools/setup test
	@bench/checkpoint $(BUILD) $(BENCH)

programs: setup configure
	@tools/setup package >/dev/null
	@cmake --build --preset $(PRESET) --target lockstepd_program lockstep_program

package: programs
	@tools/make_package $(BUILD)

wheel: programs
	@cmake --build --preset $(PRESET) --target lockstep_pytorch_module
	@tools/make_wheel $(BUILD)

soak: setup configure
	@tools/setup test
	@cmake --build --preset $(PRESET)
	@tools/soak --build $(BUILD) $(SOAK)

plots: build
	@tools/setup test >/dev/null
	@tools/make_pictures $(BUILD)

format:
	@tools/setup lint >/dev/null
	@clang-format -i $(OWN_SOURCES)

style:
	@tools/setup lint >/dev/null
	@tools/lint --style

lint:
	@tools/setup lint >/dev/null
	@$(MAKE) --no-print-directory configure PRESET=develop
	@cmake --build --preset develop --target lockstep_checkpoint_pb lockstep_event_pb lockstep_onnx_pb lockstep_page_pb lockstep_tf_example_pb build_commit headers_digest
	@tools/lint build/develop

clean:
	rm -rf build
