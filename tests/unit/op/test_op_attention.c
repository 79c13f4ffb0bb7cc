/* test_op_attention.c - softmax attention. */
#include <stdlib.h>

#include "d9d/base/rng.h"
#include "support/fd.h"
#include "support/op_fixture.h"
#include "support/unit_device.h"

typedef struct attention_arg {
    float scale;
    bool causal;
    int64_t window;
    float softcap;
} attention_arg;

static d9d_status run(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in, d9d_var **out,
                      size_t n_out)
{
    fd_env *e = self;
    const attention_arg *a = e->of->arg;
    const d9d_op_attention_opts opts = {
        .scale = a->scale,
        .softcap = a->softcap,
        .causal = a->causal,
        .window = a->window,
        .sinks = e->n_param > 0 ? e->param[0] : NULL,
        .segments = e->constant[0].storage != NULL ? &e->constant[0] : NULL,
        .prefix = e->constant[1].storage != NULL ? &e->constant[1] : NULL};

    (void)n_in, (void)n_out;
    return d9d_op_attention(t, in[0], in[1], in[2], &opts, out);
}

static const d9d_segment documents[] = {{0, 2, 0, 2}, {2, 3, 2, 3}, {5, 1, 5, 1},
                                        {6, 0, 6, 0}, {6, 4, 6, 4}, {10, 2, 10, 2}};
/* The second of two ranks: of the first row a document's middle and the next one's begin; of the
 * second nothing but the row, cut. */
static const d9d_segment chunks[] = {
    {0, 1, 0, 3}, {1, 1, 3, 1}, {2, 2, 3, 3}, {4, 2, 8, 4}, {6, 2, 8, 6}};

/* Numbers of the tokens of two rows. */
static const int64_t tokens[] = {3, 4, 5, 6, 7, 8, 100, 101, 102, 103, 104, 105};
static const d9d_param site = {.name = "k_proj.weight", .id = 0x1234567890abcdefu};

typedef struct dropped_arg {
    attention_arg scores;
    float p;
} dropped_arg;

/* The same with dropout; segments, if any, follow the tokens' numbers. */
static d9d_status run_dropped(void *self, d9d_tape *t, d9d_var *const *in, size_t n_in,
                              d9d_var **out, size_t n_out)
{
    fd_env *e = self;
    const dropped_arg *dropped = e->of->arg;
    const attention_arg *a = &dropped->scores;
    const d9d_dropout_rng rng = {.seed = 3, .token = e->constant[0], .max_positions = 50};
    const d9d_op_attention_opts opts = {.scale = a->scale,
                                        .causal = a->causal,
                                        .window = a->window,
                                        .softcap = a->softcap,
                                        .sinks = e->n_param > 0 ? e->param[0] : NULL,
                                        .segments =
                                            e->constant[1].storage != NULL ? &e->constant[1] : NULL,
                                        .dropout = {.p = dropped->p, .site = &site, .first = 2}};

    (void)n_in, (void)n_out;
    d9d_tape_set_dropout_rng(t, &rng);
    return d9d_op_attention(t, in[0], in[1], in[2], &opts, out);
}
/* Prefixes of the documents: some, all, one, none; and of the chunks, some beyond their keys. */
static const int32_t prefixes[] = {2, 2, 1, 0, 3, 0}, prefixes_of_chunks[] = {4, 3, 3, 5, 5};
/* Chunks with other documents behind them: keys that only a prefix reaches. */
static const d9d_segment chunks_apart[] = {
    {0, 1, 0, 3}, {1, 1, 4, 1}, {2, 2, 4, 3}, {4, 2, 8, 4}, {6, 2, 8, 6}};

/* Inputs of one case: B, S, Z, A, K, D, and DV where values have other features. */
#define QKZ_DV(b, s, z, a, k, d, dv)                                                               \
    {                                                                                              \
        FD(b, s, a, d), FD(b, z, k, d), FD(b, z, k, dv)                                            \
    }
#define KEPT_DV(b, s, z, a, k, d, dv)                                                              \
    {                                                                                              \
        b *s *a *d, b *z *k *d, b *z *k *dv, b *s *a *dv, b *a *s                                  \
    }
#define QKZV(b, s, z, a, k, d)   QKZ_DV(b, s, z, a, k, d, d)
#define KEPT_Z(b, s, z, a, k, d) KEPT_DV(b, s, z, a, k, d, d)
#define QKV(b, s, a, k, d)       QKZV(b, s, s, a, k, d)
#define KEPT(b, s, a, k, d)      KEPT_Z(b, s, s, a, k, d)

static void keeps_its_promises(void **state)
{
    static const attention_arg causal = {0.4f, true, 0, 0}, open = {0.4f, false, 0, 0};
    static const attention_arg steep = {1.0f, true, 0, 0}, window = {0.4f, true, 3, 0};
    static const attention_arg wide = {0.4f, true, 66, 0}, open_window = {0.4f, false, 2, 0};
    static const attention_arg capped = {1.0f, true, 0, 1.5f}, both = {1.0f, false, 3, 1.5f};
    static const fd_case cases[] = {
        {.name = "causal",
         .run = run,
         .in = QKV(2, 7, 2, 2, 5),
         .saved = KEPT(2, 7, 2, 2, 5),
         .arg = &causal},
        {.name = "open",
         .run = run,
         .in = QKV(1, 6, 2, 2, 4),
         .saved = KEPT(1, 6, 2, 2, 4),
         .arg = &open},
        {.name = "grouped",
         .run = run,
         .in = QKV(2, 5, 6, 2, 3),
         .saved = KEPT(2, 5, 6, 2, 3),
         .arg = &causal},
        {.name = "one key head",
         .run = run,
         .in = QKV(1, 9, 3, 1, 6),
         .saved = KEPT(1, 9, 3, 1, 6),
         .arg = &steep},
        {.name = "documents",
         .run = run,
         .in = QKV(2, 6, 4, 2, 5),
         .constant = {{D9D_I32, D9D_SHAPE(6, 4), documents}},
         .saved = KEPT(2, 6, 4, 2, 5),
         .arg = &causal},
        {.name = "open documents",
         .run = run,
         .in = QKV(2, 6, 2, 1, 5),
         .constant = {{D9D_I32, D9D_SHAPE(6, 4), documents}},
         .saved = KEPT(2, 6, 2, 1, 5),
         .arg = &open},
        {.name = "chunks",
         .run = run,
         .in = QKZV(2, 4, 8, 4, 2, 5),
         .constant = {{D9D_I32, D9D_SHAPE(5, 4), chunks}},
         .saved = KEPT_Z(2, 4, 8, 4, 2, 5),
         .arg = &causal},
        {.name = "open chunks",
         .run = run,
         .in = QKZV(2, 4, 8, 2, 2, 3),
         .constant = {{D9D_I32, D9D_SHAPE(5, 4), chunks}},
         .saved = KEPT_Z(2, 4, 8, 2, 2, 3),
         .arg = &open},
        {.name = "more keys than queries",
         .run = run,
         .in = QKZV(2, 3, 7, 2, 1, 4),
         .saved = KEPT_Z(2, 3, 7, 2, 1, 4),
         .arg = &causal},
        {.name = "longer than a block",
         .run = run,
         .in = QKV(1, 70, 2, 1, 8),
         .saved = KEPT(1, 70, 2, 1, 8),
         .arg = &causal},
        {.name = "window",
         .run = run,
         .in = QKV(2, 7, 4, 2, 5),
         .saved = KEPT(2, 7, 4, 2, 5),
         .arg = &window},
        {.name = "window longer than a block",
         .run = run,
         .in = QKV(1, 150, 2, 1, 4),
         .saved = KEPT(1, 150, 2, 1, 4),
         .arg = &wide},
        {.name = "window of documents",
         .run = run,
         .in = QKV(2, 6, 4, 2, 5),
         .constant = {{D9D_I32, D9D_SHAPE(6, 4), documents}},
         .saved = KEPT(2, 6, 4, 2, 5),
         .arg = &window},
        {.name = "window of chunks, sinks",
         .run = run,
         .in = QKZV(2, 4, 8, 4, 2, 5),
         .param = {FD(4)},
         .constant = {{D9D_I32, D9D_SHAPE(5, 4), chunks}},
         .saved = KEPT_Z(2, 4, 8, 4, 2, 5),
         .tolerance_bf16 = 0.03f, /* sums of few queries, of rounded outputs */
         .arg = &window},
        {.name = "window without a mask",
         .run = run,
         .in = QKV(2, 7, 4, 2, 5),
         .saved = KEPT(2, 7, 4, 2, 5),
         .arg = &open_window},
        {.name = "softcap",
         .run = run,
         .in = QKV(2, 7, 4, 2, 5),
         .saved = KEPT(2, 7, 4, 2, 5),
         .arg = &capped},
        {.name = "softcap of documents, window without a mask, sinks",
         .run = run,
         .in = QKV(2, 6, 4, 2, 5),
         .param = {FD(4)},
         .constant = {{D9D_I32, D9D_SHAPE(6, 4), documents}},
         .saved = KEPT(2, 6, 4, 2, 5),
         .arg = &both},
        {.name = "softcap of chunks, window without a mask",
         .run = run,
         .in = QKZV(2, 4, 8, 4, 2, 5),
         .constant = {{D9D_I32, D9D_SHAPE(5, 4), chunks}},
         .saved = KEPT_Z(2, 4, 8, 4, 2, 5),
         .arg = &both},
        {.name = "sinks",
         .run = run,
         .in = QKV(2, 5, 6, 2, 3),
         .param = {FD(6)},
         .saved = KEPT(2, 5, 6, 2, 3),
         .arg = &causal},
        {.name = "sinks of open documents",
         .run = run,
         .in = QKV(2, 6, 2, 1, 5),
         .param = {{.shape = D9D_SHAPE(2), .scale = 3}},
         .constant = {{D9D_I32, D9D_SHAPE(6, 4), documents}},
         .saved = KEPT(2, 6, 2, 1, 5),
         .arg = &open},
        {.name = "no positions, sinks",
         .run = run,
         .in = QKV(2, 0, 2, 1, 4),
         .param = {FD(2)},
         .saved = {-1, -1, -1, -1, -1},
         .arg = &window},
        {.name = "no positions",
         .run = run,
         .in = QKV(2, 0, 2, 1, 4),
         .saved = {-1, -1, -1, -1, -1},
         .arg = &causal},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

static void keeps_its_promises_with_dropout(void **state)
{
    static const dropped_arg dropped = {{0.4f, true, 0, 0}, 0.3f};
    static const dropped_arg all_of_it = {{1.0f, false, 3, 1.5f}, 0.5f};
    static const fd_case cases[] = {
        {.name = "dropout",
         .run = run_dropped,
         .in = QKV(2, 6, 4, 2, 5),
         .constant = {{D9D_I64, D9D_SHAPE(12), tokens}},
         .saved = KEPT(2, 6, 4, 2, 5),
         .arg = &dropped},
        {.name = "dropout of documents, softcap, window without a mask, sinks",
         .run = run_dropped,
         .in = QKV(2, 6, 4, 2, 5),
         .param = {FD(4)},
         .constant = {{D9D_I64, D9D_SHAPE(12), tokens}, {D9D_I32, D9D_SHAPE(6, 4), documents}},
         .saved = KEPT(2, 6, 4, 2, 5),
         .arg = &all_of_it},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

/* Values of other features than keys. */
static void values_keep_them(void **state)
{
    static const attention_arg causal = {0.4f, true, 0, 0}, window = {0.4f, true, 3, 0};
    static const attention_arg both = {1.0f, false, 3, 1.5f};
    static const fd_case cases[] = {
        {.name = "narrow values",
         .run = run,
         .in = QKZ_DV(2, 7, 7, 4, 2, 6, 4),
         .saved = KEPT_DV(2, 7, 7, 4, 2, 6, 4),
         .arg = &causal},
        {.name = "wide values of documents, window, sinks",
         .run = run,
         .in = QKZ_DV(2, 6, 6, 4, 2, 3, 7),
         .param = {FD(4)},
         .constant = {{D9D_I32, D9D_SHAPE(6, 4), documents}},
         .saved = KEPT_DV(2, 6, 6, 4, 2, 3, 7),
         .tolerance_bf16 = 0.03f,
         .arg = &window},
        {.name = "narrow values of chunks, softcap",
         .run = run,
         .in = QKZ_DV(2, 4, 8, 4, 2, 5, 3),
         .constant = {{D9D_I32, D9D_SHAPE(5, 4), chunks}},
         .saved = KEPT_DV(2, 4, 8, 4, 2, 5, 3),
         .arg = &both},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

static void prefixes_keep_them(void **state)
{
    static const attention_arg causal = {0.4f, true, 0, 0}, window = {0.4f, true, 3, 0};
    static const fd_case cases[] = {
        {.name = "prefixes of documents",
         .run = run,
         .in = QKV(2, 6, 4, 2, 5),
         .constant = {{D9D_I32, D9D_SHAPE(6, 4), documents}, {D9D_I32, D9D_SHAPE(6), prefixes}},
         .saved = KEPT(2, 6, 4, 2, 5),
         .arg = &causal},
        {.name = "prefixes of chunks",
         .run = run,
         .in = QKZV(2, 4, 8, 4, 2, 5),
         .constant = {{D9D_I32, D9D_SHAPE(5, 4), chunks_apart},
                      {D9D_I32, D9D_SHAPE(5), prefixes_of_chunks}},
         .saved = KEPT_Z(2, 4, 8, 4, 2, 5),
         .arg = &causal},
        {.name = "prefixes of chunks, window, sinks",
         .run = run,
         .in = QKZV(2, 4, 8, 4, 2, 5),
         .param = {FD(4)},
         .constant = {{D9D_I32, D9D_SHAPE(5, 4), chunks_apart},
                      {D9D_I32, D9D_SHAPE(5), prefixes_of_chunks}},
         .saved = KEPT_Z(2, 4, 8, 4, 2, 5),
         .tolerance_bf16 = 0.03f,
         .arg = &window},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        fd_check(&cases[i]);
}

/* --- generation ---------------------------------------------------------------------------- */

enum { TOKENS = 190, HEADS = 4, KEYS = 2, WIDE = 20, STEPS = 6 };
static const int32_t steps[STEPS] = {0, 5, 39, 40, 77, TOKENS - 1}; /* places of queries */

static d9d_tensor numbers(const op_fixture *f, d9d_shape shape, uint64_t stream)
{
    const int64_t n = d9d_shape_numel(&shape);
    float *host = malloc((size_t)(n + 1) * sizeof(*host));
    d9d_tensor x;

    assert_non_null(host);
    for (int64_t i = 0; i < n; i++)
        host[i] = d9d_rng_normal((d9d_rng){3, stream}, (uint64_t)i);
    assert_ok(d9d_tensor_from_host(f->dev, D9D_F32, shape, host, &x));
    free(host);
    return x;
}

static float *attend(const op_fixture *f, const d9d_tensor in[3], const d9d_op_attention_opts *opts)
{
    d9d_var *v[3], *y;
    float *host;

    for (int i = 0; i < 3; i++)
        assert_ok(d9d_tape_leaf(f->tape, &in[i], false, &v[i]));
    assert_ok(d9d_op_attention(f->tape, v[0], v[1], v[2], opts, &y));
    host = malloc((size_t)(d9d_tensor_numel(d9d_var_tensor(y)) + 1) * sizeof(*host));
    assert_non_null(host);
    assert_ok(d9d_tensor_to_f32(d9d_var_tensor(y), host));
    return host;
}

/* Some queries of a row to a cache of its keys see what they do in the row. */
static void a_cache_is_the_row(void **state)
{
    op_fixture *f = *state;
    d9d_param *sinks = op_param(f, "sinks", D9D_F32, D9D_SHAPE(HEADS));
    d9d_tensor logits = numbers(f, D9D_SHAPE(HEADS), 4), segments;
    d9d_tensor row[] = {numbers(f, D9D_SHAPE(1, TOKENS, HEADS, WIDE), 1),
                        numbers(f, D9D_SHAPE(1, TOKENS, KEYS, WIDE), 2),
                        numbers(f, D9D_SHAPE(1, TOKENS, KEYS, WIDE), 3)};
    const size_t size = HEADS * WIDE * sizeof(float);
    d9d_op_attention_opts opts = {
        .scale = 0.3f, .softcap = 2.0f, .causal = true, .window = 40, .sinks = sinks};
    d9d_tensor some[] = {{0}, row[1], row[2]};
    d9d_segment list[STEPS];
    float *want, *got;

    for (int i = 0; i < STEPS; i++)
        list[i] = (d9d_segment){i, 1, 0, steps[i] + 1};
    assert_ok(d9d_tensor_from_host(f->dev, D9D_I32, D9D_SHAPE(STEPS, 4), list, &segments));
    assert_ok(d9d_device_copy(f->dev, d9d_tensor_data(&sinks->local.data), d9d_tensor_data(&logits),
                              HEADS * sizeof(float)));
    assert_ok(d9d_tensor_alloc(f->dev, D9D_F32, D9D_SHAPE(1, STEPS, HEADS, WIDE), &some[0]));
    for (int i = 0; i < STEPS; i++)
        assert_ok(d9d_device_copy(f->dev, (char *)d9d_tensor_data(&some[0]) + i * size,
                                  (char *)d9d_tensor_data(&row[0]) + steps[i] * size, size));
    want = attend(f, row, &opts);
    opts.segments = &segments;
    opts.cached = true;
    got = attend(f, some, &opts);
    for (int i = 0; i < STEPS; i++)
        for (int j = 0; j < HEADS * WIDE; j++)
            assert_float_equal(got[i * HEADS * WIDE + j], want[steps[i] * HEADS * WIDE + j],
                               unit_device_tolerance(0, 1e-5));
    free(got);
    free(want);
    for (int i = 0; i < 3; i++)
        d9d_tensor_release(&row[i]);
    d9d_tensor_release(&some[0]);
    d9d_tensor_release(&segments);
    d9d_tensor_release(&logits);
}

static void refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *q = op_var(f, D9D_F32, D9D_SHAPE(2, 3, 4, 8)),
            *k = op_var(f, D9D_F32, D9D_SHAPE(2, 3, 3, 8));
    d9d_var *v = op_var(f, D9D_F32, D9D_SHAPE(2, 3, 2, 8)),
            *w = op_var(f, D9D_F32, D9D_SHAPE(2, 3, 2, 6));
    d9d_var *few = op_var(f, D9D_F32, D9D_SHAPE(2, 2, 2, 8)),
            *empty = op_var(f, D9D_F32, D9D_SHAPE(2, 3, 2, 0));
    const d9d_op_attention_opts opts = {.scale = 1, .causal = true};
    const d9d_op_attention_opts cut = {.scale = 1,
                                       .segments = op_tensor(f, D9D_I32, D9D_SHAPE(3, 2))};
    const d9d_op_attention_opts past = {.scale = 1, .causal = true, .window = -1};
    const d9d_op_attention_opts uncapped = {.scale = 1, .softcap = -1};
    const d9d_op_attention_opts drops = {.scale = 1, .dropout = {.p = 0.5f, .site = &site}};
    const d9d_op_attention_opts all_drop = {.scale = 1, .dropout = {.p = 1, .site = &site}};
    const d9d_op_attention_opts cached = {
        .scale = 1, .cached = true, .dropout = {.p = 0.5f, .site = &site}};
    const d9d_dropout_rng rng = {.token = *op_tensor(f, D9D_I64, D9D_SHAPE(5)), .max_positions = 3};
    const d9d_op_attention_opts sunk = {
        .scale = 1, .causal = true, .sinks = op_param(f, "sinks", D9D_F32, D9D_SHAPE(2))};
    const d9d_op_attention_opts alone = {
        .scale = 1, .causal = true, .prefix = op_tensor(f, D9D_I32, D9D_SHAPE(3))};
    const d9d_op_attention_opts open = {.scale = 1,
                                        .segments = op_tensor(f, D9D_I32, D9D_SHAPE(3, 4)),
                                        .prefix = op_tensor(f, D9D_I32, D9D_SHAPE(3))};
    const d9d_op_attention_opts more = {.scale = 1,
                                        .causal = true,
                                        .segments = op_tensor(f, D9D_I32, D9D_SHAPE(3, 4)),
                                        .prefix = op_tensor(f, D9D_I32, D9D_SHAPE(4))};
    d9d_var *y;

    assert_refused(f, d9d_op_attention(f->tape, q, v, v, &alone, &y),
                   "attention: a prefix needs segments");
    assert_refused(f, d9d_op_attention(f->tape, q, v, v, &open, &y),
                   "attention: a prefix needs a causal mask");
    assert_refused(f, d9d_op_attention(f->tape, q, v, v, &more, &y),
                   "attention: prefix [4] does not fit q [2, 3, 4, 8]: prefixes are [N], one for "
                   "each segment");
    assert_refused(f, d9d_op_attention(f->tape, q, v, v, &past, &y),
                   "attention: a window of -1 keys");
    assert_refused(f, d9d_op_attention(f->tape, q, v, v, &uncapped, &y),
                   "attention: a softcap of -1");
    assert_refused(f, d9d_op_attention(f->tape, q, v, v, &sunk, &y),
                   "attention: sinks [2] does not fit q [2, 3, 4, 8]: q is [B, S, A, D], sinks are "
                   "[A]");
    assert_refused(f, d9d_op_attention(f->tape, q, k, k, &opts, &y),
                   "attention: k [2, 3, 3, 8] does not fit q [2, 3, 4, 8]: query heads must be a "
                   "multiple of key-value heads");
    assert_refused(
        f, d9d_op_attention(f->tape, q, w, w, &opts, &y),
        "attention: k [2, 3, 2, 6] does not fit q [2, 3, 4, 8]: q is [B, S, A, D], k [B, Z, K, D]");
    assert_refused(
        f, d9d_op_attention(f->tape, q, few, few, &opts, &y),
        "attention: k [2, 2, 2, 8] does not fit q [2, 3, 4, 8]: a row must have at least "
        "as many keys as queries");
    assert_refused(f, d9d_op_attention(f->tape, q, v, few, &opts, &y),
                   "attention: v [2, 2, 2, 8] does not fit k [2, 3, 2, 8]: k is [B, Z, K, D], v "
                   "[B, Z, K, DV]");
    assert_refused(f, d9d_op_attention(f->tape, q, v, empty, &opts, &y),
                   "attention: v [2, 3, 2, 0] does not fit k [2, 3, 2, 8]: k is [B, Z, K, D], v "
                   "[B, Z, K, DV]");
    assert_refused(f, d9d_op_attention(f->tape, q, v, v, &cut, &y),
                   "attention: segments [3, 2] does not fit q [2, 3, 4, 8]: segments are [N, 4]");
    d9d_tape_set_dropout_rng(f->tape, &rng);
    assert_refused(f, d9d_op_attention(f->tape, q, v, v, &drops, &y),
                   "attention: dropout of 6 queries, of 5 tokens");
    assert_refused(f, d9d_op_attention(f->tape, q, v, v, &all_drop, &y),
                   "attention: dropout with a probability of 1, not in [0, 1)");
    assert_refused(f, d9d_op_attention(f->tape, q, v, v, &cached, &y),
                   "attention: dropout with a KV cache");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_its_promises), cmocka_unit_test(keeps_its_promises_with_dropout),
        cmocka_unit_test(values_keep_them),   cmocka_unit_test(prefixes_keep_them),
        op_test(a_cache_is_the_row),          op_test(refuses),
    };

    return cmocka_run_group_tests_name("op_attention", tests, NULL, NULL);
}
