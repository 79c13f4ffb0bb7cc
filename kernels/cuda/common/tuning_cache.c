/* tuning_cache.c - what cuBLASLt and cuDNN have chosen, kept between runs: one file for each
 * library and all that its choices depend on. */
#include <stdio.h>
#include <string.h>

#include "cuda/common/common.h"
#include "d9d/base/disk_cache.h"

/* The first line that the kernel driver says of itself, with its version; "" without one. */
static void read_driver(char *out, int size)
{
    FILE *const f = fopen("/proc/driver/nvidia/version", "re");

    if (f == NULL || fgets(out, size, f) == NULL)
        out[0] = '\0';
    out[strcspn(out, "\n")] = '\0';
    if (f != NULL)
        (void)fclose(f);
}

void d9di_cuda_open_cache(d9d_stream s, const char *library, uint64_t version, d9d_disk_cache *out)
{
    char driver[256], text[1024];
    struct cudaDeviceProp p;
    int cuda = 0;

    if (cudaGetDeviceProperties(&p, s->index) != cudaSuccess)
        p.name[0] = '\0';
    (void)cudaDriverGetVersion(&cuda);
    read_driver(driver, sizeof(driver));
    (void)snprintf(text, sizeof(text), "%s %llu, CUDA %d, %s, %s, %d SMs", library,
                   (unsigned long long)version, cuda, driver, p.name, s->sms);
    d9d_disk_cache_open(out, s->cache_dir, library, text, s->opts.cache_read_only);
}
