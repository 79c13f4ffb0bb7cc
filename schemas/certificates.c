/* certificates.c - see certificates.h. */
#include "certificates.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "certify/small_config.h"
#include "certify/small_task.h"
#include "d9d/base/fs.h"
#include "d9d/base/json.h"
#include "d9d/certify/certify.h"
#include "d9d/models/models.h"

enum { MAX_FILE_BYTES = 4 << 20 };

static const char again[] = "make certificates";

static const char *text_of(const json_t *doc, const char *key)
{
    const char *text = json_string_value(json_object_get(doc, key));

    return text != NULL ? text : "";
}

/* --- is it of this tree? ------------------------------------------------------------------------
 */

static d9d_status check_model(const json_t *doc, const char *where)
{
    const d9d_model_provider *p = d9d_model_find(d9d_model_choices, text_of(doc, "model_type"));
    d9d_arena a = {0};
    d9d_head_kind head;
    json_t *now = NULL;
    d9d_status st;

    if (p == NULL || strcmp(p->table->name, text_of(doc, "family")) != 0)
        return D9D_FAIL(D9D_EMISMATCH, "%s: no family %s reads %s: %s", where,
                        text_of(doc, "family"), text_of(doc, "model_type"), again);
    D9D_TRY(d9di_small_task_find(text_of(doc, "task"), &head));
    st = d9di_small_config_make(p, head, &a, &now);
    if (st == D9D_OK && !json_equal(now, json_object_get(doc, "config")))
        st = D9D_FAIL(D9D_EMISMATCH,
                      "%s: the certificate of %s is of another model than its tables make now: %s",
                      where, p->table->name, again);
    json_decref(now);
    d9d_arena_release(&a);
    return st;
}

/* --- a row --------------------------------------------------------------------------------------
 */

static d9d_status put_figure(const json_t *check, d9d_buf *out)
{
    const double v = json_number_value(json_object_get(check, "figure"));

    if (strcmp(text_of(check, "result"), "skipped") == 0)
        return d9d_buf_printf(out, " - |");
    return d9d_buf_printf(out, v != 0 && fabs(v) < 0.01 ? " %.1e |" : " %.3g |", v);
}

/* The mesh of "4 ranks, dps 2 tp 2, 4 steps". */
static d9d_status put_mesh(const json_t *check, d9d_buf *out)
{
    const char *from = strstr(text_of(check, "detail"), ", "), *to;

    if (from == NULL || strcmp(text_of(check, "result"), "ok") != 0)
        return d9d_buf_printf(out, " - |\n");
    from += 2;
    to = strstr(from, ", ");
    return d9d_buf_printf(out, " %.*s |\n", to != NULL ? (int)(to - from) : (int)strlen(from),
                          from);
}

static d9d_status put_row(const json_t *doc, const char *where, d9d_buf *out)
{
    const json_t *checks = json_object_get(doc, "checks"), *check = NULL;

    D9D_TRY(check_model(doc, where));
    D9D_TRY(d9d_buf_printf(out, "| `%s` | `%s` |", text_of(doc, "family"), text_of(doc, "task")));
    for (size_t i = 0; d9d_certificate_abouts[i].name != NULL; i++) {
        check = json_array_get(checks, i);
        if (strcmp(text_of(check, "check"), d9d_certificate_abouts[i].name) != 0 ||
            strcmp(text_of(check, "result"), "failed") == 0)
            return D9D_FAIL(D9D_EMISMATCH, "%s: the certificate of %s has no %s that holds: %s",
                            where, text_of(doc, "family"), d9d_certificate_abouts[i].name, again);
        D9D_TRY(put_figure(check, out));
    }
    return put_mesh(check, out);
}

/* --- the table ----------------------------------------------------------------------------------
 */

static d9d_status put_heading(d9d_buf *out)
{
    D9D_TRY(d9d_buf_printf(out, "| family | task |"));
    for (const d9d_certificate_about *c = d9d_certificate_abouts; c->name != NULL; c++)
        D9D_TRY(d9d_buf_printf(out, " %s |", c->name));
    D9D_TRY(d9d_buf_printf(out, " mesh |\n|---|---|"));
    for (const d9d_certificate_about *c = d9d_certificate_abouts; c->name != NULL; c++)
        D9D_TRY(d9d_buf_printf(out, "---|"));
    return d9d_buf_printf(out, "---|\n");
}

/* The certificates of one family, in the order of the file; *n counts them. */
static d9d_status put_family(const char *family, const char *path, const d9d_buf *file, size_t *n,
                             d9d_buf *out)
{
    const char *p = file->data, *const end = p + file->len;

    *n = 0;
    for (int line = 1; p < end; line++) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        const size_t length = (size_t)((stop != NULL ? stop : end) - p);
        char where[512];
        json_t *doc;
        d9d_status st = D9D_OK;

        (void)snprintf(where, sizeof(where), "%s:%d", path, line);
        D9D_TRY(d9d_json_parse(where, p, length, &doc));
        if (strcmp(text_of(doc, "family"), family) == 0) {
            st = put_row(doc, where, out);
            ++*n;
        }
        json_decref(doc);
        D9D_TRY(st);
        p += length + 1;
    }
    return D9D_OK;
}

static d9d_status put_families(const char *path, const d9d_buf *file, d9d_buf *out)
{
    D9D_TRY(put_heading(out));
    for (const d9d_table *const *c = d9d_model_choices; *c != NULL; c++) {
        size_t n;

        if (*c == &d9d_model_auto_section)
            continue;
        D9D_TRY(put_family((*c)->name, path, file, &n, out));
        if (n == 0)
            D9D_TRY(d9d_buf_printf(out, "| `%s` | no certificate |\n", (*c)->name));
    }
    return D9D_OK;
}

d9d_status d9di_certificates_append(const char *path, d9d_buf *out)
{
    d9d_buf file = {0};
    d9d_status st = d9d_fs_read(path, MAX_FILE_BYTES, &file);

    if (st == D9D_OK)
        st = put_families(path, &file, out);
    d9d_buf_release(&file);
    return st;
}
