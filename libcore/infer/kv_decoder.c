/* kv_decoder.c - see infer/kv_decoder.h.
 *
 * What a call's kernels read is one block of integers, sent at once: T tokens, their positions and
 * cells, N segments and their rows, and the last token of each piece.  With tp ranks tokens are
 * filled up to whole rows a rank; those have cells of their own behind those of all rows.
 */
#include "infer/kv_decoder.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/plugin_call.h"
#include "d9d/device/readback.h"

enum {
    ALIGNED = 64, /* integers: kernels want 16 bytes, a GPU's memory likes 256 */
    UNDER_WAY = 2 /* calls */
};

struct d9di_stepper {
    d9di_engine *engine;
    d9d_tape *tape;
    d9d_cache cache;
    int64_t rows, room; /* a row's cells are [row * room, (row + 1) * room) */
    int64_t fill;       /* tokens are a multiple of this */
    D9D_VEC(int32_t) host;
    d9d_tensor block;
    void *pinned;                  /* [rows, V] floats: logits, unless it chooses */
    int64_t most;                  /* tokens of a call that takes those chosen */
    d9d_tensor chosen;             /* [2 most]: tokens, and logits, which are floats */
    d9d_readback *read[UNDER_WAY]; /* of all of chosen */
    unsigned sent, taken;          /* calls */
};

/* Where the arrays of a call are in its block. */
typedef struct layout {
    int64_t tokens, pieces, filled; /* filled: of the tokens, to make a whole */
    int64_t ids, positions, at, segments, rows, pick, all;
} layout;

/* Of a pipeline this rank's one stage. */
static d9d_model *model_of(const d9di_engine *e)
{
    return e->stages[0].model;
}

static int64_t multiple(const d9di_engine *e)
{
    return d9d_comm_size(model_of(e)->cut.tp);
}

/* Cells of tokens: those that are filled up with have some, and a row, of their own. */
static int64_t tokens_of(const d9di_engine *e, int64_t rows, int64_t room)
{
    return rows * room + multiple(e);
}

uint64_t d9di_stepper_bytes(const d9di_engine *e, int64_t rows, int64_t room)
{
    return d9d_cache_bytes(model_of(e), tokens_of(e, rows, room), rows + 1);
}

static int64_t up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* Room for what is chosen: of the rows, and of tokens that are filled up with any. */
static d9d_status chosen_open(d9di_stepper *d)
{
    d9d_device *dev = d->engine->dev;
    int32_t *zeros;
    d9d_status st;

    d->most = up(d->rows + d->fill, ALIGNED);
    zeros = calloc(2 * (size_t)d->most, sizeof(*zeros));
    if (zeros == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory to generate with");
    st = d9d_tensor_from_host(dev, D9D_I32, D9D_SHAPE(2 * d->most), zeros, &d->chosen);
    free(zeros);
    for (int i = 0; st == D9D_OK && i < UNDER_WAY; i++)
        st = d9d_readback_create(dev, d9d_tensor_bytes(&d->chosen), &d->read[i]);
    return st;
}

d9d_status d9di_stepper_open(d9di_engine *e, int64_t rows, int64_t room, bool chooses,
                             d9di_stepper **out)
{
    d9di_stepper *d = calloc(1, sizeof(*d));
    d9d_status st;

    if (d == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory to generate with");
    d->engine = e;
    d->rows = rows;
    d->room = room;
    d->fill = multiple(e);
    D9D_TRY_OR(st, d9d_tape_create(e->dev, &d->tape), out);
    d9d_tape_set_recording(d->tape, false);
    d9d_tape_set_still(d->tape, true);
    D9D_TRY_OR(st,
               d9d_cache_create(model_of(e), e->dev, tokens_of(e, rows, room), rows + 1, &d->cache),
               out);
    st = chooses ? chosen_open(d)
                 : d9d_device_pin(e->dev, (uint64_t)(rows * e->whole->vocab) * sizeof(float),
                                  &d->pinned);
    if (st != D9D_OK)
        goto out;
    *out = d;
    d = NULL;
out:
    d9di_stepper_close(d);
    return st;
}

void d9di_stepper_close(d9di_stepper *d)
{
    if (d == NULL)
        return;
    d9d_tensor_release(&d->block);
    d9d_tensor_release(&d->chosen);
    for (int i = 0; i < UNDER_WAY; i++)
        d9d_readback_free(d->read[i]);
    d9d_tape_free(d->tape);
    d9d_device_unpin(d->engine->dev, d->pinned);
    d9d_cache_release(&d->cache);
    D9D_VEC_RELEASE(&d->host);
    free(d);
}

/* --- what is sent ------------------------------------------------------------------------------
 */

static layout layout_of(const d9di_stepper *d, const d9di_generation_chunk *pieces, size_t n)
{
    layout l = {.pieces = (int64_t)n};
    int64_t given = 0;

    for (size_t i = 0; i < n; i++)
        given += pieces[i].n;
    l.tokens = up(given > 0 ? given : 1, d->fill);
    l.filled = l.tokens - given;
    l.ids = 0;
    l.positions = up(l.ids + l.tokens, ALIGNED);
    l.at = up(l.positions + l.tokens, ALIGNED);
    l.segments = up(l.at + l.tokens, ALIGNED);
    l.rows = up(l.segments + 4 * (l.pieces + 1), ALIGNED);
    l.pick = up(l.rows + l.pieces + 1, ALIGNED);
    l.all = up(l.pick + l.pieces + 1, ALIGNED);
    return l;
}

static void put_piece(const d9di_stepper *d, const layout *l, int32_t *b, int64_t *token, int64_t i,
                      const d9di_generation_chunk *p)
{
    const int64_t cell = p->row * d->room + p->first;
    const int32_t segment[] = {(int32_t)*token, (int32_t)p->n, (int32_t)(p->row * d->room),
                               (int32_t)(p->first + p->n)};

    for (int64_t j = 0; j < p->n; j++, ++*token) {
        b[l->ids + *token] = p->ids != NULL ? (int32_t)p->ids[j] : 0;
        b[l->positions + *token] = (int32_t)(p->first + j);
        b[l->at + *token] = (int32_t)(cell + j);
    }
    memcpy(b + l->segments + 4 * i, segment, sizeof(segment));
    b[l->rows + i] = (int32_t)p->row;
    b[l->pick + i] = (int32_t)(*token - 1);
}

static d9d_status block_send(d9di_stepper *d, const layout *l, const d9di_generation_chunk *pieces)
{
    const d9di_generation_chunk fill = {.row = d->rows, .n = l->filled};
    int64_t token = 0, i;
    int32_t *b;

    d->host.len = 0;
    D9D_TRY(D9D_VEC_RESERVE(&d->host, (size_t)l->all));
    b = d->host.data;
    memset(b, 0, (size_t)l->all * sizeof(*b));
    for (i = 0; i < l->pieces; i++)
        put_piece(d, l, b, &token, i, &pieces[i]);
    if (l->filled > 0)
        put_piece(d, l, b, &token, i, &fill);
    d9d_tensor_release(&d->block);
    return d9d_tensor_from_host(d->engine->dev, D9D_I32, D9D_SHAPE(l->all), b, &d->block);
}

/* --- a call -------------------------------------------------------------------------------------
 */

static d9d_tensor part(const d9d_tensor *of, int64_t first, d9d_shape shape)
{
    d9d_tensor flat = d9d_tensor_rows(of, first, d9d_shape_numel(&shape));
    d9d_tensor t = d9d_tensor_reshape(&flat, shape);

    d9d_tensor_release(&flat);
    return t;
}

/* The hidden states that the stage before has made; none for the first. */
static d9d_status take(d9di_stepper *d, const layout *l, d9d_var **out)
{
    const d9di_engine *e = d->engine;
    const d9d_model *m = model_of(e);
    const int64_t tp = multiple(e);
    d9d_tensor x;
    d9d_status st;

    if (d9d_stage_is_first(m->stage))
        return D9D_OK;
    D9D_TRY(d9d_tensor_alloc(
        e->dev, e->spec.options.dtype,
        tp > 1 ? D9D_SHAPE(l->tokens / tp, m->hidden) : D9D_SHAPE(1, l->tokens, m->hidden), &x));
    st = d9d_comm_recv(e->down, e->dev->stream, "hidden states", x.dtype, d9d_tensor_data(&x),
                       d9d_tensor_numel(&x), e->pipe_rank - 1);
    if (st == D9D_OK)
        st = d9d_tape_leaf(d->tape, &x, false, out);
    d9d_tensor_release(&x);
    return st;
}

/* Of logits [n, V] what is wanted, on its way to the host. */
static d9d_status fetch(d9di_stepper *d, const float *logits, int64_t n)
{
    const d9di_engine *e = d->engine;
    const int64_t vocab = e->whole->vocab;
    int32_t *token = d9d_tensor_data(&d->chosen);

    if (d->pinned != NULL)
        return d9d_device_download(e->dev, d->pinned, logits,
                                   (uint64_t)(n * vocab) * sizeof(float));
    D9D_TRY(e->dev->kernels->largest(e->dev->stream, token, (float *)(token + d->most), logits, n,
                                     vocab));
    return d9d_readback_begin(d->read[d->sent % UNDER_WAY], token);
}

/* To the next stage; or of the last one's logits a copy to every stage, which all choose by. */
static d9d_status give(d9di_stepper *d, const layout *l, const d9d_model_out *out)
{
    const d9di_engine *e = d->engine;
    const d9d_model *m = model_of(e);
    const bool last = d9d_stage_is_last(m->stage);
    const d9d_shape shape = D9D_SHAPE(l->pieces, m->vocab);
    d9d_tensor x = d9d_tensor_ref(d9d_var_tensor(last ? out->logits : out->hidden));
    d9d_status st = D9D_OK;

    if (!last) {
        st = d9d_comm_send(e->down, e->dev->stream, "hidden states", x.dtype, d9d_tensor_data(&x),
                           d9d_tensor_numel(&x), e->pipe_rank + 1);
        d9d_tensor_release(&x);
        D9D_TRY(st);
        D9D_TRY(d9d_tensor_alloc(e->dev, D9D_F32, shape, &x));
    }
    st = d9d_comm_broadcast(e->down, e->dev->stream, "logits", D9D_F32, d9d_tensor_data(&x),
                            d9d_shape_numel(&shape), e->pipe_ranks - 1);
    if (st == D9D_OK)
        st = fetch(d, d9d_tensor_data(&x), l->pieces);
    d9d_tensor_release(&x);
    return st;
}

/* Tokens are in the block, or what the call before has chosen. */
static d9d_status forward(d9di_stepper *d, const layout *l, bool chosen, d9d_model_out *out)
{
    const int64_t segments = l->pieces + (l->filled > 0);
    d9d_tensor t[] = {
        part(chosen ? &d->chosen : &d->block, chosen ? 0 : l->ids, D9D_SHAPE(1, l->tokens)),
        part(&d->block, l->positions, D9D_SHAPE(1, l->tokens)),
        part(&d->block, l->at, D9D_SHAPE(l->tokens)),
        part(&d->block, l->segments, D9D_SHAPE(segments, 4)),
        part(&d->block, l->pick, D9D_SHAPE(l->pieces > 0 ? l->pieces : 1)),
        part(&d->block, l->rows, D9D_SHAPE(segments))};
    d9d_model_in in = {.ids = &t[0],
                       .positions = &t[1],
                       .segments = &t[3],
                       .cache = &d->cache,
                       .at = &t[2],
                       .pick = &t[4],
                       .rows = &t[5]};
    d9d_model *m = model_of(d->engine);
    d9d_status st = take(d, l, &in.hidden);

    if (st == D9D_OK)
        st = D9D_CALL(m->ops->name, m->ops, forward, m, d->tape, &in, out);
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++)
        d9d_tensor_release(&t[i]);
    return st;
}

d9d_status d9di_stepper_send(d9di_stepper *d, const d9di_generation_chunk *pieces, size_t n)
{
    const layout l = layout_of(d, pieces, n);
    const bool chosen = n > 0 && pieces[0].ids == NULL;
    d9d_model_out out;
    d9d_status st;

    assert(d->sent - d->taken < (d->pinned != NULL ? 1 : UNDER_WAY));
    D9D_TRY(block_send(d, &l, pieces));
    st = forward(d, &l, chosen, &out);
    if (st == D9D_OK)
        st = give(d, &l, &out);
    d9d_tape_reset(d->tape);
    d->sent += st == D9D_OK;
    return st;
}

d9d_status d9di_stepper_take(d9di_stepper *d, d9di_next *out)
{
    const void *chosen;

    *out = (d9di_next){.logits = d->pinned};
    if (d->pinned == NULL) {
        D9D_TRY(d9d_readback_end(d->read[d->taken % UNDER_WAY], &chosen));
        out->token = chosen;
        out->largest = (const float *)(out->token + d->most);
    }
    d->taken++;
    return D9D_OK;
}
