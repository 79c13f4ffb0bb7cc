# Makefile for d9d.  GNU make; no recursion; objects under build/.
#
#   make                 library and tools (and CUDA kernels, if nvcc is found)
#   make demo            text to trained model on this machine, in minutes
#   make test            everything that is checked on every change
#   make test T=sched    only the tests whose file name contains "sched"
#   make test-long       what takes too long for every change
#   make bench           timings beside their peers
#   make lint            compiler and static-analysis warnings, formatting
#   make config          what was found on this machine
#   make SAN=address,undefined test
#   make V=1             show commands
#
# Override anything below on the command line or in config.mk.

-include config.mk

PREFIX    ?= /usr/local
B         ?= build
CUDA_HOME ?= /usr/local/cuda
NVCC      ?= $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc))
CUDA_ARCH ?= 90a
JOBS      ?= $(shell nproc)

VERSION   := 0.1.0
WARN      := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wformat=2 \
             -Wundef -Wpointer-arith -Wcast-qual -Wwrite-strings
PKGS      := jansson libpcre2-8 libutf8proc libzstd zlib libxxhash lmdb cairo

# OpenBLAS with OpenMP threads, so that a parallel loop of ours may call it.
BLAS_CFLAGS := $(shell pkg-config --cflags openblas 2>/dev/null)
BLAS_LIBS   := $(or $(shell pkg-config --libs openblas 2>/dev/null),-lopenblas)

CFLAGS    ?= -O2 -g
ALL_C     := -std=c11 -D_GNU_SOURCE $(WARN) -fPIC -fvisibility=hidden -fopenmp -MMD -MP $(CFLAGS)
ALL_CPP   := -Ilibcore/include -Ikernels/include -Ilibcore $(BLAS_CFLAGS) \
             $(shell pkg-config --cflags $(PKGS) 2>/dev/null) -DD9D_VERSION='"$(VERSION)"'
LDLIBS    += $(shell pkg-config --libs $(PKGS) 2>/dev/null) $(BLAS_LIBS) -lm -ldl -lpthread

# Kernels: loops that vectorise, without giving up IEEE order of reductions.
KERNEL_C  := -O3 -fno-math-errno -fno-trapping-math

ifdef SAN
ALL_C     += -fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer
LDFLAGS   += -fsanitize=$(SAN)
B         := build-$(subst $(shell printf ','),-,$(SAN))
endif
LDFLAGS   += -fopenmp

CORE_SRC  := $(wildcard libcore/*/*.c libcore/*/*/*.c)
KERN_SRC  := $(wildcard kernels/cpu/*.c)
CUDA_SRC  := $(if $(NVCC),$(wildcard kernels/cuda/*.cu))
TOOL_SRC  := $(wildcard tools/d9d-*.c)
UNIT_SRC  := $(wildcard tests/unit/test_*.c)

CORE_OBJ  := $(CORE_SRC:%.c=$B/%.o) $(KERN_SRC:%.c=$B/%.o)
CUDA_OBJ  := $(CUDA_SRC:%.cu=$B/%.cu.o)
TOOLS     := $(TOOL_SRC:tools/%.c=$B/bin/%)
UNITS     := $(UNIT_SRC:tests/unit/%.c=$B/unit/%)
UNIT_LIB  := $(patsubst %.c,$B/%.o,$(wildcard tests/unit/support/*.c))
LIB       := $B/lib/libd9d.so
pick       = $(if $(T),$(foreach f,$(1),$(if $(findstring $(T),$(f)),$(f))),$(1))

# Quiet unless V=1.
ifneq ($(V),1)
Q = @printf '  %-5s %s\n' $(1) $@;
endif

.PHONY: all demo test test-unit test-tools test-meta clean
all: $(LIB) $(TOOLS)

$B/kernels/%.o: kernels/%.c
	@mkdir -p $(@D)
	$(call Q,CC)$(CC) $(ALL_C) $(KERNEL_C) $(ALL_CPP) -c -o $@ $<

$B/%.o: %.c
	@mkdir -p $(@D)
	$(call Q,CC)$(CC) $(ALL_C) $(ALL_CPP) -c -o $@ $<

$B/%.cu.o: %.cu
	@mkdir -p $(@D)
	$(call Q,NVCC)$(NVCC) -std=c++17 -O3 -lineinfo -arch=sm_$(CUDA_ARCH) -Werror all-warnings \
	    -Xcompiler -fPIC,-Wall -MD -MP -MF $(@:.o=.d) -Ilibcore/include -Ikernels/include -c -o $@ $<

$(LIB): $(CORE_OBJ) $(CUDA_OBJ) libcore/d9d.map
	@mkdir -p $(@D)
	$(call Q,LD)$(if $(CUDA_OBJ),$(NVCC) -shared --cudart static -Xcompiler -fPIC,$(CC) -shared) \
	    $(if $(CUDA_OBJ),$(LDFLAGS:%=-Xcompiler %),$(LDFLAGS)) -Xlinker --version-script=libcore/d9d.map \
	    -o $@ $(filter %.o,$^) $(LDLIBS)

$B/bin/%: $B/tools/%.o $B/tools/tool.o $(LIB)
	@mkdir -p $(@D)
	$(call Q,LD)$(CC) $(LDFLAGS) -o $@ $(filter %.o,$^) -L$B/lib -ld9d -Wl,-rpath,'$$ORIGIN/../lib' $(LDLIBS)

# Unit tests link the objects, so they may reach internals.
$B/unit/%: $B/tests/unit/%.o $(UNIT_LIB) $(CORE_OBJ)
	@mkdir -p $(@D)
	$(call Q,LD)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS) -lcmocka

test: test-meta test-unit test-tools
test-unit: $(call pick,$(UNITS))
	@set -e; for t in $^; do echo "# $$t"; $$t; done
test-tools: $(TOOLS)
	D9D_BIN=$(abspath $B/bin) bats $(call pick,$(wildcard tests/tools/*.bats))
test-meta: $(LIB)
	@set -e; for t in $(call pick,$(wildcard tests/meta/*.sh)); do $$t; done

clean:
	rm -rf build build-*

-include $(shell find $B -name '*.d' 2>/dev/null)
.SECONDARY:
