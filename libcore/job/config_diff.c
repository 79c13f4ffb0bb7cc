/* config_diff.c - see job/config_diff.h. */
#include "job/config_diff.h"

enum { MOST_VALUE = 60 }; /* bytes of a value that are shown */

const char *d9di_differ_shown(const json_t *v, d9d_buf *b)
{
    b->len = 0;
    if (v == NULL)
        return "absent";
    if (d9d_json_put(b, v, -1) != D9D_OK || b->len == 0)
        return "another value";
    b->data[b->len < MOST_VALUE ? b->len : MOST_VALUE] = '\0';
    return b->data;
}

typedef struct search {
    d9di_differs *tell;
    void *self;
    d9d_buf path;
} search;

/* The path goes on with `key`; its length until then. */
static size_t enter(search *s, const char *key)
{
    const size_t len = s->path.len;

    (void)!d9d_buf_printf(&s->path, "%s%s", len > 0 ? "." : "", key);
    return len;
}

static bool found(const search *s, const json_t *a, const json_t *b)
{
    return s->path.len > 0 && s->tell(s->self, s->path.data, a, b);
}

/* 12 and 12.0 are one value. */
static bool is_same(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b))
        return json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}

static bool look(search *s, json_t *a, json_t *b)
{
    const char *key;
    json_t *v;

    if (!json_is_object(a) || !json_is_object(b))
        return !is_same(a, b) && found(s, a, b);
    json_object_foreach(a, key, v)
    {
        const size_t len = enter(s, key);

        if (look(s, v, json_object_get(b, key)))
            return true;
        s->path.len = len;
    }
    json_object_foreach(b, key, v)
    {
        const size_t len = enter(s, key);

        if (json_object_get(a, key) == NULL && found(s, NULL, v))
            return true;
        s->path.len = len;
    }
    return false;
}

bool d9di_differ(json_t *a, json_t *b, d9di_differs *tell, void *self)
{
    search s = {.tell = tell, .self = self};
    const bool ended = look(&s, a, b);

    d9d_buf_release(&s.path);
    return ended;
}
