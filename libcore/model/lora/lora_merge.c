/* lora_merge.c - a tensor source with LoRA adapters merged.  See d9d/model/lora/adapters.h.
 *
 * In any layout, a tensor is changed by one or several products: a linear layer by one, a stack of
 * experts by one for each expert, fused gate and up by two for each expert.  A product is left
 * [rows, r] times right [r, columns], of which the tensor has some of its rows and columns, so that
 * any span of any tensor can be computed by itself.  A head that was trained in full replaces its
 * tensor.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/lora/adapter_private.h"

enum { MAX_COLUMNS = 1024 }; /* columns computed at a time */

/* Where rows or columns of a product are in a tensor: as the features of d9d_model_matrix_place. */
typedef struct lora_map {
    int64_t group, stride, offset;
} lora_map;

/* In rows [first, first + rows) of a tensor. */
typedef struct lora_product {
    int64_t first, rows;
    lora_map row, column;
    const float *left; /* element (i, k) at i * left_row + k * left_k */
    int64_t left_row, left_k;
    const float *right; /* [r, columns] */
    int64_t r, columns;
    float scale;
} lora_product;

typedef struct merged_tensor {
    size_t index; /* index in the source */
    int64_t rows, columns;
    lora_product *products; /* NULL: unchanged */
    size_t n;
    const d9di_adapters_head *head; /* or, if not NULL, the head that replaces it */
} merged_tensor;

struct d9d_lora_merge {
    const d9d_adapters *ad;
    const d9d_model_matrices *of; /* until it is made */
    const d9d_hf_prefixes *as;    /* how the source begins its names */
    d9d_tensor_source src;
    d9d_map by_name; /* tensors with products: merged_tensor */
    merged_tensor *tensors;
    size_t n, used; /* used: entries of by_name that were found */
    d9d_arena arena;
};

/* --- which products -------------------------------------------------------------------------- */

static d9d_status no_memory(const d9di_adapters_factors *f)
{
    return D9D_FAIL(D9D_ENOMEM, "adapter of %s: no memory to merge it", f->name);
}

/* Reserve n more products for the tensor `name`, which is added if new. */
static d9d_status products_reserve(d9d_lora_merge *m, const d9di_adapters_factors *f,
                                   const char *name, size_t n, merged_tensor **out)
{
    merged_tensor *t = d9d_map_get(&m->by_name, name, strlen(name));
    lora_product *more;

    if (t == NULL) {
        t = d9d_arena_alloc(&m->arena, sizeof(*t));
        if (t == NULL)
            return no_memory(f);
        D9D_TRY(d9d_map_put(&m->by_name, name, strlen(name), t));
    }
    more = d9d_arena_alloc(&m->arena, (t->n + n) * sizeof(*more));
    if (more == NULL)
        return no_memory(f);
    if (t->n > 0)
        memcpy(more, t->products, t->n * sizeof(*more));
    t->products = more;
    *out = t;
    return D9D_OK;
}

static lora_map map_whole(int64_t n)
{
    return (lora_map){n, n, 0};
}

static lora_map map_features(const d9d_model_matrix_place *p)
{
    return (lora_map){p->group, p->stride, p->offset};
}

/* B_e A_e, in a tensor [features, in]. */
static lora_product product_of(const d9di_adapters_factors *f, int64_t e,
                               const d9d_model_matrix_place *p)
{
    return (lora_product){.rows = p->features,
                          .row = map_features(p),
                          .column = map_whole(f->in),
                          .left = f->b + e * f->out * f->r,
                          .left_row = f->r,
                          .left_k = 1,
                          .right = f->a + e * f->r * f->in,
                          .r = f->r,
                          .columns = f->in,
                          .scale = (float)(f->alpha / (double)f->r)};
}

/* The same in a tensor [in, features]; needs B transposed. */
static d9d_status product_transposed(d9d_lora_merge *m, const d9di_adapters_factors *f, int64_t e,
                                     const d9d_model_matrix_place *p, lora_product *out)
{
    float *bt = d9d_arena_alloc(&m->arena, (size_t)(f->r * f->out) * sizeof(*bt));
    const float *b = f->b + e * f->out * f->r;

    if (bt == NULL)
        return no_memory(f);
    for (int64_t i = 0; i < f->out; i++)
        for (int64_t k = 0; k < f->r; k++)
            bt[k * f->out + i] = b[i * f->r + k];
    *out = (lora_product){.rows = f->in,
                          .row = map_whole(f->in),
                          .column = map_features(p),
                          .left = f->a + e * f->r * f->in,
                          .left_row = 1,
                          .left_k = f->in,
                          .right = bt,
                          .r = f->r,
                          .columns = f->out,
                          .scale = (float)(f->alpha / (double)f->r)};
    return D9D_OK;
}

/* Add the products of experts [e, e + n) to a tensor. */
static d9d_status products_add(d9d_lora_merge *m, const d9di_adapters_factors *f,
                               const d9d_model_matrix_place *p, const char *name, int64_t e,
                               int64_t n)
{
    merged_tensor *t = NULL;

    if (name == NULL)
        return no_memory(f);
    D9D_TRY(products_reserve(m, f, name, (size_t)n, &t));
    t->columns = p->in_first ? p->features : f->in;
    t->rows = n * (p->in_first ? f->in : p->features);
    for (int64_t i = 0; i < n; i++) {
        lora_product x = product_of(f, e + i, p);

        if (p->in_first)
            D9D_TRY(product_transposed(m, f, e + i, p, &x));
        x.first = i * x.rows;
        t->products[t->n++] = x;
    }
    return D9D_OK;
}

/* The name that the source has for a tensor. */
static const char *name_in_source(d9d_lora_merge *m, const d9d_model_matrix_place *p, int64_t e)
{
    const char *name = d9di_peft_place_tensor(p, e, &m->arena);

    return name != NULL && m->of->parts != NULL
               ? d9d_hf_name_as(m->of->parts, m->as, name, &m->arena)
               : name;
}

static d9d_status factors_add(d9d_lora_merge *m, const d9di_adapters_factors *f,
                              d9d_weights_layout layout)
{
    const d9d_model_matrix *at = d9di_adapters_matrix_of(m->of, f);
    const d9d_model_matrix_place own = {.features = f->out,
                                        .group = f->out,
                                        .stride = f->out,
                                        .in_first = f->stack},
                                 *p;

    if (layout == D9D_LAYOUT_D9D)
        return products_add(m, f, &own, d9d_arena_printf(&m->arena, "%s.weight", f->name), 0,
                            f->experts);
    p = at == NULL ? NULL : layout == D9D_LAYOUT_HF_FUSED ? &at->fused : &at->hf;
    if (p == NULL || p->tensor == NULL)
        return D9D_FAIL(D9D_ENOTSUP, "adapter of %s: the matrix is not in HuggingFace's files",
                        f->name);
    if (!d9di_peft_place_is_each(p))
        return products_add(m, f, p, name_in_source(m, p, 0), 0, f->experts);
    for (int64_t e = 0; e < f->experts; e++)
        D9D_TRY(products_add(m, f, p, name_in_source(m, p, e), e, 1));
    return D9D_OK;
}

/* The head that replaces a tensor; NULL: none. */
static const d9di_adapters_head *head_find(const d9d_lora_merge *m, d9d_weights_layout layout,
                                           const char *tensor)
{
    for (size_t i = 0; i < m->ad->heads.len; i++) {
        const d9di_adapters_head *w = &m->ad->heads.data[i];
        const d9d_model_matrix *at = d9di_adapters_find_matrix(m->of, w->name);
        const size_t n = strlen(w->name);

        if (layout == D9D_LAYOUT_D9D || at == NULL || at->hf.tensor == NULL
                ? strncmp(tensor, w->name, n) == 0 && strcmp(tensor + n, ".weight") == 0
                : strcmp(tensor, at->hf.tensor) == 0)
            return w;
    }
    return NULL;
}

/* --- the source ------------------------------------------------------------------------------ */

static d9d_status tensors_list(d9d_lora_merge *m, d9d_weights_layout layout)
{
    m->tensors = d9d_arena_alloc(&m->arena, (m->src.n + 1) * sizeof(*m->tensors));
    if (m->tensors == NULL)
        return D9D_FAIL(D9D_ENOMEM, "merging: no memory for records of %zu tensors", m->src.n);
    for (size_t i = 0; i < m->src.n; i++) {
        const char *name = m->src.at(m->src.self, i)->name;
        const merged_tensor *t = d9d_map_get(&m->by_name, name, strlen(name));

        if (d9di_adapters_is_factor(name))
            continue;
        if (t != NULL)
            m->tensors[m->n] = *t;
        m->used += t != NULL;
        m->tensors[m->n].head = head_find(m, layout, name);
        m->tensors[m->n++].index = i;
    }
    if (m->used < m->by_name.len)
        return D9D_FAIL(D9D_EMISMATCH, "merging: of %zu tensors that adapters change %zu are there",
                        m->by_name.len, m->used);
    return D9D_OK;
}

/* One row of left times right, columns [from, from + n): bit for bit that of its transpose. */
static void product_row(const lora_product *p, int64_t row, int64_t from, int64_t n, float *sum)
{
    memset(sum, 0, (size_t)n * sizeof(*sum));
    for (int64_t k = 0; k < p->r; k++) {
        const float l = p->left[row * p->left_row + k * p->left_k];
        const float *r = p->right + k * p->columns + from;

        for (int64_t j = 0; j < n; j++)
            sum[j] += l * r[j];
    }
}

/* How many rows or columns of a product are before position `at` of the tensor? */
static int64_t count_before(const lora_map *m, int64_t at)
{
    const int64_t in = at % m->stride - m->offset;

    return at / m->stride * m->group + (in < 0 ? 0 : in > m->group ? m->group : in);
}

static float value_get(d9d_dtype t, const void *p, int64_t i)
{
    return t == D9D_F32 ? ((const float *)p)[i] : d9d_bf16_to_f32(((const uint16_t *)p)[i]);
}

static void value_put(d9d_dtype t, void *p, int64_t i, float v)
{
    if (t == D9D_F32)
        ((float *)p)[i] = v;
    else
        ((uint16_t *)p)[i] = d9d_bf16_from_f32(v);
}

/* The smallest magnitude that is infinite in this type. */
static float overflow_from(d9d_dtype t)
{
    return t == D9D_BF16 ? 0x1.ffp127f : INFINITY;
}

/* Add `n` columns of one row of a product, from its column `from` on, to those of the tensor's row
 * at dst, which begins with column `start`.  Returns how many finite ones became infinite. */
static int64_t columns_add(const lora_product *p, d9d_dtype type, const float *sum, int64_t from,
                           int64_t n, int64_t start, void *dst)
{
    const float end = overflow_from(type);
    int64_t in = from % p->column.group, lost = 0;
    int64_t at = from / p->column.group * p->column.stride + p->column.offset + in - start;

    for (int64_t j = 0; j < n; j++, at++) {
        const float old = value_get(type, dst, at), v = old + p->scale * sum[j];

        lost += !(fabsf(v) < end) && isfinite(old);
        value_put(type, dst, at, v);
        if (++in == p->column.group) {
            in = 0;
            at += p->column.stride - p->column.group;
        }
    }
    return lost;
}

/* Add to elements [from, from + n) of one row of a tensor, at dst; returns the same. */
static int64_t product_add(const lora_product *p, d9d_dtype type, int64_t row, int64_t from,
                           int64_t n, void *dst)
{
    const int64_t own_row = count_before(&p->row, row), end = count_before(&p->column, from + n);
    float sum[MAX_COLUMNS];
    int64_t lost = 0;

    if (count_before(&p->row, row + 1) == own_row)
        return 0;
    for (int64_t c = count_before(&p->column, from); c < end; c += MAX_COLUMNS) {
        const int64_t some = end - c < MAX_COLUMNS ? end - c : MAX_COLUMNS;

        product_row(p, own_row, c, some, sum);
        lost += columns_add(p, type, sum, c, some, from, dst);
    }
    return lost;
}

static int64_t row_add(const merged_tensor *t, d9d_dtype type, int64_t row, int64_t from, int64_t n,
                       void *dst)
{
    int64_t lost = 0;

    for (size_t i = 0; i < t->n; i++) {
        const lora_product *p = &t->products[i];

        if (row >= p->first && row < p->first + p->rows)
            lost += product_add(p, type, row - p->first, from, n, dst);
    }
    return lost;
}

static const d9d_safetensors_tensor *merged_at(void *self, size_t i)
{
    const d9d_lora_merge *m = self;

    return m->src.at(m->src.self, m->tensors[i].index);
}

static const char *merged_place(void *self, size_t i)
{
    const d9d_lora_merge *m = self;

    return m->src.path(m->src.self, m->tensors[i].index);
}

static d9d_status check_lost(const d9d_safetensors_tensor *t, int64_t lost)
{
    if (lost == 0)
        return D9D_OK;
    return D9D_FAIL(D9D_ECONFIG,
                    "tensor %s: %lld values, with their adapter or head merged, are beyond %s",
                    t->name, (long long)lost, d9d_dtype_name(t->dtype));
}

static d9d_status merged_read(void *self, size_t i, uint64_t at, void *dst, uint64_t n)
{
    const d9d_lora_merge *m = self;
    const merged_tensor *t = &m->tensors[i];
    const d9d_dtype type = merged_at(self, i)->dtype;
    const int64_t width = (int64_t)d9d_dtype_size(type), end = (int64_t)(at + n) / width;
    int64_t lost = 0;

    for (int64_t k = (int64_t)at / width; t->head != NULL && k < end; k++) {
        lost += !(fabsf(t->head->v[k]) < overflow_from(type)) && isfinite(t->head->v[k]);
        value_put(type, dst, k - (int64_t)at / width, t->head->v[k]);
    }
    if (t->head != NULL)
        return check_lost(merged_at(self, i), lost);
    D9D_TRY(m->src.read(m->src.self, t->index, at, dst, n));
    for (int64_t k = (int64_t)at / width; t->products != NULL && k < end;) {
        const int64_t row = k / t->columns, from = k % t->columns;
        const int64_t some = end - k < t->columns - from ? end - k : t->columns - from;

        lost += row_add(t, type, row, from, some, (char *)dst + (uint64_t)k * (uint64_t)width - at);
        k += some;
    }
    return check_lost(merged_at(self, i), lost);
}

static void merged_prefetch(void *self, size_t i, uint64_t at, uint64_t n)
{
    const d9d_lora_merge *m = self;

    m->src.prefetch(m->src.self, m->tensors[i].index, at, n);
}

static void merged_identify(void *self, d9d_hasher *h)
{
    const d9d_lora_merge *m = self;

    m->src.fingerprint(m->src.self, h);
    for (size_t i = 0; i < m->ad->list.len; i++) {
        const d9di_adapters_factors *f = &m->ad->list.data[i];

        d9d_hasher_add(h, f->name, strlen(f->name) + 1);
        d9d_hasher_add(h, &f->alpha, sizeof(f->alpha));
        d9d_hasher_add(h, f->a, (size_t)(f->experts * f->r * f->in) * sizeof(float));
        d9d_hasher_add(h, f->b, (size_t)(f->experts * f->out * f->r) * sizeof(float));
    }
    for (size_t i = 0; i < m->ad->heads.len; i++) {
        const d9di_adapters_head *w = &m->ad->heads.data[i];

        d9d_hasher_add(h, w->name, strlen(w->name) + 1);
        d9d_hasher_add(h, w->v, (size_t)(w->rows * w->columns) * sizeof(float));
    }
}

/* --- creation -------------------------------------------------------------------------------- */

/* Check types and shapes against the adapters; tensors of a file whose header was not read are
 * skipped. */
static d9d_status shapes_check(const d9d_lora_merge *m)
{
    for (size_t i = 0; i < m->n; i++) {
        const d9d_safetensors_tensor *t = m->src.at(m->src.self, m->tensors[i].index);
        const d9di_adapters_head *w = m->tensors[i].head;
        const int64_t want = m->tensors[i].rows;
        int64_t rows = 1;

        if ((m->tensors[i].products == NULL && w == NULL) || t->ndim == 0)
            continue;
        if (t->dtype != D9D_F32 && t->dtype != D9D_BF16)
            return D9D_FAIL(D9D_ENOTSUP,
                            "tensor %s is %s; adapters are merged into float32 and bfloat16",
                            t->name, d9d_dtype_name(t->dtype));
        if (w != NULL && (t->ndim != 2 || t->shape[0] != w->rows || t->shape[1] != w->columns))
            return D9D_FAIL(D9D_EMISMATCH, "tensor %s is not [%lld, %lld], as the adapter has it",
                            t->name, (long long)w->rows, (long long)w->columns);
        if (w != NULL)
            continue;
        for (int d = 0; d + 1 < t->ndim; d++)
            rows *= t->shape[d];
        if (t->shape[t->ndim - 1] != m->tensors[i].columns || rows != want)
            return D9D_FAIL(D9D_EMISMATCH,
                            "tensor %s has %lld rows of %lld, its adapter %lld of %lld", t->name,
                            (long long)rows, (long long)t->shape[t->ndim - 1], (long long)want,
                            (long long)m->tensors[i].columns);
    }
    return D9D_OK;
}

d9d_status d9d_lora_merge_create(const d9d_adapters *ad, const d9d_model_matrices *of,
                                 d9d_weights_layout layout, const d9d_tensor_source *src,
                                 d9d_lora_merge **out)
{
    d9d_lora_merge *m = calloc(1, sizeof(*m));
    d9d_status st = D9D_OK;

    if (m == NULL)
        return D9D_FAIL(D9D_ENOMEM, "merging: out of memory");
    m->ad = ad;
    m->of = of;
    m->src = *src;
    if (of->parts != NULL)
        m->as = d9d_hf_prefixes_of(of->parts, src);
    for (size_t i = 0; i < ad->list.len; i++)
        D9D_TRY_OR(st, factors_add(m, &ad->list.data[i], layout), out);
    D9D_TRY_OR(st, tensors_list(m, layout), out);
    D9D_TRY_OR(st, shapes_check(m), out);
    m->of = NULL;
    *out = m;
    m = NULL;
out:
    d9d_lora_merge_free(m);
    return st;
}

d9d_tensor_source d9d_lora_merge_source(d9d_lora_merge *m)
{
    return (d9d_tensor_source){.self = m,
                               .n = m->n,
                               .at = merged_at,
                               .path = merged_place,
                               .read = merged_read,
                               .prefetch = m->src.prefetch != NULL ? merged_prefetch : NULL,
                               .fingerprint = m->src.fingerprint != NULL ? merged_identify : NULL};
}

void d9d_lora_merge_free(d9d_lora_merge *m)
{
    if (m == NULL)
        return;
    d9d_map_release(&m->by_name);
    d9d_arena_release(&m->arena);
    free(m);
}
