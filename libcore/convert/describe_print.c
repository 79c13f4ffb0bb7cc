/* describe_print.c - a d9d.model.v1 document as text for people.  See describe_parts.h. */
#include <inttypes.h>
#include <string.h>

#include "convert/describe_parts.h"

/* 8030261248 as "8.03 B" of parameters or "8.03 GB". */
static d9d_status put_size(d9d_buf *out, const json_t *v, const char *const units[4])
{
    double n = (double)json_integer_value(v);
    int k = 0;

    while (n >= 999.5 && k < 3) {
        n /= 1000;
        k++;
    }
    return d9d_buf_printf(out,
                          k == 0      ? "%.0f%s"
                          : n < 9.995 ? "%.2f%s"
                          : n < 99.95 ? "%.1f%s"
                                      : "%.0f%s",
                          n, units[k]);
}

static const char *const bytes[4] = {" bytes", " kB", " MB", " GB"};
static const char *const numbers[4] = {"", " k", " M", " B"};

static const char *text_of(const json_t *doc, const char *key)
{
    return json_string_value(json_object_get(doc, key));
}

static int64_t int_of(const json_t *doc, const char *key)
{
    return json_integer_value(json_object_get(doc, key));
}

static d9d_status put_label(d9d_buf *out, const char *label)
{
    return d9d_buf_printf(out, "%-14s ", label);
}

/* --- the table ----------------------------------------------------------------------- */

static d9d_status put_family(const json_t *doc, d9d_buf *out)
{
    const char *family = text_of(doc, "family"), *class = text_of(doc, "class");
    const char *type = text_of(doc, "model_type"), *head = text_of(doc, "head");

    D9D_TRY(put_label(out, "model_type"));
    D9D_TRY(d9d_buf_printf(out, "%s\n", type != NULL ? type : "-"));
    D9D_TRY(put_label(out, "family"));
    D9D_TRY(d9d_buf_printf(out, "%s", family != NULL ? family : "none"));
    if (class != NULL)
        D9D_TRY(d9d_buf_printf(out, ", %s", class));
    return d9d_buf_printf(out, "%s%s\n", head != NULL ? ", " : "", head != NULL ? head : "");
}

static d9d_status put_parameters(const json_t *doc, d9d_buf *out)
{
    const int64_t n = int_of(doc, "parameters"), active = int_of(doc, "active_parameters");

    if (n == 0)
        return D9D_OK;
    D9D_TRY(put_label(out, "parameters"));
    D9D_TRY(put_size(out, json_object_get(doc, "parameters"), numbers));
    D9D_TRY(d9d_buf_printf(out, " (%" PRId64 ")", n));
    if (active != n) {
        D9D_TRY(d9d_buf_printf(out, ", "));
        D9D_TRY(put_size(out, json_object_get(doc, "active_parameters"), numbers));
        D9D_TRY(d9d_buf_printf(out, " active for a token"));
    }
    return d9d_buf_printf(out, "\n");
}

static d9d_status put_dimensions(const json_t *doc, d9d_buf *out)
{
    if (json_object_get(doc, "layers") == NULL)
        return D9D_OK;
    D9D_TRY(put_label(out, "dimensions"));
    D9D_TRY(d9d_buf_printf(out, "%" PRId64 " layers, hidden %" PRId64, int_of(doc, "layers"),
                           int_of(doc, "hidden_size")));
    if (json_object_get(doc, "heads") != NULL)
        D9D_TRY(d9d_buf_printf(out, ", %" PRId64 " heads, %" PRId64 " for keys",
                               int_of(doc, "heads"), int_of(doc, "kv_heads")));
    if (json_object_get(doc, "head_dim") != NULL)
        D9D_TRY(d9d_buf_printf(out, ", of %" PRId64 " features", int_of(doc, "head_dim")));
    if (json_object_get(doc, "experts") != NULL)
        D9D_TRY(d9d_buf_printf(out, ", %" PRId64 " of %" PRId64 " experts",
                               int_of(doc, "experts_per_token"), int_of(doc, "experts")));
    return d9d_buf_printf(
        out, ", vocabulary %" PRId64 "%s, positions %" PRId64 "\n", int_of(doc, "vocab_size"),
        json_is_true(json_object_get(doc, "tied")) ? " (tied)" : "", int_of(doc, "max_positions"));
}

static d9d_status put_weights(const json_t *doc, d9d_buf *out)
{
    const json_t *w = json_object_get(doc, "weights"), *v;
    const char *decoded = text_of(doc, "decoded");
    size_t i;

    D9D_TRY(put_label(out, "weights"));
    if (!json_is_object(w))
        return d9d_buf_printf(out, "none\n");
    D9D_TRY(put_size(out, json_object_get(w, "bytes"), bytes));
    D9D_TRY(d9d_buf_printf(out, ", %" PRId64 " tensors, files: %" PRId64, int_of(w, "tensors"),
                           int_of(w, "files")));
    json_array_foreach(json_object_get(w, "dtypes"), i, v)
    {
        D9D_TRY(d9d_buf_printf(out, "%s%s ", i == 0 ? "; " : ", ", text_of(v, "dtype")));
        D9D_TRY(put_size(out, json_object_get(v, "bytes"), bytes));
    }
    if (decoded != NULL)
        D9D_TRY(d9d_buf_printf(out, "; decoded from %s when they are read", decoded));
    return d9d_buf_printf(out, "\n");
}

static d9d_status put_memory(const json_t *doc, d9d_buf *out)
{
    const json_t *m = json_object_get(doc, "memory");

    if (m == NULL)
        return D9D_OK;
    D9D_TRY(put_label(out, "memory"));
    D9D_TRY(put_size(out, json_object_get(m, "bfloat16"), bytes));
    D9D_TRY(d9d_buf_printf(out, " as bfloat16, "));
    D9D_TRY(put_size(out, json_object_get(m, "float32"), bytes));
    D9D_TRY(d9d_buf_printf(out, " as float32, "));
    D9D_TRY(put_size(out, json_object_get(m, "adamw_float32"), bytes));
    return d9d_buf_printf(out, " with gradients and AdamW in float32\n");
}

/* What quantising saves; nothing where nothing can be. */
static d9d_status put_quantised(const json_t *doc, d9d_buf *out)
{
    static const struct {
        const char *key, *of;
    } rows[] = {{"fp8", "layers in fp8"},
                {"nf4", "layers in nf4"},
                {"head_fp8", "the head in fp8"},
                {"head_nf4", "the head in nf4"}};
    bool any = false;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const json_t *saved = json_object_get(json_object_get(doc, "quantised"), rows[i].key);

        if (!json_is_integer(saved))
            continue;
        D9D_TRY(any ? d9d_buf_printf(out, ", ") : put_label(out, "quantised"));
        D9D_TRY(put_size(out, saved, bytes));
        D9D_TRY(d9d_buf_printf(out, "%s with %s", any ? "" : " less than bfloat16", rows[i].of));
        any = true;
    }
    return any ? d9d_buf_printf(out, "\n") : D9D_OK;
}

static d9d_status put_file(const json_t *doc, const char *key, const char *label, d9d_buf *out)
{
    const json_t *f = json_object_get(doc, key);
    const char *message = text_of(f, "message"), *special = text_of(f, "special_tokens");

    D9D_TRY(put_label(out, label));
    if (!json_is_object(f))
        return d9d_buf_printf(out, "none\n");
    D9D_TRY(d9d_buf_printf(out, "%s", text_of(f, "file")));
    if (json_object_get(f, "vocab_size") != NULL)
        D9D_TRY(d9d_buf_printf(out, ", %" PRId64 " ids", int_of(f, "vocab_size")));
    if (special != NULL && strcmp(special, "$A") != 0)
        D9D_TRY(d9d_buf_printf(out, ", a text is %s", special));
    return message != NULL ? d9d_buf_printf(out, ", cannot be read: %s\n", message)
                           : d9d_buf_printf(out, "\n");
}

/* --- lists --------------------------------------------------------------------------- */

/* The fields of one rule, in lines of at most 80 columns. */
static d9d_status put_fields(const json_t *doc, const char *rule, const char *label, d9d_buf *out)
{
    enum { COLUMNS = 80, INDENT = 15 };
    const json_t *v;
    size_t i, column = 0;

    json_array_foreach(json_object_get(doc, "fields"), i, v)
    {
        const char *name = text_of(v, "name");
        const size_t n = strlen(name) + 2;

        if (strcmp(text_of(v, "rule"), rule) != 0)
            continue;
        if (column == 0)
            D9D_TRY(put_label(out, label));
        else
            D9D_TRY(d9d_buf_printf(out, column + n > COLUMNS ? ",\n%*s" : ", ",
                                   column + n > COLUMNS ? INDENT : 0, ""));
        column = (column == 0 || column + n > COLUMNS ? INDENT : column) + n;
        D9D_TRY(d9d_buf_printf(out, "%s", name));
    }
    return column > 0 ? d9d_buf_printf(out, "\n") : D9D_OK;
}

static d9d_status put_sentences(const json_t *doc, const char *key, const char *label, d9d_buf *out)
{
    const json_t *v;
    size_t i;

    json_array_foreach(json_object_get(doc, key), i, v)
    {
        D9D_TRY(put_label(out, label));
        D9D_TRY(d9d_buf_printf(out, "%s\n", json_string_value(v)));
    }
    return D9D_OK;
}

static d9d_status put_training(const json_t *doc, d9d_buf *out)
{
    const char *why = text_of(doc, "not_trainable");

    if (why == NULL)
        return D9D_OK;
    D9D_TRY(put_label(out, "not trainable"));
    return d9d_buf_printf(out, "%s\n", why);
}

d9d_status d9di_describe_text(const json_t *doc, d9d_buf *out)
{
    D9D_TRY(put_family(doc, out));
    D9D_TRY(put_parameters(doc, out));
    D9D_TRY(put_dimensions(doc, out));
    D9D_TRY(put_weights(doc, out));
    D9D_TRY(put_memory(doc, out));
    D9D_TRY(put_quantised(doc, out));
    D9D_TRY(put_file(doc, "tokenizer", "tokenizer", out));
    D9D_TRY(put_file(doc, "chat_template", "chat template", out));
    D9D_TRY(put_fields(doc, "read", "fields read", out));
    D9D_TRY(put_fields(doc, "one value", "one value only", out));
    D9D_TRY(put_fields(doc, "ignored", "ignored", out));
    D9D_TRY(put_sentences(doc, "notes", "note", out));
    D9D_TRY(put_training(doc, out));
    return put_sentences(doc, "refused", "refused", out);
}
