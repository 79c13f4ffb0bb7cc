/* expert_copies.c - copies of experts on other ranks.  See d9d/nn/expert_copies.h.
 *
 * What a rank sends lies in the order of ranks, of each in the order of its slots.  Slots are in
 * the order of experts, and so of owners: what arrives from the owners are a rank's slots.
 */
#include "d9d/nn/expert_copies.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/device/trace.h"

/* The block's parameters of experts, in the order of `copy`; NULL: there is none. */
static void params_of(d9d_block_moe *b, d9d_param *out[D9D_EXPERT_PARAMS])
{
    d9d_block_grouped_linear *const of[] = {&b->gate_proj, &b->up_proj, &b->down_proj};

    for (int i = 0; i < 3; i++) {
        out[2 * i] = &of[i]->weight;
        out[2 * i + 1] = b->shape.bias ? &of[i]->bias : NULL;
    }
}

static int64_t elements_of(const d9d_param *p)
{
    return d9d_shape_numel(&p->spec.shape) / p->spec.shape.dim[0];
}

d9d_expert_copies_size d9d_expert_copies_bytes(const d9d_block_moe *b, int64_t slots)
{
    const d9d_block_moe_shape *s = &b->shape;
    const d9d_param_spec *p = &b->gate_proj.weight.spec;
    const uint64_t one = (uint64_t)(3 * s->hidden * s->intermediate +
                                    (s->bias ? 2 * s->intermediate + s->hidden : 0));
    const uint64_t all = one * (uint64_t)slots;

    return (d9d_expert_copies_size){
        .weights = all * d9d_dtype_size(p->dtype),
        .gradients = p->trainable ? all * d9d_dtype_size(p->grad_dtype) : 0,
    };
}

/* --- slots -------------------------------------------------------------------------------- */

static d9d_status copy_alloc(d9d_device *dev, const d9d_param *p, int64_t slots, d9d_param *out)
{
    d9d_shape shape = p->spec.shape;

    shape.dim[0] = slots;
    *out = (d9d_param){.name = p->name, .id = p->id, .spec = p->spec};
    out->spec.shape = out->local.shape = out->shard.shape = shape;
    D9D_TRY(d9d_tensor_alloc(dev, p->spec.dtype, shape, &out->local.data));
    return p->spec.trainable ? d9d_tensor_alloc(dev, p->spec.grad_dtype, shape, &out->local.grad)
                             : D9D_OK;
}

static d9d_status number_alloc(d9d_device *dev, int64_t n, d9d_tensor *out)
{
    int32_t *host = malloc((size_t)n * sizeof(*host));
    d9d_status st;

    if (host == NULL)
        return D9D_FAIL(D9D_ENOMEM, "copies of experts: the numbers of %lld", (long long)n);
    for (int64_t i = 0; i < n; i++)
        host[i] = (int32_t)i;
    st = d9d_tensor_from_host(dev, D9D_I32, D9D_SHAPE(n), host, out);
    free(host);
    return st;
}

static d9d_status slots_alloc(d9d_block_moe *b, d9d_device *dev)
{
    d9d_expert_copies *c = b->copies;
    const size_t n = (size_t)(d9d_comm_size(c->group) * c->slots);
    d9d_param *of[D9D_EXPERT_PARAMS];

    params_of(b, of);
    c->expert = malloc(n * sizeof(*c->expert));
    if (c->expert == NULL)
        return D9D_FAIL(D9D_ENOMEM, "copies of experts: no memory for %zu slots", n);
    memset(c->expert, -1, n * sizeof(*c->expert));
    for (int i = 0; i < D9D_EXPERT_PARAMS; i++)
        if (of[i] != NULL)
            D9D_TRY(copy_alloc(dev, of[i], c->slots, &c->copy[i]));
    return number_alloc(dev, b->shape.experts / d9d_comm_size(c->group), &c->number);
}

d9d_status d9d_expert_copies_create(d9d_block_moe *b, d9d_device *dev, d9d_comm *group,
                                    int64_t slots)
{
    d9d_status st;

    assert(slots > 0 && slots * d9d_comm_size(group) <= b->shape.experts);
    b->copies = calloc(1, sizeof(*b->copies));
    if (b->copies == NULL)
        return D9D_FAIL(D9D_ENOMEM, "copies of experts: no memory for a block's");
    b->copies->group = group;
    b->copies->slots = slots;
    st = slots_alloc(b, dev);
    if (st != D9D_OK)
        d9d_expert_copies_free(b);
    return st;
}

void d9d_expert_copies_free(d9d_block_moe *b)
{
    d9d_expert_copies *c = b->copies;

    if (c == NULL)
        return;
    for (int i = 0; i < D9D_EXPERT_PARAMS; i++) {
        d9d_tensor_release(&c->copy[i].local.data);
        d9d_tensor_release(&c->copy[i].local.grad);
    }
    d9d_tensor_release(&c->table);
    d9d_tensor_release(&c->number);
    free(c->expert);
    free(c);
    b->copies = NULL;
}

d9d_op_ffn_weights d9d_expert_copies_weights(d9d_block_moe *b)
{
    d9d_param *c = b->copies->copy;
    const bool bias = b->shape.bias;

    return (d9d_op_ffn_weights){.gate = &c[0],
                                .gate_bias = bias ? &c[1] : NULL,
                                .up = &c[2],
                                .up_bias = bias ? &c[3] : NULL,
                                .down = &c[4],
                                .down_bias = bias ? &c[5] : NULL,
                                .glu = b->shape.glu};
}

/* --- placing ------------------------------------------------------------------------------ */

/* Rows of the table are as long as kernels read them. */
static int64_t table_width(const d9d_block_moe *b)
{
    return (b->shape.experts + 3) / 4 * 4;
}

/* Column e of the table: lane l belongs to the expert's holder l modulo their number, the owner
 * first and then the copies in the order of ranks. */
static void table_fill(const d9d_block_moe *b, int32_t *table)
{
    const d9d_expert_copies *c = b->copies;
    const int ranks = d9d_comm_size(c->group);
    const int64_t per = b->shape.experts / ranks, width = table_width(b);

    for (int64_t e = 0; e < b->shape.experts; e++) {
        int32_t place[D9D_EXPERT_LANES] = {(int32_t)(e / per * 2 * per + e % per)};
        int n = 1;

        for (int64_t i = 0; i < ranks * c->slots && n < D9D_EXPERT_LANES; i++)
            if (c->expert[i] == e)
                place[n++] = (int32_t)(i / c->slots * 2 * per + per + i % c->slots);
        for (int l = 0; l < D9D_EXPERT_LANES; l++)
            table[l * width + e] = place[l % n];
    }
}

d9d_status d9d_expert_copies_place(d9d_block_moe *b, d9d_device *dev, const int32_t *expert)
{
    d9d_expert_copies *c = b->copies;
    const int64_t n = d9d_comm_size(c->group) * c->slots, width = table_width(b);
    int32_t *table = calloc((size_t)(D9D_EXPERT_LANES * width), sizeof(*table));
    d9d_tensor made;
    d9d_status st;

    if (table == NULL)
        return D9D_FAIL(D9D_ENOMEM, "copies of experts: no memory for a table");
    memcpy(c->expert, expert, (size_t)n * sizeof(*expert));
    c->is_fresh = false;
    c->n = 0;
    for (int64_t i = 0; i < n; i++)
        c->n += expert[i] >= 0;
    table_fill(b, table);
    st = d9d_tensor_from_host(dev, D9D_I32, D9D_SHAPE(D9D_EXPERT_LANES, width), table, &made);
    free(table);
    D9D_TRY(st);
    d9d_tensor_release(&c->table);
    c->table = made;
    return D9D_OK;
}

void d9d_expert_copies_expire(d9d_block_moe *b)
{
    if (b->copies != NULL)
        b->copies->is_fresh = false;
}

/* --- exchange ----------------------------------------------------------------------------- */

/* The exchange of one parameter between owners and copies. */
typedef struct exchange {
    d9d_param *of, *copy;
    d9d_tensor packed;     /* on the owner: of the copies, in order */
    int64_t *own, *copies; /* [ranks] elements for each rank's copies; of each owner's */
} exchange;

/* Calls fn for the copies of this rank's experts: number i, of local expert e. */
static d9d_status each_copy(const d9d_block_moe *b, const exchange *x, d9d_device *dev,
                            d9d_status (*fn)(const exchange *x, d9d_device *dev, int64_t i,
                                             int64_t e))
{
    const d9d_expert_copies *c = b->copies;
    const int ranks = d9d_comm_size(c->group);
    const int64_t per = b->shape.experts / ranks, first = d9d_comm_rank(c->group) * per;
    int64_t n = 0;

    for (int64_t i = 0; i < ranks * c->slots; i++)
        if (c->expert[i] >= first && c->expert[i] < first + per)
            D9D_TRY(fn(x, dev, n++, c->expert[i] - first));
    return D9D_OK;
}

static void *element(const d9d_tensor *t, int64_t i)
{
    return (char *)d9d_tensor_data(t) + (uint64_t)i * d9d_dtype_size(t->dtype);
}

static d9d_status pack_weight(const exchange *x, d9d_device *dev, int64_t i, int64_t e)
{
    const int64_t n = elements_of(x->of);

    return d9d_device_copy(dev, element(&x->packed, i * n), element(&x->of->local.data, e * n),
                           (uint64_t)n * d9d_dtype_size(x->packed.dtype));
}

static d9d_status add_grad(const exchange *x, d9d_device *dev, int64_t i, int64_t e)
{
    const int64_t n = elements_of(x->of);
    const d9d_dtype t = x->packed.dtype;
    const d9d_pointwise_dims add = {.f = D9D_POINTWISE_ADD,
                                    .of = D9D_POINTWISE_VALUE,
                                    .ndim = 1,
                                    .dim = {n},
                                    .yt = t,
                                    .x = {{t, {1}}, {t, {1}}}};
    void *to = element(&x->of->local.grad, e * n);

    return dev->kernels->math->pointwise(
        dev->stream, &add, to,
        (const void *const[D9D_POINTWISE_INPUTS]){to, element(&x->packed, i * n)});
}

/* Counts of elements, and the owner's buffer. */
static d9d_status exchange_open(const d9d_block_moe *b, d9d_device *dev, d9d_dtype t, exchange *x)
{
    const d9d_expert_copies *c = b->copies;
    const int ranks = d9d_comm_size(c->group), me = d9d_comm_rank(c->group);
    const int64_t per = b->shape.experts / ranks, n = elements_of(x->of);
    int64_t sent = 0;

    x->own = calloc(2 * (size_t)ranks, sizeof(*x->own));
    if (x->own == NULL)
        return D9D_FAIL(D9D_ENOMEM, "copies of experts: no memory for %d ranks", ranks);
    x->copies = x->own + ranks;
    for (int64_t i = 0; i < ranks * c->slots; i++) {
        if (c->expert[i] < 0)
            continue;
        x->own[i / c->slots] += c->expert[i] / per == me ? n : 0;
        x->copies[c->expert[i] / per] += i / c->slots == me ? n : 0;
    }
    for (int r = 0; r < ranks; r++)
        sent += x->own[r];
    return d9d_tensor_alloc(dev, t, D9D_SHAPE(sent > 0 ? sent : 1), &x->packed);
}

static void exchange_close(exchange *x)
{
    d9d_tensor_release(&x->packed);
    free(x->own);
    *x = (exchange){.of = x->of, .copy = x->copy};
}

/* The block's exchanges, of n parameters. */
static int exchanges_list(d9d_block_moe *b, bool grads, exchange *out)
{
    d9d_param *of[D9D_EXPERT_PARAMS];
    int n = 0;

    params_of(b, of);
    for (int i = 0; i < D9D_EXPERT_PARAMS; i++)
        if (of[i] != NULL && (!grads || of[i]->spec.trainable))
            out[n++] = (exchange){.of = of[i], .copy = &b->copies->copy[i]};
    return n;
}

/* All parameters in one coalesced call, to copies or from them. */
static d9d_status exchange_all(const d9d_block_moe *b, d9d_device *dev, exchange *x, int n,
                               bool to_copies)
{
    d9d_comm *c = b->copies->group;
    d9d_stream queue = d9d_comm_stream(c), stream = queue != NULL ? queue : dev->stream;
    d9d_status st = D9D_OK, ended;

    D9D_TRY(d9d_comm_wait_stream(c, dev->stream));
    d9d_trace_stream_range_begin(dev, queue, "copies", x->of->name);
    D9D_TRY(d9d_comm_group_start(c));
    for (int i = 0; i < n && st == D9D_OK; i++) {
        void *own = d9d_tensor_data(&x[i].packed);
        const d9d_param_part *copy = &x[i].copy->local;

        st = to_copies
                 ? d9d_comm_all_to_all(c, stream, x[i].of->name, x[i].packed.dtype,
                                       d9d_tensor_data(&copy->data), x[i].copies, own, x[i].own)
                 : d9d_comm_all_to_all(c, stream, x[i].of->name, x[i].packed.dtype, own, x[i].own,
                                       d9d_tensor_data(&copy->grad), x[i].copies);
    }
    ended = d9d_comm_group_end(c);
    d9d_trace_stream_range_end(dev, queue);
    D9D_TRY(st != D9D_OK ? st : ended);
    return d9d_stream_wait_comm(c, dev->stream);
}

static d9d_status fetch(const d9d_block_moe *b, d9d_device *dev, exchange *x, int n)
{
    for (int i = 0; i < n; i++) {
        D9D_TRY(exchange_open(b, dev, x[i].of->spec.dtype, &x[i]));
        D9D_TRY(each_copy(b, &x[i], dev, pack_weight));
    }
    return exchange_all(b, dev, x, n, true);
}

d9d_status d9d_expert_copies_fetch(d9d_block_moe *b, d9d_device *dev)
{
    exchange x[D9D_EXPERT_PARAMS];
    d9d_status st;
    int n;

    if (b->copies == NULL || b->copies->n == 0 || b->copies->is_fresh)
        return D9D_OK;
    n = exchanges_list(b, false, x);
    st = fetch(b, dev, x, n);
    for (int i = 0; i < n; i++)
        exchange_close(&x[i]);
    b->copies->is_fresh = st == D9D_OK;
    return st;
}

/* A gradient that nothing was added to counts as zero. */
static d9d_status grad_settle(d9d_param *p, d9d_device *dev)
{
    D9D_TRY(d9d_param_grad_alloc(p));
    if (p->local.has_grad)
        return D9D_OK;
    p->local.has_grad = true;
    return dev->kernels->elementwise->fill(dev->stream, p->spec.grad_dtype,
                                           d9d_tensor_data(&p->local.grad),
                                           d9d_tensor_numel(&p->local.grad), 0);
}

static d9d_status reduce(const d9d_block_moe *b, d9d_device *dev, exchange *x, int n)
{
    for (int i = 0; i < n; i++) {
        D9D_TRY(grad_settle(x[i].of, dev));
        D9D_TRY(grad_settle(x[i].copy, dev));
        D9D_TRY(exchange_open(b, dev, x[i].of->spec.grad_dtype, &x[i]));
    }
    D9D_TRY(exchange_all(b, dev, x, n, false));
    for (int i = 0; i < n; i++)
        D9D_TRY(each_copy(b, &x[i], dev, add_grad));
    return D9D_OK;
}

d9d_status d9d_expert_copies_reduce(d9d_block_moe *b, d9d_device *dev)
{
    exchange x[D9D_EXPERT_PARAMS];
    d9d_status st;
    int n;

    if (b->copies == NULL || b->copies->n == 0)
        return D9D_OK;
    n = exchanges_list(b, true, x);
    if (n == 0)
        return D9D_OK;
    st = reduce(b, dev, x, n);
    for (int i = 0; i < n; i++) {
        d9d_param_grad_clear(x[i].copy);
        exchange_close(&x[i]);
    }
    return st;
}
