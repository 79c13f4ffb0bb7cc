# Makefile for d9d.  GNU make; no recursion but into itself; objects under build/.
#
#   make                 library and tools (and CUDA kernels, if nvcc is found)
#   make demo            text to trained model on this machine, in minutes
#   make check           the inner loop: what takes seconds of meta, unit, golden and fuzz tests
#   make test            everything that is checked on every change
#   make test T="lr map" only the tests whose file names contain one of these
#   make test-unit       one suite; also test-meta -fuzz -golden -fault -multirank -slurm -tools -packages
#   make test-long       what takes too long for every change
#   make test-load       all tests RUNS=3 times beside LOAD=16 busy processes; with CLOCK=jump under a
#                        clock that somebody sets; SUITES="unit multirank" and T="lr map" choose
#   make memcheck        the unit tests under valgrind; T="lr map" as above
#   make fuzz            FUZZ_S=60 processor seconds of libFuzzer a parser, on JOBS processors
#   make fuzz-pack       what another machine needs for that, in build/fuzz-pack
#   make bench           timings beside their peers
#   make gpu-test        the tests of arithmetic on this machine's GPU; gpu-bench the kernels' speed;
#                        gpu-NAME runs tests/gpu/NAME: adapters compare curves families faults finetune generate heads kernels
#                        load memory pipelines plan pretrain ranks sanitize shapes sleep start
#   make gpu-pack        what another machine needs for all of them, in build/gpu-pack
#   make lint            compiler and static-analysis warnings, formatting
#   make format          apply .clang-format
#   make schemas         write schemas/*.json, docs/reference/config-*.md, families.md and messages.md anew from the code
#   make certificates    certify every family again, on four ranks, and write families.md anew
#   make config          what was found on this machine
#   make site            documents and headers as HTML pages, in build/site (Doxygen)
#   make install         under PREFIX (/usr/local), staged in DESTDIR; LIBDIR=lib64; also uninstall
#   make installcheck    compare what was installed with its reference log
#   make tarball         build/d9d-VERSION-linux-MACHINE.tar.zst, which runs where it is unpacked; with
#                        SYSROOT=DIR of an older system; BASELINE=2.28 is the newest glibc that it may need
#   make clean           remove build/ and build-*/
#
#   CC=clang             another compiler       SAN=address,undefined  sanitizers
#   B=DIR                another build folder   V=1                    show commands
#   JOBS=N               jobs at a time: the processors, and two more tests; NO_INSTALL=1: only name
#                        what is missing
#   CUDA_ARCH="80 90a"   GPUs to build for      NVCC=                  without CUDA
#   MPICC=PATH           an MPI's compiler      MPICC=                 without MPI
#   NCCL_HOME=DIR        where NCCL is          CUDNN_HOME=DIR         where cuDNN is
#   CFLAGS, CPPFLAGS, LDFLAGS, LDLIBS           added to those that the build needs
#   HANGS=1              kernels that wait for each other for two seconds end with an error
#
# Override anything below on the command line or in config.mk.

-include config.mk

, := ,
ifeq ($(origin CC),default)
CC        := gcc
endif

# Whether somebody chose what to build for GPUs.
GPU_CHOICE := $(filter-out undefined,$(origin NVCC) $(origin CUDA_ARCH))

PREFIX    ?= /usr/local
LIBDIR    ?= lib
B         ?= build
# Tests wait more than they compute.
TEST_JOBS := $(or $(JOBS),$(shell echo $$(($$(nproc) + 4))))
JOBS      ?= $(shell nproc)
CUDA_HOME ?= $(or $(CUDA_ROOT),$(EBROOTCUDA),/usr/local/cuda)
NCCL_HOME ?= $(or $(NCCL_ROOT),$(EBROOTNCCL))
CUDNN_HOME ?= $(or $(CUDNN_ROOT),$(EBROOTCUDNN))
NVCC      ?= $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc) $(shell command -v nvcc))
NVCC      := $(NVCC)
JOBS      := $(JOBS)
CUDA_ARCH ?= 80 90a

VERSION   := 0.1.0
SOVERSION := 0
WARN       = -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wformat=2 \
             -Wundef -Wpointer-arith -Wcast-qual -Wwrite-strings $(WARN_GCC$(CC_MAJOR))
# gcc 11 takes what follows a compound literal among initializers, or a pragma in a macro, for a slip.
CC_MAJOR  := $(firstword $(subst ., ,$(shell $(CC) -dumpversion 2>/dev/null)))
WARN_GCC11 := -Wno-missing-field-initializers -Wno-misleading-indentation

# What is needed stands in ALL_*; CFLAGS, CPPFLAGS, LDFLAGS and LDLIBS come last and are the user's.
# Libraries outside the system's folders are found at run time where pkg-config found them.
PKGS      := jansson libpcre2-8 libutf8proc libzstd zlib libxxhash lmdb
CAIRO     := $(shell pkg-config --exists cairo 2>/dev/null && echo cairo)
CAIRO_CPP := $(if $(CAIRO),-DD9D_CAIRO -DD9D_CAIRO_LIB='"$(patsubst $(PKG_CONFIG_SYSROOT_DIR)%,%,$(shell pkg-config --variable=libdir cairo))"' $(shell pkg-config --cflags cairo))
PKG_LIBS  := $(shell pkg-config --libs $(PKGS) 2>/dev/null)
RPATHS    := $(patsubst -L%,-Wl$(,)-rpath$(,)%,$(filter -L%,$(PKG_LIBS)))

# Packages of Debian 11 have pmix.h where their .pc file does not say.
PMIX_LIB  := $(patsubst $(PKG_CONFIG_SYSROOT_DIR)%,%,$(shell pkg-config --variable=libdir pmix 2>/dev/null))
PMIX_CPP  := $(patsubst -I%,-isystem %,$(shell pkg-config --cflags-only-I pmix 2>/dev/null)) \
             $(patsubst %,-isystem %,$(if $(PMIX_LIB),$(wildcard $(PKG_CONFIG_SYSROOT_DIR)$(PMIX_LIB)/pmix2/include)))

ALL_C     := -std=c11 -D_GNU_SOURCE $(WARN) -fPIC -fvisibility=hidden -fopenmp -O2 -g $(CFLAGS)
ALL_CPP   := -Ilibcore/include -Ikernels/include -Ilibcore -Ikernels \
             $(shell pkg-config --cflags $(PKGS) 2>/dev/null) \
             $(PMIX_CPP) -DD9D_VERSION='"$(VERSION)"' $(CPPFLAGS)
ALL_LD    := -fopenmp $(LDFLAGS)
ALL_LIBS   = $(PKG_LIBS) $(RPATHS) -lm -ldl -lpthread $(CUDA_LIBS) $(LDLIBS)

# MPI is not linked: its one module is loaded when ranks on processors need it.
MPICC     ?= mpicc
MPI_SHOW  := $(if $(MPICC),$(shell $(MPICC) -show 2>/dev/null))
MPI_CPP   := $(patsubst -I%,-isystem %,$(filter -I%,$(MPI_SHOW)))
MPI_LIBS  := $(filter -L% -l% -Wl%,$(MPI_SHOW))

# Kernels: loops that vectorise, with the same bits from every compiler and instruction set.
KERNEL_C  := -O3 -fno-math-errno -fno-trapping-math -ffp-contract=off

# CUDA: code for each architecture, and PTX of the first that newer GPUs can translate.  Products
# and sums are not contracted but where a kernel says so.  The runtime is linked in, so that the
# library loads where there is no driver; cuBLASLt is looked for when a GPU is opened.  Nothing of
# libstdc++ is used: the statics of nvcc's launch stubs give the same value however often they run.
CUDA_DIR  := $(NVCC:%/bin/nvcc=%)
CUDA_LIB  := $(firstword $(wildcard $(CUDA_DIR)/lib64 $(CUDA_DIR)/lib))
CUDA_RT   := $(firstword $(wildcard $(CUDA_LIB)/libcudart_static.a) -lcudart_static)
CUDA_PTX  := $(firstword $(filter-out %a %f,$(CUDA_ARCH)))
CUDA_VERSION := $(if $(NVCC),$(shell sed -n 's/^\#define CUDART_VERSION *//p' $(CUDA_DIR)/include/cuda_runtime_api.h 2>/dev/null))
CUDA_C    := -std=c++17 -O3 -lineinfo -fmad=false $(if $(filter 13%,$(CUDA_VERSION)),-Werror all-warnings) \
             $(foreach a,$(CUDA_ARCH),-gencode=arch=compute_$a$(,)code=sm_$a) \
             $(foreach a,$(CUDA_PTX),-gencode=arch=compute_$a$(,)code=compute_$a) \
             -DD9D_SM90A=$(if $(filter 90a,$(CUDA_ARCH)),1,0) $(if $(HANGS),-DD9D_HANGS) \
             -Xcompiler -fPIC,-Wall,-fvisibility=hidden,-fno-exceptions,-fno-threadsafe-statics \
             -Ilibcore/include -Ikernels/include -Ikernels
lib_of     = $(firstword $(wildcard $(1:%=%/lib) $(1:%=%/lib64)) $(CUDA_LIB))
NCCL_LIB  := $(call lib_of,$(NCCL_HOME))
CUDNN_LIB := $(call lib_of,$(CUDNN_HOME))
CUDA_CPP  := $(patsubst %,-isystem %,$(wildcard $(addsuffix /include,$(NCCL_HOME) $(CUDNN_HOME)))) \
             $(patsubst %,-isystem %/include,$(filter-out /usr,$(CUDA_DIR)))

ifdef SAN
ALL_C     += -fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer
ALL_LD    += -fsanitize=$(SAN)
B         := build-$(subst $(,),-,$(SAN))
endif

# ---- What there is to build ---------------------------------------------------------------

CUDA_SRC  := $(if $(NVCC),$(wildcard kernels/cuda/*/*.cu))
CUDA_HOST := libcore/device/device_cuda.c libcore/comm/backend/comm_nccl.c libcore/comm/p2p/cuda_ipc.c \
             libcore/comm/p2p/p2p_ring.c $(wildcard kernels/cuda/*/*.c)
MPI_SRC   := libcore/comm/backend/mpi_module.c
CORE_SRC  := $(filter-out $(CUDA_HOST) $(MPI_SRC),$(wildcard libcore/*/*.c libcore/*/*/*.c)) \
             $(wildcard kernels/common/*.c kernels/cpu/*.c kernels/sim/*.c) $(if $(CUDA_SRC),$(CUDA_HOST))
TOOL_SRC  := $(wildcard tools/d9d-*.c)
TEST_SRC  := $(wildcard tests/unit/*/test_*.c tests/golden/test_*.c tests/fault/test_*.c)
FUZZ_SRC  := $(wildcard tests/fuzz/fuzz_*.c)
BENCH_SRC := $(wildcard tests/bench/bench_*.c)
HELP_SRC  := $(wildcard tests/unit/support/*.c)
DRIVE_SRC := $(wildcard tests/*/*_driver.c)

# Text that the library holds: libcore/report/html/report.css is the string d9di_report_css.
EMBEDDED  := $(wildcard libcore/*/*/*.css libcore/*/*/*.js libcore/*/*.py)

CORE_OBJ  := $(CORE_SRC:%.c=$B/%.o) $(EMBEDDED:%=$B/%.o)
CUDA_OBJ  := $(CUDA_SRC:%.cu=$B/%.cu.o)
TOOLS     := $(TOOL_SRC:tools/%.c=$B/bin/%)
TESTS     := $(TEST_SRC:%.c=$B/%)
DRIVERS   := $(DRIVE_SRC:%.c=$B/%)
FUZZERS   := $(FUZZ_SRC:%.c=$B/%)
BENCHES   := $(BENCH_SRC:%.c=$B/%)
LIB       := $B/lib/libd9d.so
ARCHIVE   := $B/lib/libd9d.a
MPI_MODULE := $(if $(MPI_SHOW),$B/lib/libd9d_mpi.so.$(SOVERSION))
SCHEMAGEN := $(if $(wildcard schemas/dump.c),$B/schemas/dump)

ifneq ($(CUDA_OBJ),)
CUDA_LIBS := $(CUDA_RT) -lrt
ALL_CPP   += -DD9D_CUDA -DD9D_CUDA_LIB='"$(CUDA_LIB)"' -DD9D_NCCL_LIB='"$(NCCL_LIB)"' -DD9D_CUDNN_LIB='"$(CUDNN_LIB)"' $(CUDA_CPP)
endif

# Quiet unless V=1.  On a terminal each step has its number: [ 37/412].  How many there will be make -n
# says, once; it takes the flags for unchanged unless they have just been written.
ifneq ($(V),1)
ifeq ($(MAKE_TERMOUT),)
Q = @printf '  %-5s %s\n' $(1) $@;
else
Q = $(eval DONE += x)@printf '[%3d/%s] %-5s %s\n' $(words $(DONE)) $(STEPS) $(1) $@;
STEPS = $(eval STEPS := $(shell env -u MAKE_TERMOUT -u MAKEFLAGS $(MAKE) -n \
    `[ $B/flags -nt $(LIB) ] || echo -o $B/flags` $(MAKEOVERRIDES) $(MAKECMDGOALS) 2>/dev/null | grep -c "^printf '  %-5s"))$(STEPS)
endif
endif

GPU_RUNS  := $(patsubst tests/gpu/%,gpu-%,$(filter-out %.c %.py %.bash %/pack,$(wildcard tests/gpu/*)))

.PHONY: all demo check test test-long test-load memcheck fuzz fuzz-pack bench gpu-test gpu-bench gpu-pack $(GPU_RUNS) lint format schemas certificates config site install \
        installcheck tarball uninstall clean help run-demo run-test run-tidy list-tests FORCE
.SECONDARY:
.DELETE_ON_ERROR:

all: $(LIB) $(TOOLS) $(MPI_MODULE)

# Everything is built again when the compiler or a flag changes; a library that is missing
# is named here, before the first file is compiled.
FLAGS_NOW  = $(CC) $(shell $(CC) --version 2>&1 | head -n 1) | $(NVCC) $(CUDA_VERSION) $(CUDA_C) | \
             $(ALL_C) | $(KERNEL_C) | $(ALL_CPP) $(CAIRO_CPP) | $(ALL_LD) $(ALL_LIBS) | $(MPI_SHOW)
$B/flags demo: export D9D_FLAGS = $(FLAGS_NOW)
$B/flags: FORCE
	@mkdir -p $B
	@echo "$$D9D_FLAGS" | cmp -s - $@ || { CC='$(CC)' MPICC='$(MPICC)' NO_INSTALL=1 tools/setup.sh build && echo "$$D9D_FLAGS" >$@; }

# Names that a file is compiled with; it is compiled again when one comes or goes.
$B/%.names: FORCE
	@mkdir -p $(@D)
	@echo '$(NAMES)' | cmp -s - $@ || echo '$(NAMES)' >$@

$B/kernels/%.o: kernels/%.c $B/flags
	@mkdir -p $(@D)
	$(call Q,CC)$(CC) $(ALL_C) $(KERNEL_C) $(ALL_CPP) -MMD -MP -c -o $@ $<

$B/%.o: %.c $B/flags
	@mkdir -p $(@D)
	$(call Q,CC)$(CC) $(ALL_C) $(ALL_CPP) -MMD -MP -c -o $@ $<

$(EMBEDDED:%=$B/%.c): $B/%.c: %
	@mkdir -p $(@D)
	$(call Q,TEXT){ echo 'extern const char d9di_$(subst .,_,$(<F))[];' && echo 'const char d9di_$(subst .,_,$(<F))[] = {' && \
	    od -An -v -td1 $< | sed 's/[0-9][0-9]*/&,/g' && echo '0};'; } >$@

$(EMBEDDED:%=$B/%.o): $B/%.o: $B/%.c $B/flags
	$(call Q,CC)$(CC) $(ALL_C) -c -o $@ $<

# The families of all files, in the order of files and lines.
FAMILY_LIST := $B/libcore/models/family_list.h
# Under a name of this make's own: two may run in one tree.
$(FAMILY_LIST): FORCE
	@mkdir -p $(@D)
	@sed -n 's/^D9D_FAMILY(\([a-z0-9_]*\),.*/D9DI_FAMILY(\1)/p' libcore/models/*.c >$@.$$$$; \
	    if cmp -s $@.$$$$ $@; then rm $@.$$$$; else mv $@.$$$$ $@; fi

$B/libcore/models/models.o: $(FAMILY_LIST)
$B/libcore/models/models.o: private ALL_CPP += -I$B/libcore

$B/libcore/plot/canvas_cairo.o: private ALL_CPP += $(CAIRO_CPP)

# Loops over every element of a checkpoint.
$(addprefix $B/libcore/ckpt/,mapper/strided.o mapper/dtype_convert.o quant/dequant_fp8.o \
    quant/dequant_mxfp4.o): private ALL_C += $(KERNEL_C)

$B/tests/%.o: private ALL_CPP += -Itests/unit

$B/%.cu.o: %.cu $B/flags
	@mkdir -p $(@D)
	$(call Q,NVCC)$(NVCC) $(CUDA_C) -MD -MP -MF $(@:.o=.d) -c -o $@ $<

$(LIB).$(SOVERSION): $(CORE_OBJ) $(CUDA_OBJ) libcore/d9d.map
	@mkdir -p $(@D)
	$(call Q,LD)$(CC) -shared $(ALL_LD) -Wl,-soname,$(@F) -Wl,-rpath,'$$ORIGIN' -Wl,--version-script=libcore/d9d.map \
	    -o $@ $(filter %.o,$^) $(ALL_LIBS)

$(LIB): $(LIB).$(SOVERSION)
	@ln -sf $(<F) $@

$B/$(MPI_SRC:.c=.o): private ALL_CPP += $(MPI_CPP)
$B/lib/libd9d_mpi.so.$(SOVERSION): $B/$(MPI_SRC:.c=.o)
	@mkdir -p $(@D)
	$(call Q,LD)$(CC) -shared $(ALL_LD) -Wl,-soname,$(@F) -o $@ $< $(MPI_LIBS)

$(ARCHIVE): $(CORE_OBJ) $(CUDA_OBJ)
	@mkdir -p $(@D)
	$(call Q,AR)rm -f $@ && $(AR) qcs $@ $^

# What tools/NAME_*.c has belongs to d9d-NAME.
$(foreach t,$(TOOLS),$(eval $t: $(patsubst %.c,$B/%.o,$(wildcard tools/$(t:$B/bin/d9d-%=%)_*.c))))
$B/bin/%: $B/tools/%.o $(patsubst %.c,$B/%.o,$(wildcard tools/tool*.c)) $(LIB)
	@mkdir -p $(@D)
	$(call Q,LD)$(CC) $(ALL_LD) -o $@ $(filter %.o,$^) -L$B/lib -ld9d -Wl,-rpath,'$$ORIGIN/../lib:$$ORIGIN/../lib64' $(ALL_LIBS)

# Tests, fuzz targets, benches and generators link the archive, so they may reach internals.  Tests are
# hundreds: LLVM's linker takes half the time of binutils'.
TEST_LD   := $(if $(shell command -v ld.lld),-fuse-ld=lld)

$(FUZZERS): $B/%: $B/%.o $B/tests/fuzz/driver.o $(ARCHIVE)
	$(call Q,LD)$(CC) $(ALL_LD) -o $@ $^ $(ALL_LIBS)
$(TESTS) $(DRIVERS) $(BENCHES): $B/%: $B/%.o $(HELP_SRC:%.c=$B/%.o) $(ARCHIVE)
	$(call Q,LD)$(CC) $(TEST_LD) $(ALL_LD) -o $@ $^ -Wl,-rpath,'$$ORIGIN/../../lib' $(ALL_LIBS) -lcmocka
$B/schemas/dump: $(patsubst %.c,$B/%.o,$(wildcard schemas/*.c)) $(ARCHIVE)
	$(call Q,LD)$(CC) $(ALL_LD) -o $@ $^ $(ALL_LIBS)

# ---- The two commands ---------------------------------------------------------------------
# Each first sees to the packages, then starts over, now that pkg-config finds them, on all processors
# unless -j says how many.
PARALLEL   = $(if $(filter -j% j%,$(MAKEFLAGS)),,-j$(JOBS))

# The demo builds for the GPU that is there, unless somebody chose or `make` has built already.
demo:
	@CC='$(CC)' MPICC='$(MPICC)' tools/setup.sh build
	@+echo "$$D9D_FLAGS" | cmp -s - $B/flags || gpu="$(if $(GPU_CHOICE),,$$(tools/setup.sh gpu))"; \
	$(MAKE) --no-print-directory $(PARALLEL) run-demo $${gpu:+"$$gpu"}

run-demo: all
	@D9D_BIN=$(abspath $B/bin) examples/demo/demo.sh

test:
	@CC='$(CC)' MPICC='$(MPICC)' tools/setup.sh test
	@+$(MAKE) --no-print-directory $(PARALLEL) run-test

# ---- Tests --------------------------------------------------------------------------------
# A test is a file; the suite is its folder; tests/run.sh runs them and counts.  Suites of long files
# come first: where nothing is known of a file yet, none begins when all others have ended.

SUITES    ?= slurm fault multirank tools golden meta unit fuzz
LONG_SUITES := packages
scripts    = $(wildcard tests/$(1)/*.sh tests/$(1)/*.bats)
programs   = $(filter $B/tests/$(1)/%,$(TESTS) $(FUZZERS))
suite      = $(sort $(call scripts,$(1)) $(call programs,$(1)))
of_words   = $(foreach f,$(1),$(if $(strip $(foreach t,$(2),$(findstring $(t),$(notdir $(f))))),$(f)))
pick       = $(if $(T),$(call of_words,$(1),$(T)),$(1))
CHOSEN    := $(call pick,$(foreach s,$(SUITES),$(call suite,$(s))))
CHOSEN    := $(strip $(filter-out $(if $(NOT),$(call of_words,$(CHOSEN),$(NOT))),$(CHOSEN)))

run-test: export D9D_BIN       = $(abspath $B/bin)
run-test: export D9D_BUILD     = $(abspath $B)
run-test: export D9D_CPPFLAGS  = $(ALL_CPP)
run-test: export D9D_SAN       = $(SAN)
run-test: export CC           := $(CC)
# Sanitizers load libraries in the library's stead, and so not from beside it.
run-test: export LD_LIBRARY_PATH := $(if $(SAN),$(abspath $B/lib)$(if $(LD_LIBRARY_PATH),:))$(LD_LIBRARY_PATH)
run-test: all $(SCHEMAGEN) $(filter $B/%,$(CHOSEN)) $(if $(filter tests/fault/% tests/multirank/%,$(CHOSEN)),$(DRIVERS))
	@$(if $(CHOSEN),tests/run.sh -j $(TEST_JOBS) -o $B/log $(CHOSEN),echo "no test matches T=$(T)" >&2; exit 1)

# Left out: tests of running tests, and kernels over every shape.
check:
	@+$(MAKE) --no-print-directory run-test SUITES="meta unit golden fuzz" NOT="load.sh runner headers kernel_attention kernel_gemm"

test-%:
	@+$(MAKE) --no-print-directory run-test SUITES=$*

list-tests:
	@printf '%s\n' $(patsubst $B/%,%.c,$(filter $B/%,$(CHOSEN))) $(filter-out $B/%,$(CHOSEN)) $(foreach s,$(LONG_SUITES),$(call suite,$(s)))

# Tests of what has threads of its own.  OpenMP's, of which the thread sanitizer knows nothing, are
# not among them.
THREADED  := loader local_peers checkpointer_async preemption test_log test_thread trace track watchdog writer

# Both compilers, the sanitizers, valgrind, and a minute of fuzzing a parser.
test-long:
	@CC='$(CC)' MPICC='$(MPICC)' tools/setup.sh long
	+$(MAKE) --no-print-directory run-test D9D_LONG=1
	+$(MAKE) --no-print-directory run-test NVCC= B=build-packages SUITES='$(LONG_SUITES)' D9D_LONG=1
	+$(MAKE) --no-print-directory run-test CC=clang B=build-clang
	+$(MAKE) --no-print-directory run-test SAN=address,undefined
	+$(MAKE) --no-print-directory run-test SAN=thread SUITES=unit T="$(THREADED)"
	+$(MAKE) --no-print-directory memcheck
	+$(MAKE) --no-print-directory fuzz
export D9D_LONG D9D_WRAP

# Tests say nothing about how fast a machine is, nor about its time of day: none may fail here.
LOAD      ?= 16
RUNS      ?= 3
JUMPED    := $(if $(filter jump,$(CLOCK)),$B/tests/fault/clock_jump_preload.so)
$(if $(filter-out jump,$(CLOCK)),$(error CLOCK is "$(CLOCK)"; what there is: CLOCK=jump))

$B/tests/%_preload.so: tests/%_preload.c $B/flags
	@mkdir -p $(@D)
	$(call Q,CC)$(CC) $(filter-out -fsanitize% -fvisibility%,$(ALL_C)) -shared -o $@ $<

test-load: $(JUMPED)
	@CC='$(CC)' MPICC='$(MPICC)' tools/setup.sh test
	+@tests/load.sh -n $(LOAD) -r $(RUNS) -o $B/load $(if $(JUMPED),-c $(abspath $(JUMPED))) $(MAKE) --no-print-directory run-test

# The unit tests under valgrind, which runs one thread at a time and is slow where they wait for
# each other.
NO_JIT    := $B/tests/unit/no_jit_preload.so
memcheck: $(NO_JIT)
	+OMP_NUM_THREADS=1 TEST_TIMEOUT=3600 $(MAKE) --no-print-directory run-test SUITES=unit \
	    D9D_PRELOAD='$(abspath $(NO_JIT))' D9D_WRAP='valgrind -q --error-exitcode=9 --leak-check=full --suppressions=tests/valgrind.supp'

# ---- Fuzzing ------------------------------------------------------------------------------
# All targets as one program of clang's libFuzzer, in a folder that can be carried elsewhere.

FUZZ_S    ?= 60
FUZZ_OUT  ?= build/fuzz-findings
FUZZ_NAMES := $(FUZZ_SRC:tests/fuzz/fuzz_%.c=%)
FUZZ_FLAGS := -O1 -g1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all

fuzz: fuzz-pack
	@D9D_FUZZ_WORK=build-fuzz/corpus build/fuzz-pack/run $(FUZZ_S) $(JOBS) $(FUZZ_OUT) $(T)

fuzz-pack:
	@+$(MAKE) --no-print-directory build-fuzz/fuzz/all CC=clang B=build-fuzz CFLAGS='$(FUZZ_FLAGS)'
	@tests/fuzz/pack build-fuzz/fuzz/all build/fuzz-pack

$B/fuzz/%.o: $B/tests/fuzz/fuzz_%.o
	@mkdir -p $(@D)
	$(call Q,NAME)objcopy --redefine-sym LLVMFuzzerTestOneInput=fuzz_$* $< $@
$B/fuzz.names: NAMES = $(FUZZ_NAMES)
$B/tests/fuzz/all.o: $B/fuzz.names
$B/tests/fuzz/all.o: private ALL_CPP += -D'FUZZ_TARGETS(X)=$(foreach t,$(FUZZ_NAMES),X($t))'
$B/fuzz/all: $B/tests/fuzz/all.o $(FUZZ_NAMES:%=$B/fuzz/%.o) $(ARCHIVE)
	$(call Q,LD)$(CC) $(ALL_LD) -fsanitize=fuzzer,address,undefined -Wl,--gc-sections -Wl,--as-needed -o $@ $^ $(ALL_LIBS)

bench: all $(BENCHES)
	@set -e; export D9D_BIN=$(abspath $B/bin); \
	for b in $(call pick,$(BENCHES) $(wildcard tests/bench/*.sh)); do echo "# $$b"; $$b; done

# ---- On a GPU -----------------------------------------------------------------------------
# The tests that take their device from D9D_TEST_DEVICE, and the programs that ranks run, in one
# program that links to it name.

GOLDENS   := $(addprefix golden/test_golden_,blocks families gated_delta grpo models ops optim train)
GPU_SRC   := $(filter-out %/test_kernel_math.c,$(foreach t,unit/device/test_device unit/device/test_copy_stream \
             unit/tensor/test_* unit/nn/test_block_* unit/kernels/test_kernel_* unit/op/test_* unit/model/test_kv_cache unit/infer/test_token_sampler $(GOLDENS) bench/bench_kernels gpu/bench_* \
             $(patsubst %,multirank/%_driver,blocks comm context experts pipeline tensor),$(wildcard tests/$t.c)))
GPU_OBJ   := $(GPU_SRC:%.c=$B/gpu/%.o)
GPU_NAMES := $(notdir $(GPU_SRC:.c=))
GPU_BIN   := $B/gpu/gpu-tests

$B/gpu/%.o: $B/%.o
	@mkdir -p $(@D)
	$(call Q,NAME)objcopy --redefine-sym main=main_$(*F) $< $@

$B/gpu.names: NAMES = $(GPU_NAMES)
$B/tests/gpu/gpu_tests.o: $B/gpu.names
$B/tests/gpu/gpu_tests.o: private ALL_CPP += -D'GPU_TESTS(X)=$(foreach t,$(GPU_NAMES),X($t))'

$(GPU_BIN): $B/tests/gpu/gpu_tests.o $(GPU_OBJ) $(HELP_SRC:%.c=$B/%.o) $(ARCHIVE)
	$(if $(CUDA_OBJ),,@echo "this build has no CUDA: nvcc was not found" >&2; exit 1)
	$(call Q,LD)$(CC) $(ALL_LD) -o $@ $^ $(ALL_LIBS) -lcmocka
	@cd $(@D) && for t in $(GPU_NAMES); do ln -sf $(@F) $$t; done

gpu-test: export D9D_TEST_DEVICE ?= cuda
gpu-test: all $(GPU_BIN)
	@tests/run.sh -j 1 -o $B/log-gpu $(call pick,$(addprefix $B/gpu/,$(filter test_%,$(GPU_NAMES))))

gpu-bench: export D9D_TEST_DEVICE ?= cuda
gpu-bench: $(GPU_BIN)
	@$B/gpu/bench_large $(T)

$(GPU_RUNS): export D9D_TEST_DEVICE ?= cuda
$(GPU_RUNS): gpu-%: all $(GPU_BIN)
	@PATH=$(abspath $B/bin):$(abspath $B/gpu):$$PATH tests/gpu/$* $(T)

gpu-pack: all $(GPU_BIN)
	@tests/gpu/pack $B $B/gpu-pack

# ---- Care ---------------------------------------------------------------------------------

C_ALL     := $(CORE_SRC) $(if $(MPI_SHOW),$(MPI_SRC)) $(wildcard tools/*.c schemas/*.c examples/*/*.c tests/*/*.c tests/unit/*/*.c)
FMT_ALL   := $(C_ALL) $(wildcard kernels/cuda/*/*.cu kernels/cuda/*/*.cuh) \
             $(wildcard schemas/*.h) $(shell find libcore kernels tools tests -name '*.h')
SH_ALL    := $(shell grep -lE '^\#!.*(sh|bats)$$' .ci/* slurm/* packaging/*/* tests/*/*/* tests/*/* tests/* tools/* examples/*/* 2>/dev/null) \
             $(wildcard slurm/*.sh tests/*.bash tests/*/*.bash)
LINT_C    := $(ALL_C) $(ALL_CPP) $(CAIRO_CPP) $(MPI_CPP) -Itests/unit -I$B/libcore
TIDY      := $(patsubst %.c,$B/%.tidy,$(CORE_SRC) $(wildcard tools/*.c))

# Again only for what was compiled again.
run-tidy: $(TIDY)
	@:
$B/%.tidy: $B/%.o .clang-tidy
	$(call Q,TIDY)clang-tidy --quiet --warnings-as-errors='*' $*.c -- $(LINT_C) 2>/dev/null
	@touch $@

lint: $(FAMILY_LIST)
	@CC='$(CC)' MPICC='$(MPICC)' tools/setup.sh lint
	@echo "# gcc";          printf '%s\n' $(C_ALL) | xargs -P$(JOBS) -n8 gcc $(LINT_C) -Werror -fsyntax-only
	@echo "# clang";        printf '%s\n' $(C_ALL) | xargs -P$(JOBS) -n8 clang $(LINT_C) -Werror -fsyntax-only
	@echo "# clang-format"; printf '%s\n' $(FMT_ALL) | xargs clang-format-14 --dry-run --Werror
	@echo "# shellcheck";   shellcheck -x $(SH_ALL)
	@echo "# clang-tidy"
	@+$(MAKE) --no-print-directory -k -j$(JOBS) run-tidy
	@echo "lint: clean"

format:
	@printf '%s\n' $(FMT_ALL) | xargs clang-format-14 -i

schemas: $(SCHEMAGEN) $(FAMILY_LIST)
	$(if $(SCHEMAGEN),,@echo "no schema generator" >&2; exit 1)
	$(SCHEMAGEN) schemas
	$(SCHEMAGEN) --pages docs/reference
	tools/list_errors.sh >$B/messages.md && cp $B/messages.md docs/reference
	tools/list_families.sh $(FAMILY_LIST) tools/man/d9d-train.1

# The checks of every family again, on four ranks, and the page of their figures.
certificates: all $(SCHEMAGEN)
	tools/certificates.sh $(abspath $B/bin) >$B/certificates.jsonl && cp $B/certificates.jsonl docs/reference
	@+$(MAKE) --no-print-directory schemas

config:
	@CC='$(CC)' MPICC='$(MPICC)' NVCC='$(NVCC)' CUDA_CPP='$(CUDA_CPP) $(CPPFLAGS)' tools/setup.sh config

site:
	@tools/setup.sh site
	@mkdir -p $B/site
	@SITE=$B/site VERSION=$(VERSION) doxygen docs/site/Doxyfile
	@echo "$B/site/index.html"

# Where things go.  A path with blanks would be several here, and one that is not absolute is none in d9d.pc.
ROOT = $(if $(filter-out 1,$(words $(DESTDIR)$(PREFIX)))$(filter-out /%,$(firstword $(PREFIX) none)),$(error \
    PREFIX is "$(PREFIX)" and DESTDIR "$(DESTDIR)": an absolute path without blanks is needed),$(DESTDIR)$(PREFIX))

# With the paths of this installation in place of @PREFIX@ and such.
filled = sed 's|@PREFIX@|$(PREFIX)|g; s|@LIBDIR@|$(LIBDIR)|g; s|@VERSION@|$(VERSION)|g'
BASH_DIR  := share/bash-completion/completions
ZSH_DIR   := share/zsh/site-functions
MODULE_DIR := share/modulefiles/d9d

install: all
	install -d $(addprefix $(ROOT)/,bin $(LIBDIR)/pkgconfig include share/man/man1 share/man/man7 share/d9d/schemas share/d9d/slurm \
	    share/d9d/reference share/d9d/mpi/comm/backend share/doc/d9d $(BASH_DIR) $(ZSH_DIR) $(MODULE_DIR))
	install -m755 $(TOOLS) $(ROOT)/bin
	install -m755 $(LIB).$(SOVERSION) $(ROOT)/$(LIBDIR)
	$(if $(MPI_MODULE),install -m755 $(MPI_MODULE) $(ROOT)/$(LIBDIR))
	ln -sf libd9d.so.$(SOVERSION) $(ROOT)/$(LIBDIR)/libd9d.so
	cp -R libcore/include/d9d kernels/include/d9d $(ROOT)/include
	rm -f $(ROOT)/include/d9d/*/README.md
	$(filled) libcore/d9d.pc.in >$(ROOT)/$(LIBDIR)/pkgconfig/d9d.pc
	$(filled) packaging/modules/d9d.tcl.in >$(ROOT)/$(MODULE_DIR)/$(VERSION)
	$(filled) packaging/modules/d9d.lua.in >$(ROOT)/$(MODULE_DIR)/$(VERSION).lua
	set -e; for t in $(notdir $(TOOLS)); do \
	    $B/bin/$$t --completion-bash >$(ROOT)/$(BASH_DIR)/$$t; $B/bin/$$t --completion-zsh >$(ROOT)/$(ZSH_DIR)/_$$t; done
	install -m644 $(wildcard tools/man/*.1) $(ROOT)/share/man/man1
	install -m644 $(wildcard tools/man/*.7) $(ROOT)/share/man/man7
	install -m644 $(wildcard schemas/*.json) $(ROOT)/share/d9d/schemas
	install -m755 $(filter-out slurm/lib.sh,$(wildcard slurm/*)) $(ROOT)/share/d9d/slurm
	install -m644 slurm/lib.sh $(ROOT)/share/d9d/slurm
	install -m644 $(wildcard packaging/reference/*.*) examples/tokenizer/tokenizer.json examples/tokenizer/tokenizer_config.json \
	    $(ROOT)/share/d9d/reference
	install -m755 packaging/reference/check $(ROOT)/share/d9d/reference
	install -m644 $(MPI_SRC) $(MPI_SRC:.c=.h) $(ROOT)/share/d9d/mpi/comm/backend
	install -m755 packaging/mpi/build $(ROOT)/share/d9d/mpi
	install -m644 README.md NEWS.md SUPPORT.md CITATION.cff LICENSE $(ROOT)/share/doc/d9d
	cp -R docs $(ROOT)/share/doc/d9d
	cp -R examples $(ROOT)/share/doc/d9d
	chmod -R u+rwX,go+rX $(addprefix $(ROOT)/,include/d9d $(LIBDIR)/pkgconfig/d9d.pc share/doc/d9d $(BASH_DIR) $(ZSH_DIR) share/modulefiles)

installcheck:
	@$(ROOT)/share/d9d/reference/check

# Objects of its own: they are compiled with other headers.
tarball:
	@+SYSROOT='$(SYSROOT)' BASELINE='$(BASELINE)' BUNDLE='$(BUNDLE)' LIBRARY_DIRS='$(addprefix -L,$(CUDA_LIB) $(NCCL_LIB) $(CUDNN_LIB))' \
	    CC='$(CC)' CFLAGS='$(CFLAGS)' CPPFLAGS='$(CPPFLAGS)' LDFLAGS='$(LDFLAGS)' MAKE='$(MAKE) B=build-tarball' \
	    packaging/tarball/build $(VERSION) $B

uninstall:
	cd $(ROOT) && rm -rf $(TOOLS:$B/%=%) $(patsubst tools/%,share/%,$(subst /man/,/man/man1/,$(wildcard tools/man/*.1)) \
	    $(subst /man/,/man/man7/,$(wildcard tools/man/*.7))) \
	    $(addprefix $(LIBDIR)/,libd9d.so libd9d.so.$(SOVERSION) libd9d_mpi.so.$(SOVERSION) pkgconfig/d9d.pc) \
	    $(TOOLS:$B/bin/%=$(BASH_DIR)/%) $(TOOLS:$B/bin/%=$(ZSH_DIR)/_%) $(MODULE_DIR) include/d9d share/d9d share/doc/d9d

clean:
	rm -rf build build-*

help:
	@sed -n '2,/^$$/s/^# \{0,1\}//p' Makefile

-include $(shell find $B -name '*.d' 2>/dev/null)
