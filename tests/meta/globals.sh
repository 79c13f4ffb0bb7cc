#!/bin/bash
# The library has no writable globals; records of one thread are allowed.
. "$(dirname "$0")/meta.bash"

# Symbols in .data, .bss and among the commons.  Constants with addresses in them are
# .data.rel.ro; OpenMP's unnamed lock, sanitizers and coverage bring their own, and nvcc the
# handles of the kernels that a file launches.
check() {
    local build=$1/build
    [ "$1" = "$meta_root" ] && build=$meta_build
    find "$build" \( -path "$build/libcore/*" -o -path "$build/kernels/*" \) -name '*.o' | sort | while read -r object; do
        objdump -t "$object" | awk -v object="${object#"$build"/}" '
            $1 !~ /^[0-9a-f]+$/ || NF < 5 { next }
            { section = $(NF - 2); name = $NF }
            section !~ /^(\.data|\.bss|\*COM\*)/ || section ~ /^\.data\.rel\.ro/ { next }
            name ~ /^_Z[GVZ]*L?[0-9]+__(device_stub__|cudaFatCubinHandle$)/ || name == "__fatDeviceText" { next }
            name ~ /^(\.|__odr_asan|__asan|__ubsan|_?\.?L|\.gomp_critical|__gcov)/ || name == section { next }
            { print object ": " name " is writable (" section ")" }'
    done
}

object() { mkdir -p "$1/build/libcore/base" "$1/build/kernels" && "$CC" -x c -fPIC -c -o "$1/build/libcore/base/a.o" -; }
plant_zero() { object "$1" <<<'int d9d_count;'; }
plant_initialised() { object "$1" <<<'int d9d_count = 3;'; }
plant_in_function() { object "$1" <<<'int d9d_next(void) { static int n; return ++n; }'; }
plant_cuda() { object "$1" <<<'int _ZZL4_devvE6handle;'; }
plant_common() { mkdir -p "$1/build/libcore/base" "$1/build/kernels" && "$CC" -x c -fcommon -c -o "$1/build/libcore/base/a.o" - <<<'int d9d_c;'; }
allow_thread_local() { object "$1" <<<'_Thread_local int d9d_count = 3; _Thread_local int d9d_zero;'; }
allow_cuda_stubs() { object "$1" <<<'long _ZZL27__device_stub__Z4fillIfEvPT_vE8__handle, _ZZ25__device_stub__Z4fillvE8__handle; void *_ZL20__cudaFatCubinHandle;'; }
allow_constant_addresses() { object "$1" <<<'const char *const d9d_names[] = {"a", "b"}; static const int two = 2; const int *const d9d_p = &two;'; }
meta_run
