/* family_rope.c - can the RoPE of a config.json be computed?  See family_parts.h. */
#include <math.h>
#include <string.h>

#include "model/family/family_parts.h"

/* --- what decides how many features are rotated ----------------------------------------------- */

/* Fields that say it, of which a family has a few. */
static const char *const share_fields[] = {"qk_rope_head_dim", "rotary_dim",
                                           "partial_rotary_factor", NULL};

static const d9d_key *key_find(const d9d_family *f, const char *name)
{
    return d9d_config_find_key(f->config, name, strlen(name));
}

static bool has_share(const d9d_family *f)
{
    bool has = false;

    for (size_t i = 0; share_fields[i] != NULL; i++)
        has |= key_find(f, share_fields[i]) != NULL;
    return has;
}

/* ", NAME VALUE" of a field that has one. */
static d9d_status put_field(const d9d_key *k, const void *dims, d9d_buf *out)
{
    const char *at = (const char *)dims + k->offset;
    double v = 0;

    if (k->kind == D9D_KIND_INT)
        v = (double)*(const int64_t *)(const void *)at;
    else if (k->kind == D9D_KIND_REAL)
        v = *(const double *)(const void *)at;
    return v > 0 ? d9d_buf_printf(out, ", %s %.9g", k->name, v) : D9D_OK;
}

/* The fields behind the number of rotated features, with their values. */
static d9d_status put_fields(const d9d_family *f, const d9d_family_dims *d, d9d_buf *out)
{
    static const size_t of_heads[] = {offsetof(d9d_family_dims, head_dim),
                                      offsetof(d9d_family_dims, hidden_size),
                                      offsetof(d9d_family_dims, num_attention_heads)};

    for (size_t i = 0; share_fields[i] != NULL; i++) {
        const d9d_key *k = key_find(f, share_fields[i]);

        if (k != NULL)
            D9D_TRY(put_field(k, d, out));
    }
    for (size_t i = 0; i < sizeof(of_heads) / sizeof(of_heads[0]) && !f->own_heads; i++)
        for (const d9d_key *k = f->config->keys; k->name != NULL; k++)
            if (k->offset == of_heads[i])
                D9D_TRY(put_field(k, d, out));
    return D9D_OK;
}

static d9d_status fail_features(const d9d_family *f, const d9d_family_dims *d, int64_t features,
                                const char *where)
{
    d9d_buf fields = {0};
    d9d_status st = put_fields(f, d, &fields);

    if (st == D9D_OK)
        st =
            D9D_FAIL(D9D_ECONFIG,
                     "%s: %lld features of a head are rotated, which must be even and above 0 (%s)",
                     where, (long long)features, fields.len > 2 ? fields.data + 2 : "rope_theta");
    d9d_buf_release(&fields);
    return st;
}

/* --- the check -------------------------------------------------------------------------------- */

static d9d_status rope_check(const d9d_family *f, const d9d_family_dims *d, const char *where,
                             const d9d_block_rope *r)
{
    if (r->features % 2 != 0 || r->features < 0)
        return fail_features(f, d, r->features, where);
    if (r->features == 0)
        return D9D_OK;
    if (!isfinite(d9d_rope_base(&r->scaling, r->base, r->features)))
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: scaled rotary embedding (ntk): factor %g gives no finite base for "
                        "%lld features",
                        where, r->scaling.factor, (long long)r->features);
    if (r->scaling.kind == D9D_ROPE_LONGROPE && 2 * r->scaling.pairs != r->features)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: short_factor and long_factor have %lld numbers, and %lld features of "
                        "a head are rotated, two with each",
                        where, (long long)r->scaling.pairs, (long long)r->features);
    if (r->scaling.kind == D9D_ROPE_YARN && !(r->base > 1))
        return D9D_FAIL(D9D_ECONFIG, "%s: rope_theta is %g, of yarn it must be above 1", where,
                        r->base);
    return D9D_OK;
}

d9d_status d9di_family_rope_check(const d9d_family_config *c, const char *where)
{
    const d9d_decoder_shape s = d9di_family_shape(c);

    if (s.rope.features == 0 && has_share(c->family))
        return fail_features(c->family, c->dims, 0, where);
    D9D_TRY(rope_check(c->family, c->dims, where, &s.rope));
    return rope_check(c->family, c->dims, where, &s.local_rope);
}
