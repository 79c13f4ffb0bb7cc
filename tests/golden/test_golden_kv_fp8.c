/* A KV cache in 8 bits compared with PyTorch: the bytes, and attention over them. */
#include "d9d/kernels/table.h"
#include "support/unit.h"
#include "support/vectors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { Z = 40, S = 3, A = 6, KV = 2, D = 24, CACHED = Z * KV * D, QUERIES = S * A * D };

static float *floats(const d9d_safetensors_file *f, const char *name)
{
    size_t n;

    return vectors_f32(f, name, &n);
}

/* Keys or values as tokens in order; codes and scales are PyTorch's. */
static void store(const d9d_safetensors_file *f, const char *name, const char *codes_name,
                  const char *scale_name, uint8_t codes[CACHED], float scale[Z * KV])
{
    const d9d_safetensors_tensor *t = vectors_find(f, codes_name);
    float *x = floats(f, name), *want_scale = floats(f, scale_name);
    const d9d_attention_append_fp8 one = {x, codes, scale};
    uint8_t want[CACHED];
    int32_t at[Z];

    for (int i = 0; i < Z; i++)
        at[i] = i;
    assert_ok(d9d_kernels_cpu()->attention->kv_append_fp8(NULL, D9D_F32, 1, &one, at, Z, KV, D));
    assert_int_equal(t->bytes, CACHED);
    assert_ok(d9d_safetensors_read(f, t, 0, want, CACHED));
    assert_memory_equal(codes, want, CACHED);
    assert_memory_equal(scale, want_scale, Z * KV * sizeof(float));
    free(x);
    free(want_scale);
}

static void test_kv_fp8(void **state)
{
    static uint8_t k[CACHED], v[CACHED];
    static float k_scale[Z * KV], v_scale[Z * KV], o[QUERIES], lse[S * A];
    const d9d_segment all = {0, S, 0, Z};
    const d9d_attention_dims n = {.t = D9D_F32,
                                  .b = 1,
                                  .s = S,
                                  .z = Z,
                                  .a = A,
                                  .kv = KV,
                                  .d = D,
                                  .scale = 1 / sqrtf(D),
                                  .causal = true,
                                  .segments = 1,
                                  .segment = &all,
                                  .decode = true,
                                  .k_scale = k_scale,
                                  .v_scale = v_scale};
    float *q, *want, *exact, most = 0, off = 0;
    d9d_safetensors_file *f;

    (void)state;
    assert_ok(d9d_safetensors_open(vectors_path(".", "kv_fp8.safetensors"), &f));
    q = floats(f, "q");
    want = floats(f, "o");
    exact = floats(f, "exact");
    store(f, "k", "k.codes", "k.scale", k, k_scale);
    store(f, "v", "v.codes", "v.scale", v, v_scale);
    assert_ok(d9d_kernels_cpu()->attention->fwd(NULL, &n, o, lse, q, k, v));
    for (int i = 0; i < QUERIES; i++) {
        assert_true(fabsf(o[i] - want[i]) <= 1e-5f * (1 + fabsf(want[i])));
        most = fmaxf(most, fabsf(exact[i]));
        off = fmaxf(off, fabsf(o[i] - exact[i]));
    }
    assert_true(off > 0 && off < most / 16);
    free(q);
    free(want);
    free(exact);
    d9d_safetensors_close(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kv_fp8)};

    return cmocka_run_group_tests_name("golden_kv_fp8", tests, NULL, NULL);
}
