/* mem_tensors.c - see mem_tensors.h. */
#include "mem_tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

mem_tensor *mem_tensors_add(mem_tensors *m, const char *name, d9d_dtype t, int ndim,
                            const int64_t *shape)
{
    mem_tensor *a = &m->a[m->n++];

    assert_true(m->n <= MEM_TENSORS);
    (void)snprintf(a->name, sizeof(a->name), "%s", name);
    a->t = (d9d_safetensors_tensor){.name = a->name, .dtype = t, .ndim = ndim};
    for (int d = 0; d < ndim; d++)
        a->t.shape[d] = shape[d];
    assert_true(d9d_safetensors_shape_bytes(t, ndim, shape, &a->t.bytes));
    a->data = calloc(1, a->t.bytes + 1);
    assert_non_null(a->data);
    return a;
}

void mem_tensors_free(mem_tensors *m)
{
    for (size_t i = 0; i < m->n; i++)
        free(m->a[i].data);
    m->n = 0;
}

static const d9d_safetensors_tensor *mem_at(void *self, size_t i)
{
    return &((mem_tensors *)self)->a[i].t;
}

static const char *mem_place(void *self, size_t i)
{
    (void)self;
    (void)i;
    return "memory";
}

static d9d_status mem_read(void *self, size_t i, uint64_t at, void *dst, uint64_t n)
{
    const mem_tensor *a = &((mem_tensors *)self)->a[i];

    assert_true(at + n <= a->t.bytes);
    memcpy(dst, a->data + at, n);
    return D9D_OK;
}

static d9d_status mem_begin(void *self, const d9d_safetensors_tensor *outputs, size_t n,
                            size_t *n_items, uint64_t *bytes)
{
    *n_items = n;
    *bytes = 0;
    for (size_t i = 0; i < n; i++) {
        (void)mem_tensors_add(self, outputs[i].name, outputs[i].dtype, outputs[i].ndim,
                              outputs[i].shape);
        *bytes += outputs[i].bytes;
    }
    return D9D_OK;
}

static d9d_status mem_fill(void *self, size_t i, d9d_map_reader *make)
{
    mem_tensors *m = self;
    mem_tensor *a = &m->a[i];
    const uint64_t each = m->slice > 0 ? m->slice * d9d_dtype_size(a->t.dtype) : a->t.bytes;

    for (uint64_t at = 0, n; at < a->t.bytes; at += n) {
        n = a->t.bytes - at < each ? a->t.bytes - at : each;
        d9d_map_prefetch(make, i, at, n);
        D9D_TRY(d9d_map_read(make, i, at, a->data + at, n));
    }
    d9d_map_reader_add_progress(make, a->t.bytes);
    return D9D_OK;
}

d9d_tensor_source mem_tensors_source(mem_tensors *m)
{
    return (d9d_tensor_source){
        .self = m, .n = m->n, .at = mem_at, .path = mem_place, .read = mem_read};
}

d9d_tensor_sink mem_tensors_sink(mem_tensors *m)
{
    return (d9d_tensor_sink){m, mem_begin, mem_fill};
}

void mem_tensors_run(const d9d_mapper *m, mem_tensors *from, mem_tensors *to, int jobs)
{
    d9d_tensor_source src = mem_tensors_source(from);
    d9d_tensor_sink sink = mem_tensors_sink(to);
    d9d_map_plan *p;

    assert_ok(d9d_map_plan_create(m, &src, NULL, &p));
    assert_ok(d9d_map_plan_run(p, &sink, jobs, NULL));
    d9d_map_plan_free(p);
}

mem_tensor *mem_tensors_find(mem_tensors *m, const char *name)
{
    for (size_t i = 0; i < m->n; i++)
        if (strcmp(m->a[i].name, name) == 0)
            return &m->a[i];
    fail_msg("no array %s", name);
    return NULL;
}
