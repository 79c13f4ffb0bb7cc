/* post_process.c - see post_process.h. */
#include "data/tokenizer/post_process.h"

#include <stdio.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "data/tokenizer/tokenizer_component.h"

enum { MAX_ITEMS = 4096 }; /* of a template; each processor of a Sequence may double them */

typedef d9di_post_process_template post_template;

struct parser {
    d9di_post_processor *out;
    d9d_arena *arena;
    uint32_t vocab;
};

static void template_release(post_template *t)
{
    D9D_VEC_RELEASE(&t->items);
    D9D_VEC_RELEASE(&t->ends);
}

/* --- lists of sequences ------------------------------------------------------------- */

static d9d_status end_sequence(post_template *t)
{
    return D9D_VEC_PUSH(&t->ends, t->items.len);
}

static d9d_status push_ids(post_template *t, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        D9D_TRY(D9D_VEC_PUSH(&t->items, ids[i]));
    return D9D_OK;
}

/* Appends sequence i of another list. */
static d9d_status push_sequence(post_template *t, const post_template *from, size_t i)
{
    const size_t start = i > 0 ? from->ends.data[i - 1] : 0;

    return push_ids(t, from->items.data + start, from->ends.data[i] - start);
}

/* Marks what HF would fail with, when it is used. */
static d9d_status set_unusable(const struct parser *p, post_template *t, const char *where,
                               const char *why)
{
    t->unusable = d9d_arena_printf(p->arena, "%s: %s", where, why);
    return t->unusable ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "%s: no memory", where);
}

/* --- BertProcessing, RobertaProcessing ------------------------------------------------- */

/* ["[CLS]", 101] */
static d9d_status get_token(const json_t *v, const char *where, const char *key, int32_t *out)
{
    const json_t *pair = json_object_get(v, key), *id = json_array_get(pair, 1);

    if (json_array_size(pair) != 2 || !json_is_string(json_array_get(pair, 0)) ||
        !json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
        return D9D_FAIL(D9D_EFORMAT, "%s: %s: must be a token and its id", where, key);
    *out = (int32_t)json_integer_value(id);
    return D9D_OK;
}

/* Puts cls before the first sequence, `n_between` times sep before the others, sep behind all. */
static d9d_status surround(post_template *t, int32_t cls, int32_t sep, size_t n_between)
{
    post_template made = {.unusable = t->unusable};
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < t->ends.len; i++) {
        D9D_TRY_OR(st, push_ids(&made, i == 0 ? &cls : &sep, i == 0 ? 1 : n_between), out);
        D9D_TRY_OR(st, push_sequence(&made, t, i), out);
        D9D_TRY_OR(st, push_ids(&made, &sep, 1), out);
        D9D_TRY_OR(st, end_sequence(&made), out);
    }
    template_release(t);
    *t = made;
    return D9D_OK;
out:
    template_release(&made);
    return st;
}

/* HF tells the two by their members, whatever `type` says: only RoBERTa's has both flags. */
static d9d_status parse_surround(const json_t *v, const char *where, void *into)
{
    const struct parser *p = into;
    const size_t n_between = json_is_boolean(json_object_get(v, "trim_offsets")) &&
                                     json_is_boolean(json_object_get(v, "add_prefix_space"))
                                 ? 1
                                 : 0;
    int32_t cls, sep;

    D9D_TRY(get_token(v, where, "cls", &cls));
    D9D_TRY(get_token(v, where, "sep", &sep));
    D9D_TRY(surround(&p->out->single, cls, sep, n_between));
    return surround(&p->out->pair, cls, sep, n_between);
}

/* --- TemplateProcessing --------------------------------------------------------------- */

static d9d_status push_special(const struct parser *p, const json_t *specials, const json_t *item,
                               const char *where, post_template *made)
{
    const json_t *ids;
    const char *name;
    char why[160];

    D9D_TRY(d9d_json_get_str(item, where, "id", &name));
    ids = json_object_get(json_object_get(specials, name), "ids");
    if (!ids) {
        (void)d9d_num_format(why, sizeof(why), "\"%.80s\" is not among special_tokens", name);
        return set_unusable(p, made, where, why);
    }
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const int32_t id = (int32_t)json_integer_value(json_array_get(ids, i)); /* was checked */

        D9D_TRY(push_ids(made, &id, 1));
    }
    return end_sequence(made);
}

/* $A is the first of the sequences so far, $B the second. */
static d9d_status push_text(const struct parser *p, const json_t *item, const char *where,
                            const post_template *t, post_template *made)
{
    const char *which;
    size_t i;

    D9D_TRY(d9d_json_get_str(item, where, "id", &which));
    if (strcmp(which, "A") != 0 && strcmp(which, "B") != 0)
        return D9D_FAIL(D9D_EFORMAT, "%s: the id \"%.80s\" must be A or B", where, which);
    i = *which == 'B';
    if (i >= t->ends.len)
        return set_unusable(p, made, where, "takes $B where there is no second text");
    D9D_TRY(push_sequence(made, t, i));
    return end_sequence(made);
}

static d9d_status push_item(const struct parser *p, const json_t *specials, const json_t *item,
                            const char *where, const post_template *t, post_template *made)
{
    const json_t *text = json_object_get(item, "Sequence"),
                 *special = json_object_get(item, "SpecialToken");
    int64_t type;

    if (json_object_size(item) != 1 || (!text && !special))
        return D9D_FAIL(D9D_EFORMAT, "%s: must be a Sequence or a SpecialToken", where);
    D9D_TRY(d9d_json_get_i64(text ? text : special, where, "type_id", 0, UINT32_MAX, &type));
    if (made->items.len > MAX_ITEMS)
        return D9D_FAIL(D9D_ENOTSUP, "%s: more than %d tokens around a text", where, MAX_ITEMS);
    return text ? push_text(p, text, where, t, made)
                : push_special(p, specials, special, where, made);
}

/* Replaces the list by what the template `key` makes of it, if it is for as many sequences. */
static d9d_status apply_template(const struct parser *p, const json_t *v, const char *where,
                                 const char *key, size_t n, post_template *t)
{
    const json_t *specials = json_object_get(v, "special_tokens");
    post_template made = {.unusable = t->unusable};
    d9d_status st = D9D_OK;
    json_t *items;

    D9D_TRY(d9d_json_get_arr(v, where, key, &items));
    if (t->ends.len != n)
        return D9D_OK;
    for (size_t i = 0; i < json_array_size(items); i++) {
        char at[512];

        (void)d9d_num_format(at, sizeof(at), "%.440s: %s[%zu]", where, key, i);
        D9D_TRY_OR(st, push_item(p, specials, json_array_get(items, i), at, t, &made), out);
    }
    template_release(t);
    *t = made;
    return D9D_OK;
out:
    template_release(&made);
    return st;
}

/* {"[CLS]": {"id": "[CLS]", "ids": [101], "tokens": ["[CLS]"]}} */
static d9d_status check_specials(const json_t *specials, const char *where)
{
    const char *name;
    json_t *token;

    json_object_foreach((json_t *)(uintptr_t)specials, name, token)
    {
        json_t *ids;

        D9D_TRY(d9d_json_get_arr(token, where, "ids", &ids));
        for (size_t i = 0; i < json_array_size(ids); i++) {
            const json_t *id = json_array_get(ids, i);

            if (!json_is_integer(id) || json_integer_value(id) < 0 ||
                json_integer_value(id) > INT32_MAX)
                return D9D_FAIL(D9D_EFORMAT, "%s: special_tokens: \"%.80s\" has no ids", where,
                                name);
        }
    }
    return D9D_OK;
}

static d9d_status apply_templates(const struct parser *p, const json_t *v, const char *where,
                                  post_template *t)
{
    const size_t n = t->ends.len;

    if (t->unusable)
        return D9D_OK;
    if (n != 1 && n != 2) {
        char why[96];

        snprintf(why, sizeof(why), "has no template for the %zu sequences before it", n);
        return set_unusable(p, t, where, why);
    }
    return apply_template(p, v, where, n == 1 ? "single" : "pair", n, t);
}

static d9d_status parse_template(const json_t *v, const char *where, void *into)
{
    const struct parser *p = into;
    json_t *specials, *items;

    D9D_TRY(d9d_json_get_obj(v, where, "special_tokens", &specials));
    D9D_TRY(check_specials(specials, where));
    D9D_TRY(d9d_json_get_arr(v, where, "single", &items));
    D9D_TRY(d9d_json_get_arr(v, where, "pair", &items));
    D9D_TRY(apply_templates(p, v, where, &p->out->single));
    return apply_templates(p, v, where, &p->out->pair);
}

/* --- the processors ------------------------------------------------------------------- */

static d9d_status parse_bytelevel(const json_t *v, const char *where, void *into)
{
    (void)v;
    (void)where;
    (void)into;
    return D9D_OK;
}

static d9d_status parse_sequence(const json_t *v, const char *where, void *into);

static const d9di_tokenizer_component components[] = {
    {"ByteLevel", NULL, parse_bytelevel},       {"TemplateProcessing", NULL, parse_template},
    {"BertProcessing", NULL, parse_surround},   {"RobertaProcessing", NULL, parse_surround},
    {"Sequence", "processors", parse_sequence}, {NULL, NULL, NULL},
};

static d9d_status parse_sequence(const json_t *v, const char *where, void *into)
{
    return d9di_tokenizer_component_parse_sequence(components, v, where, "processors", into);
}

static d9d_status begin_template(post_template *t, size_t n)
{
    static const int32_t texts[] = {D9DI_POST_PROCESS_TEXT, D9DI_POST_PROCESS_PAIR};

    for (size_t i = 0; i < n; i++) {
        D9D_TRY(push_ids(t, &texts[i], 1));
        D9D_TRY(end_sequence(t));
    }
    return D9D_OK;
}

/* Counts the special tokens, and checks their ids. */
static d9d_status finish_template(const struct parser *p, const char *where, post_template *t)
{
    for (size_t i = 0; i < t->items.len; i++) {
        const int32_t id = t->items.data[i];
        char why[96];

        t->n_special += id >= 0;
        if (id < 0 || (uint32_t)id < p->vocab || t->unusable)
            continue;
        snprintf(why, sizeof(why), "puts the id %d around a text, the vocabulary has %u", id,
                 p->vocab);
        D9D_TRY(set_unusable(p, t, where, why));
    }
    return D9D_OK;
}

d9d_status d9di_post_processor_parse(const json_t *v, const char *where, uint32_t vocab,
                                     d9d_arena *a, d9di_post_processor *out)
{
    struct parser p = {.out = out, .arena = a, .vocab = vocab};

    D9D_TRY(begin_template(&out->single, 1));
    D9D_TRY(begin_template(&out->pair, 2));
    if (v && !json_is_null(v))
        D9D_TRY(d9di_tokenizer_component_parse(components, v, where, &p));
    D9D_TRY(finish_template(&p, where, &out->single));
    return finish_template(&p, where, &out->pair);
}

void d9di_post_processor_release(d9di_post_processor *p)
{
    template_release(&p->single);
    template_release(&p->pair);
}
