/* tokenizer_foreign.c - files of other tokenizers, which are refused with what to do. */
#include <stdio.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "d9d/data/tokenizer/tokenizer.h"

/* Parts of file names, the first that fits; Mistral's end in ".model.v3" and the like. */
static const struct {
    const char *part, *whose;
} foreign[] = {
    {"tekken.json", "Mistral's tekken"}, {"tiktoken.model", "tiktoken"},
    {".tiktoken", "tiktoken"},           {"tokenizer.model", "SentencePiece"},
    {"spiece.model", "SentencePiece"},   {".bpe.model", "SentencePiece"},
};

/* Whose a file is by its name; NULL: not known. */
static const char *find_foreign(const char *path)
{
    const char *slash = strrchr(path, '/');

    for (size_t i = 0; i < sizeof(foreign) / sizeof(foreign[0]); i++)
        if (strstr(slash ? slash + 1 : path, foreign[i].part))
            return foreign[i].whose;
    return NULL;
}

#define CURE                                                                                       \
    "AutoTokenizer.from_pretrained(\"%s\").save_pretrained(\"%s\") of transformers writes "        \
    "tokenizer.json beside it, or fetch that file from the model's page"

static d9d_status refuse_file(const char *path, const char *folder)
{
    const char *whose = find_foreign(path);

    return D9D_FAIL(D9D_ECONFIG, "%s: is no tokenizer.json of HuggingFace%s%s; " CURE, path,
                    whose ? " but the file of " : "", whose ? whose : "", folder, folder);
}

/* Looks for other tokenizers' files in the folder that lacks `path`. */
static d9d_status check_beside(const char *path, const char *folder, d9d_arena *a)
{
    d9d_fs_names names;

    if (!d9d_fs_is_dir(folder))
        return D9D_OK;
    D9D_TRY(d9d_fs_list(folder, a, &names));
    for (size_t i = 0; i < names.n; i++) {
        const char *whose = find_foreign(names.name[i]);

        if (whose)
            return D9D_FAIL(D9D_ECONFIG,
                            "%s: is not there, and %s, the file of %s, is not read; " CURE, path,
                            names.name[i], whose, folder, folder);
    }
    return D9D_OK;
}

/* True if a file's first character may begin an object, or there is none. */
static bool begins_like_json(const char *path)
{
    static const char spaces[] = " \t\r\n";
    char head[64];
    d9d_file f = {.fd = -1};
    uint64_t bytes = 0;
    size_t n, i = 0;

    if (d9d_fs_size(path, &bytes) != D9D_OK || bytes == 0)
        return true; /* reported by the reader */
    n = bytes < sizeof(head) ? (size_t)bytes : sizeof(head);
    if (d9d_file_open(path, &f) != D9D_OK || d9d_file_read_at(&f, head, n, 0) != D9D_OK)
        n = 0;
    d9d_file_release(&f);
    while (i < n && memchr(spaces, head[i], sizeof(spaces) - 1))
        i++;
    return i == n || head[i] == '{';
}

d9d_status d9d_tokenizer_check(const char *path)
{
    const char *slash = strrchr(path, '/');
    d9d_arena a = {0};
    const char *folder = slash ? d9d_arena_strndup(&a, path, (size_t)(slash - path)) : ".";
    d9d_status st = D9D_OK;

    if (!folder)
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory", path);
    else if (!d9d_fs_exists(path))
        st = check_beside(path, folder, &a);
    else if (!d9d_fs_is_dir(path) && d9d_fs_check_regular(path) == D9D_OK &&
             (find_foreign(path) || !begins_like_json(path)))
        st = refuse_file(path, folder);
    d9d_arena_release(&a);
    return st;
}
