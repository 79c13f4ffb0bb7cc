/* certify_recompute.c - activation checkpointing gives the same bits.  See certify_parts.h. */
#include <string.h>

#include "certify/certify_parts.h"

typedef struct backward_result {
    double loss;
    d9di_small_gradients grads;
} backward_result;

static d9d_status run_backward(const d9di_certify *c, d9d_model_recompute_mode mode,
                               backward_result *out)
{
    const d9di_small_model_opts opts = {
        .choices = c->choices, .recompute = mode, .seed = c->opts->seed, .head = &c->head};
    d9di_small_model m;
    d9d_status st = d9di_small_model_open(&m, c->folder, &opts);

    if (st == D9D_OK)
        st = d9di_small_model_backward(&m, &out->loss);
    if (st == D9D_OK)
        st = d9di_small_gradients_read(&m, &out->grads);
    (void)d9di_small_model_close(&m);
    return st;
}

static bool is_same_bits(float a, float b)
{
    uint32_t bits[2];

    memcpy(&bits[0], &a, sizeof(a));
    memcpy(&bits[1], &b, sizeof(b));
    return bits[0] == bits[1];
}

static uint64_t count_different(const backward_result *a, const backward_result *b)
{
    uint64_t n = a->loss != b->loss;

    for (size_t i = 0; i < a->grads.n; i++)
        for (size_t k = 0; a->grads.of[i] != NULL && k < a->grads.count[i]; k++)
            n += !is_same_bits(a->grads.of[i][k], b->grads.of[i][k]);
    return n;
}

d9d_status d9di_certify_recompute(d9di_certify *c, d9d_certificate_check *out)
{
    backward_result plain = {.loss = 0}, full = {.loss = 0}, selective = {.loss = 0};
    size_t tensors = 0;
    d9d_status st;

    D9D_TRY_OR(st, run_backward(c, D9D_RECOMPUTE_OFF, &plain), done);
    D9D_TRY_OR(st, run_backward(c, D9D_RECOMPUTE_FULL, &full), done);
    D9D_TRY_OR(st, run_backward(c, D9D_RECOMPUTE_SELECTIVE, &selective), done);
    for (size_t i = 0; i < plain.grads.n; i++)
        tensors += plain.grads.of[i] != NULL;
    out->figure = (double)(count_different(&plain, &full) + count_different(&plain, &selective));
    out->limit = 0;
    st = d9di_certify_detail(c, out, "loss and %zu gradients, full and selective", tensors);
done:
    d9di_small_gradients_release(&plain.grads);
    d9di_small_gradients_release(&full.grads);
    d9di_small_gradients_release(&selective.grads);
    return st;
}
