/* index_set.c - see d9d/data/loader/index_set.h. */
#include "d9d/data/loader/index_set.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"

enum { MAX_BYTES = 64 << 20 };

static const char separators[] = ", \t\r\n";

/* Parses a number at *p and advances *p; false if there is none below 2^62. */
static bool parse_number(const char **p, int64_t *out)
{
    char *end;

    if (**p < '0' || **p > '9')
        return false;
    errno = 0;
    *out = strtoll(*p, &end, 10);
    *p = end;
    return errno == 0 && *out < INT64_C(1) << 62;
}

static d9d_status parse_ranges(const char *name, const char *text, d9d_index_set *out)
{
    const char *p = text + strspn(text, separators);

    while (*p != '\0') {
        d9d_index_set_range r = {0};
        const char *at = p;
        bool good;

        if (*p == '#') {
            p += strcspn(p, "\n");
            p += strspn(p, separators);
            continue;
        }
        good = parse_number(&p, &r.first);
        r.last = r.first;
        if (good && *p == '-') {
            p++;
            good = parse_number(&p, &r.last) && r.first <= r.last;
        }
        if (!good || (*p != '\0' && *p != '#' && strchr(separators, *p) == NULL))
            return D9D_FAIL(D9D_ECONFIG, "%s: \"%.20s\" at byte %zu is no number or range", name,
                            at, (size_t)(at - text));
        D9D_TRY(D9D_VEC_PUSH(&out->ranges, r));
        p += strspn(p, separators);
    }
    return D9D_OK;
}

static int compare_first(const void *pa, const void *pb)
{
    const d9d_index_set_range *a = pa, *b = pb;

    return a->first < b->first ? -1 : a->first > b->first;
}

/* Sorts, and merges ranges that overlap or touch. */
static void merge_ranges(d9d_index_set *s)
{
    size_t n = 0;

    if (s->ranges.len == 0)
        return;
    qsort(s->ranges.data, s->ranges.len, sizeof(*s->ranges.data), compare_first);
    for (size_t i = 1; i < s->ranges.len; i++) {
        const d9d_index_set_range r = s->ranges.data[i];

        if (r.first > s->ranges.data[n].last + 1)
            s->ranges.data[++n] = r;
        else if (r.last > s->ranges.data[n].last)
            s->ranges.data[n].last = r.last;
    }
    s->ranges.len = n + 1;
}

d9d_status d9d_index_set_read(const char *text, d9d_index_set *out)
{
    const bool list = *text >= '0' && *text <= '9' && strspn(text, "0123456789,- ") == strlen(text);
    d9d_index_set s = {0};
    d9d_buf file = {0};
    d9d_status st;

    if (!list) {
        D9D_TRY_OR(st, d9d_fs_read(text, MAX_BYTES, &file), out);
        D9D_TRY_OR(st, d9d_buf_append(&file, "", 1), out);
        if (strlen(file.data) + 1 != file.len) {
            st = D9D_FAIL(D9D_ECONFIG, "%s: is no text: byte %zu is 0", text, strlen(file.data));
            goto out;
        }
    }
    D9D_TRY_OR(st, parse_ranges(list ? "list of samples" : text, list ? text : file.data, &s), out);
    merge_ranges(&s);
    *out = s;
    s = (d9d_index_set){0};
out:
    d9d_index_set_release(&s);
    d9d_buf_release(&file);
    return st;
}

void d9d_index_set_release(d9d_index_set *s)
{
    D9D_VEC_RELEASE(&s->ranges);
}

bool d9d_index_set_has(const d9d_index_set *s, int64_t n)
{
    size_t lo = 0, hi = s->ranges.len;

    while (lo < hi) {
        const size_t mid = (lo + hi) / 2;

        if (s->ranges.data[mid].last < n)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < s->ranges.len && s->ranges.data[lo].first <= n;
}

int64_t d9d_index_set_count(const d9d_index_set *s)
{
    int64_t n = 0;

    for (size_t i = 0; i < s->ranges.len; i++)
        n += s->ranges.data[i].last - s->ranges.data[i].first + 1;
    return n;
}

int64_t d9d_index_set_max(const d9d_index_set *s)
{
    return s->ranges.len > 0 ? s->ranges.data[s->ranges.len - 1].last : -1;
}
