/* model_files.c - auxiliary files: the files beside the weights that a conversion copies.  See
 * d9d/ckpt/dir/checkpoint.h. */
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "d9d/ckpt/dir/checkpoint.h"
#include "d9d/ckpt/dir/manifest.h"

/* The files of a HuggingFace model besides weights and config.json, which is rewritten.  Nothing
 * else is copied.  Patterns of glob(7), case-insensitive. */
static const struct {
    const char *dir, *name; /* dir: subdirectory of the model folder; NULL: the folder itself */
} model_files[] = {
    {NULL, "generation_config.json"},
    {NULL, "configuration.json"},
    /* tokenizers */
    {NULL, "tokenizer.json"},
    {NULL, "tokenizer_config.json"},
    {NULL, "special_tokens_map.json"},
    {NULL, "added_tokens.json"},
    {NULL, "normalizer.json"},
    {NULL, "vocab.json"},
    {NULL, "vocab.txt"},
    {NULL, "vocab.bpe"},
    {NULL, "merges.txt"},
    {NULL, "tokenizer.model"},
    {NULL, "tokenizer.model.v[0-9]*"},
    {NULL, "spiece.model"},
    {NULL, "sentencepiece.bpe.model"},
    {NULL, "*.spm"},
    {NULL, "*.tiktoken"},
    {NULL, "tekken.json"},
    {NULL, "chat_template.jinja"},
    {NULL, "chat_template.json"},
    {"additional_chat_templates", "*.jinja"},
    /* processors */
    {NULL, "*processor_config.json"},
    /* sentence-transformers: module folders such as 1_Pooling */
    {NULL, "modules.json"},
    {NULL, "config_sentence_transformers.json"},
    {NULL, "sentence_*_config.json"},
    {"[0-9]_*", "config.json"},
    /* custom model code */
    {NULL, "modeling_*.py"},
    {NULL, "modular_*.py"},
    {NULL, "configuration_*.py"},
    {NULL, "tokenization_*.py"},
    {NULL, "processing_*.py"},
    {NULL, "*_processing_*.py"},
    {NULL, "*generation_utils.py"},
    /* documents and licences */
    {NULL, "README*"},
    {NULL, "MODEL_CARD*"},
    {NULL, "LICENSE*"},
    {NULL, "LICENCE*"},
    {NULL, "COPYING*"},
    {NULL, "NOTICE*"},
    {NULL, "USE_POLICY*"},
};

struct finder {
    d9d_arena *arena;
    d9d_buf left; /* names that are left out, for one log line */
    size_t n_left;
    D9D_VEC(char *) found;
};

enum { MAX_NAMED = 8 }; /* names in that line */

static bool glob_matches(const char *pattern, const char *name)
{
    return fnmatch(pattern, name, FNM_CASEFOLD | FNM_PERIOD) == 0;
}

/* Matches a file of subdirectory `dir`; NULL: of the model folder. */
static bool is_model_file(const char *dir, const char *name)
{
    for (size_t i = 0; i < sizeof(model_files) / sizeof(model_files[0]); i++)
        if ((dir == NULL) == (model_files[i].dir == NULL) &&
            (dir == NULL || glob_matches(model_files[i].dir, dir)) &&
            glob_matches(model_files[i].name, name))
            return true;
    return false;
}

static bool has_model_files(const char *dir)
{
    for (size_t i = 0; i < sizeof(model_files) / sizeof(model_files[0]); i++)
        if (model_files[i].dir != NULL && glob_matches(model_files[i].dir, dir))
            return true;
    return false;
}

static bool ends_with(const char *name, const char *tail)
{
    const size_t n = strlen(name), k = strlen(tail);

    return n >= k && strcmp(name + n - k, tail) == 0;
}

/* Files left out without a message: hidden, or written anew. */
static bool is_silently_skipped(const char *name)
{
    return ends_with(name, ".safetensors") || ends_with(name, ".safetensors.index.json") ||
           strcmp(name, "config.json") == 0 || strcmp(name, D9D_MANIFEST_NAME) == 0 ||
           name[0] == '.';
}

/* True for names that a manifest can hold. */
static bool is_plain(const char *name)
{
    return d9d_fs_check_name(name, strlen(name), "") == D9D_OK;
}

static d9d_status note_skipped(struct finder *f, const char *within, const char *name,
                               const char *why)
{
    f->n_left++;
    if (f->n_left > MAX_NAMED)
        return D9D_OK;
    return d9d_buf_printf(&f->left, "%s%s%s%s%s%s", f->n_left > 1 ? ", " : "", within, name,
                          *why != '\0' ? " (" : "", why, *why != '\0' ? ")" : "");
}

/* Adds a file.  EPATH or ENOTFOUND if it is not a regular file. */
static d9d_status add_found(struct finder *f, const char *path, const char *within,
                            const char *name)
{
    char *found = d9d_arena_printf(f->arena, "%s%s", within, name);
    uint64_t bytes;

    if (found == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", path);
    D9D_TRY(d9d_fs_check_regular(path));
    D9D_TRY(d9d_fs_check_readable(path));
    D9D_TRY(d9d_fs_size(path, &bytes));
    if (bytes > D9D_CHECKPOINT_AUX_FILE_MAX)
        return note_skipped(f, within, name, "larger than 1 GiB");
    return D9D_VEC_PUSH(&f->found, found);
}

static bool is_link(const char *path)
{
    struct stat s;

    return lstat(path, &s) == 0 && S_ISLNK(s.st_mode);
}

/* Searches subdirectory `dir`; NULL: the model folder. */
static d9d_status find_in_dir(struct finder *f, const char *path, const char *dir)
{
    const char *within = dir == NULL ? "" : d9d_arena_printf(f->arena, "%s/", dir);
    d9d_fs_names names = {0};

    if (within == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", path);
    D9D_TRY(d9d_fs_list(path, f->arena, &names));
    for (size_t i = 0; i < names.n; i++) {
        const char *name = names.name[i], *here = d9d_fs_join(f->arena, path, name);
        bool is_dir;

        if (here == NULL)
            return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", path);
        is_dir = d9d_fs_is_dir(here);
        if (is_dir && dir == NULL && has_model_files(name) && is_plain(name) && !is_link(here))
            D9D_TRY(find_in_dir(f, here, name));
        else if (!is_dir && is_plain(name) && is_model_file(dir, name))
            D9D_TRY(add_found(f, here, within, name));
        else if (!is_silently_skipped(name))
            D9D_TRY(note_skipped(f, within, name, ""));
    }
    return D9D_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static d9d_status list_found(struct finder *f, const char *src, d9d_fs_names *out)
{
    const size_t n = f->found.len;
    char **names = d9d_arena_alloc(f->arena, (n + 1) * sizeof(*names));

    if (names == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", src);
    for (size_t i = 0; i < n; i++)
        names[i] = f->found.data[i];
    qsort(names, n, sizeof(*names), compare_names);
    *out = (d9d_fs_names){.name = names, .n = n};
    return D9D_OK;
}

static void log_skipped(const struct finder *f, const char *src, const d9d_log *log)
{
    if (f->n_left > MAX_NAMED)
        d9d_log_info(log, "%s: not copied, no files of a model: %s and %zu more", src, f->left.data,
                     f->n_left - MAX_NAMED);
    else if (f->n_left > 0)
        d9d_log_info(log, "%s: not copied, no files of a model: %s", src, f->left.data);
}

d9d_status d9d_checkpoint_aux_files(const char *src, d9d_arena *a, const d9d_log *log,
                                    d9d_fs_names *out)
{
    struct finder f = {.arena = a};
    d9d_status st;

    D9D_TRY_OR(st, find_in_dir(&f, src, NULL), out);
    D9D_TRY_OR(st, list_found(&f, src, out), out);
    log_skipped(&f, src, log);
out:
    D9D_VEC_RELEASE(&f.found);
    d9d_buf_release(&f.left);
    return st;
}

d9d_status d9d_checkpoint_copy_aux_files(const char *src, const char *dst, const d9d_log *log)
{
    d9d_arena a = {0};
    d9d_fs_names names = {0};
    d9d_status st;

    D9D_TRY_OR(st, d9d_checkpoint_aux_files(src, &a, log, &names), out);
    for (size_t i = 0; i < names.n; i++) {
        const char *from = d9d_fs_join(&a, src, names.name[i]);
        const char *to = d9d_fs_join(&a, dst, names.name[i]);

        if (from == NULL || to == NULL) {
            st = D9D_FAIL(D9D_ENOMEM, "%s: out of memory", src);
            goto out;
        }
        D9D_TRY_OR(st, d9d_fs_make_parents(to), out);
        D9D_TRY_OR(st, d9d_fs_copy(from, to), out);
    }
out:
    d9d_arena_release(&a);
    return st;
}
