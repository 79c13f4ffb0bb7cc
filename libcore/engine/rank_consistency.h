/* rank_consistency.h - checks that all ranks have the same inputs, since files may differ between
 * nodes.
 *
 *     d9di_rank_consistency same = {0};
 *     d9di_rank_consistency_add_data(&same, &data);
 *     d9di_rank_consistency_add_file(&same, "tokenizer.json");
 *     D9D_TRY(d9di_rank_consistency_check(&same, bootstrap));
 *
 * One collective compares all items.  Names are borrowed.
 */
#ifndef D9DI_ENGINE_RANK_CONSISTENCY_H
#define D9DI_ENGINE_RANK_CONSISTENCY_H

#include "d9d/base/hash.h"
#include "d9d/comm/bootstrap.h"
#include "engine/engine.h"

typedef struct d9di_rank_consistency_item {
    const char *name;
    d9d_status (*hash_fn)(const char *name, d9d_hash *out); /* NULL: the hash is known */
    /* Content hash of a directory of weights, which not every rank needs to read. */
    d9d_status (*content_hash_fn)(const char *name, d9d_hash *out);
    d9d_hash hash;
} d9di_rank_consistency_item;

typedef struct d9di_rank_consistency {
    D9D_VEC(d9di_rank_consistency_item) items;
    d9d_status st; /* first failure of an add */
} d9di_rank_consistency;

void d9di_rank_consistency_add(d9di_rank_consistency *s, const char *name, d9d_hash hash);
/* Adds each dataset, and its file of skipped samples. */
void d9di_rank_consistency_add_data(d9di_rank_consistency *s, const d9di_run_data *d);
/* Adds all bytes of a file; NULL: nothing. */
void d9di_rank_consistency_add_file(d9di_rank_consistency *s, const char *path);
/* Adds a run's checkpoint by its manifest, which holds the hashes of all files.  Hashing the files
 * on every rank would take too long.  NULL: nothing. */
void d9di_rank_consistency_add_checkpoint(d9di_rank_consistency *s, const char *dir);
/* Adds the inputs of an open engine: plugins and hf_config by content, weights and adapters by a
 * quick fingerprint (d9d/ckpt/dir/content_hash.h). */
void d9di_rank_consistency_add_engine(d9di_rank_consistency *s, const d9di_engine *e,
                                      const d9di_engine_opts *opts);

/* A hash of all items in order, by content only, not by name; weights and adapters are read.  Call
 * it on one rank for all. */
d9d_status d9di_rank_consistency_content_hash(const d9di_rank_consistency *s, d9d_hash *out);

/* ECONFIG, naming the first rank and the first of its items that differ from rank 0's.  Releases
 * the items.  Collective. */
d9d_status d9di_rank_consistency_check(d9di_rank_consistency *s, d9d_bootstrap *bootstrap);

#endif /* D9DI_ENGINE_RANK_CONSISTENCY_H */
