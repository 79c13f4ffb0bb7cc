/* adapter_modules.c - adapters of matrices as adapters of the tensors that have them.  See
 * adapter_private.h.
 */
#include <stdio.h>
#include <string.h>

#include "model/lora/adapter_private.h"
#include "model/tensors/hf_names.h"

static const char expert_mark[] = "{expert}", weight[] = ".weight";

static d9d_status no_memory(void)
{
    return D9D_FAIL(D9D_ENOMEM, "adapters: out of memory");
}

/* --- names ---------------------------------------------------------------------------------- */

bool d9di_peft_place_is_each(const d9d_model_matrix_place *p)
{
    return p->tensor != NULL && strstr(p->tensor, expert_mark) != NULL;
}

const char *d9di_peft_place_tensor(const d9d_model_matrix_place *p, int64_t e, d9d_arena *a)
{
    return d9di_peft_place_is_each(p) ? d9di_hf_expert_name(p->tensor, e, a) : p->tensor;
}

size_t d9di_peft_module_length(const char *tensor)
{
    const char *dot = strrchr(tensor, '.');

    return dot != NULL ? (size_t)(dot - tensor) : 0;
}

bool d9di_peft_is_same_module(const char *tensor, const char *other)
{
    const size_t n = d9di_peft_module_length(tensor);

    return n == d9di_peft_module_length(other) && strncmp(tensor, other, n) == 0;
}

/* Have the modules of two tensors the same last component? */
static bool is_same_leaf(const char *tensor, const char *other)
{
    const char *of[] = {tensor, other}, *at[2];
    size_t n[2];

    for (int i = 0; i < 2; i++) {
        const char *end = of[i] + d9di_peft_module_length(of[i]);

        for (at[i] = end; at[i] > of[i] && at[i][-1] != '.';)
            at[i]--;
        n[i] = (size_t)(end - at[i]);
    }
    return n[0] == n[1] && strncmp(at[0], at[1], n[0]) == 0;
}

static bool is_stack(const d9d_model_matrix *m)
{
    return m->experts > 0 && !d9di_peft_place_is_each(&m->module);
}

/* transformers has the matrix of a router in a module of its own kind. */
static bool is_router(const d9d_model_matrix *m)
{
    static const char router[] = ".router.gate";
    const size_t n = strlen(m->name), k = strlen(router);

    return n > k && strcmp(m->name + n - k, router) == 0;
}

/* Have files of the family a tensor of this name for each expert?  transformers stacks them, and
 * peft takes the name for the stack's in every model of the kind, also one without experts. */
static bool is_name_of_experts(const d9d_model_matrices *of, const char *name)
{
    bool is = false;

    for (const d9d_hf_tensor *row = of->rows; row != NULL && row->hf != NULL; row++)
        is |= row->rows == D9D_HF_ROWS_SEPARATE && strstr(row->hf, "{expert}") != NULL &&
              is_same_leaf(name, row->hf);
    return is;
}

bool d9di_peft_is_target_parameter(const d9d_model_matrices *of, const d9d_adapter_kind *own,
                                   const d9d_model_matrix *m)
{
    const char *name = m->module.tensor;
    const size_t n = strlen(name), k = strlen(weight);

    return is_stack(m) || is_router(m) || n <= k || strcmp(name + n - k, weight) != 0 ||
           (own == NULL && is_name_of_experts(of, name));
}

const char *d9di_peft_name(const d9d_model_matrices *of, const char *name, d9d_arena *a)
{
    return of->base && of->parts != NULL && name != NULL
               ? d9d_hf_name_as(of->parts, &d9d_hf_prefixes_bare, name, a)
               : name;
}

/* --- types ---------------------------------------------------------------------------------- */

const char *d9di_peft_own_name(const d9d_adapter_kind *kind, int i)
{
    return kind->params[i].file != NULL ? kind->params[i].file : kind->params[i].name;
}

d9d_shape d9di_adapters_largest(const d9d_adapters *ad)
{
    d9d_shape most = D9D_SHAPE(0, 0);

    for (size_t i = 0; i < ad->list.len; i++) {
        const d9di_adapters_factors *f = &ad->list.data[i];

        most.dim[0] = f->out > most.dim[0] ? f->out : most.dim[0];
        most.dim[1] = f->in > most.dim[1] ? f->in : most.dim[1];
    }
    return most;
}

/* Are shared rows in the order of the tensor, and the matrix has them in another? */
static bool is_shared_out_of_order(const d9d_adapter_kind *kind, const d9d_model_matrix_place *p)
{
    bool shared = false;

    for (int i = 0; i < D9D_ADAPTER_PARAMS; i++)
        shared |= kind->params[i].name != NULL && kind->params[i].shared &&
                  kind->params[i].dim[0] == D9D_ADAPTER_OUT;
    for (int64_t i = 0; shared && i < p->features; i++)
        if (d9di_peft_place_feature(p, i) != i)
            return true;
    return false;
}

d9d_status d9di_peft_own_check(const d9d_adapter_kind *kind, const d9d_model_matrices *of,
                               const d9d_model_matrix *m)
{
    const d9d_model_matrix_place *p = &m->module;
    const char *why =
        kind->files == NULL                          ? "peft has no such method"
        : d9di_peft_is_target_parameter(of, kind, m) ? "peft adapts it by the name of the "
                                                       "parameter, which LoRA alone can"
        : p->in_first                                ? "transformers has it as [in, out]"
        : p->features != m->out ? "it shares a tensor of transformers' model with "
                                  "others, which LoRA alone can"
        : is_shared_out_of_order(kind, p)
            ? "transformers has its rows in another order, and matrices share an array "
              "of rows"
            : NULL;

    return why == NULL ? D9D_OK
                       : D9D_FAIL(D9D_ENOTSUP,
                                  "%s: an adapter of the kind %s has no place in peft's files: %s",
                                  m->name, kind->name, why);
}

d9d_status d9di_peft_type_of(const d9di_adapters_factors *f, d9di_peft_type *out)
{
    enum { LOW_RANK = 1 << D9D_ADAPTER_A | 1 << D9D_ADAPTER_B };
    static const struct {
        unsigned roles;
        d9di_peft_type type;
    } all[] = {
        {LOW_RANK, D9DI_PEFT_LORA},
        {LOW_RANK | 1 << D9D_ADAPTER_MAGNITUDE, D9DI_PEFT_DORA},
        {1 << D9D_ADAPTER_OUTPUT, D9DI_PEFT_IA3},
        {1 << D9D_ADAPTER_INPUT, D9DI_PEFT_IA3},
    };

    if (f->own != NULL) {
        *out = D9DI_PEFT_OWN;
        return D9D_OK;
    }
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i].roles == f->params) {
            *out = all[i].type;
            return D9D_OK;
        }
    return D9D_FAIL(D9D_ENOTSUP, "adapter of %s: peft has no method with these parameters",
                    f->name);
}

/* --- parts ---------------------------------------------------------------------------------- */

static bool is_equal_a(const d9di_adapters_factors *f, const d9di_adapters_factors *g)
{
    const float *a = f->v[D9D_ADAPTER_A], *b = g->v[D9D_ADAPTER_A];

    return a != NULL && b != NULL && f->r == g->r &&
           memcmp(a, b, (size_t)(f->experts * f->r * f->in) * sizeof(*a)) == 0;
}

/* Of descriptions without numbers nothing is known: training makes them different. */
static bool is_equal_input(const d9di_adapters_factors *f, const d9di_adapters_factors *g)
{
    const float *a = f->v[D9D_ADAPTER_INPUT], *b = g->v[D9D_ADAPTER_INPUT];

    return a != NULL && b != NULL && memcmp(a, b, (size_t)f->in * sizeof(*a)) == 0;
}

static double scale_of(const d9di_adapters_factors *f)
{
    return f->alpha / (double)f->r;
}

static d9d_status part_add(d9di_peft_module *x, const d9d_model_matrix *m,
                           const d9di_adapters_factors *f)
{
    const d9di_adapters_factors *g = x->n > 0 ? x->parts[0].factors : f;
    d9di_peft_part part = {m, f, x->r};

    if (x->n == D9D_HF_PARTS)
        return D9D_FAIL(D9D_ENOTSUP, "adapters: %s has more than %d parts", x->tensor, x->n);
    if (d9di_adapters_has(f, D9D_ADAPTER_A) && (float)scale_of(f) != (float)scale_of(g))
        return D9D_FAIL(D9D_ECONFIG,
                        "peft: %s and %s are one tensor of transformers' model, %s, and their "
                        "adapters scale by alpha / r = %g and %g; give both the same, or leave one "
                        "out",
                        g->name, f->name, x->tensor, scale_of(g), scale_of(f));
    if (f->params != g->params ||
        (x->n > 0 && d9di_adapters_has(f, D9D_ADAPTER_INPUT) && !is_equal_input(f, g)))
        return D9D_FAIL(D9D_ECONFIG,
                        "peft: %s and %s are one tensor of transformers' model, %s, whose inputs "
                        "have one factor each",
                        g->name, f->name, x->tensor);
    for (int i = 0; i < x->n && part.first == x->r; i++)
        if (is_equal_a(f, x->parts[i].factors))
            part.first = x->parts[i].first;
    if (part.first == x->r)
        x->r += f->r;
    x->parts[x->n++] = part;
    x->alpha = g->r > 0 ? g->alpha * (double)x->r / (double)g->r : 0;
    return D9D_OK;
}

/* Find the module of a tensor, which is added if new. */
static d9d_status module_find(d9di_peft_modules *x, const d9d_model_matrices *of,
                              const d9d_model_matrix *m, int64_t e, d9di_peft_module **out)
{
    const char *tensor =
        d9di_peft_name(of, d9di_peft_place_tensor(&m->module, e, &x->arena), &x->arena);
    const bool each = d9di_peft_place_is_each(&m->module);
    size_t at;

    if (tensor == NULL)
        return no_memory();
    at = (size_t)(uintptr_t)d9d_map_get(&x->by_tensor, tensor, strlen(tensor));
    if (at == 0) {
        const d9di_peft_module new = {.tensor = tensor,
                                      .is_parameter = d9di_peft_is_target_parameter(of, x->own, m),
                                      .is_embedding = d9di_adapters_is_embedding(of, m),
                                      .expert = each ? e : -1,
                                      .experts = each || m->experts == 0 ? 1 : m->experts};

        D9D_TRY(D9D_VEC_PUSH(&x->list, new));
        at = x->list.len;
        D9D_TRY(d9d_map_put(&x->by_tensor, tensor, strlen(tensor), (void *)(uintptr_t)at));
    }
    *out = &x->list.data[at - 1];
    return D9D_OK;
}

/* A tied embedding is the head too, a module with the same adapter. */
static d9d_status tied_head_add(d9di_peft_modules *x, const d9d_model_matrices *of,
                                const d9d_model_matrix *m, const d9di_adapters_factors *f)
{
    d9d_model_matrix *head;
    d9di_peft_module *module = NULL;

    if (!of->tied || !d9di_adapters_is_embedding(of, m))
        return D9D_OK;
    head = d9d_arena_alloc(&x->arena, sizeof(*head));
    if (head == NULL)
        return no_memory();
    *head = *m;
    head->module.tensor = d9d_arena_printf(&x->arena, "%s%s", of->parts->hf.head, weight);
    if (head->module.tensor == NULL)
        return no_memory();
    D9D_TRY(module_find(x, of, head, 0, &module));
    return part_add(module, head, f);
}

static d9d_status factors_add(d9di_peft_modules *x, const d9d_model_matrices *of,
                              const d9di_adapters_factors *f)
{
    const d9d_model_matrix *m = d9di_adapters_matrix_of(of, f);

    if (m == NULL)
        return D9D_FAIL(D9D_ENOTSUP, "%s has an adapter and no place in HuggingFace's files",
                        f->name);
    if (f->own != NULL)
        D9D_TRY(d9di_peft_own_check(f->own, of, m));
    for (int64_t e = 0; e < (d9di_peft_place_is_each(&m->module) ? f->experts : 1); e++) {
        d9di_peft_module *module = NULL;

        D9D_TRY(module_find(x, of, m, e, &module));
        D9D_TRY(part_add(module, m, f));
    }
    return tied_head_add(x, of, m, f);
}

/* --- modules -------------------------------------------------------------------------------- */

static size_t order_of(const d9di_peft_module *x)
{
    return x->parts[0].matrix->module.order;
}

/* peft puts a wrapper around a module for each of its parameters in turn, so that the last one's is
 * outermost and has the module's name. */
static d9d_status module_name(d9di_peft_modules *x, d9di_peft_module *m)
{
    d9d_buf text = {0};
    d9d_status st =
        d9d_buf_printf(&text, "%.*s", (int)d9di_peft_module_length(m->tensor), m->tensor);

    for (size_t i = 0; i < x->list.len && m->is_parameter && st == D9D_OK; i++) {
        const d9di_peft_module *o = &x->list.data[i];

        if (o->is_parameter && order_of(o) > order_of(m) &&
            d9di_peft_is_same_module(o->tensor, m->tensor))
            st = d9d_buf_printf(&text, ".base_layer");
    }
    if (st == D9D_OK) {
        m->name = d9d_arena_strndup(&x->arena, (const char *)text.data, text.len);
        st = m->name != NULL ? D9D_OK : no_memory();
    }
    d9d_buf_release(&text);
    return st;
}

/* A directory of peft has one method. */
static d9d_status type_check(d9di_peft_modules *x, const d9d_adapters *ad, size_t i)
{
    const d9di_peft_type before = x->type;

    const d9d_adapter_kind *own = x->own;

    D9D_TRY(d9di_peft_type_of(&ad->list.data[i], &x->type));
    x->own = ad->list.data[i].own;
    return i == 0 || (x->type == before && x->own == own)
               ? D9D_OK
               : D9D_FAIL(D9D_ECONFIG,
                          "peft: %s and %s have adapters of two methods, and a directory of peft "
                          "has those of one",
                          ad->list.data[i - 1].name, ad->list.data[i].name);
}

/* Files without a rank_pattern have one rank. */
static d9d_status ranks_check(const d9di_peft_modules *x, const d9d_adapters *ad)
{
    const d9di_adapters_factors *f = ad->list.data;

    for (size_t i = 1; i < ad->list.len && x->own != NULL && x->own->files->one_rank; i++)
        if (f[i].r != f[0].r || f[i].seed != f[0].seed)
            return D9D_FAIL(D9D_ECONFIG,
                            "peft: %s has an adapter %s of rank %lld and seed %llu, %s one of rank "
                            "%lld and seed %llu, and peft's files have one of each",
                            f[0].name, x->own->name, (long long)f[0].r,
                            (unsigned long long)f[0].seed, f[i].name, (long long)f[i].r,
                            (unsigned long long)f[i].seed);
    return D9D_OK;
}

/* A magnitude is of all features of a tensor. */
static d9d_status magnitudes_check(const d9di_peft_module *x)
{
    int64_t features = 0;

    for (int i = 0; i < x->n; i++)
        features += x->parts[i].matrix->out;
    return !d9di_adapters_has(x->parts[0].factors, D9D_ADAPTER_MAGNITUDE) ||
                   features == x->parts[0].matrix->module.features
               ? D9D_OK
               : D9D_FAIL(D9D_ECONFIG,
                          "peft: %s is a part of %s of transformers' model, whose magnitudes are "
                          "those of all its rows; adapt all parts of it",
                          x->parts[0].factors->name, x->tensor);
}

d9d_status d9di_peft_modules_make(const d9d_adapters *ad, const d9d_model_matrices *of,
                                  d9di_peft_modules *out)
{
    d9d_status st = D9D_OK;

    *out = (d9di_peft_modules){0};
    for (size_t i = 0; i < ad->list.len && st == D9D_OK; i++) {
        st = type_check(out, ad, i);
        if (st == D9D_OK)
            st = factors_add(out, of, &ad->list.data[i]);
    }
    if (st == D9D_OK)
        st = ranks_check(out, ad);
    for (size_t i = 0; i < out->list.len && st == D9D_OK; i++)
        st = magnitudes_check(&out->list.data[i]);
    for (size_t i = 0; i < out->list.len && st == D9D_OK; i++)
        st = module_name(out, &out->list.data[i]);
    if (st != D9D_OK)
        d9di_peft_modules_release(out);
    return st;
}

void d9di_peft_modules_release(d9di_peft_modules *x)
{
    D9D_VEC_RELEASE(&x->list);
    d9d_map_release(&x->by_tensor);
    d9d_arena_release(&x->arena);
    *x = (d9di_peft_modules){0};
}
