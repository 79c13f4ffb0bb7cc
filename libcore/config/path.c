/* path.c - JSON paths as text. */
#include "config/path.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/json.h"

enum { KEY_MAX = 80 }; /* the most bytes of a key that are shown */

static bool is_plain(const char *key)
{
    size_t n = strspn(key, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-$");

    return n > 0 && n < KEY_MAX && key[n] == '\0';
}

static d9d_status put_key(d9d_buf *b, const char *key, bool first)
{
    size_t n = strnlen(key, KEY_MAX);

    if (is_plain(key))
        return d9d_buf_printf(b, "%s%s", first ? "" : ".", key);
    D9D_TRY(d9d_buf_printf(b, "["));
    D9D_TRY(d9d_json_put_str(b, key, n));
    return d9d_buf_printf(b, "]");
}

/* *below: whether anything after the root was written. */
static d9d_status put_path(d9d_buf *b, const d9di_path *p, bool *below)
{
    bool first;

    if (p->up == NULL) {
        *below = false;
        return d9d_buf_printf(b, "%s", p->key != NULL ? p->key : "");
    }
    D9D_TRY(put_path(b, p->up, below));
    first = !*below;
    *below = true;
    if (first && b->len > 0)
        D9D_TRY(d9d_buf_printf(b, ": "));
    if (p->key == NULL)
        return d9d_buf_printf(b, "[%zu]", p->index);
    return put_key(b, p->key, first);
}

const char *d9di_path_text(const d9di_path *p, d9d_arena *a)
{
    d9d_buf b = {0};
    const d9di_path *root = p;
    char *text = NULL;
    bool below;

    while (root->up != NULL)
        root = root->up;
    if (put_path(&b, p, &below) == D9D_OK && b.data != NULL)
        text = d9d_arena_strdup(a, b.data);
    d9d_buf_release(&b);
    if (text != NULL)
        return text;
    return root->key != NULL ? root->key : "";
}
