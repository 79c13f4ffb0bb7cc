/* map_plan.c - planning: binds a mapper to a source and infers shapes.  See
 * d9d/ckpt/mapper/mapper.h. */
#include "ckpt/mapper/map_plan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/thread.h"

static const uint32_t NOWHERE = UINT32_MAX; /* an input that the source lacks */

static d9d_status no_memory(void)
{
    return D9D_FAIL(D9D_ENOMEM, "plan: out of memory");
}

/* --- problems ------------------------------------------------------------------- */

enum plan_problem { MISSING, UNUSED, MISSHAPED, N_PROBLEMS };

struct problem_list {
    const d9d_map_plan_opts *opt;
    size_t n[N_PROBLEMS];
    d9d_buf first;     /* messages of the first few */
    d9d_map misshaped; /* names of tensors that are listed as such: each once */
};

static void problem_list_release(struct problem_list *ps)
{
    d9d_buf_release(&ps->first);
    d9d_map_release(&ps->misshaped);
}

static size_t problem_count(const struct problem_list *ps)
{
    return ps->n[MISSING] + ps->n[UNUSED] + ps->n[MISSHAPED];
}

D9D_PRINTF(3, 0)
static d9d_status vnote_problem(struct problem_list *ps, enum plan_problem kind, const char *fmt,
                                va_list ap)
{
    enum { MAX_SHOWN = 4 };
    d9d_buf text = {0};
    d9d_status st = d9d_buf_vprintf(&text, fmt, ap);

    if (st == D9D_OK && problem_count(ps) < MAX_SHOWN)
        st = d9d_buf_printf(&ps->first, "%s%s", ps->first.len > 0 ? "; " : "", text.data);
    if (st == D9D_OK && ps->opt->on_problem != NULL)
        ps->opt->on_problem(ps->opt->arg, text.data);
    ps->n[kind]++;
    d9d_buf_release(&text);
    return st;
}

D9D_PRINTF(3, 4)
static d9d_status note_problem(struct problem_list *ps, enum plan_problem kind, const char *fmt,
                               ...)
{
    va_list ap;
    d9d_status st;

    va_start(ap, fmt);
    st = vnote_problem(ps, kind, fmt, ap);
    va_end(ap);
    return st;
}

/* Of a tensor, and of what is made of it under its name, the first counts. */
D9D_PRINTF(3, 4)
static d9d_status note_misshaped(struct problem_list *ps, const char *name, const char *fmt, ...)
{
    va_list ap;
    d9d_status st;

    if (d9d_map_has(&ps->misshaped, name, strlen(name)))
        return D9D_OK;
    D9D_TRY(d9d_map_put(&ps->misshaped, name, strlen(name), NULL));
    va_start(ap, fmt);
    st = vnote_problem(ps, MISSHAPED, fmt, ap);
    va_end(ap);
    return st;
}

static d9d_status report_problems(const struct problem_list *ps, const d9d_map_plan *p)
{
    size_t n = problem_count(ps);

    if (n == 0)
        return D9D_OK;
    return D9D_FAIL(D9D_EMISMATCH,
                    "%s and %s: %zu missing, %zu unused, %zu mis-shaped tensors: %s%s", p->source,
                    p->mapper, ps->n[MISSING], ps->n[UNUSED], ps->n[MISSHAPED], ps->first.data,
                    n > 4 ? "; ..." : "");
}

/* --- binding -------------------------------------------------------------------- */

static d9d_status check_expect(const d9d_map_plan *p, size_t value, struct problem_list *ps)
{
    const d9di_mapper_value *v = &p->m->values.data[value];
    const d9di_mapper_view *view = &p->views[value];
    char has[D9D_SAFETENSORS_DESCRIBE], wants[D9D_SAFETENSORS_DESCRIBE];
    d9d_safetensors_tensor t = {.dtype = view->dtype, .ndim = view->ndim}, e;
    bool fits;

    if (v->expect == NULL || !view->known)
        return D9D_OK;
    fits = view->ndim == v->expect->ndim;
    for (int d = 0; d < view->ndim; d++) {
        t.shape[d] = view->shape[d];
        fits = fits && view->shape[d] == v->expect->shape[d];
    }
    if (fits)
        return D9D_OK;
    e = *v->expect;
    e.dtype = view->dtype;
    return note_misshaped(ps, v->name, "tensor %s is %s, %s needs %s", v->name,
                          d9d_safetensors_describe(&t, has), p->mapper,
                          d9d_safetensors_describe(&e, wants));
}

static d9d_status check_floating(const d9d_map_plan *p, size_t value, struct problem_list *ps)
{
    const d9di_mapper_value *v = &p->m->values.data[value];
    d9d_dtype t = p->views[value].dtype;

    if (d9di_cast_is_float(t) || p->m->steps.data[v->consumer].n_out == 0)
        return D9D_OK;
    return note_misshaped(ps, v->name, "tensor %s is %s, %s needs floating point", v->name,
                          d9d_dtype_safetensors(t), p->mapper);
}

/* Finds each input in the source. */
static d9d_status find_sources(d9d_map_plan *p)
{
    d9d_map names = {0};
    d9d_status st = D9D_OK;

    p->sources = d9d_arena_alloc(&p->arena, (p->m->inputs.len + 1) * sizeof(*p->sources));
    if (p->sources == NULL)
        return no_memory();
    for (size_t i = 0; i < p->src.n; i++) {
        const d9d_safetensors_tensor *t = p->src.at(p->src.self, i);

        D9D_TRY_OR(st, d9d_map_put(&names, t->name, strlen(t->name), (void *)(uintptr_t)(i + 1)),
                   out);
    }
    for (size_t i = 0; i < p->m->inputs.len; i++) {
        const char *name = p->m->inputs.entries[i].key;

        p->sources[i] = (uint32_t)(uintptr_t)d9d_map_get(&names, name, strlen(name)) - 1;
    }
out:
    d9d_map_release(&names);
    return st;
}

static d9d_status note_missing(const d9d_map_plan *p, size_t i, struct problem_list *ps)
{
    return note_problem(ps, MISSING, "tensor %s is missing", p->m->inputs.entries[i].key);
}

static d9d_status note_unused(const d9d_map_plan *p, struct problem_list *ps)
{
    for (size_t i = 0; i < p->src.n; i++) {
        const char *name = p->src.at(p->src.self, i)->name;
        bool spare = d9d_map_has(&p->m->inputs, name, strlen(name));

        if (!spare && p->src.is_spare != NULL)
            D9D_TRY(p->src.is_spare(p->src.self, i, &spare));
        if (!spare)
            D9D_TRY(note_problem(ps, UNUSED, "tensor %s is not used (%s)", name,
                                 p->src.path(p->src.self, i)));
    }
    return D9D_OK;
}

static d9d_status bind_inputs(d9d_map_plan *p, const d9d_map_plan_opts *opt,
                              struct problem_list *ps)
{
    D9D_TRY(find_sources(p));
    for (size_t i = 0; i < p->m->inputs.len; i++) {
        const uint32_t at = p->sources[i];
        const size_t value = d9di_mapper_entry_value(&p->m->inputs, i);

        if (at == NOWHERE) {
            D9D_TRY(note_missing(p, i, ps));
            continue;
        }
        D9D_TRY(
            d9di_mapper_view_tensor(p->src.at(p->src.self, at), at, &p->arena, &p->views[value]));
        if (opt->floating)
            D9D_TRY(check_floating(p, value, ps));
        D9D_TRY(check_expect(p, value, ps));
    }
    return opt->allow_unused ? D9D_OK : note_unused(p, ps);
}

/* The sentence of an operation begins with the name of the input that does not suit it. */
static d9d_status note_unsuitable(struct problem_list *ps, const char *sentence)
{
    const char *end = strstr(sentence, ": ");
    char *name = end != NULL ? strndup(sentence, (size_t)(end - sentence)) : strdup(sentence);
    const d9d_status st =
        name != NULL ? note_misshaped(ps, name, "tensor %s", sentence) : no_memory();

    free(name);
    return st;
}

/* Infers the views of one step's outputs; unknown if an input is unknown. */
static d9d_status infer_step(d9d_map_plan *p, const d9di_mapper_step *s, struct problem_list *ps)
{
    d9di_mapper_infer x = {p->m, s, p->views, NULL, &p->arena};
    d9d_status st;

    for (size_t k = 0; k < s->n_in; k++)
        if (!p->views[s->in[k]].known)
            return D9D_OK;
    if (s->n_out == 0)
        return D9D_OK;
    x.out = d9d_arena_alloc(&p->arena, s->n_out * sizeof(*x.out));
    if (x.out == NULL)
        return no_memory();
    st = s->op->infer(&x);
    if (st == D9D_EMISMATCH)
        return note_unsuitable(ps, d9d_err_message());
    D9D_TRY(st);
    for (size_t k = 0; k < s->n_out; k++) {
        p->n_boxes += x.out[k].n;
        if (p->n_boxes > D9DI_ALL_BOXES)
            return D9D_FAIL(D9D_ENOTSUP, "%s: more than %d boxes of tensors", p->mapper,
                            (int)D9DI_ALL_BOXES);
        p->views[s->out[k]] = x.out[k];
        D9D_TRY(check_expect(p, s->out[k], ps));
    }
    return D9D_OK;
}

/* --- outputs ------------------------------------------------------------------------- */

static bool has_suffix(const char *name, const char *end)
{
    const size_t n = strlen(name), k = end != NULL ? strlen(end) : 0;

    return k > 0 && n >= k && strcmp(name + n - k, end) == 0;
}

static d9d_status make_output(d9d_map_plan *p, const d9d_map_plan_opts *opt, size_t i)
{
    size_t value = d9di_mapper_entry_value(&p->m->outputs, i);
    d9d_safetensors_tensor *t = &p->outputs[i];
    d9di_mapper_view *view = d9d_arena_alloc(&p->arena, sizeof(*view));

    if (view == NULL)
        return no_memory();
    *view = p->views[value];
    t->name = p->m->outputs.entries[i].key;
    if (opt->cast && d9di_cast_is_float(view->dtype)) {
        const bool keep = has_suffix(t->name, opt->keep_suffix);

        if (!keep || opt->keep_as_float32)
            D9D_TRY(d9di_mapper_view_cast(&p->views[value], keep ? D9D_F32 : opt->cast_to,
                                          &p->arena, view));
    }
    t->dtype = view->dtype;
    t->ndim = view->ndim;
    memcpy(t->shape, view->shape, sizeof(t->shape));
    if (!d9d_safetensors_shape_bytes(t->dtype, t->ndim, t->shape, &t->bytes) ||
        !d9d_checked_add_u64(p->bytes, t->bytes, &p->bytes))
        return D9D_FAIL(D9D_EMISMATCH, "%s: tensor %s: its size overflows", p->mapper, t->name);
    p->out_views[i] = view;
    return D9D_OK;
}

static d9d_status make_outputs(d9d_map_plan *p, const d9d_map_plan_opts *opt)
{
    p->n_outputs = p->m->outputs.len;
    p->outputs = d9d_arena_alloc(&p->arena, (p->n_outputs + 1) * sizeof(*p->outputs));
    p->out_views = d9d_arena_alloc(&p->arena, (p->n_outputs + 1) * sizeof(*p->out_views));
    if (p->outputs == NULL || p->out_views == NULL)
        return no_memory();
    for (size_t i = 0; i < p->n_outputs; i++)
        D9D_TRY(make_output(p, opt, i));
    return D9D_OK;
}

static d9d_status build_plan(d9d_map_plan *p, const d9d_map_plan_opts *opt)
{
    struct problem_list ps = {.opt = opt};
    d9d_status st = D9D_OK;

    p->views = d9d_arena_alloc(&p->arena, (p->m->values.len + 1) * sizeof(*p->views));
    if (p->views == NULL)
        return no_memory();
    D9D_TRY_OR(st, bind_inputs(p, opt, &ps), out);
    for (size_t i = 0; i < p->m->steps.len; i++)
        D9D_TRY_OR(st, infer_step(p, &p->m->steps.data[i], &ps), out);
    D9D_TRY_OR(st, report_problems(&ps, p), out);
    D9D_TRY_OR(st, d9di_mapper_groups(p->m, &p->arena, &p->group, &p->n_groups), out);
    D9D_TRY_OR(st, make_outputs(p, opt), out);
    p->peak = d9di_map_read_peak_bytes(p);
out:
    problem_list_release(&ps);
    return st;
}

static d9d_status init_plan(d9d_map_plan *p, const d9d_mapper *m, const d9d_tensor_source *src,
                            const d9d_map_plan_opts *opt)
{
    p->m = m;
    p->src = *src;
    p->overflow = opt->overflow;
    p->source = d9d_arena_strdup(&p->arena, opt->source != NULL ? opt->source : "source");
    p->mapper = d9d_arena_strdup(&p->arena, opt->mapper != NULL ? opt->mapper : "mapper");
    return p->source == NULL || p->mapper == NULL || src->n > NOWHERE - 1 ? no_memory() : D9D_OK;
}

d9d_status d9d_map_plan_create(const d9d_mapper *m, const d9d_tensor_source *src,
                               const d9d_map_plan_opts *opt, d9d_map_plan **out)
{
    static const d9d_map_plan_opts none = {0};
    d9d_map_plan *p = calloc(1, sizeof(*p));
    d9d_status st;

    if (p == NULL)
        return no_memory();
    opt = opt != NULL ? opt : &none;
    D9D_TRY_OR(st, init_plan(p, m, src, opt), out);
    if (opt->cast && !d9di_cast_is_supported(D9D_F32, opt->cast_to)) {
        st =
            D9D_FAIL(D9D_ECONFIG, "%s: cannot cast to %s", p->mapper, d9d_dtype_name(opt->cast_to));
        goto out;
    }
    D9D_TRY_OR(st, build_plan(p, opt), out);
    *out = p;
    p = NULL;
out:
    d9d_map_plan_free(p);
    return st;
}

d9d_status d9d_map_plan_check_names(const d9d_mapper *m, const d9d_tensor_source *src,
                                    const d9d_map_plan_opts *opt)
{
    struct problem_list ps = {.opt = opt};
    d9d_map_plan p = {0};
    d9d_status st;

    D9D_TRY_OR(st, init_plan(&p, m, src, opt), out);
    D9D_TRY_OR(st, find_sources(&p), out);
    for (size_t i = 0; i < m->inputs.len; i++)
        if (p.sources[i] == NOWHERE)
            D9D_TRY_OR(st, note_missing(&p, i, &ps), out);
    D9D_TRY_OR(st, note_unused(&p, &ps), out);
    st = report_problems(&ps, &p);
out:
    problem_list_release(&ps);
    d9d_arena_release(&p.arena);
    return st;
}

void d9d_map_plan_free(d9d_map_plan *p)
{
    if (p == NULL)
        return;
    d9d_arena_release(&p->arena);
    free(p);
}

size_t d9d_map_plan_output_count(const d9d_map_plan *p)
{
    return p->n_outputs;
}
const d9d_safetensors_tensor *d9d_map_plan_output(const d9d_map_plan *p, size_t i)
{
    return &p->outputs[i];
}
uint64_t d9d_map_plan_bytes(const d9d_map_plan *p)
{
    return p->bytes;
}

uint64_t d9d_map_plan_peak_bytes(const d9d_map_plan *p, int jobs)
{
    return p->peak * (uint64_t)(jobs > 0 ? jobs : d9d_thread_cpus());
}
