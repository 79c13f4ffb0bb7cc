/* html_config.c - the configuration of each run, and the keys in which runs differ. */
#include <string.h>

#include "d9d/base/num_format.h"
#include "report/html/html_page.h"

enum { MAX_VALUE_BYTES = 160, MAX_KEYS = 2000, DEPTH_MAX = 32 };

/* All keys of all runs ("trainer.run.steps"), each with its value in each run, as JSON text. */
typedef struct config_keys {
    d9d_arena arena;
    d9d_map rows; /* to const char *[runs]; NULL where a run lacks the key */
    size_t n;     /* runs */
} config_keys;

static d9d_status fail_no_memory(void)
{
    return D9D_FAIL(D9D_ENOMEM, "no memory for the configurations of runs");
}

static d9d_status add_value(config_keys *c, const char *key, size_t run, const json_t *v)
{
    const char **row = d9d_map_get(&c->rows, key, strlen(key));
    d9d_buf text = {0};
    d9d_status st = D9D_OK;

    if (row == NULL) {
        if (c->rows.len == MAX_KEYS)
            return D9D_OK;
        row = d9d_arena_alloc(&c->arena, c->n * sizeof(*row));
        if (row == NULL || d9d_map_put(&c->rows, key, strlen(key), (void *)row) != D9D_OK)
            return fail_no_memory();
    }
    if (json_is_string(v)) {
        row[run] = d9d_arena_strdup(&c->arena, json_string_value(v));
    } else {
        st = d9d_json_put(&text, v, -1);
        row[run] = st == D9D_OK ? d9d_arena_strndup(&c->arena, text.data, text.len) : NULL;
    }
    d9d_buf_release(&text);
    return st == D9D_OK && row[run] == NULL ? fail_no_memory() : st;
}

/* Objects are walked; lists of plain values are one value. */
static d9d_status walk_value(config_keys *c, const char *path, size_t run, json_t *v, int depth)
{
    const char *key;
    json_t *member;
    size_t i;

    if (depth < DEPTH_MAX && json_is_object(v) && json_object_size(v) > 0)
        json_object_foreach(v, key, member)
        {
            const char *of = path[0] == '\0' ? d9d_arena_strdup(&c->arena, key)
                                             : d9d_arena_printf(&c->arena, "%s.%s", path, key);

            D9D_TRY(of != NULL ? D9D_OK : fail_no_memory());
            D9D_TRY(walk_value(c, of, run, member, depth + 1));
        }
    else if (depth < DEPTH_MAX && json_is_array(v) && json_is_object(json_array_get(v, 0)))
        json_array_foreach(v, i, member)
        {
            const char *of = d9d_arena_printf(&c->arena, "%s[%zu]", path, i);

            D9D_TRY(of != NULL ? D9D_OK : fail_no_memory());
            D9D_TRY(walk_value(c, of, run, member, depth + 1));
        }
    else
        return add_value(c, path, run, v);
    return D9D_OK;
}

static bool differs(const char *const *row, size_t n)
{
    for (size_t k = 1; k < n; k++)
        if ((row[k] == NULL) != (row[0] == NULL) || (row[k] != NULL && strcmp(row[k], row[0]) != 0))
            return true;
    return false;
}

/* The keys that differ, or all. */
static void put_rows(d9di_html_page *p, const config_keys *c, const char *label, bool all)
{
    d9di_html_writer *w = &p->w;

    d9di_html_table_begin(w, label);
    d9di_html_put(w, "<thead><tr><th scope=\"col\">key</th>");
    for (size_t k = 0; k < p->n; k++) {
        d9di_html_put(w, "<th scope=\"col\">");
        d9di_html_text(w, p->runs[k].label);
        d9di_html_put(w, "</th>");
    }
    d9di_html_put(w, "</tr></thead>\n<tbody>\n");
    for (size_t i = 0; i < c->rows.len && w->st == D9D_OK; i++) {
        const char *const *row = c->rows.entries[i].value;

        if (!all && !differs(row, p->n))
            continue;
        d9di_html_row_begin(w, c->rows.entries[i].key);
        for (size_t k = 0; k < p->n; k++) {
            d9di_html_put(w, "<td>");
            d9di_html_text_head(w, row[k] != NULL ? row[k] : "absent", MAX_VALUE_BYTES);
            d9di_html_put(w, "</td>");
        }
        d9di_html_row_end(w);
    }
    d9di_html_put(w, "</tbody>\n");
    d9di_html_table_end(w);
}

static void put_config(d9di_html_page *p, const config_keys *c)
{
    size_t n = 0;

    for (size_t i = 0; i < c->rows.len; i++)
        n += differs(c->rows.entries[i].value, p->n);
    if (p->n > 1) {
        d9di_html_put(&p->w, "<p>%zu of %zu key%s differ.</p>\n", n, c->rows.len,
                      D9D_PLURAL(c->rows.len));
        if (n > 0)
            put_rows(p, c, "Keys in which the runs differ", false);
    }
    d9di_html_put(&p->w, "<details><summary>All %zu key%s</summary>\n", c->rows.len,
                  D9D_PLURAL(c->rows.len));
    put_rows(p, c, "Configuration", true);
    d9di_html_put(&p->w, "</details>\n");
}

void d9di_html_write_config(d9di_html_page *p)
{
    config_keys c = {.n = p->n};

    for (size_t k = 0; k < p->n && p->w.st == D9D_OK; k++)
        if (p->runs[k].config != NULL)
            p->w.st = walk_value(&c, "", k, p->runs[k].config, 0);
    if (c.rows.len > 0)
        put_config(p, &c);
    d9d_map_release(&c.rows);
    d9d_arena_release(&c.arena);
}
