/* hf_rope.c - rotary embedding as config.json has it, by the names of either generation. */
#include "model/hf_fields.h"

#include <math.h>
#include <string.h>

/* A number of the scaling's object; it may be absent unless `otherwise` is NaN. */
static d9d_status get_scaling(const d9di_hf *r, const json_t *from, const char *name,
                              double otherwise, double *out)
{
    D9D_TRY(d9di_hf_f64(r, from, name, otherwise, out));
    if (isnan(*out))
        return D9D_FAIL(D9D_ECONFIG, "%s: %s of scaled rotary embedding is missing", r->where,
                        name);
    return D9D_OK;
}

/* cosines and sines of yarn: given, of two more numbers, or by its own formula */
static d9d_status read_yarn_mscale(const d9di_hf *r, const json_t *from, d9d_rope_scaling *s)
{
    double over, under;

    D9D_TRY(d9di_hf_f64(r, from, "attention_factor", 0, &s->mscale));
    D9D_TRY(d9di_hf_f64(r, from, "mscale", 0, &over));
    D9D_TRY(d9di_hf_f64(r, from, "mscale_all_dim", 0, &under));
    if (s->mscale == 0 && over != 0 && under != 0 && s->factor > 1)
        s->mscale = (0.1 * over * log(s->factor) + 1) / (0.1 * under * log(s->factor) + 1);
    return D9D_OK;
}

static d9d_status read_linear(const d9di_hf *r, const json_t *from, d9d_rope_scaling *s)
{
    s->kind = D9D_ROPE_LINEAR;
    return get_scaling(r, from, "factor", NAN, &s->factor);
}

static d9d_status read_yarn(const d9di_hf *r, const json_t *from, d9d_rope_scaling *s)
{
    const json_t *whole = d9di_hf_member(from, "truncate");

    s->kind = D9D_ROPE_YARN;
    s->whole = whole == NULL || json_is_true(whole);
    D9D_TRY(get_scaling(r, from, "factor", NAN, &s->factor));
    D9D_TRY(get_scaling(r, from, "beta_fast", 32, &s->fast));
    D9D_TRY(get_scaling(r, from, "beta_slow", 1, &s->slow));
    return read_yarn_mscale(r, from, s);
}

static d9d_status read_llama3(const d9di_hf *r, const json_t *from, d9d_rope_scaling *s)
{
    s->kind = D9D_ROPE_LLAMA3;
    D9D_TRY(get_scaling(r, from, "factor", NAN, &s->factor));
    D9D_TRY(get_scaling(r, from, "high_freq_factor", NAN, &s->fast));
    return get_scaling(r, from, "low_freq_factor", NAN, &s->slow);
}

static d9d_status read_plain(const d9di_hf *r, const json_t *from, d9d_rope_scaling *s)
{
    (void)r, (void)from, (void)s;
    return D9D_OK;
}

/* Rotary embedding for longer rows, of an object that has its type under either name. */
static d9d_status read_scaling(const d9di_hf *r, const char *field, d9d_qwen3_config *c)
{
    static const struct {
        const char *type;
        d9d_status (*read)(const d9di_hf *r, const json_t *from, d9d_rope_scaling *s);
    } types[] = {{"default", read_plain},
                 {"linear", read_linear},
                 {"yarn", read_yarn},
                 {"llama3", read_llama3}};
    const json_t *from = d9di_hf_member(r->doc, field), *type = d9di_hf_member(from, "rope_type");

    if (from == NULL)
        return D9D_OK;
    if (!json_is_object(from))
        return d9di_hf_refuse(r, field, from);
    type = type != NULL ? type : d9di_hf_member(from, "type");
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (type == NULL ||
            (json_is_string(type) && !strcmp(json_string_value(type), types[i].type)))
            return types[i].read(r, from, &c->rope_scaling);
    return d9di_hf_refuse(r, field, type);
}

/* The positions that the model was trained on: of the scaling, or beside it, or all there are. */
static d9d_status read_original(const d9di_hf *r, const char *field, d9d_qwen3_config *c)
{
    static const char name[] = "original_max_position_embeddings";
    double *out = &c->rope_scaling.original;

    D9D_TRY(d9di_hf_f64(r, r->doc, name, 0, out));
    if (*out == 0)
        D9D_TRY(d9di_hf_f64(r, d9di_hf_member(r->doc, field), name, (double)c->max_positions, out));
    return D9D_OK;
}

static bool scalings_equal(const d9d_rope_scaling *a, const d9d_rope_scaling *b)
{
    return a->kind == b->kind && a->factor == b->factor && a->original == b->original &&
           a->fast == b->fast && a->slow == b->slow && a->whole == b->whole &&
           a->mscale == b->mscale;
}

/* rope_scaling of the one generation, or rope_parameters of the other; not both different. */
static d9d_status read_scalings(const d9di_hf *r, d9d_qwen3_config *c)
{
    static const char *const fields[] = {"rope_scaling", "rope_parameters"};

    for (size_t i = 0; i < 2; i++) {
        d9d_qwen3_config one = {.max_positions = c->max_positions};

        D9D_TRY(read_scaling(r, fields[i], &one));
        if (one.rope_scaling.kind == D9D_ROPE_PLAIN)
            continue;
        if (one.rope_scaling.kind != D9D_ROPE_LINEAR)
            D9D_TRY(read_original(r, fields[i], &one));
        if (c->rope_scaling.kind != D9D_ROPE_PLAIN &&
            !scalings_equal(&c->rope_scaling, &one.rope_scaling))
            return D9D_FAIL(D9D_ECONFIG, "%s: rope_scaling and rope_parameters are not the same",
                            r->where);
        c->rope_scaling = one.rope_scaling;
    }
    return D9D_OK;
}

d9d_status d9di_hf_rope(const d9di_hf *r, d9d_qwen3_config *c)
{
    const json_t *params = d9di_hf_member(r->doc, "rope_parameters");
    bool old = d9di_hf_member(r->doc, "rope_theta") != NULL,
         new = d9di_hf_member(params, "rope_theta") != NULL;
    double other;

    D9D_TRY(read_scalings(r, c));
    D9D_TRY(d9di_hf_f64(r, new ? params : r->doc, "rope_theta", 10000.0, &c->rope_base));
    if (!old || !new)
        return D9D_OK;
    D9D_TRY(d9di_hf_f64(r, r->doc, "rope_theta", 0, &other));
    if (other != c->rope_base)
        return D9D_FAIL(D9D_ECONFIG, "%s: rope_theta is %g and rope_parameters.rope_theta is %g",
                        r->where, other, c->rope_base);
    return D9D_OK;
}
