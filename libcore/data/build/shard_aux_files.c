/* shard_aux_files.c - auxiliary files of a dataset: the tokenizer's files and the chat template, as
 * they were when the run was planned. */
#include <stdlib.h>
#include <string.h>

#include "data/build/shard_private.h"

/* The tokenizer, HF's files beside it, and the template. */
static const char *const names[] = {"tokenizer.json",
                                    "tokenizer_config.json",
                                    "special_tokens_map.json",
                                    "added_tokens.json",
                                    "vocab.json",
                                    "merges.txt",
                                    "chat_template.jinja"};
enum { TOKENIZER = 0, CHAT = sizeof(names) / sizeof(names[0]) - 1 };
_Static_assert(CHAT + 1 == D9DI_MAX_AUX_FILES, "space for each");

/* The template that is stored as a file of its own; NULL: it is in tokenizer_config.json, or there
 * are no chats. */
static const d9di_chat_template *stored_template(const d9di_shard_plan *p)
{
    const d9di_chat_template *t =
        p->tokenizer.chat != NULL ? d9di_chat_get_template(p->tokenizer.chat) : NULL;

    return t != NULL && !t->beside ? t : NULL;
}

/* Finds the source of a file; NULL: none. */
static d9d_status find_source(const d9d_shard_opts *opts, size_t i, d9d_arena *a, const char **out)
{
    const char *slash = opts->tokenizer ? strrchr(opts->tokenizer, '/') : NULL;

    *out = opts->tokenizer;
    if (!*out || i == TOKENIZER)
        return D9D_OK;
    *out = d9d_arena_printf(a, "%.*s%s", slash ? (int)(slash - opts->tokenizer) + 1 : 0,
                            opts->tokenizer, names[i]);
    if (!*out)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", opts->tokenizer);
    if (!d9d_fs_exists(*out))
        *out = NULL;
    return D9D_OK;
}

static d9d_status hash_aux_file(d9di_shard_plan *p, size_t i, d9d_arena *a)
{
    d9di_dataset_file *f = &p->aux_files[p->n_aux_files];
    const d9di_chat_template *chat = i == CHAT ? stored_template(p) : NULL;
    const char *from;
    uint64_t bytes;

    f->name = names[i];
    if (chat != NULL) {
        f->hash = chat->text_hash;
        f->bytes = (int64_t)chat->n;
        p->n_aux_files++;
        return D9D_OK;
    }
    D9D_TRY(find_source(p->opts, i, a, &from));
    if (!from)
        return D9D_OK;
    D9D_TRY(d9d_hash_file(from, &f->hash, &bytes));
    f->bytes = (int64_t)bytes;
    if (i == TOKENIZER) /* the bytes that were loaded */
        f->hash = d9d_tokenizer_hash(p->tokenizer.tok);
    p->n_aux_files++;
    return D9D_OK;
}

d9d_status d9di_shard_aux_files_find(d9di_shard_plan *p)
{
    d9d_arena a = {0};
    d9d_status st = D9D_OK;

    for (size_t i = 0; i < D9DI_MAX_AUX_FILES && st == D9D_OK; i++)
        st = hash_aux_file(p, i, &a);
    d9d_arena_release(&a);
    return st;
}

d9d_status d9di_shard_aux_file_copy(const char *from, const char *to, d9d_hash want)
{
    char have[D9D_HASH_HEX], planned[D9D_HASH_HEX];
    uint64_t bytes;
    d9d_hash hash;

    D9D_TRY(d9d_fs_remove_tree(to)); /* left by an interrupted run */
    D9D_TRY(d9d_fs_copy(from, to));
    D9D_TRY(d9d_hash_file(to, &hash, &bytes));
    if (d9d_hash_equal(hash, want))
        return D9D_OK;
    d9d_hash_hex(hash, have);
    d9d_hash_hex(want, planned);
    return D9D_FAIL(D9D_EFORMAT, "%s: its hash is %s, it was %s when tokens were made with it",
                    from, have, planned);
}

d9d_status d9di_shard_aux_files_copy(const d9di_shard_plan *p, const char *dir)
{
    d9d_arena a = {0};
    d9d_status st = D9D_OK;

    for (size_t i = 0, k = 0; k < p->n_aux_files && st == D9D_OK; i++) {
        const char *from, *to = d9d_fs_join(&a, dir, names[i]);

        if (strcmp(names[i], p->aux_files[k].name) != 0)
            continue;
        D9D_TRY_OR(st, find_source(p->opts, i, &a, &from), out);
        if (i == CHAT && stored_template(p) != NULL)
            st = d9d_fs_write_in(dir, names[i], stored_template(p)->text, stored_template(p)->n);
        else if (!to)
            st = D9D_FAIL(D9D_ENOMEM, "%s: no memory", dir);
        else if (!from)
            st = D9D_FAIL(D9D_EIO, "%s: was taken away from beside %s", names[i],
                          p->opts->tokenizer);
        else
            st = d9di_shard_aux_file_copy(from, to, p->aux_files[k].hash);
        k++;
    }
out:
    d9d_arena_release(&a);
    return st;
}
