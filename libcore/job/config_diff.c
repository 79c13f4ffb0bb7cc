/* config_diff.c - see job/config_diff.h. */
#include "job/config_diff.h"

enum { MAX_VALUE_BYTES = 60 }; /* limit of a formatted value, in bytes */

const char *d9di_config_diff_format(const json_t *v, d9d_buf *b)
{
    b->len = 0;
    if (v == NULL)
        return "absent";
    if (d9d_json_put(b, v, -1) != D9D_OK || b->len == 0)
        return "another value";
    b->data[b->len < MAX_VALUE_BYTES ? b->len : MAX_VALUE_BYTES] = '\0';
    return b->data;
}

typedef struct diff_walk {
    d9di_config_diff_fn *on_difference;
    void *self;
    d9d_buf path;
} diff_walk;

/* Appends `key` to the path; returns the previous length. */
static size_t path_push(diff_walk *s, const char *key)
{
    const size_t len = s->path.len;

    (void)!d9d_buf_printf(&s->path, "%s%s", len > 0 ? "." : "", key);
    return len;
}

static bool report_difference(const diff_walk *s, const json_t *a, const json_t *b)
{
    return s->path.len > 0 && s->on_difference(s->self, s->path.data, a, b);
}

/* 12 and 12.0 are equal. */
static bool values_equal(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b))
        return json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}

static bool walk_members(diff_walk *s, json_t *a, json_t *b)
{
    const char *key;
    json_t *v;

    if (!json_is_object(a) || !json_is_object(b))
        return !values_equal(a, b) && report_difference(s, a, b);
    json_object_foreach(a, key, v)
    {
        const size_t len = path_push(s, key);

        if (walk_members(s, v, json_object_get(b, key)))
            return true;
        s->path.len = len;
    }
    json_object_foreach(b, key, v)
    {
        const size_t len = path_push(s, key);

        if (json_object_get(a, key) == NULL && report_difference(s, NULL, v))
            return true;
        s->path.len = len;
    }
    return false;
}

bool d9di_config_diff(json_t *a, json_t *b, d9di_config_diff_fn *on_difference, void *self)
{
    diff_walk s = {.on_difference = on_difference, .self = self};
    const bool ended = walk_members(&s, a, b);

    d9d_buf_release(&s.path);
    return ended;
}
