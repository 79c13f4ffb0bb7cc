/* name_pattern.c - regular expressions of dotted names, by PCRE2.  See d9d/config/name_pattern.h.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "d9d/config/name_pattern.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/mem.h"

enum { MATCH_LIMIT = 1000000 };

struct d9d_name_pattern {
    const char *key, *text;
    pcre2_code *code;
    pcre2_match_data *data;
    pcre2_match_context *limits;
};

static d9d_status pattern_compile(d9d_name_pattern *p)
{
    PCRE2_UCHAR why[128];
    PCRE2_SIZE at;
    int code;

    p->code = pcre2_compile((PCRE2_SPTR)p->text, PCRE2_ZERO_TERMINATED,
                            PCRE2_ANCHORED | PCRE2_ENDANCHORED, &code, &at, NULL);
    if (p->code == NULL) {
        (void)pcre2_get_error_message(code, why, sizeof(why));
        return D9D_FAIL(D9D_ECONFIG, "%s \"%s\": %s at byte %zu", p->key, p->text,
                        (const char *)why, (size_t)at);
    }
    p->data = pcre2_match_data_create(1, NULL);
    p->limits = pcre2_match_context_create(NULL);
    if (p->data == NULL || p->limits == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s \"%s\": no memory for a match", p->key, p->text);
    pcre2_set_match_limit(p->limits, MATCH_LIMIT);
    return D9D_OK;
}

d9d_status d9d_name_pattern_create(const char *key, const char *text, d9d_name_pattern **out)
{
    d9d_name_pattern *p = calloc(1, sizeof(*p));
    d9d_status st;

    if (p == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: %zu bytes", key, sizeof(*p));
    p->key = key;
    p->text = text;
    D9D_TRY_OR(st, pattern_compile(p), out);
    *out = p;
    p = NULL;
out:
    d9d_name_pattern_free(p);
    return st;
}

d9d_status d9d_name_pattern_match(const d9d_name_pattern *p, const char *name, bool *out)
{
    const int rc = pcre2_match(p->code, (PCRE2_SPTR)name, strlen(name), 0, 0, p->data, p->limits);

    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH)
        return D9D_FAIL(D9D_ECONFIG, "%s \"%s\": too many ways to read the name %s", p->key,
                        p->text, name);
    *out = rc >= 0;
    return D9D_OK;
}

void d9d_name_pattern_free(d9d_name_pattern *p)
{
    if (p == NULL)
        return;
    pcre2_code_free(p->code);
    pcre2_match_data_free(p->data);
    pcre2_match_context_free(p->limits);
    free(p);
}

d9d_status d9d_name_pattern_ends(const char *key, const char *text, const char *name, bool *out)
{
    d9d_name_pattern *p = NULL;
    d9d_buf whole = {0};
    d9d_status st = d9d_buf_printf(&whole, "(.*\\.)?(%s)", text);

    if (st == D9D_OK)
        st = d9d_name_pattern_create(key, (const char *)whole.data, &p);
    if (st == D9D_OK)
        st = d9d_name_pattern_match(p, name, out);
    d9d_name_pattern_free(p);
    d9d_buf_release(&whole);
    return st;
}
