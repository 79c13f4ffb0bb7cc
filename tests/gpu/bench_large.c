/* bench_large.c - tests/bench/bench_kernels.c with sizes that keep a GPU busy. */
#define LARGE
#include "../bench/bench_kernels.c"
