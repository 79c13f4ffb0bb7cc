/* map_memory.c - see d9d/ckpt/mapper/map_memory.h. */
#include "d9d/ckpt/mapper/map_memory.h"

#include <inttypes.h>
#include <stdlib.h>

static d9d_status memory_begin(void *self, const d9d_safetensors_tensor *outputs, size_t n,
                               size_t *n_items, uint64_t *bytes)
{
    d9d_map_memory *m = self;

    m->tensors = outputs;
    m->data = calloc(n + 1, sizeof(*m->data));
    if (m->data == NULL)
        return D9D_FAIL(D9D_ENOMEM, "map: no memory for %zu tensors", n);
    m->n = *n_items = n;
    *bytes = 0;
    for (size_t i = 0; i < n; i++) {
        m->data[i] = malloc(outputs[i].bytes + 1);
        if (m->data[i] == NULL)
            return D9D_FAIL(D9D_ENOMEM, "map: no memory for the %" PRIu64 " bytes of %s",
                            outputs[i].bytes, outputs[i].name);
        *bytes += outputs[i].bytes;
    }
    return D9D_OK;
}

static d9d_status memory_fill(void *self, size_t i, d9d_map_reader *reader)
{
    const d9d_map_memory *m = self;

    D9D_TRY(d9d_map_read(reader, i, 0, m->data[i], m->tensors[i].bytes));
    d9d_map_reader_add_progress(reader, m->tensors[i].bytes);
    return D9D_OK;
}

d9d_tensor_sink d9d_map_memory_sink(d9d_map_memory *m)
{
    return (d9d_tensor_sink){.self = m, .begin = memory_begin, .fill = memory_fill};
}

void d9d_map_memory_release(d9d_map_memory *m)
{
    for (size_t i = 0; i < m->n; i++)
        free(m->data[i]);
    free(m->data);
    *m = (d9d_map_memory){.n = 0};
}
