/* pretok_parse.c - reads the "pre_tokenizer" of a tokenizer.json. */
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer/pretok_private.h"
#include "data/tokenizer/tokenizer_component.h"
#include "data/tokenizer/unicode_tables.h"
#include "data/tokenizer/utf8.h"

static const char *const behaviour_names[] = {"Isolated",       "Removed",    "MergedWithPrevious",
                                              "MergedWithNext", "Contiguous", NULL};

static const char *const prepend_names[] = {"never", "first", "always", NULL};

enum { MAX_STAGES = 64 };

/* --- classes of characters --------------------------------------------------------- */

static bool is_numeric(uint32_t c)
{
    return d9di_unicode_in(d9di_unicode_numeric, d9di_unicode_numeric_n, c);
}

static bool is_punctuation(uint32_t c)
{
    return d9di_unicode_in(d9di_unicode_punct, d9di_unicode_punct_n, c);
}

static bool is_word(uint32_t c)
{
    return d9di_unicode_in(d9di_unicode_word, d9di_unicode_word_n, c);
}

/* --- parsing ------------------------------------------------------------------ */

static void release_stage(struct d9di_pretok_stage *stage)
{
    d9di_split_pattern_free(stage->pattern);
    d9di_fast_split_free(stage->fast_split);
}

static d9d_status add_stage(d9di_pretok *p, const char *where, struct d9di_pretok_stage stage)
{
    const bool leads = stage.prepend != D9DI_PRETOK_NEVER || stage.replaces_spaces;
    const bool spells = p->bytelevel && !p->spelled;
    d9d_status st;

    if (p->stages.len + spells >= MAX_STAGES)
        st = D9D_FAIL(D9D_ENOTSUP, "%s: more than %d stages", where, MAX_STAGES);
    else if (p->bytelevel && leads)
        st =
            D9D_FAIL(D9D_ENOTSUP, "%s: comes after ByteLevel, behind which spaces are none", where);
    else if (p->rewrites && leads)
        st = D9D_FAIL(D9D_ENOTSUP, "%s: is the second that changes spaces", where);
    else {
        p->spelled |= spells;
        st = spells ? D9D_VEC_PUSH(&p->stages, (struct d9di_pretok_stage){.encodes_bytes = true})
                    : D9D_OK;
        if (st == D9D_OK)
            st = D9D_VEC_PUSH(&p->stages, stage);
    }
    if (st != D9D_OK)
        release_stage(&stage);
    p->rewrites |= leads;
    p->shadowed |= st == D9D_OK && stage.pattern && !d9di_split_pattern_is_literal(stage.pattern);
    return st;
}

static d9d_status parse_behaviour(const json_t *v, const char *where,
                                  enum d9di_pretok_behaviour *out)
{
    const char *name;
    int i = 0;

    D9D_TRY(d9d_json_get_str(v, where, "behavior", &name));
    while (behaviour_names[i] && strcmp(behaviour_names[i], name) != 0)
        i++;
    if (!behaviour_names[i])
        return D9D_FAIL(D9D_ENOTSUP, "%s: the behavior \"%.80s\" is not supported", where, name);
    *out = (enum d9di_pretok_behaviour)i;
    return D9D_OK;
}

static d9d_status parse_split(const json_t *v, const char *where, void *into)
{
    const json_t *pattern = json_object_get(v, "pattern"), *regex;
    struct d9di_pretok_stage stage = {.finder = D9DI_PRETOK_PATTERN};

    D9D_TRY(parse_behaviour(v, where, &stage.behaviour));
    D9D_TRY(d9di_tokenizer_component_get_flag(v, where, "invert", false, &stage.invert));
    regex = json_object_get(pattern, "Regex");
    if (json_object_size(pattern) == 1 && json_is_string(regex))
        D9D_TRY(d9di_fast_split_create(json_string_value(regex), json_string_length(regex),
                                       &stage.fast_split));
    if (stage.fast_split)
        stage.finder = D9DI_PRETOK_FAST_SPLIT;
    else
        D9D_TRY(d9di_split_pattern_parse(pattern, where, &stage.pattern));
    return add_stage(into, where, stage);
}

static d9d_status add_chars(d9di_pretok *p, const char *where, bool (*is)(uint32_t c),
                            enum d9di_pretok_behaviour behaviour)
{
    return add_stage(p, where,
                     (struct d9di_pretok_stage){
                         .finder = D9DI_PRETOK_CLASS, .in_class = is, .behaviour = behaviour});
}

static d9d_status parse_digits(const json_t *v, const char *where, void *into)
{
    bool individual;

    D9D_TRY(d9di_tokenizer_component_get_flag(v, where, "individual_digits", false, &individual));
    return add_chars(into, where, is_numeric,
                     individual ? D9DI_PRETOK_ISOLATED : D9DI_PRETOK_CONTIGUOUS);
}

static d9d_status parse_punctuation(const json_t *v, const char *where, void *into)
{
    enum d9di_pretok_behaviour behaviour = D9DI_PRETOK_ISOLATED;

    if (json_object_get(v, "behavior"))
        D9D_TRY(parse_behaviour(v, where, &behaviour));
    return add_chars(into, where, is_punctuation, behaviour);
}

static d9d_status parse_whitespace_split(const json_t *v, const char *where, void *into)
{
    (void)v;
    return add_chars(into, where, d9di_unicode_space, D9DI_PRETOK_REMOVED);
}

/* \w+ and [^\w\s]+ */
static d9d_status parse_whitespace(const json_t *v, const char *where, void *into)
{
    D9D_TRY(parse_whitespace_split(v, where, into));
    return add_chars(into, where, is_word, D9DI_PRETOK_CONTIGUOUS);
}

static d9d_status parse_bytelevel(const json_t *v, const char *where, void *into)
{
    struct d9di_pretok_stage stage = {.behaviour = D9DI_PRETOK_ISOLATED, .replacement = " "};
    const char *gpt2 = d9di_fast_split_pattern(0);
    bool prefix, use_regex, trim_offsets; /* trim_offsets moves offsets, not ids */
    d9di_pretok *p = into;

    D9D_TRY(d9di_tokenizer_component_get_flag(v, where, "add_prefix_space", true, &prefix));
    D9D_TRY(d9di_tokenizer_component_get_flag(v, where, "trim_offsets", true, &trim_offsets));
    D9D_TRY(d9di_tokenizer_component_get_flag(v, where, "use_regex", true, &use_regex));
    if (p->bytelevel)
        return D9D_FAIL(D9D_ENOTSUP, "%s: is the second ByteLevel", where);
    if (use_regex) {
        stage.finder = D9DI_PRETOK_FAST_SPLIT;
        D9D_TRY(d9di_fast_split_create(gpt2, strlen(gpt2), &stage.fast_split));
    }
    stage.prepend = prefix ? D9DI_PRETOK_ALWAYS : D9DI_PRETOK_NEVER;
    if (use_regex || prefix)
        D9D_TRY(add_stage(p, where, stage));
    p->bytelevel = true;
    return D9D_OK;
}

static d9d_status parse_bert(const json_t *v, const char *where, void *into)
{
    D9D_TRY(parse_whitespace_split(v, where, into));
    return add_chars(into, where, is_punctuation, D9DI_PRETOK_ISOLATED);
}

static d9d_status parse_char_delimiter(const json_t *v, const char *where, void *into)
{
    struct d9di_pretok_stage stage = {.finder = D9DI_PRETOK_PATTERN,
                                      .behaviour = D9DI_PRETOK_REMOVED};
    const char *delimiter;
    unsigned w;

    D9D_TRY(d9d_json_get_str(v, where, "delimiter", &delimiter));
    (void)d9di_utf8_decode(delimiter, &w);
    if (strlen(delimiter) != w)
        return D9D_FAIL(D9D_EFORMAT, "%s: delimiter: must be one character", where);
    D9D_TRY(d9di_split_pattern_create(where, delimiter, w, true, &stage.pattern));
    return add_stage(into, where, stage);
}

static d9d_status parse_fixed_length(const json_t *v, const char *where, void *into)
{
    int64_t length = 5;

    if (json_object_get(v, "length"))
        D9D_TRY(d9d_json_get_i64(v, where, "length", 1, INT32_MAX, &length));
    return add_stage(
        into, where,
        (struct d9di_pretok_stage){.finder = D9DI_PRETOK_LENGTH, .length = (size_t)length});
}

/* Spaces are replaced by a special character, with which pre-tokens begin. */
static d9d_status parse_metaspace(const json_t *v, const char *where, void *into)
{
    struct d9di_pretok_stage stage = {.behaviour = D9DI_PRETOK_MERGED_WITH_NEXT,
                                      .prepend = D9DI_PRETOK_ALWAYS,
                                      .replaces_spaces = true};
    const json_t *scheme = json_object_get(v, "prepend_scheme");
    const char *replacement;
    bool split, prefix;
    unsigned w;

    D9D_TRY(d9d_json_get_str(v, where, "replacement", &replacement));
    D9D_TRY(d9di_tokenizer_component_get_flag(v, where, "split", true, &split));
    D9D_TRY(d9di_tokenizer_component_get_flag(v, where, "add_prefix_space", true, &prefix));
    (void)d9di_utf8_decode(replacement, &w);
    if (strlen(replacement) != w)
        return D9D_FAIL(D9D_EFORMAT, "%s: replacement: must be one character", where);
    memcpy(stage.replacement, replacement, w);
    if (scheme) {
        int i = 0;

        while (prepend_names[i] && (!json_is_string(scheme) ||
                                    strcmp(prepend_names[i], json_string_value(scheme)) != 0))
            i++;
        if (!prepend_names[i])
            return D9D_FAIL(D9D_ENOTSUP, "%s: prepend_scheme: must be always, first or never",
                            where);
        stage.prepend = (enum d9di_pretok_prepend)i;
    }
    if (!prefix && stage.prepend != D9DI_PRETOK_NEVER)
        return D9D_FAIL(D9D_EFORMAT, "%s: add_prefix_space contradicts prepend_scheme", where);
    if (split) {
        stage.finder = D9DI_PRETOK_PATTERN;
        D9D_TRY(d9di_split_pattern_create(where, replacement, w, true, &stage.pattern));
    }
    return add_stage(into, where, stage);
}

static d9d_status parse_sequence(const json_t *v, const char *where, void *into);

static const d9di_tokenizer_component components[] = {
    {"Split", "pattern behavior invert", parse_split},
    {"Digits", "individual_digits", parse_digits},
    {"Punctuation", "behavior", parse_punctuation},
    {"Whitespace", "", parse_whitespace},
    {"WhitespaceSplit", "", parse_whitespace_split},
    {"BertPreTokenizer", "", parse_bert},
    {"CharDelimiterSplit", "delimiter", parse_char_delimiter},
    {"FixedLength", "length", parse_fixed_length},
    {"ByteLevel", "add_prefix_space trim_offsets use_regex", parse_bytelevel},
    {"Metaspace", "replacement add_prefix_space prepend_scheme split str_rep", parse_metaspace},
    {"Sequence", "pretokenizers", parse_sequence},
    {NULL, NULL, NULL},
};

static d9d_status parse_sequence(const json_t *v, const char *where, void *into)
{
    return d9di_tokenizer_component_parse_sequence(components, v, where, "pretokenizers", into);
}

d9d_status d9di_pretok_parse(const json_t *v, const char *where, d9di_pretok **out)
{
    d9di_pretok *p = calloc(1, sizeof(*p));
    d9d_status st;

    if (!p)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", where);
    st = v && !json_is_null(v) ? d9di_tokenizer_component_parse(components, v, where, p) : D9D_OK;
    if (st != D9D_OK) {
        d9di_pretok_free(p);
        return d9d_err_pass(st, __FILE__, __LINE__);
    }
    *out = p;
    return D9D_OK;
}

bool d9di_pretok_is_bytelevel(const d9di_pretok *p)
{
    return p->bytelevel;
}

void d9di_pretok_free(d9di_pretok *p)
{
    size_t i;

    if (!p)
        return;
    for (i = 0; i < p->stages.len; i++)
        release_stage(&p->stages.data[i]);
    D9D_VEC_RELEASE(&p->stages);
    free(p);
}
