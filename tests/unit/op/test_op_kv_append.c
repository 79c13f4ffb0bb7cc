/* test_op_kv_append.c - KV cache append, per-head linear, and logits of selected tokens: rejected
 * input. test_kv_cache.c checks their results. */
#include "support/op_fixture.h"

static void cache_refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(1, 2, 3, 4)),
            *two = op_var(f, D9D_F32, D9D_SHAPE(2, 1, 3, 4));
    d9d_tensor *at = op_tensor(f, D9D_I32, D9D_SHAPE(2)),
               *few = op_tensor(f, D9D_I32, D9D_SHAPE(1));
    d9d_tensor *cache = op_tensor(f, D9D_F32, D9D_SHAPE(8, 3, 4));
    d9d_tensor *thin = op_tensor(f, D9D_F32, D9D_SHAPE(8, 3, 2));
    d9d_tensor *half = op_tensor(f, D9D_BF16, D9D_SHAPE(8, 3, 4));
    d9d_var *y;

    assert_refused(f, d9d_op_kv_append(f->tape, x, at, half, &y),
                   "kv_append: the cache is bfloat16, expected float32");
    assert_refused(
        f, d9d_op_kv_append(f->tape, x, at, thin, &y),
        "kv_append: x [1, 2, 3, 4] does not fit the cache [8, 3, 2]: x is [1, T, K, D], a "
        "cache [Z, K, D]");
    assert_refused(
        f, d9d_op_kv_append(f->tape, two, at, cache, &y),
        "kv_append: x [2, 1, 3, 4] does not fit the cache [8, 3, 4]: x is [1, T, K, D], a "
        "cache [Z, K, D]");
    assert_refused(f, d9d_op_kv_append(f->tape, x, few, cache, &y),
                   "kv_append: at [1] does not fit x [1, 2, 3, 4]: one slot for each of T tokens");
    assert_refused(f, d9d_op_kv_append(f->tape, x, at, cache, &y), "kv_append: has no backward");
}

static void cache_in_8_bits_refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(1, 2, 3, 4)), *y;
    d9d_tensor *at = op_tensor(f, D9D_I32, D9D_SHAPE(2));
    d9d_tensor *codes = op_tensor(f, D9D_F8_E4M3, D9D_SHAPE(8, 3, 4));
    d9d_tensor *wide = op_tensor(f, D9D_F32, D9D_SHAPE(8, 3, 4));
    d9d_tensor *scale = op_tensor(f, D9D_F32, D9D_SHAPE(8, 3));
    d9d_tensor *other = op_tensor(f, D9D_F32, D9D_SHAPE(8, 4));

    assert_refused(f, d9d_op_kv_append_fp8(f->tape, x, at, wide, scale, &y),
                   "kv_append: the cache is float32, expected float8_e4m3fn");
    assert_refused(f, d9d_op_kv_append_fp8(f->tape, x, at, codes, codes, &y),
                   "kv_append: scale is float8_e4m3fn, expected float32");
    assert_refused(
        f, d9d_op_kv_append_fp8(f->tape, x, at, codes, other, &y),
        "kv_append: scale [8, 4] does not fit the cache [8, 3, 4]: a cache is [Z, K, D], "
        "scales are [Z, K]");
    assert_refused(f, d9d_op_kv_append_fp8(f->tape, x, at, codes, scale, &y),
                   "kv_append: has no backward");
}

/* Keys and values of a cache, and their scales. */
static void attention_of_8_bits_refuses(void **state)
{
    op_fixture *f = *state;
    d9d_var *q = op_var(f, D9D_F32, D9D_SHAPE(1, 2, 3, 4)), *y;
    d9d_var *k = op_var(f, D9D_F8_E4M3, D9D_SHAPE(1, 8, 3, 4));
    d9d_var *plain = op_var(f, D9D_F32, D9D_SHAPE(1, 8, 3, 4));
    d9d_tensor *scale = op_tensor(f, D9D_F32, D9D_SHAPE(8, 3));
    d9d_tensor *other = op_tensor(f, D9D_F32, D9D_SHAPE(8, 4));
    const d9d_op_attention_opts fine = {
        .scale = 1, .causal = true, .cached = true, .k_scale = scale, .v_scale = scale};
    d9d_op_attention_opts one = fine, training = fine, odd = fine;

    one.v_scale = NULL;
    training.cached = false;
    odd.v_scale = other;
    assert_refused(f, d9d_op_attention(f->tape, q, plain, plain, &fine, &y),
                   "attention: k is float32, expected float8_e4m3fn");
    assert_refused(f, d9d_op_attention(f->tape, q, k, k, &one, &y),
                   "attention: keys and values in 8 bits need scales of both");
    assert_refused(f, d9d_op_attention(f->tape, q, k, k, &training, &y),
                   "attention: keys and values in 8 bits are those of a KV cache");
    assert_refused(f, d9d_op_attention(f->tape, q, k, k, &odd, &y),
                   "attention: the scales [8, 4] does not fit k [1, 8, 3, 4]: k is [1, Z, K, D], "
                   "scales are [Z, K]");
}

static void both_refuse(void **state)
{
    op_fixture *f = *state;
    d9d_var *k = op_var(f, D9D_F32, D9D_SHAPE(1, 2, 3, 4)),
            *v = op_var(f, D9D_F32, D9D_SHAPE(1, 2, 3, 5));
    d9d_tensor *at = op_tensor(f, D9D_I32, D9D_SHAPE(2));
    d9d_tensor *cache = op_tensor(f, D9D_F32, D9D_SHAPE(8, 3, 4)),
               *wide = op_tensor(f, D9D_F32, D9D_SHAPE(8, 3, 5));

    d9d_tape_set_recording(f->tape, false);
    assert_refused(f, d9d_op_kv_append_both(f->tape, at, wide, cache, &k, &v),
                   "kv_append: x [1, 2, 3, 4] does not fit the cache [8, 3, 5]: x is [1, T, K, D], "
                   "a cache [Z, K, D]");
    assert_refused(
        f, d9d_op_kv_append_both(f->tape, at, cache, wide, &k, &v),
        "kv_append: values [1, 2, 3, 5] does not fit keys [1, 2, 3, 4]: shapes must be equal");
    d9d_tape_set_recording(f->tape, true);
}

/* Norms of all heads together have a weight for each feature of all. */
static void all_heads_refuse(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(1, 2, 3, 4));
    d9d_param *w = op_param(f, "norm", D9D_F32, D9D_SHAPE(4));
    d9d_tensor *at = op_tensor(f, D9D_I32, D9D_SHAPE(2)),
               *positions = op_tensor(f, D9D_I32, D9D_SHAPE(1, 2)),
               *freq = op_tensor(f, D9D_F32, D9D_SHAPE(2)),
               *cache = op_tensor(f, D9D_F32, D9D_SHAPE(8, 3, 4));
    const d9d_op_norm_rope_opts opts = {.eps = 1e-6f, .positions = positions, .inv_freq = freq};
    d9d_op_qk_norm_rope_append_args new = {x, x, x, w, w, true, at, cache, cache, NULL, NULL};

    d9d_tape_set_recording(f->tape, false);
    assert_refused(f, d9d_op_qk_norm_rope_append(f->tape, &opts, &new),
                   "norm_rope: x [1, 2, 3, 4] does not fit norm [4]: x is [B, S, heads, D], a "
                   "weight [heads D]");
    d9d_tape_set_recording(f->tape, true);
}

static void heads_refuse(void **state)
{
    op_fixture *f = *state;
    d9d_var *x = op_var(f, D9D_F32, D9D_SHAPE(1, 2, 3, 4)), *y;
    d9d_param *w = op_param(f, "up", D9D_F32, D9D_SHAPE(18, 5));
    const d9d_op_linear_per_head_opts behind = {.step = 6, .first = 3, .out = 5},
                                      turned = {.step = 6, .out = 5, .transposed = true},
                                      fine = {.step = 6, .first = 2, .out = 5};
    d9d_param_adapter adapter = {0};

    assert_refused(
        f, d9d_op_linear_per_head(f->tape, x, w, &behind, &y),
        "linear_per_head: x [1, 2, 3, 4] does not fit up [18, 5]: x is [B, S, n, in], a weight [n "
        "step, out], or [n step, in] transposed");
    assert_refused(
        f, d9d_op_linear_per_head(f->tape, x, w, &turned, &y),
        "linear_per_head: x [1, 2, 3, 4] does not fit up [18, 5]: x is [B, S, n, in], a weight [n "
        "step, out], or [n step, in] transposed");
    assert_refused(f, d9d_op_linear_per_head(f->tape, x, w, &fine, &y),
                   "linear_per_head: has no backward");
    w->peft.adapter = &adapter;
    assert_fails(d9d_op_linear_per_head(f->tape, x, w, &fine, &y), D9D_ENOTSUP,
                 "linear_per_head: up has an adapter, which must be merged before");
    w->peft.adapter = NULL;
}

static void logits_refuse(void **state)
{
    op_fixture *f = *state;
    d9d_var *h = op_var(f, D9D_F32, D9D_SHAPE(5, 4)), *y;
    d9d_tensor *pick = op_tensor(f, D9D_I32, D9D_SHAPE(2));
    d9d_tensor *square = op_tensor(f, D9D_I32, D9D_SHAPE(2, 1));
    d9d_param *heads[] = {op_param(f, "head", D9D_F32, D9D_SHAPE(7, 4))};

    const d9d_op_vocab_opts opts = {0};

    assert_refused(f, d9d_op_logits(f->tape, h, square, heads, 1, &opts, &y),
                   "logits: h [5, 4] does not fit pick [2, 1]: h is [T, H], pick [N]");
    assert_refused(f, d9d_op_logits(f->tape, h, pick, heads, 1, &opts, &y),
                   "logits: have no backward");
}

int main(void)
{
    const struct CMUnitTest tests[] = {op_test(cache_refuses),
                                       op_test(cache_in_8_bits_refuses),
                                       op_test(attention_of_8_bits_refuses),
                                       op_test(both_refuse),
                                       op_test(all_heads_refuse),
                                       op_test(heads_refuse),
                                       op_test(logits_refuse)};

    return cmocka_run_group_tests_name("op_cache", tests, NULL, NULL);
}
