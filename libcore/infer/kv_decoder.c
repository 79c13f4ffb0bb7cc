/* kv_decoder.c - see infer/kv_decoder.h.
 *
 * The integer inputs of a call are one block, uploaded in one copy: T tokens with their positions
 * and KV cache slots, N segments with prefixes and sequences, and the last token and the random
 * number of each input.
 * With tensor parallelism, tokens are padded to a multiple of the tp ranks; padding has slots of
 * its own after those of all sequences.
 *
 * A call goes through the stages of the pipeline one by one, whatever the schedule of training is:
 *
 *     rank 0   0 -.           .- 3 -> logits
 *     rank 1       `-> 1    2 '            zero_bubble_v on two ranks
 */
#include "infer/kv_decoder.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/plugin_call.h"
#include "d9d/device/graph.h"

enum {
    ALIGN_INTS = 64, /* integers: kernels require 16-byte alignment; 256 bytes suit GPU memory */
    DRAW_INTS = 4,   /* of a random number: two of 64 bits */
    MAX_IN_FLIGHT = D9DI_SAMPLER_READBACKS, /* calls */
    MAX_GRAPH_ROWS = 16,
    CALLS_BEFORE_GRAPH = 2
};

/* A call of chosen tokens, one for each of some sequences: the same kernels each time, recorded
 * after a few calls, when nothing is left to allocate. */
typedef struct decode_graph {
    int calls;
    d9d_tensor block; /* its input block */
    d9d_graph *graph; /* NULL: not recorded */
} decode_graph;

/* A stage of this rank. */
typedef struct decoder_stage {
    d9d_model *model; /* borrowed */
    d9d_kv_cache cache;
    d9d_stage_spec taken[D9D_STAGE_TENSORS_MAX], given[D9D_STAGE_TENSORS_MAX];
    size_t n_taken, n_given;
} decoder_stage;

struct d9di_kv_decoder {
    d9di_engine *engine;
    d9d_tape *tape;
    decoder_stage *stages;    /* [engine->n_stages] */
    d9d_kv_cache_dtype dtype; /* of the cache */
    int64_t rows, max_tokens; /* slots of a sequence: [row * max_tokens, (row + 1) * max_tokens) */
    int64_t fill;             /* tokens of a call are padded to a multiple of this */
    D9D_VEC(int32_t) host;
    d9d_tensor block;
    d9di_token_sampler *sampler;
    decode_graph graph[MAX_GRAPH_ROWS + 1]; /* by number of sequences */
    bool no_graphs;                         /* recording failed */
    unsigned n_enqueued, n_waited;          /* number of calls */
};

/* Offsets of a call's arrays in its block. */
typedef struct input_layout {
    int64_t tokens, inputs, filled; /* filled: tokens including padding */
    int64_t ids, positions, at, segments, prefix, rows, pick, alone, draws, all;
    bool has_prefix; /* of some input */
} input_layout;

/* All stages have the same groups. */
static int64_t token_multiple(const d9di_engine *e)
{
    return d9d_comm_size(e->models[0]->groups.tp);
}

/* Number of cache slots; padding tokens have some of their own, as one more sequence. */
static int64_t cache_tokens(const d9di_engine *e, int64_t rows, int64_t max_tokens)
{
    return rows * max_tokens + token_multiple(e);
}

uint64_t d9di_kv_decoder_bytes(const d9di_engine *e, d9d_kv_cache_dtype t, int64_t rows,
                               int64_t max_tokens)
{
    uint64_t sum = 0;

    for (size_t k = 0; k < e->n_stages; k++)
        sum += d9d_kv_cache_bytes(e->models[k], t, cache_tokens(e, rows, max_tokens), rows + 1);
    return sum;
}

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* Calls take the chosen tokens of all sequences, and padding. */
static d9d_status open_sampler(d9di_kv_decoder *d, const d9di_kv_decoder_opts *opts)
{
    const d9di_engine *e = d->engine;
    const d9di_token_sampler_sizes sizes = {.vocab = e->whole.model->vocab,
                                            .tokens = d->rows + d->fill,
                                            .slots = cache_tokens(e, d->rows, d->max_tokens),
                                            .keeps = opts->keeps};

    return d9di_token_sampler_open(e->dev, &opts->sampler, &sizes, &d->sampler);
}

/* Prompts have no fields, by whose rows a stage's tensors could count. */
static d9d_status check_specs(const d9d_model *m, const d9d_stage_spec *specs, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (specs[i].field != NULL)
            return D9D_FAIL(
                D9D_ENOTSUP,
                "%s: its stages pass on \"%s\" with the rows of the field \"%s\", which "
                "prompts do not have; generate without a pipeline",
                m->ops->name, specs[i].name, specs[i].field);
    return D9D_OK;
}

/* What enters a stage and the next one. */
static d9d_status find_specs(decoder_stage *s)
{
    const d9d_model *m = s->model;
    const int stage = m->stage.index;

    if (!d9d_stage_is_first(m->stage))
        D9D_TRY(d9d_model_stage_specs(m, stage, s->taken, &s->n_taken));
    if (!d9d_stage_is_last(m->stage))
        D9D_TRY(d9d_model_stage_specs(m, stage + 1, s->given, &s->n_given));
    D9D_TRY(check_specs(m, s->taken, s->n_taken));
    return check_specs(m, s->given, s->n_given);
}

/* No backward follows the forwards of a decoder. */
static d9d_status open_stage(d9di_kv_decoder *d, size_t k)
{
    d9di_engine *e = d->engine;
    decoder_stage *s = &d->stages[k];

    s->model = e->models[k];
    D9D_TRY(find_specs(s));
    d9d_fsdp_pre_forward(e->stages[k].sharded, false, false);
    return d9d_kv_cache_create(s->model, e->dev, d->dtype, cache_tokens(e, d->rows, d->max_tokens),
                               d->rows + 1, &s->cache);
}

static d9d_status open_stages(d9di_kv_decoder *d)
{
    d->stages = calloc(d->engine->n_stages, sizeof(*d->stages));
    if (d->stages == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory to generate with");
    for (size_t k = 0; k < d->engine->n_stages; k++)
        D9D_TRY(open_stage(d, k));
    return D9D_OK;
}

d9d_status d9di_kv_decoder_open(d9di_engine *e, const d9di_kv_decoder_opts *opts,
                                d9di_kv_decoder **out)
{
    d9di_kv_decoder *d = calloc(1, sizeof(*d));
    d9d_status st;

    if (d == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory to generate with");
    d->engine = e;
    d->dtype = opts->cache;
    d->rows = opts->rows;
    d->max_tokens = opts->max_tokens;
    d->fill = token_multiple(e);
    D9D_TRY_OR(st, d9d_tape_create(e->dev, &d->tape), out);
    d9d_tape_set_recording(d->tape, false);
    d9d_tape_set_weights_constant(d->tape, true);
    D9D_TRY_OR(st, open_stages(d), out);
    D9D_TRY_OR(st, open_sampler(d, opts), out);
    *out = d;
    d = NULL;
out:
    d9di_kv_decoder_close(d);
    return st;
}

void d9di_kv_decoder_close(d9di_kv_decoder *d)
{
    if (d == NULL)
        return;
    d9d_tensor_release(&d->block);
    for (int i = 0; i <= MAX_GRAPH_ROWS; i++) {
        d9d_graph_free(d->graph[i].graph);
        d9d_tensor_release(&d->graph[i].block);
    }
    d9di_token_sampler_close(d->sampler);
    d9d_tape_free(d->tape);
    for (size_t k = 0; d->stages != NULL && k < d->engine->n_stages; k++)
        d9d_kv_cache_release(&d->stages[k].cache);
    free(d->stages);
    D9D_VEC_RELEASE(&d->host);
    free(d);
}

/* --- the input block ------------------------------------------------------------------ */

static input_layout make_layout(const d9di_kv_decoder *d, const d9di_kv_decoder_input *inputs,
                                size_t n)
{
    input_layout l = {.inputs = (int64_t)n};
    int64_t given = 0;

    for (size_t i = 0; i < n; i++) {
        given += inputs[i].n;
        l.has_prefix |= inputs[i].prefix > 0;
    }
    l.tokens = round_up(given > 0 ? given : 1, d->fill);
    l.filled = l.tokens - given;
    l.ids = 0;
    l.positions = round_up(l.ids + l.tokens, ALIGN_INTS);
    l.at = round_up(l.positions + l.tokens, ALIGN_INTS);
    l.segments = round_up(l.at + l.tokens, ALIGN_INTS);
    l.prefix = round_up(l.segments + 4 * (l.inputs + 1), ALIGN_INTS);
    l.rows = round_up(l.prefix + l.inputs + 1, ALIGN_INTS);
    l.pick = round_up(l.rows + l.inputs + 1, ALIGN_INTS);
    l.alone = round_up(l.pick + l.inputs + 1, ALIGN_INTS);
    l.draws = round_up(l.alone + 4, ALIGN_INTS);
    l.all = round_up(l.draws + DRAW_INTS * (l.inputs + 1), ALIGN_INTS);
    return l;
}

static void write_input(const d9di_kv_decoder *d, const input_layout *l, int32_t *b, int64_t *token,
                        int64_t i, const d9di_kv_decoder_input *p)
{
    const int64_t slot = p->row * d->max_tokens + p->first;
    const int32_t segment[] = {(int32_t)*token, (int32_t)p->n, (int32_t)(p->row * d->max_tokens),
                               (int32_t)(p->first + p->n)};
    const int64_t draw[] = {(int64_t)p->stream, p->first + p->n};

    for (int64_t j = 0; j < p->n; j++, ++*token) {
        b[l->ids + *token] = p->ids != NULL ? (int32_t)p->ids[j] : 0;
        b[l->positions + *token] = (int32_t)(p->first + j);
        b[l->at + *token] = (int32_t)(slot + j);
    }
    memcpy(b + l->segments + 4 * i, segment, sizeof(segment));
    memcpy(b + l->draws + DRAW_INTS * i, draw, sizeof(draw));
    b[l->prefix + i] = (int32_t)p->prefix;
    b[l->rows + i] = (int32_t)p->row;
    b[l->pick + i] = (int32_t)(*token - 1);
}

/* The call has one sequence and no padding: d9d_tape_prefill. */
static bool is_alone(const input_layout *l)
{
    return l->inputs == 1 && l->filled == 0;
}

/* Into `to`, or, if that has no memory, into a new array. */
static d9d_status upload_block(d9di_kv_decoder *d, const input_layout *l,
                               const d9di_kv_decoder_input *inputs, d9d_tensor *to)
{
    const d9di_kv_decoder_input fill = {.row = d->rows, .n = l->filled};
    int64_t token = 0, i;
    int32_t *b;

    d->host.len = 0;
    D9D_TRY(D9D_VEC_RESERVE(&d->host, (size_t)l->all));
    b = d->host.data;
    memset(b, 0, (size_t)l->all * sizeof(*b));
    for (i = 0; i < l->inputs; i++)
        write_input(d, l, b, &token, i, &inputs[i]);
    if (l->filled > 0)
        write_input(d, l, b, &token, i, &fill);
    if (is_alone(l)) {
        memcpy(b + l->alone, b + l->segments, 4 * sizeof(*b));
        b[l->alone + 2] = 0; /* keys are counted from the sequence's first slot */
    }
    return to->storage != NULL
               ? d9d_device_upload(d->engine->dev, d9d_tensor_data(to), b, d9d_tensor_bytes(to))
               : d9d_tensor_from_host(d->engine->dev, D9D_I32, D9D_SHAPE(l->all), b, to);
}

/* --- a call -------------------------------------------------------------------------------- */

static d9d_tensor subview(const d9d_tensor *of, int64_t first, d9d_shape shape)
{
    d9d_tensor flat = d9d_tensor_rows(of, first, d9d_shape_numel(&shape));
    d9d_tensor t = d9d_tensor_reshape(&flat, shape);

    d9d_tensor_release(&flat);
    return t;
}

/* The rank of the pipeline that has a stage. */
static int rank_of(const d9di_engine *e, int stage)
{
    return d9d_program_rank_of(&e->exec.program, stage);
}

static d9d_status recv_tensor(d9di_kv_decoder *d, int from, const d9d_stage_tensor *of,
                              d9d_var **out)
{
    const d9di_engine *e = d->engine;
    d9d_tensor x;
    d9d_status st;

    D9D_TRY(d9d_tensor_alloc(e->dev, of->dtype, of->shape, &x));
    st = d9d_comm_recv(e->pipe.down, e->dev->stream, of->name, x.dtype, d9d_tensor_data(&x),
                       d9d_tensor_numel(&x), from);
    if (st == D9D_OK)
        st = d9d_tape_leaf(d->tape, &x, false, out);
    d9d_tensor_release(&x);
    return st;
}

/* What the previous stage passes on: received, or in v where this rank has that stage.  The first
 * stage takes nothing. */
static d9d_status take_passed(d9di_kv_decoder *d, const decoder_stage *s, d9d_model_in *in,
                              d9d_var *v[D9D_STAGE_TENSORS_MAX],
                              d9d_model_passed passed[D9D_STAGE_TENSORS_MAX])
{
    const int from = s->n_taken > 0 ? rank_of(d->engine, s->model->stage.index - 1) : 0;

    for (size_t i = 0; i < s->n_taken; i++) {
        d9d_stage_tensor of;

        D9D_TRY(d9d_model_stage_tensor(s->model, &s->taken[i], in, &of));
        if (from != d->engine->pipe.rank)
            D9D_TRY(recv_tensor(d, from, &of, &v[i]));
        passed[i] = (d9d_model_passed){of.name, v[i]};
    }
    in->passed = passed;
    in->n_passed = s->n_taken;
    in->hidden = d9d_model_find_passed(in, D9D_STAGE_HIDDEN);
    return D9D_OK;
}

/* Sends what the next stage takes, or leaves it in v where this rank has that stage. */
static d9d_status give_passed(d9di_kv_decoder *d, const decoder_stage *s, const d9d_model_in *in,
                              const d9d_model_out *out, d9d_var *v[D9D_STAGE_TENSORS_MAX])
{
    const d9di_engine *e = d->engine;
    const d9d_model *m = s->model;
    const int to = rank_of(e, m->stage.index + 1);

    D9D_TRY(d9d_model_sort_passed(out, s->given, s->n_given, m->ops->name, v));
    for (size_t i = 0; i < s->n_given; i++) {
        const d9d_tensor *x = v[i] != NULL ? d9d_var_tensor(v[i]) : NULL;
        d9d_stage_tensor of;

        D9D_TRY(d9d_model_stage_tensor(m, &s->given[i], in, &of));
        D9D_TRY(d9d_stage_tensor_check(&of, x, m->stage.index));
        if (x != NULL && to != e->pipe.rank)
            D9D_TRY(d9d_comm_send(e->pipe.down, e->dev->stream, of.name, x->dtype,
                                  d9d_tensor_data(x), d9d_tensor_numel(x), to));
    }
    d9d_tape_release_since(d->tape, 0, v, s->n_given);
    return D9D_OK;
}

static const void *block_at(const d9di_kv_decoder *d, int64_t at)
{
    return (const int32_t *)d9d_tensor_data(&d->block) + at;
}

/* True if the call takes the tokens that the previous one chose. */
static bool takes_chosen(const d9di_kv_decoder_input *inputs, size_t n)
{
    return n > 0 && inputs[0].ids == NULL;
}

/* Enqueues the choice of tokens from logits [n, V]. */
static d9d_status enqueue_choice(d9di_kv_decoder *d, const input_layout *l,
                                 const d9di_kv_decoder_input *inputs, const float *logits)
{
    const bool chosen = takes_chosen(inputs, (size_t)l->inputs);
    const d9di_token_sampler_call call = {
        .logits = logits,
        .n = l->inputs,
        .draws = block_at(d, l->draws),
        .keeps = l->inputs == 1 && inputs[0].keeps,
        .ids =
            chosen ? d9d_tensor_data(d9di_token_sampler_chosen(d->sampler)) : block_at(d, l->ids),
        .slots = block_at(d, l->at),
        .tokens = l->tokens,
        .segments = block_at(d, l->segments)};

    return d9di_token_sampler_enqueue(d->sampler, &call);
}

static d9d_status enqueue_readback(d9di_kv_decoder *d)
{
    return d9di_token_sampler_enqueue_readback(d->sampler, (int)(d->n_enqueued % MAX_IN_FLIGHT));
}

/* All ranks of the pipeline choose tokens, from the logits of the last stage. */
static d9d_status share_logits(d9di_kv_decoder *d, const input_layout *l,
                               const d9di_kv_decoder_input *inputs, const d9d_model_out *out)
{
    const d9di_engine *e = d->engine;
    const d9d_shape shape = D9D_SHAPE(l->inputs, e->whole.model->vocab);
    d9d_tensor x;
    d9d_status st;

    if (d9di_engine_has_last_stage(e))
        x = d9d_tensor_ref(d9d_var_tensor(out->logits));
    else
        D9D_TRY(d9d_tensor_alloc(e->dev, D9D_F32, shape, &x));
    st = d9d_comm_broadcast(e->pipe.down, e->dev->stream, "logits", D9D_F32, d9d_tensor_data(&x),
                            d9d_shape_numel(&shape), rank_of(e, e->exec.program.stages - 1));
    if (st == D9D_OK)
        st = enqueue_choice(d, l, inputs, d9d_tensor_data(&x));
    if (st == D9D_OK)
        st = enqueue_readback(d);
    d9d_tensor_release(&x);
    return st;
}

/* Tells ops of the call's only sequence. */
static void set_prefill(d9di_kv_decoder *d, const input_layout *l, const d9di_kv_decoder_input *p)
{
    d9d_tape_prefill prefill = {p->row * d->max_tokens, p->first + p->n,
                                subview(&d->block, l->alone, D9D_SHAPE(1, 4))};

    d9d_tape_set_prefill(d->tape, &prefill);
    d9d_tensor_release(&prefill.segments);
}

/* This rank's stages, each after the one before it, which another rank may have; `out` is of the
 * last. */
static d9d_status forward_stages(d9di_kv_decoder *d, d9d_model_in *in, d9d_model_out *out)
{
    d9d_model_passed passed[D9D_STAGE_TENSORS_MAX];
    d9d_var *v[D9D_STAGE_TENSORS_MAX] = {NULL};

    for (size_t k = 0; k < d->engine->n_stages; k++) {
        decoder_stage *s = &d->stages[k];

        in->cache = &s->cache;
        D9D_TRY(take_passed(d, s, in, v, passed));
        D9D_TRY(D9D_PLUGIN_CALL(s->model->ops->name, s->model->ops, forward, s->model, d->tape, in,
                                out));
        if (!d9d_stage_is_last(s->model->stage))
            D9D_TRY(give_passed(d, s, in, out, v));
    }
    return D9D_OK;
}

/* Forward; token ids are in the block, or were chosen by the previous call. */
static d9d_status forward(d9di_kv_decoder *d, const input_layout *l, bool chosen,
                          d9d_model_out *out)
{
    const int64_t segments = l->inputs + (l->filled > 0);
    d9d_tensor t[] = {subview(chosen ? d9di_token_sampler_chosen(d->sampler) : &d->block,
                              chosen ? 0 : l->ids, D9D_SHAPE(1, l->tokens)),
                      subview(&d->block, l->positions, D9D_SHAPE(1, l->tokens)),
                      subview(&d->block, l->at, D9D_SHAPE(l->tokens)),
                      subview(&d->block, l->segments, D9D_SHAPE(segments, 4)),
                      subview(&d->block, l->pick, D9D_SHAPE(l->inputs > 0 ? l->inputs : 1)),
                      subview(&d->block, l->rows, D9D_SHAPE(segments)),
                      subview(&d->block, l->prefix, D9D_SHAPE(segments))};
    d9d_model_in in = {.ids = &t[0],
                       .positions = &t[1],
                       .segments = &t[3],
                       .token_slots = &t[2],
                       .pick = &t[4],
                       .seq_slots = &t[5]};
    d9d_status st;

    if (l->has_prefix)
        d9d_tape_set_prefix(d->tape, &t[6]);
    st = forward_stages(d, &in, out);
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++)
        d9d_tensor_release(&t[i]);
    return st;
}

/* --- graphs ------------------------------------------------------------------------------- */

/* The graph of such calls; NULL: they have none. */
static decode_graph *find_graph(d9di_kv_decoder *d, const input_layout *l,
                                const d9di_kv_decoder_input *inputs)
{
    const bool decodes = takes_chosen(inputs, (size_t)l->inputs) && l->tokens == l->inputs &&
                         l->filled == 0 && !l->has_prefix;

    return decodes && l->inputs <= MAX_GRAPH_ROWS && !d->no_graphs &&
                   d9d_comm_size(d->engine->world) == 1 && d9d_graph_is_supported(d->engine->dev)
               ? &d->graph[l->inputs]
               : NULL;
}

static d9d_status record_graph(d9di_kv_decoder *d, const input_layout *l,
                               const d9di_kv_decoder_input *inputs, decode_graph *g)
{
    d9d_device *dev = d->engine->dev;
    d9d_model_out out = {0};
    d9d_status st;

    d9d_tensor_release(&d->block);
    d->block = d9d_tensor_ref(&g->block);
    D9D_TRY(d9d_graph_begin(dev));
    st = forward(d, l, true, &out);
    if (st == D9D_OK)
        st = enqueue_choice(d, l, inputs, d9d_tensor_data(d9d_var_tensor(out.logits)));
    d9d_tape_reset(d->tape);
    return d9d_graph_end(dev, st, &g->graph);
}

static d9d_status launch_graph(d9di_kv_decoder *d, decode_graph *g)
{
    D9D_TRY(d9d_graph_launch(g->graph));
    return enqueue_readback(d);
}

/* --- enqueue and wait --------------------------------------------------------------------- */

static d9d_status enqueue_launches(d9di_kv_decoder *d, const input_layout *l,
                                   const d9di_kv_decoder_input *inputs)
{
    const bool chosen = takes_chosen(inputs, (size_t)l->inputs);
    d9d_model_out out = {0};
    d9d_status st;

    d9d_tensor_release(&d->block);
    D9D_TRY(upload_block(d, l, inputs, &d->block));
    if (is_alone(l))
        set_prefill(d, l, inputs);
    st = forward(d, l, chosen, &out);
    if (st == D9D_OK)
        st = share_logits(d, l, inputs, &out);
    d9d_tape_reset(d->tape);
    return st;
}

/* Without a graph where none can be recorded. */
static d9d_status enqueue_graph(d9di_kv_decoder *d, const input_layout *l,
                                const d9di_kv_decoder_input *inputs, decode_graph *g)
{
    if (g->graph == NULL && g->calls++ < CALLS_BEFORE_GRAPH)
        return enqueue_launches(d, l, inputs);
    D9D_TRY(upload_block(d, l, inputs, &g->block));
    if (g->graph == NULL && record_graph(d, l, inputs, g) != D9D_OK) {
        d->no_graphs = true;
        return enqueue_launches(d, l, inputs);
    }
    return launch_graph(d, g);
}

d9d_status d9di_kv_decoder_copy(d9di_kv_decoder *d, int64_t from, int64_t to, int64_t n)
{
    const d9d_kv_cache_copy_opts copy = {.from_token = from * d->max_tokens,
                                         .to_token = to * d->max_tokens,
                                         .n = n,
                                         .from_seq = from,
                                         .to_seq = to};

    assert(from != to && n <= d->max_tokens);
    for (size_t k = 0; k < d->engine->n_stages; k++)
        D9D_TRY(d9d_kv_cache_copy(d->stages[k].model, d->engine->dev, d->dtype, &d->stages[k].cache,
                                  &copy));
    return d9di_token_sampler_copy(d->sampler, copy.from_token, copy.to_token, n);
}

d9d_status d9di_kv_decoder_enqueue(d9di_kv_decoder *d, const d9di_kv_decoder_input *inputs,
                                   size_t n)
{
    const input_layout l = make_layout(d, inputs, n);
    decode_graph *g = find_graph(d, &l, inputs);
    d9d_status st;

    assert(d->n_enqueued - d->n_waited < MAX_IN_FLIGHT);
    st = g != NULL ? enqueue_graph(d, &l, inputs, g) : enqueue_launches(d, &l, inputs);
    d->n_enqueued += st == D9D_OK;
    return st;
}

d9d_status d9di_kv_decoder_wait(d9di_kv_decoder *d, d9di_kv_decoder_output *out)
{
    D9D_TRY(d9di_token_sampler_wait(d->sampler, (int)(d->n_waited % MAX_IN_FLIGHT), out));
    d->n_waited++;
    return D9D_OK;
}

d9d_status d9di_kv_decoder_draw_kept(d9di_kv_decoder *d, const uint64_t *streams, int64_t n,
                                     int64_t position, d9di_kv_decoder_output *out)
{
    int64_t *draws = malloc(2 * (size_t)n * sizeof(*draws));
    d9d_status st;

    assert(d->n_enqueued == d->n_waited && n > 0 && n <= d->rows);
    if (draws == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory to generate with");
    for (int64_t i = 0; i < n; i++) {
        draws[2 * i] = (int64_t)streams[i];
        draws[2 * i + 1] = position;
    }
    st = d9di_token_sampler_draw_kept(d->sampler, draws, n);
    free(draws);
    D9D_TRY(st);
    D9D_TRY(enqueue_readback(d));
    d->n_enqueued++;
    return d9di_kv_decoder_wait(d, out);
}
