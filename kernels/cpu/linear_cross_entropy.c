/* linear_cross_entropy.c - a linear head and the cross-entropy of its logits, without the logits.
 *
 * loss = logsumexp(h W') - (h W')[target].  Logits are made a block of tokens by a block of
 * vocabulary at a time.  Tokens to be ignored are left out before any product.  With
 * p = exp(logits - lse):  dloss/dh = p W - W[target] (made by the forward while it has the
 * logits, as attention makes p V),  dW = sum over tokens of dloss (p - [target])' h.
 *
 * Of a vocabulary in parts, with f = exp(lse of this part - lse of all), this part's share of
 * dloss/dh is f (p W) - W[target] = f unit - (1 - f) W[target].
 */
#include "cpu/common.h"
#include "cpu/math.h"

enum {
    T_BLOCK = 256, /* tokens */
    V_BLOCK = 4096 /* columns */
};

/* A call: its sizes, its tokens that count, and memory for one block. */
typedef struct xent {
    const char *op;
    const d9d_xent_dims *n;
    const void *hidden;
    const void *const *w;
    const int32_t *targets;
    int64_t *row; /* tokens that count, ascending */
    int64_t n_rows;
    void *h;       /* their hidden rows: a block, of type t */
    float *logits; /* [T_BLOCK, V_BLOCK] */
} xent;

/* Columns [first, first + n) of split i; `base` is the split's first id. */
typedef struct columns {
    int split;
    int64_t base, first, n;
} columns;

/* Id of the first row of a split; of the end of them all, where it is the whole vocabulary. */
static int64_t first_id(const d9d_xent_dims *n, int split)
{
    int64_t id = 0;

    if (n->first != NULL)
        return n->first[split];
    for (int i = 0; i < split; i++)
        id += n->v[i];
    return id;
}

static int64_t vocabulary(const d9d_xent_dims *n)
{
    return n->first != NULL ? n->all : first_id(n, n->n_split);
}

/* W[id], or NULL when it is not in this part. */
static const void *row_of(const d9d_xent_dims *n, const void *const *w, int64_t id)
{
    for (int s = 0; s < n->n_split; s++) {
        int64_t row = id - first_id(n, s);

        if (row >= 0 && row < n->v[s])
            return d9di_cat(n->t, w[s], row * n->h);
    }
    return NULL;
}

static d9d_status collect(xent *x)
{
    int64_t v = vocabulary(x->n);

    for (int64_t i = 0; i < x->n->rows; i++) {
        int32_t target = x->targets[i];

        if (target == x->n->ignore)
            continue;
        if (target < 0 || target >= v)
            return D9D_FAIL(D9D_EINVAL,
                            "%s: target %d of row %lld is outside the vocabulary of %lld", x->op,
                            (int)target, (long long)i, (long long)v);
        x->row[x->n_rows++] = i;
    }
    return D9D_OK;
}

static void xent_release(xent *x)
{
    free(x->row);
    free(x->h);
    free(x->logits);
}

static d9d_status xent_init(xent *x, const char *op, const d9d_xent_dims *n, const void *hidden,
                            const void *const *w, const int32_t *targets)
{
    int64_t tokens = d9di_min(n->rows, T_BLOCK), width = d9di_min(vocabulary(n), V_BLOCK);

    *x = (xent){.op = op, .n = n, .hidden = hidden, .w = w, .targets = targets};
    D9D_TRY(d9di_check_float(op, n->t));
    x->row = malloc((size_t)d9di_max(n->rows, 1) * sizeof(*x->row));
    x->h = d9di_scratch(op, tokens * n->h);
    x->logits = d9di_scratch(op, tokens * width);
    if (x->row == NULL || x->h == NULL || x->logits == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for blocks of %lld tokens by %lld logits", op,
                        (long long)tokens, (long long)width);
    return collect(x);
}

/* Bring together the hidden rows of tokens [first, first + n) of those that count. */
static void gather(xent *x, int64_t first, int64_t n)
{
    size_t bytes = (size_t)x->n->h * d9d_dtype_size(x->n->t);

    for (int64_t i = 0; i < n; i++)
        memcpy(d9di_at(x->n->t, x->h, i * x->n->h),
               d9di_cat(x->n->t, x->hidden, x->row[first + i] * x->n->h), bytes);
}

/* Step to the next block of columns; start from {.split = 0, .n = 0}. */
static bool columns_next(const xent *x, columns *c)
{
    c->first += c->n;
    while (c->split < x->n->n_split && c->first >= x->n->v[c->split]) {
        c->split++;
        c->first = 0;
    }
    if (c->split >= x->n->n_split)
        return false;
    c->base = first_id(x->n, c->split);
    c->n = d9di_min(x->n->v[c->split] - c->first, V_BLOCK);
    return true;
}

static const void *weight(const xent *x, const columns *c)
{
    return d9di_cat(x->n->t, x->w[c->split], c->first * x->n->h);
}

/* Logits of the gathered tokens in some columns. */
static d9d_status logits_make(xent *x, const columns *c, int64_t tokens)
{
    d9di_gemm_how how = {.at = x->n->t, .bt = x->n->t, .ct = D9D_F32, .trans_b = true};
    d9di_gemm_job job = {
        .a = x->h, .b = weight(x, c), .c = x->logits, .m = tokens, .n = c->n, .k = x->n->h};

    return d9di_gemm_run(x->op, &how, &job, 1);
}

/* Column of the token's target within the block, or -1. */
static int64_t target_column(const xent *x, const columns *c, int64_t token)
{
    int64_t at = x->targets[x->row[token]] - c->base - c->first;

    return at >= 0 && at < c->n ? at : -1;
}

/* --- forward ---------------------------------------------------------------- */

/* Running maximum and sum of exp(logit - m) of a token, and the logit of its target. */
typedef struct online {
    float m, l, target, keep; /* keep: by how much the last block shrank what was summed */
} online;

static void online_add(online *o, float *logit, int64_t n, int64_t target)
{
    float m = d9di_row_max(logit, n);

    if (target >= 0)
        o->target = logit[target];
    m = o->m > m ? o->m : m;
    o->keep = o->l == 0.0f ? 1.0f : d9di_expf(o->m - m);
    o->l = o->l * o->keep + d9di_row_exp(logit, logit, m, n);
    o->m = m;
}

/* sum = keep sum + exp(logits - m) W for a block of columns. */
static d9d_status unit_add(xent *x, const columns *c, const online *o, int64_t n, float *sum,
                           float beta)
{
    d9di_gemm_how how = {.at = D9D_F32, .bt = x->n->t, .ct = D9D_F32, .beta = beta};
    d9di_gemm_job job = {
        .a = x->logits, .b = weight(x, c), .c = sum, .m = n, .n = x->n->h, .k = c->n};

    for (int64_t i = 0; i < n && beta != 0.0f; i++)
        if (o[i].keep != 1.0f)
            d9di_row_scale(sum + i * x->n->h, o[i].keep, sum + i * x->n->h, x->n->h);
    return d9di_gemm_run(x->op, &how, &job, 1);
}

/* y[i ..] = a x + b w for a row of h numbers, x float32 or y itself; w NULL: it is zero. */
static void combine(d9d_dtype t, void *y, int64_t at, float a, const float *x, float b,
                    const void *w, int64_t h)
{
    float buf[D9DI_BLOCK], row[D9DI_BLOCK];

    for (int64_t i = 0; i < h; i += D9DI_BLOCK) {
        int64_t c = d9di_min(h - i, D9DI_BLOCK);
        const float *in = x != NULL ? x + i : d9di_in(t, y, at + i, c, buf);
        float *out = d9di_out(t, y, at + i, buf);

        d9di_row_scale(out, a, in, c);
        if (w != NULL)
            d9di_row_axpy(out, b, d9di_in(t, w, i, c, row), c);
        d9di_put(t, y, at + i, c, out);
    }
}

static d9d_status forward_block(xent *x, int64_t first, int64_t n, float *loss, float *lse,
                                void *unit, float *sum)
{
    online o[T_BLOCK];
    columns c = {0};
    float beta = 0.0f;

    for (int64_t i = 0; i < n; i++)
        o[i] = (online){.m = -INFINITY};
    gather(x, first, n);
    for (; columns_next(x, &c); beta = 1.0f) {
        D9D_TRY(logits_make(x, &c, n));
#pragma omp parallel for if (n * c.n > D9DI_SERIAL)
        for (int64_t i = 0; i < n; i++)
            online_add(&o[i], x->logits + i * c.n, c.n, target_column(x, &c, first + i));
        if (unit != NULL)
            D9D_TRY(unit_add(x, &c, o, n, sum, beta));
    }
    if (beta == 0.0f && unit != NULL) /* there are no columns */
        memset(sum, 0, (size_t)(n * x->n->h) * sizeof(*sum));
    for (int64_t i = 0; i < n; i++) {
        float total = o[i].m + logf(o[i].l), by = o[i].l == 0.0f ? 0.0f : 1.0f / o[i].l;

        lse[x->row[first + i]] = total;
        loss[x->row[first + i]] = total - o[i].target;
        if (unit != NULL) /* sum / l - W[target] */
            combine(x->n->t, unit, x->row[first + i] * x->n->h, by, sum + i * x->n->h, -1.0f,
                    row_of(x->n, x->w, x->targets[x->row[first + i]]), x->n->h);
    }
    return D9D_OK;
}

d9d_status d9d_ref_xent(d9d_stream s, const d9d_xent_dims *n, float *loss, float *lse, void *unit,
                        const void *hidden, const void *const *w, const int32_t *targets)
{
    float *sum = NULL;
    d9d_status st;
    xent x;

    (void)s;
    D9D_TRY_OR(st, xent_init(&x, "cross-entropy", n, hidden, w, targets), out);
    st = D9D_ENOMEM;
    if (unit != NULL && (sum = d9di_scratch(x.op, d9di_min(n->rows, T_BLOCK) * n->h)) == NULL)
        goto out;
    memset(loss, 0, (size_t)n->rows * sizeof(*loss));
    memset(lse, 0, (size_t)n->rows * sizeof(*lse));
    if (unit != NULL)
        memset(unit, 0, (size_t)(n->rows * n->h) * d9d_dtype_size(n->t));
    st = D9D_OK;
    for (int64_t i = 0; i < x.n_rows; i += T_BLOCK)
        D9D_TRY_OR(st, forward_block(&x, i, d9di_min(x.n_rows - i, T_BLOCK), loss, lse, unit, sum),
                   out);
out:
    free(sum);
    xent_release(&x);
    return st;
}

/* --- parts of a vocabulary ---------------------------------------------------- */

/* lse and loss of token r.  A part's logit of the target is lse - loss, 0 where it is not. */
static void join(const float *parts, int64_t n, int64_t rows, int64_t r, float *loss, float *lse)
{
    float m = -INFINITY, sum = 0.0f, target = 0.0f;

    for (int64_t i = 0; i < n; i++)
        m = fmaxf(m, parts[2 * i * rows + r]);
    for (int64_t i = 0; i < n; i++) {
        float l = parts[2 * i * rows + r];

        if (l == -INFINITY)
            continue;
        sum += d9di_expf(l - m);
        target += l - parts[(2 * i + 1) * rows + r];
    }
    *lse = m + logf(sum);
    *loss = *lse - target;
}

d9d_status d9d_ref_xent_join(d9d_stream s, const d9d_xent_dims *d, float *loss, float *lse,
                             void *unit, const float *parts, int64_t n, int64_t mine,
                             const void *const *w, const int32_t *targets)
{
    (void)s;
    D9D_TRY(d9di_check_float("cross-entropy of parts", d->t));
#pragma omp parallel for if (d->rows * d->h > D9DI_SERIAL)
    for (int64_t r = 0; r < d->rows; r++) {
        float f;

        loss[r] = lse[r] = 0.0f;
        if (targets[r] == d->ignore)
            continue;
        join(parts, n, d->rows, r, &loss[r], &lse[r]);
        f = d9di_expf(parts[2 * mine * d->rows + r] - lse[r]);
        if (unit != NULL)
            combine(d->t, unit, r * d->h, f, NULL, f - 1.0f, row_of(d, w, targets[r]), d->h);
    }
    return D9D_OK;
}

/* --- backward --------------------------------------------------------------- */

d9d_status d9d_ref_xent_din(d9d_stream s, d9d_dtype t, void *dhidden, const float *dloss,
                            const void *unit, int64_t rows, int64_t h)
{
    (void)s;
    D9D_TRY(d9di_check_float("cross-entropy gradient", t));
#pragma omp parallel for if (rows * h > D9DI_SERIAL)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < h; i += D9DI_BLOCK) {
            int64_t c = d9di_min(h - i, D9DI_BLOCK), at = r * h + i;
            float buf[D9DI_BLOCK], *out = d9di_out(t, dhidden, at, buf);

            d9di_row_scale(out, dloss[r], d9di_in(t, unit, at, c, buf), c);
            d9di_put(t, dhidden, at, c, out);
        }
    return D9D_OK;
}

D9DI_CLONES static void softmax_grad(float *logit, float lse, float dloss, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        logit[i] = d9di_expf(logit[i] - lse) * dloss;
}

/* Gradients of the gathered tokens' logits, in place of the logits. */
static d9d_status dlogits_make(xent *x, const columns *c, int64_t first, int64_t n,
                               const float *dloss, const float *lse)
{
    D9D_TRY(logits_make(x, c, n));
#pragma omp parallel for if (n * c->n > D9DI_SERIAL)
    for (int64_t i = 0; i < n; i++) {
        int64_t row = x->row[first + i], target = target_column(x, c, first + i);
        float *d = x->logits + i * c->n;

        softmax_grad(d, lse[row], dloss[row], c->n);
        if (target >= 0)
            d[target] -= dloss[row];
    }
    return D9D_OK;
}

/* dW of some columns, in float32: dw = beta dw + sum over blocks of tokens. */
static d9d_status dw_columns(xent *x, const columns *c, float *dw, float beta, const float *dloss,
                             const float *lse)
{
    d9di_gemm_how how = {
        .at = D9D_F32, .bt = x->n->t, .ct = D9D_F32, .trans_a = true, .beta = beta};
    d9di_gemm_job job = {.a = x->logits, .b = x->h, .c = dw, .m = c->n, .n = x->n->h};

    if (x->n_rows == 0)
        return d9di_gemm_run(x->op, &how, &job, 1);
    for (int64_t i = 0; i < x->n_rows; i += T_BLOCK) {
        job.k = d9di_min(x->n_rows - i, T_BLOCK);
        gather(x, i, job.k);
        D9D_TRY(dlogits_make(x, c, i, job.k, dloss, lse));
        D9D_TRY(d9di_gemm_run(x->op, &how, &job, 1));
        how.beta = 1.0f;
    }
    return D9D_OK;
}

d9d_status d9d_ref_xent_dw(d9d_stream s, const d9d_xent_dims *n, d9d_dtype gt, void *const *dw,
                           const float *beta, const float *dloss, const float *lse,
                           const void *hidden, const void *const *w, const int32_t *targets)
{
    int64_t h = n->h;
    float *sum = NULL;
    columns c = {0};
    d9d_status st;
    xent x;

    (void)s;
    D9D_TRY_OR(st, xent_init(&x, "cross-entropy gradient", n, hidden, w, targets), out);
    D9D_TRY_OR(st, d9di_check_float(x.op, gt), out);
    st = D9D_ENOMEM;
    if (gt != D9D_F32 && (sum = d9di_scratch(x.op, d9di_min(vocabulary(n), V_BLOCK) * h)) == NULL)
        goto out;
    st = D9D_OK;
    while (columns_next(&x, &c)) {
        float b = beta[c.split];

        if (dw[c.split] == NULL)
            continue;
        if (gt == D9D_F32) {
            D9D_TRY_OR(st, dw_columns(&x, &c, (float *)dw[c.split] + c.first * h, b, dloss, lse),
                       out);
            continue;
        }
        D9D_TRY_OR(st, dw_columns(&x, &c, sum, 0.0f, dloss, lse), out);
        for (int64_t i = 0; i < c.n; i++)
            d9di_store_add(gt, dw[c.split], (c.first + i) * h, h, b, sum + i * h);
    }
out:
    free(sum);
    xent_release(&x);
    return st;
}

/* --- both ------------------------------------------------------------------- */

/* This part's lse and loss in their place of parts [ranks, 2, T], then those of all. */
static d9d_status once_of_parts(d9d_stream s, const d9d_xent_dims *n, float *loss, float *lse,
                                void *unit, const void *hidden, const void *const *w,
                                const int32_t *targets)
{
    const d9d_xent_ranks *r = n->ranks;
    float *parts = d9di_scratch("cross-entropy", 2 * r->n * n->rows);
    float *mine = parts + 2 * r->mine * n->rows;
    d9d_status st;

    if (parts == NULL)
        return D9D_ENOMEM;
    D9D_TRY_OR(st, d9d_ref_xent(s, n, mine + n->rows, mine, unit, hidden, w, targets), out);
    D9D_TRY_OR(st, r->gather(r->arg, parts, 2 * n->rows), out);
    st = d9d_ref_xent_join(s, n, loss, lse, unit, parts, r->n, r->mine, w, targets);
out:
    free(parts);
    return st;
}

d9d_status d9d_ref_xent_once(d9d_stream s, const d9d_xent_dims *n, d9d_dtype gt, float *loss,
                             void *unit, void *const *dw, const float *beta, const void *hidden,
                             const void *const *w, const int32_t *targets)
{
    float *lse = d9di_scratch("cross-entropy", 2 * n->rows), *ones = lse + n->rows;
    d9d_status st;

    if (lse == NULL)
        return D9D_ENOMEM;
    for (int64_t i = 0; i < n->rows; i++)
        ones[i] = 1.0f;
    D9D_TRY_OR(st,
               n->ranks != NULL ? once_of_parts(s, n, loss, lse, unit, hidden, w, targets)
                                : d9d_ref_xent(s, n, loss, lse, unit, hidden, w, targets),
               out);
    st = d9d_ref_xent_dw(s, n, gt, dw, beta, ones, lse, hidden, w, targets);
out:
    free(lse);
    return st;
}
