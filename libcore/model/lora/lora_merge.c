/* lora_merge.c - a tensor source with LoRA adapters merged.  See d9d/model/lora/adapters.h.
 *
 * In any layout, a tensor's rows belong to one or several products: a linear layer to one, a stack
 * of experts to one for each expert, fused gate and up to two for each expert.  A product is
 * left [rows, r] times right [r, columns], so that any span of any tensor can be computed by
 * itself.  A head that was trained in full replaces its tensor.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/lora/adapter_private.h"

enum { MAX_COLUMNS = 1024 }; /* columns computed at a time */

/* Rows [first, first + rows) of a tensor. */
typedef struct lora_product {
    int64_t first, rows;
    const float *left; /* element (i, k) at i * left_row + k * left_k */
    int64_t left_row, left_k;
    const float *right; /* [r, columns] */
    int64_t r;
    float scale;
} lora_product;

typedef struct merged_tensor {
    size_t index; /* index in the source */
    int64_t columns;
    lora_product *products; /* NULL: unchanged */
    size_t n;
    const d9di_adapters_head *head; /* or, if not NULL, the head that replaces it */
} merged_tensor;

struct d9d_lora_merge {
    const d9d_adapters *ad;
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
                                   const char *name, size_t n, int64_t columns, merged_tensor **out)
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
    t->columns = columns;
    *out = t;
    return D9D_OK;
}

/* B_e A_e [out, in], from row `first` on. */
static lora_product product_of(const d9di_adapters_factors *f, int64_t e, int64_t first)
{
    return (lora_product){.first = first,
                          .rows = f->out,
                          .left = f->b + e * f->out * f->r,
                          .left_row = f->r,
                          .left_k = 1,
                          .right = f->a + e * f->r * f->in,
                          .r = f->r,
                          .scale = (float)(f->alpha / (double)f->r)};
}

/* The same transposed [in, out]; needs B transposed. */
static d9d_status product_transposed(d9d_lora_merge *m, const d9di_adapters_factors *f, int64_t e,
                                     int64_t first, lora_product *out)
{
    float *bt = d9d_arena_alloc(&m->arena, (size_t)(f->r * f->out) * sizeof(*bt));
    const float *b = f->b + e * f->out * f->r;

    if (bt == NULL)
        return no_memory(f);
    for (int64_t i = 0; i < f->out; i++)
        for (int64_t k = 0; k < f->r; k++)
            bt[k * f->out + i] = b[i * f->r + k];
    *out = (lora_product){.first = first,
                          .rows = f->in,
                          .left = f->a + e * f->r * f->in,
                          .left_row = 1,
                          .left_k = f->in,
                          .right = bt,
                          .r = f->r,
                          .scale = (float)(f->alpha / (double)f->r)};
    return D9D_OK;
}

/* Add products in the suite's layout: a matrix, or a stack [E, in, out]. */
static d9d_status own_add(d9d_lora_merge *m, const d9di_adapters_factors *f, const char *name)
{
    merged_tensor *t;

    D9D_TRY(products_reserve(m, f, name, (size_t)f->experts, f->stack ? f->out : f->in, &t));
    for (int64_t e = 0; e < f->experts; e++) {
        lora_product *p = &t->products[t->n++];

        if (f->stack)
            D9D_TRY(product_transposed(m, f, e, e * f->in, p));
        else
            *p = product_of(f, 0, 0);
    }
    return D9D_OK;
}

/* Add products for fused stacks of transformers: [E, rows, in], of which these are some rows. */
static d9d_status fused_add(d9d_lora_merge *m, const d9di_adapters_factors *f,
                            const d9d_model_matrix *at)
{
    merged_tensor *t;

    D9D_TRY(products_reserve(m, f, at->fused, (size_t)f->experts, f->in, &t));
    for (int64_t e = 0; e < f->experts; e++)
        t->products[t->n++] = product_of(f, e, e * at->fused_rows + at->fused_row);
    return D9D_OK;
}

/* Add products for layouts with one tensor for each module. */
static d9d_status modules_add(d9d_lora_merge *m, const d9di_adapters_factors *f,
                              const d9d_model_matrix *at)
{
    for (int64_t e = 0; e < f->experts; e++) {
        char module[D9DI_HF_MODULE_MAX], name[D9DI_HF_MODULE_MAX + sizeof(".weight")];
        merged_tensor *t;

        d9di_hf_module(at, e, module);
        (void)snprintf(name, sizeof(name), "%s.weight", module);
        D9D_TRY(products_reserve(m, f, name, 1, f->in, &t));
        t->products[t->n++] = product_of(f, e, 0);
    }
    return D9D_OK;
}

static d9d_status factors_add(d9d_lora_merge *m, const d9di_adapters_factors *f,
                              const d9d_model_matrices *of, d9d_weights_layout layout)
{
    const d9d_model_matrix *at = d9di_adapters_matrix_of(of, f);
    char name[D9DI_HF_MODULE_MAX + sizeof(".weight")];

    if (layout == D9D_LAYOUT_D9D) {
        (void)snprintf(name, sizeof(name), "%s.weight", f->name);
        return own_add(m, f, name);
    }
    if (at == NULL)
        return D9D_FAIL(D9D_ENOTSUP, "adapter of %s: the matrix is not in HuggingFace's files",
                        f->name);
    return f->stack && layout == D9D_LAYOUT_HF_FUSED ? fused_add(m, f, at) : modules_add(m, f, at);
}

/* The head that replaces a tensor; NULL: none. */
static const d9di_adapters_head *head_find(const d9d_lora_merge *m, const d9d_model_matrices *of,
                                           d9d_weights_layout layout, const char *tensor)
{
    for (size_t i = 0; i < m->ad->heads.len; i++) {
        const d9di_adapters_head *w = &m->ad->heads.data[i];
        const d9d_model_matrix *at = d9di_adapters_find_matrix(of, w->name);
        const char *module = layout == D9D_LAYOUT_D9D || at == NULL ? w->name : at->hf;
        const size_t n = strlen(module);

        if (strncmp(tensor, module, n) == 0 && strcmp(tensor + n, ".weight") == 0)
            return w;
    }
    return NULL;
}

/* --- the source ------------------------------------------------------------------------------ */

/* Find a tensor; a base model's names lack the prefix "model.". */
static merged_tensor *tensor_find(const d9d_lora_merge *m, const char *name)
{
    merged_tensor *t = d9d_map_get(&m->by_name, name, strlen(name));
    char whole[D9DI_HF_MODULE_MAX + sizeof("model..weight")];

    if (t != NULL)
        return t;
    (void)snprintf(whole, sizeof(whole), "model.%.*s", D9DI_HF_MODULE_MAX, name);
    return d9d_map_get(&m->by_name, whole, strlen(whole));
}

static d9d_status tensors_list(d9d_lora_merge *m, const d9d_model_matrices *of,
                               d9d_weights_layout layout)
{
    m->tensors = d9d_arena_alloc(&m->arena, (m->src.n + 1) * sizeof(*m->tensors));
    if (m->tensors == NULL)
        return D9D_FAIL(D9D_ENOMEM, "merging: no memory for records of %zu tensors", m->src.n);
    for (size_t i = 0; i < m->src.n; i++) {
        const char *name = m->src.at(m->src.self, i)->name;
        const merged_tensor *t = tensor_find(m, name);

        if (d9di_adapters_is_factor(name))
            continue;
        if (t != NULL)
            m->tensors[m->n] = *t;
        m->used += t != NULL;
        m->tensors[m->n].head = head_find(m, of, layout, name);
        m->tensors[m->n++].index = i;
    }
    if (m->used < m->by_name.len)
        return D9D_FAIL(D9D_EMISMATCH, "merging: of %zu tensors that adapters change %zu are there",
                        m->by_name.len, m->used);
    return D9D_OK;
}

/* One row of left times right, columns [from, from + n): bit for bit that of its transpose. */
static void product_row(const lora_product *p, int64_t columns, int64_t row, int64_t from,
                        int64_t n, float *sum)
{
    memset(sum, 0, (size_t)n * sizeof(*sum));
    for (int64_t k = 0; k < p->r; k++) {
        const float l = p->left[row * p->left_row + k * p->left_k];
        const float *r = p->right + k * columns + from;

        for (int64_t j = 0; j < n; j++)
            sum[j] += l * r[j];
    }
}

/* The product that a row belongs to; NULL: none. */
static const lora_product *product_at(const merged_tensor *t, int64_t row)
{
    for (size_t i = 0; i < t->n; i++)
        if (row >= t->products[i].first && row < t->products[i].first + t->products[i].rows)
            return &t->products[i];
    return NULL;
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

/* Add to elements [from, from + n) of one row of a tensor, at dst.  Returns how many finite ones
 * became infinite. */
static int64_t row_add(const merged_tensor *t, d9d_dtype type, int64_t row, int64_t from, int64_t n,
                       void *dst)
{
    const lora_product *p = product_at(t, row);
    const float end = overflow_from(type);
    int64_t lost = 0;
    float sum[MAX_COLUMNS];

    for (int64_t at = 0; p != NULL && at < n; at += MAX_COLUMNS) {
        const int64_t some = n - at < MAX_COLUMNS ? n - at : MAX_COLUMNS;

        product_row(p, t->columns, row - p->first, from + at, some, sum);
        for (int64_t j = 0; j < some; j++) {
            const float old = value_get(type, dst, at + j), v = old + p->scale * sum[j];

            lost += !(fabsf(v) < end) && isfinite(old);
            value_put(type, dst, at + j, v);
        }
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
        int64_t rows = 1, want = 0;

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
        for (size_t k = 0; k < m->tensors[i].n; k++)
            want += m->tensors[i].products[k].rows;
        if (t->shape[t->ndim - 1] != m->tensors[i].columns || rows < want)
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
    m->src = *src;
    for (size_t i = 0; i < ad->list.len; i++)
        D9D_TRY_OR(st, factors_add(m, &ad->list.data[i], of, layout), out);
    D9D_TRY_OR(st, tensors_list(m, of, layout), out);
    D9D_TRY_OR(st, shapes_check(m), out);
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
