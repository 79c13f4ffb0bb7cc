/* rank_consistency.h - what all ranks of a job must have alike: files may be other ones on another
 * node.
 *
 *     d9di_rank_consistency same = {0};
 *     d9di_rank_consistency_add_data(&same, &data);
 *     d9di_rank_consistency_add_file(&same, "tokenizer.json");
 *     D9D_TRY(d9di_rank_consistency_check(&same, boot));
 *
 * All are compared at once.  Names are borrowed.
 */
#ifndef D9DI_ENGINE_RANK_CONSISTENCY_H
#define D9DI_ENGINE_RANK_CONSISTENCY_H

#include "d9d/base/hash.h"
#include "d9d/comm/bootstrap.h"
#include "engine/engine.h"

typedef struct d9di_rank_consistency_item {
    const char *name;
    d9d_status (*hash_fn)(const char *name, d9d_hash *out); /* NULL: the hash is known */
    /* Of a directory of weights: its identity, which not every rank needs to read for. */
    d9d_status (*content_hash_fn)(const char *name, d9d_hash *out);
    d9d_hash hash;
} d9di_rank_consistency_item;

typedef struct d9di_rank_consistency {
    D9D_VEC(d9di_rank_consistency_item) items;
    d9d_status st; /* of what was added */
} d9di_rank_consistency;

void d9di_rank_consistency_add(d9di_rank_consistency *s, const char *name, d9d_hash hash);
/* Each dataset, and the file that says which of its samples are left out. */
void d9di_rank_consistency_add_data(d9di_rank_consistency *s, const d9di_run_data *d);
/* All bytes of a file; NULL: nothing. */
void d9di_rank_consistency_add_file(d9di_rank_consistency *s, const char *path);
/* The checkpoint of a run, by its manifest, which has the hashes of all others: files are as many
 * as ranks, and ranks that looked at all of them would be long about it.  NULL: nothing. */
void d9di_rank_consistency_add_checkpoint(d9di_rank_consistency *s, const char *dir);
/* What an open engine is made from: plugins and hf_config whole, weights and adapters by a glance
 * (d9d/ckpt/dir/content_hash.h). */
void d9di_rank_consistency_add_engine(d9di_rank_consistency *s, const d9di_engine *e,
                                      const d9di_engine_opts *how);

/* Of all of them in their order, by content alone: weights and adapters by their identities.  Reads
 * them, so that one rank does it for all; names do not count. */
d9d_status d9di_rank_consistency_content_hash(const d9di_rank_consistency *s, d9d_hash *out);

/* Collective: ECONFIG, with the first rank and the first of its things that are not rank 0's.
 * Releases them. */
d9d_status d9di_rank_consistency_check(d9di_rank_consistency *s, d9d_bootstrap *boot);

#endif /* D9DI_ENGINE_RANK_CONSISTENCY_H */
