/* normalize.c - see normalize.h. */
#include "data/tokenizer/normalize.h"

#include <stdlib.h>

#include "data/tokenizer/normalize_private.h"
#include "data/tokenizer/tokenizer_component.h"

/* --- alignments ------------------------------------------------------------------------------- */

/* Records that the last n bytes written come from bytes [from, to) of the input; from none, if the
 * text is empty. */
d9d_status d9di_normalizer_trace(d9di_normalizer_scratch *s, size_t n, size_t from, size_t to)
{
    const d9di_alignment *in = from < to ? s->input : NULL;
    const d9di_alignment o = {in ? in[from].from : (uint32_t)from,
                              in ? in[to - 1].to : (uint32_t)to};

    if (!s->tracks_alignments)
        return D9D_OK;
    D9D_TRY(D9D_VEC_RESERVE(s->output, n));
    while (n-- > 0)
        s->output->data[s->output->len++] = o;
    return D9D_OK;
}

/* Copies bytes [from, to) of the text. */
d9d_status d9di_normalizer_copy(d9di_normalizer_scratch *s, const char *text, size_t from,
                                size_t to, d9d_buf *out)
{
    s->starts_later |= out->len == 0 && from > 0 && from < to;
    for (size_t i = from; s->tracks_alignments && i < to; i++)
        D9D_TRY(d9di_normalizer_trace(s, 1, i, i + 1));
    return d9d_buf_append(out, text + from, to - from);
}

/* Writes `with` in place of bytes [from, to). */
d9d_status d9di_normalizer_replace(d9di_normalizer_scratch *s, const d9d_buf *with, size_t from,
                                   size_t to, d9d_buf *out)
{
    D9D_TRY(d9di_normalizer_trace(s, with->len, from, to));
    return d9d_buf_append(out, with->data, with->len);
}

/* Inserts `what` between two of n bytes; its alignment is the byte after it, or else the byte
 * before it. */
d9d_status d9di_normalizer_insert(d9di_normalizer_scratch *s, const d9d_buf *what, size_t at,
                                  size_t n, d9d_buf *out)
{
    const size_t from = at < n || at == 0 ? at : at - 1;

    return d9di_normalizer_replace(s, what, from, from + (n > 0), out);
}

/* --- parsing ---------------------------------------------------------------------------------- */

d9d_status d9di_normalizer_add(d9di_normalizer *nz, const char *where,
                               struct d9di_normalizer_step step)
{
    if (nz->steps.len == D9DI_NORMALIZER_MAX_STEPS)
        return D9D_FAIL(D9D_ENOTSUP, "%s: more than %d steps", where, D9DI_NORMALIZER_MAX_STEPS);
    return D9D_VEC_PUSH(&nz->steps, step);
}

static d9d_status parse_sequence(const json_t *v, const char *where, void *into);

static const d9di_tokenizer_component components[] = {
    {"NFC", "", d9di_normalizer_parse_form},
    {"NFD", "", d9di_normalizer_parse_form},
    {"NFKC", "", d9di_normalizer_parse_form},
    {"NFKD", "", d9di_normalizer_parse_form},
    {"Lowercase", "", d9di_normalizer_parse_lowercase},
    {"StripAccents", "", d9di_normalizer_parse_strip_accents},
    {"BertNormalizer", "clean_text handle_chinese_chars strip_accents lowercase",
     d9di_normalizer_parse_bert},
    {"Nmt", "", d9di_normalizer_parse_nmt},
    {"Precompiled", "precompiled_charsmap", d9di_normalizer_parse_precompiled},
    {"ByteLevel", "", d9di_normalizer_parse_bytelevel},
    {"Prepend", "prepend", d9di_normalizer_parse_prepend},
    {"Replace", "pattern content", d9di_normalizer_parse_replace},
    {"Strip", "strip_left strip_right", d9di_normalizer_parse_strip},
    {"Sequence", "normalizers", parse_sequence},
    {NULL, NULL, NULL},
};

static d9d_status parse_sequence(const json_t *v, const char *where, void *into)
{
    return d9di_tokenizer_component_parse_sequence(components, v, where, "normalizers", into);
}

d9d_status d9di_normalizer_parse(const json_t *v, const char *where, d9di_normalizer **out)
{
    d9di_normalizer *nz = calloc(1, sizeof(*nz));
    d9d_status st = D9D_OK;

    if (!nz)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", where);
    if (v && !json_is_null(v))
        st = d9di_tokenizer_component_parse(components, v, where, nz);
    if (st != D9D_OK) {
        d9di_normalizer_free(nz);
        return d9d_err_pass(st, __FILE__, __LINE__);
    }
    *out = nz;
    return D9D_OK;
}

void d9di_normalizer_free(d9di_normalizer *nz)
{
    size_t i;

    if (!nz)
        return;
    for (i = 0; i < nz->steps.len; i++) {
        d9di_split_pattern_free(nz->steps.data[i].pattern);
        free(nz->steps.data[i].plain);
        d9d_buf_release(&nz->steps.data[i].content);
        d9di_charsmap_release(&nz->steps.data[i].charsmap);
    }
    D9D_VEC_RELEASE(&nz->steps);
    free(nz);
}

void d9di_normalizer_scratch_release(d9di_normalizer_scratch *s)
{
    d9d_buf_release(&s->text[0]);
    d9d_buf_release(&s->text[1]);
    d9d_buf_release(&s->shadow);
    D9D_VEC_RELEASE(&s->alignments[0]);
    D9D_VEC_RELEASE(&s->alignments[1]);
    D9D_VEC_RELEASE(&s->chars);
    D9D_VEC_RELEASE(&s->marks);
}

d9d_status d9di_normalizer_apply(const d9di_normalizer *nz, d9di_normalizer_scratch *s,
                                 const char *text, size_t n, const char **out, size_t *out_n)
{
    size_t i, current = 0;

    s->input = NULL;
    s->starts_later = false;
    for (i = 0; i < nz->steps.len; i++) {
        const struct d9di_normalizer_step *step = &nz->steps.data[i];
        bool changed;

        s->text[current].len = s->alignments[current].len = 0;
        s->output = &s->alignments[current];
        D9D_TRY(step->apply(step, s, text, n, &s->text[current], &changed));
        if (!changed)
            continue;
        text = s->text[current].data;
        n = s->text[current].len;
        s->input = s->tracks_alignments ? s->alignments[current].data : NULL;
        current ^= 1;
    }
    *out = text;
    *out_n = n;
    return D9D_OK;
}
