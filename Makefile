# Two commands for a fresh Debian or Ubuntu with a Rust toolchain and root or sudo:
#   make run    install what is missing, build, and run a 2-process allreduce sweep under mpirun
#   make test   install what is missing, and pass the tests
# A second time, neither installs or downloads anything.

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

CARGO ?= cargo
# mpirun refuses root and more processes than cores unless told that both are meant.
MPIRUN_ENV := OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1

# Many tests wait for time limits: more run at once than a small machine has processors.
TEST_THREADS ?= $(shell n=$$(nproc); echo $$((n > 6 ? n : 6)))

# Tests of what libfabric carries, which run with the machine's and with a newer one.
HOST_TESTS := host_communicator host_environment host_faults host_leaks host_rdm host_soundness host_allocations host_waiting recovery train command_line mpi_launcher fabric_transfer

# Options of cargo that choose the tests of `make test-aarch64`: layouts of foreign structs, loading libraries, memory order between
# threads and between processes, reductions, launchers.
AARCH64_TESTS := --package nccl-sys --package fabric-sys --package collectives --package nccl-bench-engine --lib \
	$(addprefix --test ,oracle libraries load nccl_fake host_communicator host_rdm)

# Left out there: tables over numbers of ranks and placements of hosts, which take minutes under qemu, and in which only the order of
# messages is tested.
AARCH64_SKIP := collectives::fabric::host_collectives::tests::hosts:: collectives::fabric::host_collectives::tests::counting:: \
	nccl_fake::shapes::

# What measurements say that they were built from.
export BENCH_BUILD := revision $(shell git describe --always --dirty --abbrev=12 --match= 2>/dev/null || echo unknown), \
	$(shell rustc --version 2>/dev/null || echo unknown compiler)

.PHONY: help run build test valgrind test-aarch64 test-aarch64-all adapters adapters-build ahead cost-build loom-build aarch64-build loom newest fuzz check beside minimal bindings bench cost dist dist-aarch64 packages-run packages-test packages-aarch64 packages-bench packages-cost wheels clean

help: ## this list
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

run: packages-run build ## a 2-process allreduce sweep under mpirun on what this machine has
	$(MPIRUN_ENV) mpirun -np 2 target/release/nccl-bench allreduce -e 16M

build:
	$(CARGO) build --release --package nccl-bench --features mpi

test: packages-test wheels check ## all tests that need no GPU
	$(MPIRUN_ENV) $(CARGO) test --workspace --features mpi -- --test-threads $(TEST_THREADS)
	FABRIC_LIBRARY="$$($(CARGO) xtask wheels libfabric)/libfabric.so.1" $(MPIRUN_ENV) \
		$(CARGO) test --workspace --features mpi $(HOST_TESTS:%=--test %) -- --test-threads $(TEST_THREADS)
	$(CARGO) bench --bench nccl_instructions -- --save-baseline main
	@echo "all tests passed"

# Without the test that reads freed memory on purpose, and without the tables of shapes, which repeat what other tests do and take
# minutes there.
valgrind: packages-test ## the NCCL layer's tests on fake libraries under valgrind
	$(CARGO) test --workspace --features mpi --test nccl_fake \
		--config 'target."cfg(all())".runner = ["valgrind", "--quiet", "--fair-sched=yes", "--error-exitcode=9"]' \
		-- --skip a_freed_string_is_detected --skip in_each_shape --skip of_each_shape_works

test-aarch64: packages-test packages-aarch64 ## the tests whose result can differ on aarch64, under qemu (docs/platforms.md)
	AARCH64_SKIP="$(AARCH64_SKIP)" tests/aarch64/test $(AARCH64_TESTS)

test-aarch64-all: packages-test packages-aarch64 ## all tests that need no GPU, for aarch64 under qemu
	tests/aarch64/test

# Ranks share the processors: one thread for each.
adapters: packages-test adapters-build ## the adapters to frameworks and the training programs: as check and test
	cd adapters && $(CARGO) fmt --all --check
	$(CARGO) xtask wheels scikit-learn
	cd adapters && RAYON_NUM_THREADS=1 $(MPIRUN_ENV) $(CARGO) test --locked --workspace
	adapters/python/test

adapters-build:
	cd adapters && $(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	cd adapters && RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps
	cd adapters && $(CARGO) test --locked --workspace --no-run
	adapters/python/build

# What later steps of CI need. The build for aarch64 is last: it locks the folder in which `make test` builds.
ahead: cost-build beside adapters-build loom-build aarch64-build

cost-build:
	$(CARGO) bench --bench nccl_instructions --no-run

loom-build:
	RUSTFLAGS="--cfg loom" $(CARGO) test --target-dir target/loom --no-default-features --features fabric --lib --no-run

aarch64-build:
	tests/aarch64/build $(AARCH64_TESTS)

loom: ## the shared memory segment under a model of weak memory order, with each ordering and without
	RUSTFLAGS="--cfg loom" $(CARGO) test --target-dir target/loom --no-default-features --features fabric --lib segment::model

newest: packages-test ## whether NVIDIA's newest wheels have NCCL functions that this repository lacks (asks the package index)
	$(CARGO) xtask functions

fuzz: ## five minutes of fuzzing for each kind of input over TCP, for logs and for result files (needs a nightly toolchain and cargo-fuzz)
	for target in wire rendezvous join service log result; do \
		mkdir -p fuzz/target/corpus/$$target; \
		$(CARGO) +nightly fuzz run $$target fuzz/target/corpus/$$target fuzz/corpus/$$target -- -max_total_time=300; \
	done

check: ## formatting, lints, documentation, generated files against their sources, and the shape of the code
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --features mpi -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --features mpi
	$(CARGO) xtask bindings --check
	$(CARGO) xtask kernels --check
	$(CARGO) xtask shape --check

# candle needs an nvcc, whose place a script takes: nothing that it compiles is linked.
beside: ## whether the library builds beside candle and burn with CUDA, and the adapter of candle for GPUs
	PATH="$(CURDIR)/tests/beside/bin:$$PATH" NVCC="$(CURDIR)/tests/beside/bin/nvcc" CUDA_COMPUTE_CAP=80 \
		CARGO_TARGET_DIR=target/beside $(CARGO) check --locked --manifest-path tests/beside/Cargo.toml
	PATH="$(CURDIR)/tests/beside/bin:$$PATH" NVCC="$(CURDIR)/tests/beside/bin/nvcc" CUDA_COMPUTE_CAP=80 \
		$(CARGO) check --locked --manifest-path adapters/Cargo.toml \
		--package training-examples --features cuda

# Cargo resolves them with an unstable option; the compiler is the stable one. The copy has a lock file of its own.
minimal: packages-run ## whether what is published builds with the oldest versions of dependencies that the manifests allow
	rm -rf target/minimal/tree
	mkdir -p target/minimal/tree
	git ls-files -z -- ':!Cargo.lock' ':!results' | xargs -0 cp --parents --no-dereference -t target/minimal/tree
	cd target/minimal/tree && RUSTC_BOOTSTRAP=1 $(CARGO) -Z direct-minimal-versions generate-lockfile
	CARGO_TARGET_DIR=target/minimal/build $(CARGO) check --locked --workspace --exclude xtask --features mpi \
		--manifest-path target/minimal/tree/Cargo.toml

bindings: packages-test ## generate the bindings and the kernels again
	$(CARGO) xtask bindings
	$(CARGO) xtask kernels

wheels: packages-test
	$(CARGO) xtask wheels

bench: packages-bench ## host collectives against Open MPI's and MPICH's
	measurements/tools/host_collectives.sh target/host_collectives

cost: packages-cost ## instructions that the safe layer adds to a call of NCCL, against their limits
	@$(CARGO) bench --bench nccl_instructions

dist: packages-run ## one tarball for a machine with GPUs, MPI and no Rust
	$(CARGO) xtask dist

dist-aarch64: packages-run packages-aarch64 ## the same for an ARM machine, cross-built, and started under qemu
	source tests/aarch64/environment && $(CARGO) xtask dist --target aarch64-unknown-linux-gnu
	tests/aarch64/packed

packages-run:
	@./install-packages run

packages-test:
	@./install-packages test

packages-aarch64:
	@./install-packages aarch64

packages-bench:
	@./install-packages bench

packages-cost:
	@./install-packages cost

clean: ## remove what was built
	$(CARGO) clean
	rm -rf dist
