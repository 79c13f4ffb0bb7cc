/* skipped.c - see skipped.h. */
#include "data/io/skipped.h"

#include <stdio.h>
#include <string.h>

static const char *const reason_names[D9D_SHARD_BAD_REASONS] = {
    [D9D_SHARD_BAD_UTF8] = "not_utf8",          [D9D_SHARD_BAD_JSON] = "not_json",
    [D9D_SHARD_BAD_MEMBER] = "no_member",       [D9D_SHARD_BAD_VALUE] = "bad_value",
    [D9D_SHARD_BAD_CHAT] = "chat_not_rendered", [D9D_SHARD_BAD_TEXT] = "not_tokenized"};

const char *d9d_shard_bad_record_name(d9d_shard_bad_record reason)
{
    return reason_names[reason];
}

d9d_status d9di_skipped_add(d9di_skipped_list *list, const d9di_skipped *s)
{
    return list->len < D9DI_MAX_SKIPPED ? D9D_VEC_PUSH(list, *s) : D9D_OK;
}

int64_t d9di_skipped_total(const int64_t counts[D9D_SHARD_BAD_REASONS])
{
    int64_t n = 0;

    for (size_t i = 0; i < D9D_SHARD_BAD_REASONS; i++)
        n += counts[i];
    return n;
}

/* --- counts ----------------------------------------------------------------------------------- */

json_t *d9di_skipped_counts_json(const int64_t counts[D9D_SHARD_BAD_REASONS])
{
    json_t *v = json_object();
    int bad = v == NULL;

    for (size_t i = 0; i < D9D_SHARD_BAD_REASONS && !bad; i++)
        bad = json_object_set_new(v, reason_names[i], json_integer(counts[i]));
    if (!bad)
        return v;
    json_decref(v);
    return NULL;
}

d9d_status d9di_skipped_counts_parse(const json_t *v, const char *where,
                                     int64_t counts[D9D_SHARD_BAD_REASONS])
{
    memset(counts, 0, D9D_SHARD_BAD_REASONS * sizeof(*counts));
    for (size_t i = 0; v && !json_is_null(v) && i < D9D_SHARD_BAD_REASONS; i++)
        D9D_TRY(d9d_json_get_i64(v, where, reason_names[i], 0, INT64_MAX / 65536, &counts[i]));
    return D9D_OK;
}

d9d_status d9di_skipped_counts_print(const int64_t counts[D9D_SHARD_BAD_REASONS], d9d_buf *out)
{
    const char *between = "";

    for (size_t i = 0; i < D9D_SHARD_BAD_REASONS; i++)
        if (counts[i] > 0) {
            D9D_TRY(
                d9d_buf_printf(out, "%s%lld %s", between, (long long)counts[i], reason_names[i]));
            between = ", ";
        }
    return D9D_OK;
}

/* --- records ---------------------------------------------------------------------------------- */

json_t *d9di_skipped_list_json(const d9di_skipped_list *list)
{
    json_t *v = json_array();
    int bad = v == NULL;

    for (size_t i = 0; i < list->len && !bad; i++) {
        const d9di_skipped *s = &list->data[i];

        bad = json_array_append_new(
            v, json_pack("{s:I, s:I, s:I, s:I, s:s, s:o}", "source", (json_int_t)s->source, "line",
                         (json_int_t)s->line, "byte", (json_int_t)s->byte, "document",
                         (json_int_t)s->document, "reason", reason_names[s->reason], "error",
                         d9d_json_str(s->error)));
    }
    if (!bad)
        return v;
    json_decref(v);
    return NULL;
}

static d9d_status parse_reason(const json_t *v, const char *where, d9d_shard_bad_record *out)
{
    const char *name;

    D9D_TRY(d9d_json_get_str(v, where, "reason", &name));
    for (int i = 0; i < D9D_SHARD_BAD_REASONS; i++)
        if (strcmp(name, reason_names[i]) == 0) {
            *out = (d9d_shard_bad_record)i;
            return D9D_OK;
        }
    return D9D_FAIL(D9D_EFORMAT, "%s: skipped: \"%.40s\" is no reason", where, name);
}

d9d_status d9di_skipped_list_parse(const json_t *v, const char *where, d9di_skipped_list *out)
{
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *x = json_array_get(v, i);
        d9di_skipped s = {0};
        const char *error;

        D9D_TRY(d9d_json_get_i64(x, where, "source", 0, INT64_MAX, &s.source));
        D9D_TRY(d9d_json_get_i64(x, where, "line", 0, INT64_MAX / 2, &s.line));
        D9D_TRY(d9d_json_get_i64(x, where, "byte", 0, INT64_MAX, &s.byte));
        D9D_TRY(d9d_json_get_i64(x, where, "document", -1, INT64_MAX, &s.document));
        D9D_TRY(parse_reason(x, where, &s.reason));
        D9D_TRY(d9d_json_get_str(x, where, "error", &error));
        snprintf(s.error, sizeof(s.error), "%s", error);
        D9D_TRY(d9di_skipped_add(out, &s));
    }
    return D9D_OK;
}

d9d_status d9di_skipped_print(const d9di_skipped *s, const char *source, d9d_buf *out)
{
    D9D_TRY(d9d_buf_printf(out, "{\"source\": "));
    D9D_TRY(d9d_json_put_str(out, source, strlen(source)));
    D9D_TRY(s->document >= 0 ? d9d_buf_printf(out, ", \"document\": %lld", (long long)s->document)
                             : d9d_buf_printf(out, ", \"line\": %lld, \"byte\": %lld",
                                              (long long)s->line, (long long)s->byte));
    D9D_TRY(d9d_buf_printf(out, ", \"reason\": \"%s\", \"error\": ", reason_names[s->reason]));
    D9D_TRY(d9d_json_put_str(out, s->error, strlen(s->error)));
    return d9d_buf_append(out, "}\n", 2);
}
