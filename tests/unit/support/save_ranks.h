/* save_ranks.h - a checkpoint of many ranks, written by one process as one rank after the other. */
#ifndef TESTS_SUPPORT_SAVE_RANKS_H
#define TESTS_SUPPORT_SAVE_RANKS_H

#include "checkpointer/checkpointer_private.h"
#include "support/unit.h"

/* A save of `ranks` ranks into `tmp`, without lock and commit; release with
 * d9di_checkpointer_save_release(). */
static inline d9di_checkpointer_save save_of_ranks(const char *tmp, int ranks, int ranks_per_dir,
                                                   const d9d_checkpointer_state *state)
{
    return (d9di_checkpointer_save){.state = *state,
                                    .ranks = ranks,
                                    .ranks_per_dir = ranks_per_dir,
                                    .tmp = tmp,
                                    .lock = {.fd = -1}};
}

/* The process goes on as another rank. */
static inline void save_as_rank(d9di_checkpointer_save *s, int rank)
{
    char name[D9D_SLICES_FILE];

    s->rank = rank;
    d9d_slices_dir_name(rank, s->ranks_per_dir, name);
    s->part = d9d_fs_join(&s->arena, s->tmp, name);
    assert_non_null(s->part);
    assert_ok(d9d_fs_mkdirs(s->part));
}

/* All that follows when every rank has written. */
static inline void save_merge(d9di_checkpointer_save *s)
{
    for (int rank = 0; rank < s->ranks; rank += s->ranks_per_dir) {
        save_as_rank(s, rank);
        assert_ok(d9di_checkpointer_save_write_part(s));
    }
    assert_ok(d9di_checkpointer_save_write_root(s));
}

#endif /* TESTS_SUPPORT_SAVE_RANKS_H */
