/* module.c - a tree of named parameters.  See d9d/nn/module.h. */
#include "d9d/nn/module.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/base/hash.h"
#include "d9d/base/thread.h"

void d9d_module_init(d9d_module *m)
{
    memset(m, 0, sizeof(*m));
}

static d9d_status entry_add(d9d_module *m, const char *name, d9d_param *p, d9d_module *child)
{
    struct d9d_module_entry e = {d9d_arena_strdup(&m->names, name), p, child};

    if (e.name == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for the name of %s", name);
    return D9D_VEC_PUSH(&m->entries, e);
}

d9d_status d9d_module_param(d9d_module *m, const char *name, d9d_param *p, d9d_dtype t,
                            d9d_shape shape, d9d_init_kind init, float init_scale)
{
    D9D_TRY(entry_add(m, name, p, NULL));
    *p = (d9d_param){
        .name = m->entries.data[m->entries.len - 1].name,
        .spec = {.shape = shape,
                 .dtype = t,
                 .grad_dtype = D9D_F32,
                 .init = init,
                 .init_scale = init_scale,
                 .trainable = true},
        .placement.is_primary = true,
        .local.shape = shape,
        .shard.shape = shape,
    };
    return D9D_OK;
}

/* Find or create the child of this name, a prefix of a dotted name. */
static d9d_module *child_group(d9d_module *m, const char *name, size_t n)
{
    const char *own;
    d9d_module *g;

    for (size_t i = 0; i < m->entries.len; i++) {
        const struct d9d_module_entry *e = &m->entries.data[i];

        if (e->child != NULL && strncmp(e->name, name, n) == 0 && e->name[n] == '\0')
            return e->child;
    }
    own = d9d_arena_strndup(&m->names, name, n);
    g = d9d_arena_alloc(&m->names, sizeof(*g));
    if (own == NULL || g == NULL)
        return NULL;
    d9d_module_init(g);
    return entry_add(m, own, NULL, g) == D9D_OK ? g : NULL;
}

d9d_status d9d_module_child(d9d_module *m, const char *name, d9d_module *c)
{
    const char *dot = strchr(name, '.');
    d9d_module *g;

    if (dot == NULL)
        return entry_add(m, name, NULL, c);
    g = child_group(m, name, (size_t)(dot - name));
    if (g == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for the modules of %s", name);
    return d9d_module_child(g, dot + 1, c);
}

void d9d_module_remove(d9d_module *m, const d9d_param *p)
{
    size_t kept = 0;

    for (size_t i = 0; i < m->entries.len; i++)
        if (m->entries.data[i].param != p)
            m->entries.data[kept++] = m->entries.data[i];
    m->entries.len = kept;
}

void d9d_module_release(d9d_module *m)
{
    for (size_t i = 0; i < m->entries.len; i++) {
        struct d9d_module_entry *e = &m->entries.data[i];

        if (e->child != NULL) {
            d9d_module_release(e->child);
        } else {
            d9d_param_forget_quantised(e->param);
            d9d_tensor_release(&e->param->local.data);
            d9d_tensor_release(&e->param->local.grad);
            d9d_tensor_release(&e->param->shard.data);
            d9d_tensor_release(&e->param->shard.grad);
        }
    }
    D9D_VEC_RELEASE(&m->entries);
    d9d_arena_release(&m->names);
}

d9d_status d9d_module_each(d9d_module *root, d9d_module_param_fn fn, void *arg)
{
    for (size_t i = 0; i < root->entries.len; i++) {
        const struct d9d_module_entry *e = &root->entries.data[i];

        D9D_TRY(e->child != NULL ? d9d_module_each(e->child, fn, arg) : fn(arg, e->param));
    }
    return D9D_OK;
}

/* Names are in one arena, which is released after the walk. */
static d9d_status modules_walk(d9d_arena *names, const char *name, d9d_module *m, d9d_module_fn fn,
                               void *arg)
{
    D9D_TRY(fn(arg, name, m));
    for (size_t i = 0; i < m->entries.len; i++) {
        const struct d9d_module_entry e = m->entries.data[i];
        char *below;

        if (e.child == NULL)
            continue;
        below = d9d_arena_printf(names, "%s%s%s", name, *name != '\0' ? "." : "", e.name);
        if (below == NULL)
            return D9D_FAIL(D9D_ENOMEM, "no memory for the name of %s", e.name);
        D9D_TRY(modules_walk(names, below, e.child, fn, arg));
    }
    return D9D_OK;
}

d9d_status d9d_module_walk(d9d_module *root, d9d_module_fn fn, void *arg)
{
    d9d_arena names = {0};
    const d9d_status st = modules_walk(&names, "", root, fn, arg);

    d9d_arena_release(&names);
    return st;
}

/* --- names ----------------------------------------------------------------------- */

typedef struct binding {
    d9d_arena *names;
    d9d_map by_name, by_address;
} binding;

static d9d_status bind_param(binding *b, char *name, d9d_param *p)
{
    const size_t len = strlen(name);

    if (d9d_map_has(&b->by_name, name, len))
        return D9D_FAIL(D9D_EINVAL, "two parameters are called %s", name);
    if (d9d_map_has(&b->by_address, (const char *)&p, sizeof(p)))
        return D9D_FAIL(D9D_EINVAL, "one parameter is called both %s and %s", p->name, name);
    D9D_TRY(d9d_map_put(&b->by_name, name, len, p));
    D9D_TRY(d9d_map_put(&b->by_address, (const char *)&p, sizeof(p), p));
    p->name = name;
    p->id = d9d_hash_u64(name, len);
    return D9D_OK;
}

static d9d_status names_bind(binding *b, d9d_module *m, const char *prefix)
{
    for (size_t i = 0; i < m->entries.len; i++) {
        const struct d9d_module_entry *e = &m->entries.data[i];
        char *name =
            d9d_arena_printf(b->names, "%s%s%s", prefix, *prefix != '\0' ? "." : "", e->name);

        if (name == NULL)
            return D9D_FAIL(D9D_ENOMEM, "no memory for the name of %s", e->name);
        D9D_TRY(e->child != NULL ? names_bind(b, e->child, name) : bind_param(b, name, e->param));
    }
    return D9D_OK;
}

d9d_status d9d_module_bind(d9d_module *root)
{
    binding b = {.names = &root->names};
    const d9d_status st = names_bind(&b, root, "");

    d9d_map_release(&b.by_name);
    d9d_map_release(&b.by_address);
    return st;
}

d9d_param *d9d_module_find(d9d_module *root, const char *name)
{
    d9d_param *found = NULL;

    for (size_t i = 0; i < root->entries.len && found == NULL; i++) {
        const struct d9d_module_entry *e = &root->entries.data[i];

        if (e->child != NULL)
            found = d9d_module_find(e->child, name);
        else if (strcmp(e->param->name, name) == 0)
            found = e->param;
    }
    return found;
}

/* --- all of them -------------------------------------------------------------------- */

static d9d_status count_param(void *arg, d9d_param *p)
{
    (void)p;
    ++*(size_t *)arg;
    return D9D_OK;
}

static d9d_status list_param(void *arg, d9d_param *p)
{
    d9d_params *list = arg;

    list->p[list->n++] = p;
    return D9D_OK;
}

d9d_status d9d_module_params(d9d_module *root, d9d_arena *a, d9d_params *out)
{
    d9d_params list = {0};
    size_t n = 0;

    D9D_TRY(d9d_module_each(root, count_param, &n));
    list.p = d9d_arena_alloc(a, n * sizeof(d9d_param *));
    if (list.p == NULL)
        return D9D_FAIL(D9D_ENOMEM, "no memory for a list of %zu parameters", n);
    D9D_TRY(d9d_module_each(root, list_param, &list));
    *out = list;
    return D9D_OK;
}

/* --- memory and initial values --------------------------------------------------------- */

typedef struct materialization {
    d9d_device *dev;
    bool with_grads;
} materialization;

static d9d_status materialise_param(void *arg, d9d_param *p)
{
    const materialization *m = arg;

    if (p->shard.data.storage == NULL) {
        const d9d_tensor stored = d9d_param_stored(p, &p->shard);

        D9D_TRY(d9d_tensor_alloc(m->dev, stored.dtype, stored.shape, &p->shard.data));
        p->local.data = p->placement.shard_group == NULL ? d9d_tensor_ref(&p->shard.data)
                                                         : d9d_param_stored(p, &p->local);
    }
    if (m->with_grads && p->grad_on_demand) {
        d9d_param_grad_clear(p);
    } else if (m->with_grads && p->spec.trainable && p->local.grad.storage == NULL) {
        if (p->shard.grad.storage == NULL)
            D9D_TRY(d9d_tensor_alloc(m->dev, p->spec.grad_dtype, p->shard.shape, &p->shard.grad));
        p->local.grad = p->placement.shard_group == NULL
                            ? d9d_tensor_ref(&p->shard.grad)
                            : (d9d_tensor){.dtype = p->spec.grad_dtype, .shape = p->local.shape};
        p->local.has_grad = p->shard.has_grad = false;
    }
    return D9D_OK;
}

d9d_status d9d_module_materialise(d9d_module *root, d9d_device *dev, bool with_grads)
{
    materialization m = {dev, with_grads};

    return d9d_module_each(root, materialise_param, &m);
}

/* Shards and gradient buckets have their memory all the time, unless FSDP releases it. */
static d9d_status set_grad_on_demand(void *arg, d9d_param *p)
{
    const bool alone =
        p->spec.trainable && p->placement.shard_group == NULL && p->shard.grad.storage == NULL;

    p->grad_loose = alone && *(const bool *)arg;
    p->grad_on_demand = alone || (p->grad_on_demand && p->spec.trainable);
    return D9D_OK;
}

void d9d_module_set_grads_on_demand(d9d_module *root, bool loose)
{
    const d9d_status st = d9d_module_each(root, set_grad_on_demand, &loose);

    (void)st; /* set_grad_on_demand cannot fail */
}

/* Rows of a quantised matrix, which are drawn whole and quantised on the host. */
typedef struct quantised_rows {
    const d9d_param *p;
    d9d_rng rng;
    char *out;
} quantised_rows;

enum { ROWS_AT_ONCE = 16 };

static d9d_status quantised_row(const quantised_rows *q, int64_t r, void *x)
{
    const d9d_param *p = q->p;
    const int64_t cols = p->spec.shape.dim[1], shape[] = {1, cols},
                  at[] = {p->shard.offset[0] + r, 0};

    D9D_TRY(d9d_kernels_cpu()->elementwise->random(NULL, p->spec.dtype, x, p->spec.init,
                                                   p->spec.init_scale, q->rng, 2, shape, at,
                                                   p->spec.shape.dim));
    return d9d_quant_rows(p->spec.stored, p->spec.dtype, x, 1, cols, p->shard.offset[1],
                          p->shard.shape.dim[1], q->out + r * p->shard.data.shape.dim[1]);
}

static d9d_status quantised_rows_fill(void *arg, int worker, size_t item)
{
    const quantised_rows *q = arg;
    const d9d_param *p = q->p;
    void *x = malloc((size_t)p->spec.shape.dim[1] * d9d_dtype_size(p->spec.dtype) + 1);
    d9d_status st = D9D_OK;

    (void)worker;
    if (x == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for a row", p->name);
    for (int64_t r = (int64_t)item * ROWS_AT_ONCE;
         r < ((int64_t)item + 1) * ROWS_AT_ONCE && r < p->shard.shape.dim[0] && st == D9D_OK; r++)
        st = quantised_row(q, r, x);
    free(x);
    return st;
}

static d9d_status reset_quantised(d9d_param *p, d9d_rng rng)
{
    const int64_t rows = p->shard.shape.dim[0];
    const uint64_t bytes = d9d_tensor_bytes(&p->shard.data);
    quantised_rows q = {p, rng, malloc((size_t)bytes + 1)};
    d9d_status st;

    if (q.out == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %lld rows", p->name, (long long)rows);
    st = d9d_thread_run(0, (size_t)((rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE), quantised_rows_fill,
                        &q);
    if (st == D9D_OK)
        st = d9d_device_upload(d9d_tensor_device(&p->shard.data), d9d_tensor_data(&p->shard.data),
                               q.out, bytes);
    free(q.out);
    return st;
}

d9d_status d9d_module_reset_param(d9d_param *p, uint64_t seed)
{
    const d9d_rng rng = {seed, p->id};
    d9d_device *dev = d9d_tensor_device(&p->shard.data);

    if (dev == NULL)
        return D9D_FAIL(D9D_EINVAL, "%s cannot be filled: it has no memory yet", p->name);
    if (p->spec.stored != D9D_QUANT_NONE)
        return reset_quantised(p, rng);
    return dev->kernels->elementwise->random(
        dev->stream, p->spec.dtype, d9d_tensor_data(&p->shard.data), p->spec.init,
        p->spec.init_scale, rng, p->shard.shape.ndim, p->shard.shape.dim, p->shard.offset,
        p->spec.shape.dim);
}

static d9d_status reset_param(void *arg, d9d_param *p)
{
    return d9d_module_reset_param(p, *(const uint64_t *)arg);
}

d9d_status d9d_module_reset(d9d_module *root, uint64_t seed)
{
    return d9d_module_each(root, reset_param, &seed);
}

static d9d_status clear_grad(void *arg, d9d_param *p)
{
    (void)arg;
    d9d_param_grad_clear(p);
    return D9D_OK;
}

void d9d_module_clear_grads(d9d_module *root)
{
    const d9d_status st = d9d_module_each(root, clear_grad, NULL);

    (void)st; /* clear_grad cannot fail */
}
