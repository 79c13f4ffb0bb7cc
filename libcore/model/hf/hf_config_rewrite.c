/* hf_config_rewrite.c - rewrites config.json from one layout of weights to another.  See
 * d9d/model/hf/hf_config.h.
 */
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/model/hf/hf_config.h"
#include "model/hf/hf_config_fields.h"

static d9d_status no_memory(void)
{
    return D9D_FAIL(D9D_ENOMEM, "config.json: out of memory");
}

/* --- the member "d9d" ----------------------------------------------------------------- */

static const char mark_name[] = "d9d";
static const char *const expert_names[] = {"per-expert", "fused"};

void d9d_hf_config_unmark(json_t *doc)
{
    (void)json_object_del(doc, mark_name);
}

bool d9d_hf_config_was_fused(const json_t *doc)
{
    const json_t *mark = json_object_get(doc, mark_name);
    const char *word = json_string_value(json_object_get(mark, "experts"));

    if (mark == NULL) /* files of the generation with this field have fused experts */
        return json_object_get(doc, "num_local_experts") != NULL;
    return word != NULL && strcmp(word, expert_names[true]) == 0;
}

d9d_status d9d_hf_config_mark(json_t *doc, const char *head, bool fused, json_t *more)
{
    json_t *mark =
        json_pack("{s:s, s:s, s:s}", "layout", "d9d", "head", head, "experts", expert_names[fused]);
    const bool good = mark != NULL && (more == NULL || json_object_update(mark, more) == 0) &&
                      json_object_set(doc, mark_name, mark) == 0;

    json_decref(more);
    json_decref(mark);
    return good ? D9D_OK : no_memory();
}

/* --- bytes --------------------------------------------------------------------------------- */

/* Append the mark as text, to follow the last of the other members; nothing without a mark. */
static d9d_status mark_text(const json_t *doc, d9d_buf *out)
{
    const json_t *mark = json_object_get(doc, mark_name);

    out->len = 0;
    if (mark == NULL)
        return d9d_buf_append(out, "", 0);
    D9D_TRY(d9d_buf_printf(out, ",\n  \"%s\": ", mark_name));
    return d9d_json_put(out, mark, -1);
}

/* Replace the mark in `text`, the text of `before`, by that of `doc`. */
static d9d_status mark_replace(const d9d_buf *text, const json_t *before, const json_t *doc,
                               d9d_buf *out)
{
    const char *end = text->data + text->len, *at = NULL;
    d9d_buf old = {0}, new = {0};
    d9d_status st;

    D9D_TRY_OR(st, mark_text(before, &old), out);
    D9D_TRY_OR(st, mark_text(doc, &new), out);
    if (old.len > 0)
        at = memmem(text->data, text->len, old.data, old.len);
    if (at == NULL) { /* after the last member */
        old.len = 0;
        for (at = end; at > text->data && at[-1] != '}'; at--)
            ;
        for (at -= at > text->data; at > text->data && strchr(" \t\r\n", at[-1]) != NULL; at--)
            ;
    }
    D9D_TRY_OR(st, d9d_buf_append(out, text->data, (size_t)(at - text->data)), out);
    D9D_TRY_OR(st, d9d_buf_append(out, new.data, new.len), out);
    at += old.len;
    st = d9d_buf_append(out, at, (size_t)(end - at));
out:
    d9d_buf_release(&old);
    d9d_buf_release(&new);
    return st;
}

static bool text_equals(const d9d_buf *text, const json_t *doc)
{
    json_t *read;
    bool same;

    if (d9d_json_parse("config.json", text->data, text->len, &read) != D9D_OK)
        return false;
    same = json_equal(read, doc);
    json_decref(read);
    return same;
}

/* The file's bytes with another mark; *kept: they mean the same as `doc`. */
static d9d_status text_preserve(const json_t *doc, const char *from, d9d_buf *out, bool *unchanged)
{
    d9d_buf text = {0};
    json_t *before = NULL;
    d9d_status st;

    D9D_TRY_OR(st, d9d_fs_read(from, D9D_HF_CONFIG_MAX, &text), out);
    D9D_TRY_OR(st, d9d_json_parse(from, text.data, text.len, &before), out);
    D9D_TRY_OR(st, mark_replace(&text, before, doc, out), out);
    *unchanged = text_equals(out, doc);
out:
    json_decref(before);
    d9d_buf_release(&text);
    return st;
}

d9d_status d9d_hf_config_text(const json_t *doc, const char *from, d9d_buf *out)
{
    bool unchanged = false;

    out->len = 0;
    if (from != NULL)
        D9D_TRY(text_preserve(doc, from, out, &unchanged));
    if (unchanged)
        return D9D_OK;
    out->len = 0;
    D9D_TRY(d9d_json_put(out, doc, 2));
    return d9d_buf_append(out, "\n", 1);
}

d9d_status d9d_hf_config_write(const char *dir, const json_t *doc, const char *from)
{
    d9d_buf text = {0};
    d9d_status st = d9d_hf_config_text(doc, from, &text);

    if (st == D9D_OK)
        st = d9d_fs_write_in(dir, D9D_HF_CONFIG_NAME, text.data, text.len);
    d9d_buf_release(&text);
    return st;
}

/* --- generations ------------------------------------------------------------------------ */

/* A member that is present and not null, or NULL. */
static json_t *member_get(const json_t *doc, const char *key)
{
    json_t *v = json_object_get(doc, key);

    return v == NULL || json_is_null(v) ? NULL : v;
}

/* The scaling without the base, with the newer names: a new reference; NULL: none.  Returns true if
 * out of memory. */
static bool scaling_get(const json_t *before, json_t **out)
{
    const char *field;
    const json_t *from = d9di_hf_rope_object(before, &field);
    json_t *o, *type;

    *out = NULL;
    if (from == NULL || d9di_hf_rope_is_plain(from))
        return false;
    o = json_copy((json_t *)(uintptr_t)from);
    type = member_get(o, "type");
    if (type != NULL && member_get(o, "rope_type") == NULL)
        d9d_json_set(&o, "rope_type", json_incref(type));
    (void)json_object_del(o, "type");
    (void)json_object_del(o, "rope_theta");
    *out = o;
    return o == NULL;
}

static json_t *theta_get(const json_t *before)
{
    const char *field;
    json_t *theta = member_get(d9di_hf_rope_object(before, &field), "rope_theta");

    return theta != NULL ? theta : member_get(before, "rope_theta");
}

/* rope_theta is a member of rope_parameters in generation 5, and rope_scaling is the rest of it. */
static int rope_put_new(json_t *out, const json_t *before)
{
    json_t *there = member_get(before, "rope_parameters");
    json_t *params = there != NULL ? json_copy(there) : json_object();
    json_t *scaling = NULL, *theta = theta_get(before);
    int bad = scaling_get(before, &scaling);

    if (theta != NULL)
        bad |= json_object_set(params, "rope_theta", theta);
    if (there == NULL)
        bad |= json_object_set_new(params, "rope_type", json_string("default"));
    if (scaling != NULL)
        bad |= json_object_update(params, scaling);
    json_decref(scaling);
    return bad | json_object_set_new(out, "rope_parameters", params);
}

/* A member of rope_parameters that is a field of its own in generation 4. */
static const char partial_name[] = "partial_rotary_factor";

static json_t *partial_get(const json_t *before)
{
    const char *field;

    return member_get(d9di_hf_rope_object(before, &field), partial_name);
}

static int rope_put_old(json_t *out, const json_t *before, const char *key)
{
    json_t *theta = theta_get(before), *scaling = NULL;
    int bad = theta != NULL ? json_object_set(out, "rope_theta", theta) : 0;

    if (partial_get(before) != NULL)
        bad |= json_object_set(out, partial_name, partial_get(before));
    if (strcmp(key, "rope_theta") == 0)
        return bad;
    bad |= scaling_get(before, &scaling);
    return bad | json_object_set_new(out, "rope_scaling", scaling != NULL ? scaling : json_null());
}

/* By kinds of layers, which has one form only. */
static bool is_rope_of_layers(const json_t *before)
{
    const json_t *params = member_get(before, "rope_parameters");

    return member_get(params, "full_attention") != NULL ||
           member_get(params, "sliding_attention") != NULL;
}

static int rope_put(json_t *out, const json_t *before, const char *key, json_t *value, bool new)
{
    const bool scaling = strcmp(key, "rope_scaling") == 0;
    const bool params = member_get(before, "rope_parameters") != NULL;
    const bool others = params || member_get(before, "rope_theta") != NULL;
    const bool split = scaling && !new &&member_get(value, "rope_theta") != NULL;

    if (is_rope_of_layers(before))
        return json_object_set(out, key, value);
    if (scaling && ((new &&others) || ((new || params) && json_is_null(value))))
        return 0;                           /* handled with rope_parameters */
    if (scaling ? !new && !split : !others) /* nulls */
        return json_object_set(out, key, value);
    return new ? rope_put_new(out, before) : rope_put_old(out, before, key);
}

/* Fields with another name in the other generation. */
static const struct {
    const char *old, *new, *model_type; /* NULL: of all families */
} renamed[] = {{"num_experts", "num_local_experts", "qwen3_moe"}, {"torch_dtype", "dtype", NULL}};

static bool is_renamed(size_t i, const json_t *before, const char *key)
{
    const char *type = json_string_value(member_get(before, "model_type"));

    return (strcmp(key, renamed[i].old) == 0 || strcmp(key, renamed[i].new) == 0) &&
           (renamed[i].model_type == NULL ||
            (type != NULL && strcmp(type, renamed[i].model_type) == 0));
}

/* Put a field in its place with its name in the other generation.  A file may have both names, if
 * one is null or both are equal; then the other name is dropped. */
static int field_put(json_t *out, const json_t *before, const char *key, json_t *value, bool new)
{
    for (size_t i = 0; i < sizeof(renamed) / sizeof(renamed[0]); i++) {
        json_t *said = member_get(before, renamed[i].new);

        if (!is_renamed(i, before, key))
            continue;
        said = said != NULL ? said : member_get(before, renamed[i].old);
        return json_object_set(out, new ? renamed[i].new : renamed[i].old,
                               said != NULL ? said : value);
    }
    if (strcmp(key, partial_name) == 0 && !new &&partial_get(before) != NULL)
        return json_object_set(out, key, partial_get(before));
    return strcmp(key, "rope_theta") == 0 || strcmp(key, "rope_parameters") == 0 ||
                   strcmp(key, "rope_scaling") == 0
               ? rope_put(out, before, key, value, new)
               : json_object_set(out, key, value);
}

d9d_status d9d_hf_config_set_generation(json_t *doc, int generation)
{
    json_t *before = json_copy(doc), *value;
    const char *key;
    int bad = before == NULL;

    if (bad)
        return no_memory();
    (void)json_object_clear(doc);
    json_object_foreach(before, key, value) bad |=
        field_put(doc, before, key, value, generation >= 5);
    json_decref(before);
    return bad ? no_memory() : D9D_OK;
}
