/* dtype.c - sizes and names of dtypes.  See d9d/base/dtype.h. */
#include "d9d/base/dtype.h"

static const struct {
    size_t size;
    const char *safetensors, *word;
} types[D9D_DTYPE_COUNT] = {
#define X(name, bytes, st, word) {bytes, st, word},
    D9D_DTYPE_MAP(X)
#undef X
};

size_t d9d_dtype_size(d9d_dtype t)
{
    return types[t].size;
}
const char *d9d_dtype_name(d9d_dtype t)
{
    return types[t].word;
}
const char *d9d_dtype_safetensors(d9d_dtype t)
{
    return types[t].safetensors;
}

int d9d_dtype_find(const char *word)
{
    for (int t = 0; t < D9D_DTYPE_COUNT; t++)
        if (strcmp(types[t].word, word) == 0 || strcmp(types[t].safetensors, word) == 0)
            return t;
    return -1;
}
