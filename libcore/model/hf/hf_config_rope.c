/* hf_config_rope.c - RoPE in config.json, with the names of either generation.
 */
#include "d9d/model/hf/hf_fields.h"
#include "model/hf/hf_config_fields.h"

#include <math.h>
#include <string.h>

/* Read a number of the scaling's object; it may be absent unless `otherwise` is NaN. */
static d9d_status get_scaling(const d9di_hf_reader *r, const json_t *from, const char *name,
                              double otherwise, double *out)
{
    D9D_TRY(d9di_hf_f64(r, from, name, otherwise, out));
    if (isnan(*out))
        return D9D_FAIL(D9D_ECONFIG, "%s: %s of scaled rotary embedding is missing", r->where,
                        name);
    return D9D_OK;
}

/* The factor of cosines and sines, above 0; 0: absent. */
static d9d_status read_attention_factor(const d9di_hf_reader *r, const json_t *from, double *out)
{
    D9D_TRY(d9di_hf_f64(r, from, "attention_factor", 0, out));
    if (d9di_hf_member(from, "attention_factor") != NULL && !(*out > 0))
        return D9D_FAIL(D9D_ECONFIG, "%s: attention_factor of scaled rotary embedding cannot be %g",
                        r->where, *out);
    return D9D_OK;
}

/* the factor of cosines and sines of yarn: given, from two more numbers, or by its own formula */
static d9d_status read_yarn_mscale(const d9di_hf_reader *r, const json_t *from, d9d_rope_scaling *s)
{
    double over, under;

    D9D_TRY(read_attention_factor(r, from, &s->mscale));
    D9D_TRY(d9di_hf_f64(r, from, "mscale", 0, &over));
    D9D_TRY(d9di_hf_f64(r, from, "mscale_all_dim", 0, &under));
    s->mscale_all = under;
    if (s->mscale == 0 && over != 0 && under != 0 && s->factor > 1)
        s->mscale = (0.1 * over * log(s->factor) + 1) / (0.1 * under * log(s->factor) + 1);
    return D9D_OK;
}

static d9d_status read_linear(const d9di_hf_reader *r, const json_t *from, d9d_rope_scaling *s)
{
    s->kind = D9D_ROPE_LINEAR;
    return get_scaling(r, from, "factor", NAN, &s->factor);
}

static d9d_status read_yarn(const d9di_hf_reader *r, const json_t *from, d9d_rope_scaling *s)
{
    const json_t *whole = d9di_hf_member(from, "truncate");

    s->kind = D9D_ROPE_YARN;
    s->whole = whole == NULL || json_is_true(whole);
    D9D_TRY(get_scaling(r, from, "factor", NAN, &s->factor));
    D9D_TRY(get_scaling(r, from, "beta_fast", 32, &s->fast));
    D9D_TRY(get_scaling(r, from, "beta_slow", 1, &s->slow));
    return read_yarn_mscale(r, from, s);
}

static d9d_status read_llama3(const d9di_hf_reader *r, const json_t *from, d9d_rope_scaling *s)
{
    s->kind = D9D_ROPE_LLAMA3;
    D9D_TRY(get_scaling(r, from, "factor", NAN, &s->factor));
    D9D_TRY(get_scaling(r, from, "high_freq_factor", NAN, &s->fast));
    return get_scaling(r, from, "low_freq_factor", NAN, &s->slow);
}

/* Factors of the frequencies, one for each pair. */
static d9d_status read_factors(const d9di_hf_reader *r, const json_t *from, const char *name,
                               int64_t *pairs, float *out)
{
    const json_t *list = d9di_hf_member(from, name);
    const size_t n = json_array_size(list);

    if (list == NULL)
        return D9D_FAIL(D9D_ECONFIG, "%s: %s of scaled rotary embedding is missing", r->where,
                        name);
    if (n < 1 || n > D9D_ROPE_MAX_PAIRS)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: %s of scaled rotary embedding must be a list of 1 to %d numbers",
                        r->where, name, D9D_ROPE_MAX_PAIRS);
    if (*pairs != 0 && *pairs != (int64_t)n)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: %s of scaled rotary embedding has %zu numbers, short_factor %lld",
                        r->where, name, n, (long long)*pairs);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);

        if (!json_is_number(v))
            return d9di_hf_refuse(r, name, v);
        out[i] = (float)json_number_value(v);
    }
    *pairs = (int64_t)n;
    return D9D_OK;
}

static d9d_status read_longrope(const d9di_hf_reader *r, const json_t *from, d9d_rope_scaling *s)
{
    s->kind = D9D_ROPE_LONGROPE;
    D9D_TRY(get_scaling(r, from, "factor", 0, &s->factor));
    D9D_TRY(read_attention_factor(r, from, &s->mscale));
    D9D_TRY(read_factors(r, from, "short_factor", &s->pairs, s->short_factor));
    return read_factors(r, from, "long_factor", &s->pairs, s->long_factor);
}

static d9d_status read_plain(const d9di_hf_reader *r, const json_t *from, d9d_rope_scaling *s)
{
    (void)r, (void)from, (void)s;
    return D9D_OK;
}

/* Up to max_position_embeddings, which sequences are, dynamic scaling changes nothing. */
static d9d_status read_dynamic(const d9di_hf_reader *r, const json_t *from, d9d_rope_scaling *s)
{
    double factor;

    (void)s;
    return get_scaling(r, from, "factor", NAN, &factor);
}

/* --- the object ----------------------------------------------------------------------------- */

/* Axes of images have their own positions, which are equal in text. */
#define TYPE_KEYS    "type", "rope_type", "mrope_section", "mrope_interleaved"
#define ORIGINAL_KEY "original_max_position_embeddings"
static const char *const plain_members[] = {TYPE_KEYS, NULL};
static const char *const linear_members[] = {TYPE_KEYS, "factor", ORIGINAL_KEY, NULL};
static const char *const yarn_members[] = {
    TYPE_KEYS,  "factor", ORIGINAL_KEY,       "beta_fast",      "beta_slow",
    "truncate", "mscale", "attention_factor", "mscale_all_dim", NULL};
static const char *const llama3_members[] = {TYPE_KEYS,         "factor",           ORIGINAL_KEY,
                                             "low_freq_factor", "high_freq_factor", NULL};

static const char *const longrope_members[] = {
    TYPE_KEYS, "factor", ORIGINAL_KEY, "short_factor", "long_factor", "attention_factor", NULL};

static const struct scaling_type {
    const char *word;
    d9d_status (*read)(const d9di_hf_reader *r, const json_t *from, d9d_rope_scaling *s);
    const char *const *members;
} scaling_types[] = {
    {"default", read_plain, plain_members},    {"linear", read_linear, linear_members},
    {"yarn", read_yarn, yarn_members},         {"llama3", read_llama3, llama3_members},
    {"dynamic", read_dynamic, linear_members}, {"longrope", read_longrope, longrope_members},
    {"su", read_longrope, longrope_members}}; /* its name in older files */

static const json_t *type_value(const json_t *from)
{
    const json_t *scaling_type = d9di_hf_member(from, "rope_type");

    return scaling_type != NULL ? scaling_type : d9di_hf_member(from, "type");
}

/* The type, by either name; without one, the first type. */
static d9d_status type_find(const d9di_hf_reader *r, const char *field, const json_t *from,
                            const struct scaling_type **out)
{
    const json_t *said = type_value(from);
    const char *word = json_string_value(said);

    *out = &scaling_types[0];
    if (said == NULL)
        return D9D_OK;
    for (size_t i = 0; i < sizeof(scaling_types) / sizeof(scaling_types[0]); i++)
        if (word != NULL && strcmp(word, scaling_types[i].word) == 0) {
            *out = &scaling_types[i];
            return D9D_OK;
        }
    return d9di_hf_refuse(r, field, said);
}

d9d_status d9di_hf_rope_members(const d9di_hf_reader *r, const char *field, const json_t *from,
                                const char *const **out)
{
    const struct scaling_type *scaling_type;

    D9D_TRY(type_find(r, field, from, &scaling_type));
    *out = scaling_type->members;
    return D9D_OK;
}

bool d9di_hf_rope_is_plain(const json_t *from)
{
    const char *word = json_string_value(type_value(from));

    return word == NULL || strcmp(word, scaling_types[0].word) == 0;
}

/* The original positions: in the scaling, next to it, or the model's maximum. */
static d9d_status read_original(const d9di_hf_reader *r, const json_t *from, int64_t positions,
                                d9d_rope_scaling *s)
{
    D9D_TRY(d9di_hf_f64(r, r->doc, ORIGINAL_KEY, 0, &s->original));
    return s->original != 0 ? D9D_OK
                            : d9di_hf_f64(r, from, ORIGINAL_KEY, (double)positions, &s->original);
}

/* A scaling, zeroed before, of the object of this name. */
static d9d_status read_scaling(const d9di_hf_reader *r, const char *field, const json_t *from,
                               int64_t positions, d9d_rope_scaling *s)
{
    const struct scaling_type *scaling_type;

    if (!json_is_object(from))
        return d9di_hf_refuse(r, field, from);
    D9D_TRY(type_find(r, field, from, &scaling_type));
    D9D_TRY(scaling_type->read(r, from, s));
    if (s->kind != D9D_ROPE_PLAIN && s->kind != D9D_ROPE_LINEAR)
        D9D_TRY(read_original(r, from, positions, s));
    if (s->kind == D9D_ROPE_LONGROPE && s->factor == 0)
        s->factor = positions > s->original ? (double)positions / s->original : 1;
    return s->kind != D9D_ROPE_PLAIN ? d9d_rope_check(r->where, field, s) : D9D_OK;
}

static bool factors_equal(const float *a, const float *b)
{
    size_t i = 0;

    while (i < D9D_ROPE_MAX_PAIRS && a[i] == b[i])
        i++;
    return i == D9D_ROPE_MAX_PAIRS;
}

static bool scalings_equal(const d9d_rope_scaling *a, const d9d_rope_scaling *b)
{
    return a->kind == b->kind && a->factor == b->factor && a->original == b->original &&
           a->fast == b->fast && a->slow == b->slow && a->whole == b->whole &&
           a->mscale == b->mscale && a->mscale_all == b->mscale_all && a->pairs == b->pairs &&
           factors_equal(a->short_factor, b->short_factor) &&
           factors_equal(a->long_factor, b->long_factor);
}

static const char *const object_names[] = {"rope_scaling", "rope_parameters"};

const json_t *d9di_hf_rope_object(const json_t *doc, const char **field)
{
    const json_t *old = d9di_hf_member(doc, object_names[0]);
    const bool empty = json_is_object(old) && json_object_size(old) == 0;

    *field = object_names[old == NULL || empty];
    return d9di_hf_member(doc, *field);
}

/* One object, with the base that goes with it. */
static d9d_status read_one(const d9di_hf_reader *r, const d9di_hf_rope_defaults *d,
                           const char *field, const json_t *from, d9d_rope_scaling *s, double *base)
{
    double bare;

    D9D_TRY(d9di_hf_f64(r, r->doc, "rope_theta", d->base, &bare));
    *base = bare;
    if (from == NULL)
        return D9D_OK;
    D9D_TRY(read_scaling(r, field, from, d->positions, s));
    D9D_TRY(d9di_hf_f64(r, from, "rope_theta", bare, base));
    if (*base != bare && d9di_hf_member(r->doc, "rope_theta") != NULL)
        return D9D_FAIL(D9D_ECONFIG, "%s: rope_theta is %g and %s.rope_theta is %g", r->where, bare,
                        field, *base);
    return D9D_OK;
}

d9d_status d9di_hf_rope(const d9di_hf_reader *r, const d9di_hf_rope_defaults *d,
                        d9d_rope_scaling *s, double *base)
{
    const char *field;
    const json_t *from = d9di_hf_rope_object(r->doc, &field),
                 *other = d9di_hf_member(r->doc, object_names[1]);
    d9d_rope_scaling second = {0};
    double second_base;

    D9D_TRY(read_one(r, d, field, from, s, base));
    if (from == other || other == NULL)
        return D9D_OK;
    D9D_TRY(read_one(r, d, object_names[1], other, &second, &second_base));
    if (!scalings_equal(s, &second))
        return D9D_FAIL(D9D_ECONFIG, "%s: rope_scaling and rope_parameters are not the same",
                        r->where);
    if (*base != second_base)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: the rope_theta of rope_scaling is %g, that of rope_parameters %g",
                        r->where, *base, second_base);
    return D9D_OK;
}

/* --- writing -------------------------------------------------------------------------------- */

/* Merge `more`, which is released, into `doc`. */
static json_t *objects_merge(json_t *doc, json_t *more)
{
    bool fine = doc != NULL && more != NULL && json_object_update(doc, more) == 0;

    json_decref(more);
    if (!fine)
        json_decref(doc);
    return fine ? doc : NULL;
}

/* Positions, a whole number in almost every file. */
static json_t *positions_to_json(double n)
{
    return n == floor(n) && n < 0x1p53 ? json_integer((json_int_t)n) : json_real(n);
}

static json_t *factors_to_json(const float *f, int64_t n)
{
    json_t *list = json_array();

    for (int64_t i = 0; i < n && list != NULL; i++)
        if (json_array_append_new(list, json_real((double)f[i])) != 0) {
            json_decref(list);
            list = NULL;
        }
    return list;
}

static json_t *longrope_to_json(json_t *o, const d9d_rope_scaling *s)
{
    o = objects_merge(o, json_pack("{s:o, s:o, s:o}", ORIGINAL_KEY, positions_to_json(s->original),
                                   "short_factor", factors_to_json(s->short_factor, s->pairs),
                                   "long_factor", factors_to_json(s->long_factor, s->pairs)));
    return s->mscale > 0 ? objects_merge(o, json_pack("{s:f}", "attention_factor", s->mscale)) : o;
}

json_t *d9di_hf_rope_to_json(const d9d_rope_scaling *s)
{
    json_t *o =
        json_pack("{s:s, s:f}", "rope_type", d9d_rope_kind_name(s->kind), "factor", s->factor);
    const bool yarn = s->kind == D9D_ROPE_YARN;

    if (s->kind == D9D_ROPE_PLAIN || s->kind == D9D_ROPE_NTK) { /* ntk changes only the base */
        json_decref(o);
        return json_null();
    }
    if (s->kind == D9D_ROPE_LINEAR)
        return o;
    if (s->kind == D9D_ROPE_LONGROPE)
        return longrope_to_json(o, s);
    o = objects_merge(o, json_pack("{s:o, s:f, s:f}", "original_max_position_embeddings",
                                   positions_to_json(s->original),
                                   yarn ? "beta_fast" : "high_freq_factor", s->fast,
                                   yarn ? "beta_slow" : "low_freq_factor", s->slow));
    if (yarn && s->mscale_all != 0)
        o = objects_merge(o, json_pack("{s:f}", "mscale_all_dim", s->mscale_all));
    if (yarn && !s->whole)
        o = objects_merge(o, json_pack("{s:b}", "truncate", 0));
    return yarn && s->mscale > 0
               ? objects_merge(o, json_pack("{s:f}", "attention_factor", s->mscale))
               : o;
}

/* --- a key of a family's dimensions ---------------------------------------------------------- */

/* Parse an object that d9di_hf_rope_to_json() made; null is none. */
static d9d_status scaling_parse(const json_t *v, const char *path, d9d_arena *a, void *field)
{
    const d9di_hf_reader r = {NULL, path, false};
    d9d_rope_scaling s = {0};

    (void)a;
    if (!json_is_null(v))
        D9D_TRY(read_scaling(&r, object_names[0], v, 0, &s));
    *(d9d_rope_scaling *)field = s;
    return D9D_OK;
}
const d9d_key_custom d9d_hf_rope_scaling = {scaling_parse, "{\"type\": [\"object\", \"null\"]}",
                                            sizeof(d9d_rope_scaling)};
