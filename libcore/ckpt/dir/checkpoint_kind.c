/* checkpoint_kind.c - recognises a directory that is a checkpoint, or an unfinished one.  See
 * d9d/ckpt/dir/checkpoint.h. */
#include "ckpt/dir/chunk_journal.h"
#include "d9d/ckpt/dir/checkpoint.h"

/* True for a complete checkpoint of this suite or of HuggingFace's libraries. */
static bool is_complete(const char *dir)
{
    static const struct {
        const char *name, *text;
    } signs[] = {
        {D9D_MANIFEST_NAME, "\"d9d.checkpoint.v"},
        {D9D_CHECKPOINT_INDEX_NAME, "\"weight_map\""},
        {D9D_CHECKPOINT_INDEX_NAME, "\"total_size\""},
        {"model.safetensors", ""},
        {"config.json", "\"model_type\""},
        {"config.json", "\"architectures\""},
    };

    for (size_t i = 0; i < sizeof(signs) / sizeof(signs[0]); i++)
        if (d9d_fs_head_has(dir, signs[i].name, signs[i].text))
            return true;
    return false;
}

static bool is_partial(const char *dir)
{
    d9d_arena a = {0};
    d9d_fs_names names = {0};
    bool is = false;

    if (d9d_fs_list(dir, &a, &names) == D9D_OK)
        for (size_t i = 0; i < names.n && !is; i++)
            is = d9di_chunk_journal_is(names.name[i]) &&
                 d9d_fs_head_has(dir, names.name[i], D9DI_CHUNK_JOURNAL_MAGIC);
    d9d_arena_release(&a);
    return is;
}

const d9d_outdir_kind *d9d_checkpoint_kind(void)
{
    static const d9d_outdir_kind kind = {"checkpoint", is_complete, is_partial};

    return &kind;
}
