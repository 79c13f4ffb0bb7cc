/* normalize.c - Unicode forms over utf8proc, and the textual normalisers. */
#include "data/tokenizer/normalize.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "data/tokenizer/tokenizer_component.h"
#include "data/tokenizer/unicode_tables.h"
#include "data/tokenizer/utf8.h"

struct step {
    /* Writes the result to `out`, and whether anything changed. */
    d9d_status (*apply)(const struct step *step, d9di_normalizer_scratch *s, const char *text,
                        size_t n, d9d_buf *out, bool *changed);
    int form;        /* utf8proc options */
    uint64_t *plain; /* bit set: characters below MAX_PLAIN that are normalised in every context */
    d9di_split_pattern *pattern;
    d9d_buf content;
    bool strips_left, strips_right;
};

struct d9di_normalizer {
    D9D_VEC(struct step) steps;
};

enum {
    MAX_STEPS = 64,
    MAX_PLAIN = 0x30000, /* few characters above are in use, and none is plain */
    MAX_DECOMPOSED = 32  /* characters; the longest decomposition has 18 */
};

/* --- alignments (origins of bytes) ---------------------------------------------------------------
 * *
 *
 * Each byte that a step writes comes from a range of the bytes that it reads.  The functions below
 * write, and record this alignment if it is tracked.
 */

/* Records that the last n bytes written come from bytes [from, to) of the input; from none, if the
 * text is empty. */
static d9d_status trace_alignment(d9di_normalizer_scratch *s, size_t n, size_t from, size_t to)
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
static d9d_status copy_bytes(d9di_normalizer_scratch *s, const char *text, size_t from, size_t to,
                             d9d_buf *out)
{
    for (size_t i = from; s->tracks_alignments && i < to; i++)
        D9D_TRY(trace_alignment(s, 1, i, i + 1));
    return d9d_buf_append(out, text + from, to - from);
}

/* Writes `with` in place of bytes [from, to). */
static d9d_status replace_bytes(d9di_normalizer_scratch *s, const d9d_buf *with, size_t from,
                                size_t to, d9d_buf *out)
{
    D9D_TRY(trace_alignment(s, with->len, from, to));
    return d9d_buf_append(out, with->data, with->len);
}

/* Inserts `what` between two of n bytes; its alignment is the byte after it, or else the byte
 * before it. */
static d9d_status insert_bytes(d9di_normalizer_scratch *s, const d9d_buf *what, size_t at, size_t n,
                               d9d_buf *out)
{
    const size_t from = at < n || at == 0 ? at : at - 1;

    return replace_bytes(s, what, from, from + (n > 0), out);
}

/* --- Unicode forms -------------------------------------------------------- *
 *
 * A plain character is unchanged, is never the second part of a composition, and is never reordered
 * across.  So only runs of other characters are processed.  A run begins at the character before
 * the first non-plain one, which may compose with it, and ends before the next plain one.  Marks
 * are ordered by a counting sort on their combining class, so a million of them take linear time.
 */

static bool is_inert(uint32_t c)
{
    return d9di_unicode_in(d9di_unicode_inert, d9di_unicode_inert_n, c);
}

static uint8_t combining_class(int32_t c)
{
    return (uint8_t)utf8proc_get_property(c)->combining_class;
}

/* Stable sort by combining class of chars[from, to), all of them marks. */
static d9d_status sort_marks(d9di_normalizer_scratch *s, size_t from, size_t to)
{
    size_t at[257] = {0}, i;
    const size_t n = to - from;

    if (n < 2)
        return D9D_OK;
    s->marks.len = 0;
    D9D_TRY(D9D_VEC_RESERVE(&s->marks, n));
    memcpy(s->marks.data, s->chars.data + from, n * sizeof(*s->marks.data));
    for (i = 0; i < n; i++)
        at[combining_class(s->marks.data[i]) + 1]++;
    for (i = 0; i < 256; i++)
        at[i + 1] += at[i];
    for (i = 0; i < n; i++)
        s->chars.data[from + at[combining_class(s->marks.data[i])]++] = s->marks.data[i];
    return D9D_OK;
}

static d9d_status order_marks(d9di_normalizer_scratch *s)
{
    size_t i = 0;

    while (i < s->chars.len) {
        size_t end = i;

        while (end < s->chars.len && combining_class(s->chars.data[end]) != 0)
            end++;
        D9D_TRY(sort_marks(s, i, end));
        i = end + 1;
    }
    return D9D_OK;
}

static d9d_status append_chars(const d9di_normalizer_scratch *s, d9d_buf *out)
{
    size_t i;

    D9D_TRY(d9d_buf_reserve(out, s->chars.len * 4));
    for (i = 0; i < s->chars.len; i++)
        out->len += d9di_utf8_encode((uint32_t)s->chars.data[i], out->data + out->len);
    return D9D_OK;
}

static d9d_status normalize_run(const struct step *step, d9di_normalizer_scratch *s,
                                const char *text, size_t n, d9d_buf *out)
{
    size_t i = 0;
    int bound = 0;

    s->chars.len = 0;
    while (i < n) {
        utf8proc_ssize_t k;
        unsigned w;
        const uint32_t c = d9di_utf8_decode(text + i, &w);

        D9D_TRY(D9D_VEC_RESERVE(&s->chars, MAX_DECOMPOSED));
        k = utf8proc_decompose_char((int32_t)c, s->chars.data + s->chars.len, MAX_DECOMPOSED,
                                    (utf8proc_option_t)step->form, &bound);
        if (k < 0 || k > MAX_DECOMPOSED)
            return D9D_FAIL(D9D_EFORMAT, "U+%04X cannot be decomposed: %s", c,
                            k < 0 ? utf8proc_errmsg(k) : "too long");
        s->chars.len += (size_t)k;
        i += w;
    }
    D9D_TRY(order_marks(s));
    if (step->form & UTF8PROC_COMPOSE) {
        const utf8proc_ssize_t k = utf8proc_normalize_utf32(
            s->chars.data, (utf8proc_ssize_t)s->chars.len, (utf8proc_option_t)step->form);

        if (k < 0)
            return D9D_FAIL(D9D_EFORMAT, "text cannot be composed: %s", utf8proc_errmsg(k));
        s->chars.len = (size_t)k;
    }
    return append_chars(s, out);
}

static inline bool is_plain(const struct step *step, uint32_t c)
{
    return c < MAX_PLAIN && (step->plain[c / 64] >> c % 64 & 1);
}

/* The first non-plain character from `at` on; n if there is none. */
static size_t skip_plain(const struct step *step, const char *text, size_t n, size_t at)
{
    unsigned w;

    while (at < n) {
        at += d9di_utf8_ascii_prefix(text + at, n - at);
        if (at == n)
            break;
        do {
            if (!is_plain(step, d9di_utf8_decode(text + at, &w)))
                return at;
            at += w;
        } while (at < n && (unsigned char)text[at] >= 0x80);
    }
    return n;
}

static size_t skip_not_plain(const struct step *step, const char *text, size_t n, size_t at)
{
    unsigned w;

    while (at < n && !is_plain(step, d9di_utf8_decode(text + at, &w)))
        at += w;
    return at;
}

/* Records the alignment of the bytes written after out[0, before) for one run: byte by byte if the
 * run was normalised already, otherwise all from the whole run. */
static d9d_status trace_run(d9di_normalizer_scratch *s, const char *text, size_t from, size_t to,
                            const d9d_buf *out, size_t before)
{
    const size_t n = out->len - before;

    if (!s->tracks_alignments)
        return D9D_OK;
    if (n != to - from || memcmp(out->data + before, text + from, n) != 0)
        return trace_alignment(s, n, from, to);
    for (size_t i = from; i < to; i++)
        D9D_TRY(trace_alignment(s, 1, i, i + 1));
    return D9D_OK;
}

static d9d_status apply_form(const struct step *step, d9di_normalizer_scratch *s, const char *text,
                             size_t n, d9d_buf *out, bool *changed)
{
    size_t done = 0, at = skip_plain(step, text, n, 0);

    *changed = at < n;
    while (at < n) {
        const size_t end = skip_not_plain(step, text, n, at);
        size_t from = at, before;
        unsigned w;

        if (at > done) {
            from = d9di_utf8_prev(text, at);
            if (is_inert(d9di_utf8_decode(text + from, &w))) /* composes with nothing */
                from = at;
        }
        D9D_TRY(copy_bytes(s, text, done, from, out));
        before = out->len;
        D9D_TRY(normalize_run(step, s, text + from, end - from, out));
        D9D_TRY(trace_run(s, text, from, end, out, before));
        done = end;
        at = skip_plain(step, text, n, end);
    }
    return *changed ? copy_bytes(s, text, done, n, out) : D9D_OK;
}

/* --- Prepend, Replace ------------------------------------------------------ */

static d9d_status apply_prepend(const struct step *step, d9di_normalizer_scratch *s,
                                const char *text, size_t n, d9d_buf *out, bool *changed)
{
    *changed = n > 0;
    if (n == 0)
        return D9D_OK;
    D9D_TRY(replace_bytes(s, &step->content, 0, d9di_utf8_width((unsigned char)text[0]), out));
    return copy_bytes(s, text, 0, n, out);
}

static d9d_status apply_replace(const struct step *step, d9di_normalizer_scratch *s,
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
        D9D_TRY(copy_bytes(s, text, done, start, out));
        if (end > start)
            D9D_TRY(replace_bytes(s, &step->content, start, end, out));
        else
            D9D_TRY(insert_bytes(s, &step->content, start, n, out));
        done = end;
        *changed = true;
    }
    return *changed ? copy_bytes(s, text, done, n, out) : D9D_OK;
}

/* --- Lowercase, Strip ------------------------------------------------------ */

static uint32_t to_lower(uint32_t c)
{
    size_t lo = 0, hi = d9di_unicode_lower_n;

    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        const struct d9di_unicode_lower *r = &d9di_unicode_lower[mid];

        if (c > r->last)
            lo = mid + 1;
        else if (c < r->first)
            hi = mid;
        else
            return (c - r->first) % r->step == 0 ? r->lower + (c - r->first) : c;
    }
    return c;
}

/* Lowercases each character without context. */
static d9d_status apply_lowercase(const struct step *step, d9di_normalizer_scratch *s,
                                  const char *text, size_t n, d9d_buf *out, bool *changed)
{
    static const char dotted_i[] = "i\xcc\x87";
    size_t i = 0;

    (void)step;
    *changed = true;
    D9D_TRY(d9d_buf_reserve(out, n * 2)); /* two bytes become at most three */
    while (i < n) {
        unsigned w;
        const uint32_t c = d9di_utf8_decode(text + i, &w);
        const size_t before = out->len;

        if (c == 0x130)
            D9D_TRY(d9d_buf_append(out, dotted_i, sizeof(dotted_i) - 1));
        else
            out->len += d9di_utf8_encode(to_lower(c), out->data + out->len);
        if (s->tracks_alignments)
            D9D_TRY(trace_alignment(s, out->len - before, i, i + w));
        i += w;
    }
    return D9D_OK;
}

static d9d_status apply_strip(const struct step *step, d9di_normalizer_scratch *s, const char *text,
                              size_t n, d9d_buf *out, bool *changed)
{
    const size_t start = step->strips_left ? d9di_unicode_skip_space(text, n, 0) : 0;
    const size_t end = step->strips_right ? d9di_unicode_space_start(text, start, n) : n;

    *changed = end - start < n;
    return *changed ? copy_bytes(s, text, start, end, out) : D9D_OK;
}

/* --- parsing ---------------------------------------------------------------- */

static d9d_status add_step(d9di_normalizer *nz, const char *where, struct step step)
{
    if (nz->steps.len == MAX_STEPS)
        return D9D_FAIL(D9D_ENOTSUP, "%s: more than %d steps", where, MAX_STEPS);
    return D9D_VEC_PUSH(&nz->steps, step);
}

static void clear_plain(struct step *step, uint32_t c)
{
    if (c < MAX_PLAIN)
        step->plain[c / 64] &= ~(UINT64_C(1) << c % 64);
}

/* Clears the plain bits that `c` rules out: its own if it is a mark or is written differently in
 * this form, and those of all but the first character of its decomposition. */
static void clear_not_plain(struct step *step, uint32_t c)
{
    int32_t as[MAX_DECOMPOSED];
    utf8proc_ssize_t n, i;
    int bound = 0;

    if (is_inert(c))
        return;
    n = utf8proc_decompose_char((int32_t)c, as, MAX_DECOMPOSED,
                                UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &bound);
    for (i = 1; i < n && (step->form & UTF8PROC_COMPOSE); i++)
        clear_plain(step, (uint32_t)as[i]);
    n = utf8proc_decompose_char((int32_t)c, as, MAX_DECOMPOSED, (utf8proc_option_t)step->form,
                                &bound);
    if (n > 1 && (step->form & UTF8PROC_COMPOSE))
        n = utf8proc_normalize_utf32(as, n, (utf8proc_option_t)step->form);
    if (n != 1 || as[0] != (int32_t)c || combining_class((int32_t)c) != 0)
        clear_plain(step, c);
}

/* Hangul composes by rule: vowels and final consonants can be second parts. */
static const struct d9di_unicode_range hangul_seconds[] = {{0x1161, 0x1175}, {0x11a8, 0x11c2}};

static d9d_status compute_plain(struct step *step, const char *where)
{
    uint32_t c;

    step->plain = malloc(MAX_PLAIN / 8);
    if (!step->plain)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", where);
    memset(step->plain, 0xff, MAX_PLAIN / 8);
    for (c = 0x80; c < MAX_PLAIN; c++)
        if (c < 0xac00 || c >= 0xe000) /* Hangul syllables and surrogates */
            clear_not_plain(step, c);
        else if (!(step->form & UTF8PROC_COMPOSE))
            clear_plain(step, c);
    for (size_t i = 0; i < 2 && (step->form & UTF8PROC_COMPOSE); i++)
        for (c = hangul_seconds[i].first; c <= hangul_seconds[i].last; c++)
            clear_plain(step, c);
    return D9D_OK;
}

static d9d_status parse_form(const json_t *v, const char *where, void *into)
{
    static const struct {
        const char *type;
        int form;
    } forms[] = {
        {"NFC", UTF8PROC_STABLE | UTF8PROC_COMPOSE},
        {"NFD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE},
        {"NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
        {"NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
    };
    const char *type = json_string_value(json_object_get(v, "type"));
    d9di_normalizer *nz = into;
    size_t i = 0;

    while (strcmp(forms[i].type, type) != 0)
        i++;
    D9D_TRY(add_step(nz, where, (struct step){.apply = apply_form, .form = forms[i].form}));
    return compute_plain(&nz->steps.data[nz->steps.len - 1], where);
}

static d9d_status parse_prepend(const json_t *v, const char *where, void *into)
{
    d9di_normalizer *nz = into;
    const char *text;

    D9D_TRY(d9d_json_get_str(v, where, "prepend", &text));
    D9D_TRY(add_step(nz, where, (struct step){.apply = apply_prepend}));
    return d9d_buf_append(&nz->steps.data[nz->steps.len - 1].content, text, strlen(text));
}

static d9d_status parse_replace(const json_t *v, const char *where, void *into)
{
    d9di_normalizer *nz = into;
    struct step *step;
    const char *content;

    D9D_TRY(d9d_json_get_str(v, where, "content", &content));
    D9D_TRY(add_step(nz, where, (struct step){.apply = apply_replace}));
    step = &nz->steps.data[nz->steps.len - 1];
    D9D_TRY(d9d_buf_append(&step->content, content, strlen(content)));
    return d9di_split_pattern_parse(json_object_get(v, "pattern"), where, &step->pattern);
}

static d9d_status parse_lowercase(const json_t *v, const char *where, void *into)
{
    (void)v;
    return add_step(into, where, (struct step){.apply = apply_lowercase});
}

static d9d_status parse_strip(const json_t *v, const char *where, void *into)
{
    struct step step = {.apply = apply_strip};

    D9D_TRY(d9di_tokenizer_component_get_flag(v, where, "strip_left", true, &step.strips_left));
    D9D_TRY(d9di_tokenizer_component_get_flag(v, where, "strip_right", true, &step.strips_right));
    return add_step(into, where, step);
}

static d9d_status parse_sequence(const json_t *v, const char *where, void *into);

static const d9di_tokenizer_component components[] = {
    {"NFC", "", parse_form},
    {"NFD", "", parse_form},
    {"NFKC", "", parse_form},
    {"NFKD", "", parse_form},
    {"Lowercase", "", parse_lowercase},
    {"Prepend", "prepend", parse_prepend},
    {"Replace", "pattern content", parse_replace},
    {"Strip", "strip_left strip_right", parse_strip},
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
    size_t i, turn = 0;

    s->input = NULL;
    for (i = 0; i < nz->steps.len; i++) {
        const struct step *step = &nz->steps.data[i];
        bool changed;

        s->text[turn].len = s->alignments[turn].len = 0;
        s->output = &s->alignments[turn];
        D9D_TRY(step->apply(step, s, text, n, &s->text[turn], &changed));
        if (!changed)
            continue;
        text = s->text[turn].data;
        n = s->text[turn].len;
        s->input = s->tracks_alignments ? s->alignments[turn].data : NULL;
        turn ^= 1;
    }
    *out = text;
    *out_n = n;
    return D9D_OK;
}
