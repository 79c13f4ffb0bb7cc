/* run_dir_foreign.c - checks that a run directory has no foreign files.  See job/run_dir.h. */
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/base/json.h"
#include "job/run_dir.h"

enum { MAX_HEAD_BYTES = 1 << 20 };

/* The first bytes of a file; `whole` if these are all. */
typedef struct file_head {
    const char *path, *text;
    size_t n;
    bool whole;
} file_head;

/* --- documents -------------------------------------------------------------------------------- */

static bool is_run_manifest(const json_t *v)
{
    const char *schema = json_string_value(json_object_get(v, "schema"));

    return schema != NULL && strcmp(schema, D9DI_RUN_DIR_SCHEMA) == 0;
}

static bool is_run_config(const json_t *v)
{
    return json_object_get(v, "model_provider") != NULL;
}

static bool is_json_of(const file_head *f, bool (*is_run)(const json_t *v))
{
    json_t *v = NULL;
    const bool is = f->whole && d9d_json_parse(f->path, f->text, f->n, &v) == D9D_OK && is_run(v);

    json_decref(v);
    return is;
}

static bool is_manifest(const file_head *f)
{
    return is_json_of(f, is_run_manifest);
}

static bool is_config(const file_head *f)
{
    return is_json_of(f, is_run_config);
}

/* --- records ---------------------------------------------------------------------------------- */

typedef enum match_result { MATCH_NO, MATCH_PREFIX, MATCH_YES } match_result;

static size_t number_span(const char *text, size_t n)
{
    static const char of_numbers[] = "0123456789+-.eENaInfityul"; /* NaN, Infinity, null */
    size_t k = 0;

    while (k < n && memchr(of_numbers, text[k], sizeof(of_numbers) - 1) != NULL)
        k++;
    return k;
}

/* Matches the start of the text; "#" is a number and "*" anything.  MATCH_PREFIX: the text ends
 * within the pattern. */
static match_result match_pattern(const char *like, const char *text, size_t n)
{
    for (; *like != '\0'; like++) {
        size_t k = 1;

        if (*like == '*') {
            for (k = 0; k < n; k++)
                if (match_pattern(like + 1, text + k, n - k) == MATCH_YES)
                    return MATCH_YES;
            return MATCH_PREFIX;
        }
        if (n == 0)
            return MATCH_PREFIX;
        if (*like == '#')
            k = number_span(text, n);
        if (k == 0 || (*like != '#' && *like != *text))
            return MATCH_NO;
        text += k;
        n -= k;
    }
    return MATCH_YES;
}

/* True if any line matches a pattern.  Single damaged lines are accepted, but a run's file has a
 * valid line near its front.  A truncated line is accepted only if it is the whole file. */
static bool has_matching_line(const file_head *f, const char *const *likes)
{
    for (size_t at = 0; at < f->n;) {
        const char *end = memchr(f->text + at, '\n', f->n - at);
        const size_t len = (end != NULL ? (size_t)(end - f->text) : f->n) - at;
        const bool cut = at == 0 && end == NULL && f->whole && f->text[f->n - 1] != '}';

        for (size_t k = 0; likes[k] != NULL; k++) {
            const match_result is = match_pattern(likes[k], f->text + at, len);

            if (is == MATCH_YES || (is == MATCH_PREFIX && cut))
                return true;
        }
        at += len + 1;
    }
    return f->n == 0;
}

/* The records of d9d/track/track.h. */
static bool is_metrics(const file_head *f)
{
    static const char *const likes[] = {
        "{\"step\": #, \"loss\": #, *\"lr\": #, \"tokens\": #, \"samples\": #, \"step_ms\": #",
        "{\"restart\": #, \"step\": #, \"time\": \"",
        "{\"evaluation\": \"*\", \"step\": #",
        "{\"save\": #, \"blocked_ms\": #",
        "{\"pipeline\": #, \"schedule\": \"",
        "{\"documents\": #, \"tokens\": #, \"worst\": [",
        "{\"end\": \"*\", \"step\": #, \"time\": \"",
        NULL};

    return has_matching_line(f, likes);
}

/* The lines of train/samples_log.h. */
static bool is_samples(const file_head *f)
{
    static const char *const likes[] = {"{\"step\": #, \"first\": #, \"samples\": [",
                                        "{\"step\": #, \"first\": #, \"count\": #", NULL};

    return has_matching_line(f, likes);
}

/* The lines of train/rollout.h. */
static bool is_completions(const file_head *f)
{
    static const char *const likes[] = {"{\"step\": #, \"sample\": #, \"prompt\": \"", NULL};

    return has_matching_line(f, likes);
}

/* A ring begins with a magic word, or with zeros if nothing was written yet. */
static bool is_ring(const file_head *f)
{
    static const char word[] = "d9dflit", none[sizeof(word) - 1];
    const size_t n = sizeof(none);

    return f->n == 0 ||
           (f->n >= n && (memcmp(f->text, word, n) == 0 || memcmp(f->text, none, n) == 0));
}

/* --- the files -------------------------------------------------------------------------------- */

/* *empty: the file does not exist or has no bytes. */
static d9d_status check_file(const char *path, bool (*is_run)(const file_head *f), char *buffer,
                             bool *empty)
{
    d9d_file file = {.fd = -1};
    file_head f = {.path = path, .text = buffer};
    uint64_t bytes;
    d9d_status st = d9d_file_open_regular(path, &file, &bytes);

    *empty = true;
    if (st == D9D_ENOTFOUND)
        return D9D_OK;
    D9D_TRY(st);
    f.whole = bytes <= MAX_HEAD_BYTES;
    f.n = f.whole ? (size_t)bytes : MAX_HEAD_BYTES;
    st = d9d_file_read_at(&file, buffer, f.n, 0);
    d9d_file_release(&file);
    D9D_TRY(st);
    *empty = f.n == 0;
    if (is_run(&f))
        return D9D_OK;
    return D9D_FAIL(D9D_ECONFIG,
                    "%s: is not a run's, and a run would write its own over it; name another "
                    "trainer.run.dir",
                    path);
}

d9d_status d9di_run_dir_check_foreign(const d9di_run_dir *r)
{
    static const struct {
        const char *name;
        bool (*is_run)(const file_head *f);
        bool tells;   /* its content shows that the directory is a run's */
        bool of_none; /* checked only if nothing shows that */
    } files[] = {{"metrics.jsonl", is_metrics, true, false},
                 {"samples.jsonl", is_samples, false, false},
                 {"completions.jsonl", is_completions, false, false},
                 {"flight/rank-0.bin", is_ring, false, false},
                 {"manifest.json", is_manifest, false, true},
                 {"config.json", is_config, false, true}};
    char *buffer = malloc(MAX_HEAD_BYTES);
    bool begun = false, empty = true;
    d9d_arena a = {0};
    d9d_status st = buffer != NULL ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "%s: no memory", r->path);

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]) && st == D9D_OK; i++) {
        const char *path = d9d_fs_join(&a, r->path, files[i].name);

        if (path == NULL)
            st = D9D_FAIL(D9D_ENOMEM, "%s/%s: its name", r->path, files[i].name);
        else if (!files[i].of_none || !begun)
            st = check_file(path, files[i].is_run, buffer, &empty);
        begun = begun || (files[i].tells && !empty);
    }
    d9d_arena_release(&a);
    free(buffer);
    return st;
}
