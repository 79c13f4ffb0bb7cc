/* test_golden_rendered.c - chats drawn at random as transformers renders them: the text, and which
 * of it is the assistant's, by marks and by differences.
 *
 *     test_golden_rendered DIR     # what becomes of each line of DIR/NAME.jsonl by DIR/NAME.jinja
 */
#include "support/unit.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "data/chat/chat_private.h"
#include "data/io/jsonl.h"
#include "support/vectors.h"

enum { MAX_TEMPLATES = 1024, MAX_TEMPLATE = 1 << 20 };

/* --- one chat --------------------------------------------------------------------------------- */

static json_t *spans_of(const d9d_jinja_spans *spans)
{
    json_t *out = json_array();

    for (size_t i = 0; i < spans->len; i++)
        d9d_json_add(&out, json_pack("[I, I]", (json_int_t)spans->data[i].begin,
                                     (json_int_t)spans->data[i].end));
    return out;
}

/* Renders line[0, n), {"chat": {...}, "prompt": true}: {"text", "spans"}, where "unknown" may be in
 * place of the spans, or {"refused"}. */
static json_t *render_line(const d9di_chat *c, const json_t *line)
{
    const d9di_chat_template *t = d9di_chat_get_template(c);
    char *chat_text = json_dumps(json_object_get(line, "chat"), JSON_COMPACT);
    const bool prompt = json_is_true(json_object_get(line, "prompt"));
    d9di_chat_rendering r = {.text = {0}};
    d9di_jsonl_error error = {.message = ""};
    json_t *chat = NULL, *out = json_object();
    d9d_status st = d9di_jsonl_get_chat(chat_text, strlen(chat_text), NULL, &chat, &error);
    size_t n;

    if (st != D9D_OK) {
        d9d_json_set(&out, "refused", json_string(error.message));
        goto out;
    }
    n = json_array_size(json_object_get(chat, "messages"));
    st = d9di_chat_render(t, chat, n, prompt, &r);
    if (st != D9D_OK) {
        d9d_json_set(&out, "refused", json_string(d9d_err_message()));
        goto out;
    }
    d9d_json_set(&out, "text", json_stringn(r.text.len > 0 ? r.text.data : "", r.text.len));
    if (prompt)
        goto out;
    st = d9di_chat_check_trains(c);
    if (st == D9D_OK)
        st = d9di_chat_render_spans(t, chat, n, &r);
    if (st == D9D_OK)
        d9d_json_set(&out, "spans", spans_of(&r.loss_spans));
    else
        d9d_json_set(&out, "unknown", json_string(d9d_err_message()));
out:
    d9di_chat_rendering_release(&r);
    json_decref(chat);
    free(chat_text);
    return out;
}

typedef void line_fn(const char *name, int64_t k, const json_t *line, const json_t *got);

static void each_line(const char *dir, const char *name, const char *template, line_fn *fn)
{
    char path[2][4096], *text = NULL;
    d9d_chat_opts opts = {.chat_template = template != NULL ? template : path[0],
                          .date = "2024-07-26"};
    d9di_chat *c = NULL;
    d9d_err_copy why;
    size_t cap = 0;
    FILE *f;

    (void)snprintf(path[0], sizeof(path[0]), "%s/%s.jinja", dir, name);
    (void)snprintf(path[1], sizeof(path[1]), "%s/%s.jsonl", dir, name);
    opts.tokenizer = path[0];                            /* beside the special tokens */
    d9d_err_save(&why, d9di_chat_load(&opts, NULL, &c)); /* renders text alone */
    f = fopen(path[1], "r");
    assert_non_null(f);
    for (int64_t k = 0; getline(&text, &cap, f) > 0; k++) {
        json_t *line = json_loads(text, 0, NULL), *got;

        assert_non_null(line);
        got = c != NULL ? render_line(c, line) : json_pack("{s:s}", "refused", why.text);
        fn(name, k, line, got);
        json_decref(got);
        json_decref(line);
    }
    fclose(f);
    free(text);
    d9di_chat_free(c);
}

/* --- a folder --------------------------------------------------------------------------------- */

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Calls fn with the NAME of each NAME.jsonl. */
static void each_template(const char *folder, void (*fn)(const char *folder, const char *name))
{
    DIR *dir = opendir(folder);
    struct dirent *e;
    char *names[MAX_TEMPLATES];
    size_t n = 0;

    assert_non_null(dir);
    while ((e = readdir(dir)) != NULL && n < MAX_TEMPLATES) {
        const char *dot = strrchr(e->d_name, '.');

        if (dot != NULL && strcmp(dot, ".jsonl") == 0)
            names[n++] = strndup(e->d_name, (size_t)(dot - e->d_name));
    }
    assert_int_equal(closedir(dir), 0);
    assert_true(n > 0 && n < MAX_TEMPLATES);
    qsort(names, n, sizeof(*names), compare_names);
    for (size_t i = 0; i < n; i++) {
        fn(folder, names[i]);
        free(names[i]);
    }
}

/* --- what is drawn ---------------------------------------------------------------------------- */

static void print_line(const char *name, int64_t k, const json_t *line, const json_t *got)
{
    char *text = json_dumps(got, JSON_COMPACT);

    (void)line;
    printf("%s\t%lld\t%s\n", name, (long long)k, text);
    free(text);
}

static void print_template(const char *folder, const char *name)
{
    each_line(folder, name, NULL, print_line);
    fflush(stdout);
}

/* --- what is stored --------------------------------------------------------------------------- */

static void check_member(const char *name, int64_t k, const json_t *line, const json_t *got,
                         const char *key)
{
    const json_t *want = json_object_get(line, key), *has = json_object_get(got, key);
    char *texts[] = {json_dumps(want, JSON_ENCODE_ANY), json_dumps(got, JSON_ENCODE_ANY)};

    if (want != has && !json_equal(want, has))
        fail_msg("%s, line %lld: %s, where %s is %s", name, (long long)k + 1, texts[1], key,
                 texts[0] != NULL ? texts[0] : "not there");
    free(texts[0]);
    free(texts[1]);
}

static void check_line(const char *name, int64_t k, const json_t *line, const json_t *got)
{
    const bool refused = json_object_get(line, "error") != NULL;

    if (refused != (json_object_get(got, "refused") != NULL))
        fail_msg("%s, line %lld: %s, must be %s", name, (long long)k + 1,
                 json_string_value(json_object_get(got, refused ? "text" : "refused")),
                 refused ? "an error" : "taken");
    check_member(name, k, line, got, "text");
    check_member(name, k, line, got, "spans");
}

/* The template, and what is left of it without its marks. */
static void check_template(const char *folder, const char *name)
{
    static const char *const marks[] = {"{%- generation %}", "{%- endgeneration %}"};
    char path[4096];
    d9d_buf text = {0};

    print_message("# %s\n", name);
    each_line(folder, name, NULL, check_line);
    (void)snprintf(path, sizeof(path), "%s/%s.jinja", folder, name);
    assert_ok(d9d_fs_read(path, MAX_TEMPLATE, &text));
    for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]); i++)
        for (char *at; (at = strstr(text.data, marks[i])) != NULL; text.len -= strlen(marks[i]))
            memmove(at, at + strlen(marks[i]), strlen(at + strlen(marks[i])) + 1);
    assert_ok(d9d_fs_write_atomic("unmarked.jinja", text.data, text.len));
    each_line(folder, name, "unmarked.jinja", check_line);
    d9d_buf_release(&text);
}

static char *stored;

static void chats_equal_transformers(void **state)
{
    (void)state;
    each_template(stored, check_template);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {unit_test_in_dir(chats_equal_transformers)};
    int rc;

    if (argc > 1) {
        each_template(argv[1], print_template);
        return 0;
    }
    stored = realpath(vectors_path("rendered", ""), NULL);
    rc = cmocka_run_group_tests_name("golden rendered", tests, NULL, NULL);
    free(stored);
    return rc;
}
