/* params_io.c - see d9d/model/params_io.h. */
#include "d9d/model/params_io.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/base/thread.h"
#include "d9d/device/staging.h"

/* Bytes of a range that is filled at once: small enough that every processor has a few. */
#define RANGE_BYTES   (UINT64_C(2) << 20)
#define STAGING_BYTES (UINT64_C(512) << 20)
enum { IN_FLIGHT = 16 };

/* Rows [first, first + n) of this rank's slice of an output; without dimensions, one row. */
typedef struct row_range {
    size_t output;
    int64_t first, n;
} row_range;

/* This rank's slice of a tensor. */
typedef struct io_entry {
    const d9d_param *param;
    const d9d_tensor *tensor; /* [slice] */
} io_entry;

struct d9d_params_io {
    d9d_safetensors_tensor *tensors; /* their global shapes */
    io_entry *entries;
    size_t n;
    size_t *target;            /* sink: output i goes to entries[target[i]] */
    D9D_VEC(row_range) ranges; /* sink: ranges that are filled at once */
    uint64_t largest;          /* bytes of the largest range */
    d9d_staging *staging;      /* sink: staging memory for copies to the device */
    d9d_map by_name;
};

static d9d_status entry_add(d9d_params_io *io, const d9d_param *p, const d9d_tensor *t)
{
    d9d_safetensors_tensor *e = &io->tensors[io->n];

    if (t->storage == NULL)
        return D9D_FAIL(D9D_EINVAL, "%s: has no memory yet", p->name);
    e->name = p->name;
    e->dtype = p->spec.stored == D9D_QUANT_NONE ? t->dtype : p->spec.dtype;
    e->ndim = p->spec.shape.ndim;
    memcpy(e->shape, p->spec.shape.dim, sizeof(e->shape));
    if (!d9d_safetensors_shape_bytes(e->dtype, p->spec.shape.ndim, p->spec.shape.dim, &e->bytes))
        return D9D_FAIL(D9D_EINVAL, "%s: its size overflows", p->name);
    io->entries[io->n] = (io_entry){p, t};
    D9D_TRY(d9d_map_put(&io->by_name, p->name, strlen(p->name), e));
    io->n++;
    return D9D_OK;
}

d9d_status d9d_params_io_open(const d9d_params *params, d9d_params_io_kind which,
                              d9d_params_io **out)
{
    d9d_params_io *io = calloc(1, sizeof(*io));
    d9d_status st = D9D_OK;

    if (io == NULL)
        return D9D_FAIL(D9D_ENOMEM, "parameters: %zu bytes", sizeof(*io));
    io->tensors = calloc(params->n + 1, sizeof(*io->tensors));
    io->entries = calloc(params->n + 1, sizeof(*io->entries));
    io->target = calloc(params->n + 1, sizeof(*io->target));
    if (io->tensors == NULL || io->entries == NULL || io->target == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "parameters: no memory for records of %zu", params->n);
        goto out;
    }
    for (size_t i = 0; i < params->n; i++) {
        const d9d_param *p = params->p[i];

        if (which == D9D_PARAMS_DATA || p->spec.trainable)
            D9D_TRY_OR(st,
                       entry_add(io, p, which == D9D_PARAMS_DATA ? &p->shard.data : &p->shard.grad),
                       out);
    }
    *out = io;
    io = NULL;
out:
    d9d_params_io_close(io);
    return st;
}

void d9d_params_io_close(d9d_params_io *io)
{
    if (io == NULL)
        return;
    d9d_map_release(&io->by_name);
    free(io->tensors);
    free(io->entries);
    free(io->target);
    D9D_VEC_RELEASE(&io->ranges);
    d9d_staging_close(io->staging);
    free(io);
}

/* --- source --------------------------------------------------------------------- */

static const d9d_safetensors_tensor *source_at(void *self, size_t i)
{
    return &((d9d_params_io *)self)->tensors[i];
}

static const char *source_place(void *self, size_t i)
{
    (void)self, (void)i;
    return "model";
}

static d9d_status source_read(void *self, size_t i, uint64_t at, void *dst, uint64_t n)
{
    const d9d_tensor *t = ((d9d_params_io *)self)->entries[i].tensor;
    const d9d_param *p = ((d9d_params_io *)self)->entries[i].param;

    if (p->spec.stored != D9D_QUANT_NONE)
        return D9D_FAIL(D9D_ENOTSUP, "%s: is quantised to %s, and its elements are not here",
                        p->name, d9d_quant_name(p->spec.stored));
    return d9d_device_download(d9d_tensor_device(t), dst, (char *)d9d_tensor_data(t) + at, n);
}

d9d_status d9d_params_io_source(d9d_params_io *io, d9d_tensor_source *out)
{
    for (size_t i = 0; i < io->n; i++)
        if (!d9d_shape_equal(&io->entries[i].param->shard.shape, &io->entries[i].param->spec.shape))
            return D9D_FAIL(D9D_ENOTSUP, "%s: this rank holds only a shard of it",
                            io->tensors[i].name);
    *out = (d9d_tensor_source){
        .self = io, .n = io->n, .at = source_at, .path = source_place, .read = source_read};
    return D9D_OK;
}

/* --- sink ------------------------------------------------------------------------- */

static d9d_status output_check(const d9d_safetensors_tensor *here,
                               const d9d_safetensors_tensor *given)
{
    d9d_shape want = {.ndim = here->ndim}, got = {.ndim = given->ndim};
    char a[96], b[96];

    memcpy(want.dim, here->shape, sizeof(want.dim));
    memcpy(got.dim, given->shape, sizeof(got.dim));
    if (here->dtype == given->dtype && d9d_shape_equal(&want, &got))
        return D9D_OK;
    return D9D_FAIL(D9D_EMISMATCH, "%s: the model has %s %s, the checkpoint %s %s", here->name,
                    d9d_dtype_name(here->dtype), d9d_shape_text(&want, a, sizeof(a)),
                    d9d_dtype_name(given->dtype), d9d_shape_text(&got, b, sizeof(b)));
}

/* Divide an output into ranges of some MiB.  A range of a stack is whole matrices, because reading
 * half of a transposed matrix would read the other half too. */
static d9d_status ranges_add(d9d_params_io *io, size_t output, const d9d_tensor *t)
{
    const int64_t rows = t->shape.ndim > 0 ? t->shape.dim[0] : 1;
    const uint64_t bytes = d9d_tensor_bytes(t), row = rows > 0 ? bytes / (uint64_t)rows : 0;
    const int64_t step = row > 0 && row < RANGE_BYTES ? (int64_t)(RANGE_BYTES / row) : 1;
    const uint64_t step_bytes = (uint64_t)(step < rows ? step : rows) * row;

    for (int64_t at = 0; at < rows && bytes > 0; at += step)
        D9D_TRY(D9D_VEC_PUSH(&io->ranges,
                             (row_range){output, at, rows - at < step ? rows - at : step}));
    io->largest = step_bytes > io->largest ? step_bytes : io->largest;
    return D9D_OK;
}

static d9d_status ranges_build(d9d_params_io *io, size_t n, uint64_t *bytes)
{
    *bytes = 0;
    for (size_t i = 0; i < n; i++) {
        const d9d_tensor *t = io->entries[io->target[i]].tensor;

        D9D_TRY(ranges_add(io, i, t));
        *bytes += d9d_tensor_bytes(t);
    }
    return D9D_OK;
}

static d9d_status staging_create(d9d_params_io *io)
{
    const uint64_t want = (uint64_t)d9d_thread_cpus() + IN_FLIGHT;
    uint64_t parts;

    if (io->ranges.len == 0)
        return D9D_OK;
    parts = STAGING_BYTES / io->largest < want ? STAGING_BYTES / io->largest : want;
    return d9d_staging_open(d9d_tensor_device(io->entries[0].tensor), parts < 2 ? 2 : (int)parts,
                            io->largest, &io->staging);
}

static d9d_status sink_begin(void *self, const d9d_safetensors_tensor *outputs, size_t n,
                             size_t *n_items, uint64_t *bytes)
{
    d9d_params_io *io = self;
    d9d_map given = {0};
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < n; i++) {
        const char *name = outputs[i].name;
        const d9d_safetensors_tensor *here = d9d_map_get(&io->by_name, name, strlen(name));

        if (here == NULL) {
            st = D9D_FAIL(D9D_EMISMATCH, "%s: the model has no such parameter", name);
            goto out;
        }
        D9D_TRY_OR(st, output_check(here, &outputs[i]), out);
        D9D_TRY_OR(st, d9d_map_put(&given, name, strlen(name), NULL), out);
        io->target[i] = (size_t)(here - io->tensors);
    }
    for (size_t i = 0; i < io->n; i++)
        if (!io->entries[i].param->spec.from_task &&
            !d9d_map_has(&given, io->tensors[i].name, strlen(io->tensors[i].name))) {
            st =
                D9D_FAIL(D9D_EMISMATCH, "%s: the checkpoint does not have it", io->tensors[i].name);
            goto out;
        }
    D9D_TRY_OR(st, ranges_build(io, n, bytes), out);
    D9D_TRY_OR(st, staging_create(io), out);
    *n_items = io->ranges.len;
out:
    d9d_map_release(&given);
    return st;
}

/* A range of whole rows, quantised to the columns that this rank has. */
static d9d_status read_quantised(d9d_map_reader *reader, const row_range *r, const d9d_param *p,
                                 void *out)
{
    const int64_t start[] = {p->shard.offset[0] + r->first, 0},
                  size[] = {r->n, p->spec.shape.dim[1]};
    void *x = malloc((size_t)(size[0] * size[1]) * d9d_dtype_size(p->spec.dtype) + 1);
    d9d_status st;

    if (x == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %lld rows", p->name, (long long)r->n);
    st = d9d_map_read_slice(reader, r->output, start, size, x);
    if (st == D9D_OK)
        st = d9d_quant_rows(p->spec.stored, p->spec.dtype, x, size[0], size[1], p->shard.offset[1],
                            p->shard.shape.dim[1], out);
    free(x);
    return st;
}

static d9d_status read_elements(d9d_map_reader *reader, const row_range *r, const io_entry *to,
                                void *out)
{
    int64_t start[D9D_MAX_DIMS], size[D9D_MAX_DIMS];

    memcpy(start, to->param->shard.offset, sizeof(start));
    memcpy(size, to->tensor->shape.dim, sizeof(size));
    start[0] += r->first;
    size[0] = r->n;
    return d9d_map_read_slice(reader, r->output, start, size, out);
}

static d9d_status sink_fill(void *self, size_t k, d9d_map_reader *reader)
{
    d9d_params_io *io = self;
    const row_range *p = &io->ranges.data[k];
    const io_entry *to = &io->entries[io->target[p->output]];
    const d9d_shape *box = &to->tensor->shape;
    const uint64_t row = d9d_tensor_bytes(to->tensor) / (uint64_t)(box->ndim > 0 ? box->dim[0] : 1);
    char *at = (char *)d9d_tensor_data(to->tensor) + (uint64_t)p->first * row;
    const uint64_t n = (uint64_t)p->n * row;
    d9d_status st;
    void *buffer;

    D9D_TRY(d9d_staging_acquire(io->staging, at, n, &buffer));
    st = to->param->spec.stored != D9D_QUANT_NONE ? read_quantised(reader, p, to->param, buffer)
                                                  : read_elements(reader, p, to, buffer);
    if (st != D9D_OK) {
        d9d_staging_cancel(io->staging, buffer);
        return st;
    }
    D9D_TRY(d9d_staging_submit(io->staging, at, n, buffer));
    d9d_map_reader_add_progress(reader, n);
    return D9D_OK;
}

d9d_tensor_sink d9d_params_io_sink(d9d_params_io *io)
{
    return (d9d_tensor_sink){.self = io, .begin = sink_begin, .fill = sink_fill};
}
