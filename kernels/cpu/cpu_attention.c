/* cpu_attention.c - softmax attention by blocks, forward.
 *
 * A block of queries walks over the blocks of keys with a running maximum m, a running sum
 * l of exp(score - m), and the unscaled output, all rescaled when m grows (Milakov and
 * Gimelshein, "Online normalizer calculation for softmax", 2018).
 */
#include "cpu_attention.h"
#include "cpu_math.h"

static void range(const int32_t *x, int64_t n, int32_t *low, int32_t *high)
{
    *low = *high = x[0];
    for (int64_t i = 1; i < n; i++) {
        *low = x[i] < *low ? x[i] : *low;
        *high = x[i] > *high ? x[i] : *high;
    }
}

bool d9di_tile_visible(const d9d_attention_dims *n, const d9di_tile *t)
{
    int32_t q_low, q_high, k_low, k_high;

    if (n->segments == NULL)
        return true;
    range(n->segments + t->b * n->s + t->q, t->nq, &q_low, &q_high);
    range(n->segments + t->b * n->s + t->k, t->nk, &k_low, &k_high);
    return q_low <= k_high && k_low <= q_high;
}

void d9di_tile_mask(const d9d_attention_dims *n, const d9di_tile *t, int64_t i, float *score)
{
    const int32_t *seg;
    int32_t own;

    if (n->segments == NULL)
        return;
    seg = n->segments + t->b * n->s;
    own = seg[t->q + i];
    seg += t->k;
    for (int64_t j = 0; j < t->nk; j++)
        score[j] = seg[j] == own ? score[j] : -INFINITY;
}

/* What one thread needs. */
typedef struct work {
    float *score, *out, *q, *k, *v; /* blocks; q, k, v where bfloat16 is converted */
    float m[D9DI_Q_BLOCK], l[D9DI_Q_BLOCK];
} work;

static int64_t work_floats(int64_t d)
{
    return D9DI_Q_BLOCK * D9DI_K_BLOCK + 2 * (D9DI_Q_BLOCK + D9DI_K_BLOCK) * d;
}

static void work_init(work *w, float *p, int64_t d)
{
    w->score = p;
    w->out = w->score + D9DI_Q_BLOCK * D9DI_K_BLOCK;
    w->q = w->out + D9DI_Q_BLOCK * d;
    w->k = w->q + D9DI_Q_BLOCK * d;
    w->v = w->k + D9DI_K_BLOCK * d;
    for (int i = 0; i < D9DI_Q_BLOCK; i++) {
        w->m[i] = -INFINITY;
        w->l[i] = 0.0f;
    }
}

/* Scores of query i to probabilities relative to the running maximum. */
static void row_softmax(const d9d_attention_dims *n, const d9di_tile *t, int64_t i, work *w)
{
    float *p = w->score + i * t->nk, m, keep;
    int64_t limit = d9di_tile_limit(n, t, i);

    d9di_tile_mask(n, t, i, p);
    m = d9di_row_max(p, limit);
    m = w->m[i] > m ? w->m[i] : m;
    if (m == -INFINITY) { /* nothing seen so far, or NaN only, which the sum shows */
        keep = 0.0f;
        for (int64_t j = 0; j < limit; j++) {
            p[j] = p[j] == p[j] ? 0.0f : p[j];
            w->l[i] += p[j];
        }
    } else {
        keep = d9di_expf(w->m[i] - m);
        w->l[i] = w->l[i] * keep + d9di_row_exp(p, p, m, limit);
        w->m[i] = m;
    }
    memset(p + limit, 0, (size_t)(t->nk - limit) * sizeof(*p));
    if (keep != 1.0f)
        d9di_row_scale(w->out + i * n->d, keep, w->out + i * n->d, n->d);
}

/* Queries [q0, q0 + nq) of query head h in batch entry b. */
static void block_forward(const d9d_attention_dims *n, int64_t b, int64_t h, int64_t q0, void *o,
                          float *lse, const void *q, const void *k, const void *v, float *scratch)
{
    int64_t d = n->d, kh = h / (n->a / n->kv), nq = d9di_min(n->s - q0, D9DI_Q_BLOCK);
    work w;
    d9di_rows qr;

    work_init(&w, scratch, d);
    memset(w.out, 0, (size_t)(nq * d) * sizeof(float));
    qr = d9di_rows_of(n->t, q, b * n->s + q0, nq, n->a, h, d, w.q);
    for (int64_t k0 = 0; k0 < d9di_key_end(n, q0, nq); k0 += D9DI_K_BLOCK) {
        int64_t nk = d9di_min(d9di_key_end(n, q0, nq) - k0, D9DI_K_BLOCK);
        d9di_tile t = {.b = b, .q = q0, .nq = nq, .k = k0, .nk = nk};
        d9di_rows kr, vr;

        if (!d9di_tile_visible(n, &t))
            continue;
        kr = d9di_rows_of(n->t, k, b * n->s + k0, nk, n->kv, kh, d, w.k);
        vr = d9di_rows_of(n->t, v, b * n->s + k0, nk, n->kv, kh, d, w.v);
        d9di_sgemm(false, true, nq, nk, d, n->scale, qr.x, qr.ld, kr.x, kr.ld, 0.0f, w.score, nk);
        for (int64_t i = 0; i < nq; i++)
            row_softmax(n, &t, i, &w);
        d9di_sgemm(false, false, nq, d, nk, 1.0f, w.score, nk, vr.x, vr.ld, 1.0f, w.out, d);
    }
    for (int64_t i = 0; i < nq; i++) {
        d9di_row_scale(w.out + i * d, 1.0f / w.l[i], w.out + i * d, d);
        d9di_store(n->t, o, ((b * n->s + q0 + i) * n->a + h) * d, d, w.out + i * d);
        lse[(b * n->a + h) * n->s + q0 + i] = w.m[i] + logf(w.l[i]);
    }
}

d9d_status d9d_ref_attention(d9d_stream s, const d9d_attention_dims *n, void *o, float *lse,
                             const void *q, const void *k, const void *v)
{
    int64_t blocks = d9di_ceil_div(n->s, D9DI_Q_BLOCK), floats = work_floats(n->d);
    float *scratch;

    (void)s;
    D9D_TRY(d9di_check_float("attention", n->t));
    if (n->b * n->s * n->a * n->d == 0)
        return D9D_OK;
    if ((scratch = d9di_scratch_threads("attention", floats)) == NULL)
        return D9D_ENOMEM;
        /* Late queries see more keys, so they go first. */
#pragma omp parallel for schedule(dynamic) if (n->b * n->a * n->s * n->s * n->d > D9DI_SERIAL)
    for (int64_t i = 0; i < n->b * n->a * blocks; i++) {
        int64_t head = i % (n->b * n->a), block = blocks - 1 - i / (n->b * n->a);

        block_forward(n, head / n->a, head % n->a, block * D9DI_Q_BLOCK, o, lse, q, k, v,
                      d9di_mine(scratch, floats));
    }
    free(scratch);
    return D9D_OK;
}
