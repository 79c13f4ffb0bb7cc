/* params_io.c - see d9d/model/params_io.h. */
#include "d9d/model/params_io.h"

#include <stdlib.h>
#include <string.h>

typedef struct piece {
    size_t output;
    uint64_t at, n; /* bytes */
} piece;

struct d9d_params_io {
    d9d_st_tensor *tensors; /* as they are here */
    const d9d_tensor **held;
    size_t n;
    size_t *target;        /* sink: output i goes to held[target[i]] */
    D9D_VEC(piece) pieces; /* sink: what is filled at once */
    d9d_map by_name;
};

static d9d_status entry_add(d9d_params_io *io, const d9d_param *p, const d9d_tensor *t)
{
    d9d_st_tensor *e = &io->tensors[io->n];

    if (!d9d_shape_equal(&p->box, &p->whole))
        return D9D_FAIL(D9D_ENOTSUP, "%s: only a part of it is held here", p->name);
    if (t->storage == NULL)
        return D9D_FAIL(D9D_EINVAL, "%s: has no memory yet", p->name);
    e->name = p->name;
    e->dtype = t->dtype;
    e->ndim = p->whole.ndim;
    memcpy(e->shape, p->whole.dim, sizeof(e->shape));
    e->bytes = d9d_tensor_bytes(t);
    io->held[io->n] = t;
    D9D_TRY(d9d_map_put(&io->by_name, p->name, strlen(p->name), e));
    io->n++;
    return D9D_OK;
}

d9d_status d9d_params_io_open(const d9d_params *params, d9d_params_which which, d9d_params_io **out)
{
    d9d_params_io *io = calloc(1, sizeof(*io));
    d9d_status st = D9D_OK;

    if (io == NULL)
        return D9D_FAIL(D9D_ENOMEM, "parameters: %zu bytes", sizeof(*io));
    io->tensors = calloc(params->n + 1, sizeof(*io->tensors));
    io->held = calloc(params->n + 1, sizeof(*io->held));
    io->target = calloc(params->n + 1, sizeof(*io->target));
    if (io->tensors == NULL || io->held == NULL || io->target == NULL) {
        st = D9D_FAIL(D9D_ENOMEM, "parameters: records of %zu", params->n);
        goto out;
    }
    for (size_t i = 0; i < params->n; i++) {
        const d9d_param *p = params->p[i];

        if (which == D9D_PARAMS_DATA || p->trainable)
            D9D_TRY_OR(st, entry_add(io, p, which == D9D_PARAMS_DATA ? &p->own : &p->own_grad), out);
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
    free(io->held);
    free(io->target);
    D9D_VEC_RELEASE(&io->pieces);
    free(io);
}

/* --- source --------------------------------------------------------------------- */

static const d9d_st_tensor *source_at(void *self, size_t i)
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
    const d9d_tensor *t = ((d9d_params_io *)self)->held[i];

    return d9d_device_download(d9d_tensor_device(t), dst, (char *)d9d_tensor_data(t) + at, n);
}

d9d_source d9d_params_io_source(d9d_params_io *io)
{
    return (d9d_source){
        .self = io, .n = io->n, .at = source_at, .place = source_place, .read = source_read};
}

/* --- sink ------------------------------------------------------------------------- */

static d9d_status output_check(const d9d_st_tensor *here, const d9d_st_tensor *given)
{
    d9d_shape want = {.ndim = here->ndim}, got = {.ndim = given->ndim};
    char a[96], b[96];

    memcpy(want.dim, here->shape, sizeof(want.dim));
    memcpy(got.dim, given->shape, sizeof(got.dim));
    if (here->dtype == given->dtype && d9d_shape_equal(&want, &got))
        return D9D_OK;
    return D9D_FAIL(D9D_EMISMATCH, "%s: the model has %s %s, the checkpoint %s %s", here->name,
                    d9d_dtype_word(here->dtype), d9d_shape_text(&want, a, sizeof(a)),
                    d9d_dtype_word(given->dtype), d9d_shape_text(&got, b, sizeof(b)));
}

/* Whole matrices of a stack: half of one that lies transposed would be read with the other. */
static uint64_t piece_bytes(const d9d_st_tensor *t)
{
    uint64_t matrix = t->ndim < 3 ? 1 : t->bytes / (uint64_t)t->shape[0];

    return matrix >= D9D_PIECE_BYTES ? matrix : D9D_PIECE_BYTES / matrix * matrix;
}

static d9d_status pieces_make(d9d_params_io *io, const d9d_st_tensor *outputs, size_t n,
                              uint64_t *bytes)
{
    *bytes = 0;
    for (size_t i = 0; i < n; i++) {
        const uint64_t size = outputs[i].bytes, step = size > 0 ? piece_bytes(&outputs[i]) : 0;

        for (uint64_t at = 0; at < size; at += step)
            D9D_TRY(D9D_VEC_PUSH(&io->pieces, (piece){i, at, size - at < step ? size - at : step}));
        *bytes += size;
    }
    return D9D_OK;
}

static d9d_status sink_begin(void *self, const d9d_st_tensor *outputs, size_t n, size_t *pieces,
                             uint64_t *bytes)
{
    d9d_params_io *io = self;
    d9d_map given = {0};
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < n; i++) {
        const char *name = outputs[i].name;
        const d9d_st_tensor *here = d9d_map_get(&io->by_name, name, strlen(name));

        if (here == NULL) {
            st = D9D_FAIL(D9D_EMISMATCH, "%s: the model has no such parameter", name);
            goto out;
        }
        D9D_TRY_OR(st, output_check(here, &outputs[i]), out);
        D9D_TRY_OR(st, d9d_map_put(&given, name, strlen(name), NULL), out);
        io->target[i] = (size_t)(here - io->tensors);
    }
    for (size_t i = 0; i < io->n; i++)
        if (!d9d_map_has(&given, io->tensors[i].name, strlen(io->tensors[i].name))) {
            st =
                D9D_FAIL(D9D_EMISMATCH, "%s: the checkpoint does not have it", io->tensors[i].name);
            goto out;
        }
    D9D_TRY_OR(st, pieces_make(io, outputs, n, bytes), out);
    *pieces = io->pieces.len;
out:
    d9d_map_release(&given);
    return st;
}

/* Straight into memory of the host; to a device by way of it. */
static d9d_status sink_fill(void *self, size_t k, d9d_maker *make)
{
    d9d_params_io *io = self;
    const piece *p = &io->pieces.data[k];
    const d9d_tensor *t = io->held[io->target[p->output]];
    d9d_device *dev = d9d_tensor_device(t);
    char *to = (char *)d9d_tensor_data(t) + p->at;
    const bool host = strcmp(dev->name, "cpu") == 0;
    void *room = to;

    if (!host)
        D9D_TRY(d9d_maker_room(make, p->n, &room));
    D9D_TRY(d9d_make(make, p->output, p->at, room, p->n));
    if (!host)
        D9D_TRY(d9d_device_upload(dev, to, room, p->n));
    d9d_maker_done(make, p->n);
    return D9D_OK;
}

d9d_sink d9d_params_io_sink(d9d_params_io *io)
{
    return (d9d_sink){.self = io, .begin = sink_begin, .fill = sink_fill};
}
