/* adapter_files.c - the two files of an adapter's directory, written.  See adapter_private.h. */
#include <math.h>
#include <stdlib.h>

#include "d9d/base/fs.h"
#include "d9d/base/json.h"
#include "model/lora/adapter_private.h"

static d9d_status no_memory(void)
{
    return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", D9DI_ADAPTER_CONFIG);
}

d9d_status d9di_adapters_values_write(d9d_safetensors_writer *to, size_t i, d9d_dtype dtype,
                                      const float *from, int64_t n)
{
    uint16_t *narrow;
    int64_t lost = 0;
    d9d_status st;

    if (dtype == D9D_F32)
        return d9d_safetensors_writer_write(to, i, 0, from, (uint64_t)n * sizeof(*from));
    narrow = malloc((size_t)n * sizeof(*narrow) + 1);
    if (narrow == NULL)
        return no_memory();
    for (int64_t k = 0; k < n; k++) {
        narrow[k] = d9d_bf16_from_f32(from[k]);
        lost += isfinite(from[k]) && !isfinite(d9d_bf16_to_f32(narrow[k]));
    }
    if (lost > 0)
        st = D9D_FAIL(D9D_ECONFIG, "adapters: %lld of %lld values of a tensor are beyond bfloat16",
                      (long long)lost, (long long)n);
    else
        st = d9d_safetensors_writer_write(to, i, 0, narrow, (uint64_t)n * sizeof(*narrow));
    free(narrow);
    return st;
}

d9d_status d9di_adapters_config_write(const json_t *doc, const char *dir)
{
    d9d_arena a = {0};
    const char *path = d9d_fs_join(&a, dir, D9DI_ADAPTER_CONFIG);
    d9d_buf text = {0};
    d9d_status st = path != NULL ? d9d_json_put(&text, doc, 2) : no_memory();

    if (st == D9D_OK)
        st = d9d_buf_append(&text, "\n", 1);
    if (st == D9D_OK)
        st = d9d_fs_write_atomic(path, text.data, text.len);
    d9d_buf_release(&text);
    d9d_arena_release(&a);
    return st;
}
