/* normalize_text.c - the normalisers Prepend, Replace and Strip. */
#include <string.h>

#include "data/tokenizer/normalize_private.h"
#include "data/tokenizer/tokenizer_component.h"
#include "data/tokenizer/unicode_tables.h"
#include "data/tokenizer/utf8.h"

static d9d_status apply_prepend(const struct d9di_normalizer_step *step, d9di_normalizer_scratch *s,
                                const char *text, size_t n, d9d_buf *out, bool *changed)
{
    *changed = n > 0;
    if (n == 0)
        return D9D_OK;
    D9D_TRY(d9di_normalizer_replace(s, &step->content, 0, d9di_utf8_width((unsigned char)text[0]),
                                    out));
    return d9di_normalizer_copy(s, text, 0, n, out);
}

static d9d_status apply_replace(const struct d9di_normalizer_step *step, d9di_normalizer_scratch *s,
                                const char *text, size_t n, d9d_buf *out, bool *changed)
{
    const char *shown = text;
    size_t done = 0, start, end;
    d9di_split_pattern_iter search;
    bool found;

    *changed = false;
    if (!d9di_split_pattern_is_literal(step->pattern))
        D9D_TRY(d9di_split_pattern_shadow(text, n, &s->shadow, &shown));
    d9di_split_pattern_iter_init(&search, step->pattern, s->matcher, shown, n);
    for (;;) {
        D9D_TRY(d9di_split_pattern_iter_next(&search, &start, &end, &found));
        if (!found)
            break;
        D9D_TRY(d9di_normalizer_copy(s, text, done, start, out));
        if (end > start)
            D9D_TRY(d9di_normalizer_replace(s, &step->content, start, end, out));
        else
            D9D_TRY(d9di_normalizer_insert(s, &step->content, start, n, out));
        done = end;
        *changed = true;
    }
    return *changed ? d9di_normalizer_copy(s, text, done, n, out) : D9D_OK;
}

static d9d_status apply_strip(const struct d9di_normalizer_step *step, d9di_normalizer_scratch *s,
                              const char *text, size_t n, d9d_buf *out, bool *changed)
{
    const size_t start = step->strips_left ? d9di_unicode_skip_space(text, n, 0) : 0;
    const size_t end = step->strips_right ? d9di_unicode_space_start(text, start, n) : n;

    *changed = end - start < n;
    return *changed ? d9di_normalizer_copy(s, text, start, end, out) : D9D_OK;
}

/* --- parsing ---------------------------------------------------------------- */

d9d_status d9di_normalizer_parse_prepend(const json_t *v, const char *where, void *into)
{
    d9di_normalizer *nz = into;
    const char *text;

    D9D_TRY(d9d_json_get_str(v, where, "prepend", &text));
    D9D_TRY(d9di_normalizer_add(nz, where, (struct d9di_normalizer_step){.apply = apply_prepend}));
    return d9d_buf_append(&nz->steps.data[nz->steps.len - 1].content, text, strlen(text));
}

d9d_status d9di_normalizer_parse_replace(const json_t *v, const char *where, void *into)
{
    d9di_normalizer *nz = into;
    struct d9di_normalizer_step *step;
    const char *content;

    D9D_TRY(d9d_json_get_str(v, where, "content", &content));
    D9D_TRY(d9di_normalizer_add(nz, where, (struct d9di_normalizer_step){.apply = apply_replace}));
    step = &nz->steps.data[nz->steps.len - 1];
    D9D_TRY(d9d_buf_append(&step->content, content, strlen(content)));
    return d9di_split_pattern_parse(json_object_get(v, "pattern"), where, &step->pattern);
}

d9d_status d9di_normalizer_parse_strip(const json_t *v, const char *where, void *into)
{
    struct d9di_normalizer_step step = {.apply = apply_strip};

    D9D_TRY(d9di_tokenizer_component_get_flag(v, where, "strip_left", true, &step.strips_left));
    D9D_TRY(d9di_tokenizer_component_get_flag(v, where, "strip_right", true, &step.strips_right));
    return d9di_normalizer_add(into, where, step);
}
