/* assemble_packs.c - packs of documents whose splits are known.
 *
 *     units           | 0-0 | 0-1 | 1-0 |            documents as they are
 *     units of packs  | 0-0 | 0-1 | 1-0 | 2-0 |      2-0: those of the first split of given size
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "d9d/base/thread.h"
#include "data/build/assemble_private.h"

enum { MOST_JOBS = 8 }; /* each has windows of documents in memory */

struct place {
    int64_t piece, unit;
};

struct packing {
    const d9di_join_how *how;
    const d9di_cuts *cuts;
    d9di_unit_how out; /* of packs */
    D9D_VEC(struct place) units;
};

/* A unit of packs that is being made, and packers of some or all splits. */
struct maker {
    d9di_unit *unit;
    d9di_packer *packers[D9DI_MAX_SPLITS];
};

/* --- documents of a unit -----------------------------------------------------------------------
 */

struct reader {
    const char *dir;
    bool wide;
    bool check;   /* the hashes of shards */
    size_t shard; /* that is open, plus one */
    d9d_file tokens, labels;
    d9d_ids ids;
    d9di_labels targets;
    D9D_VEC(uint16_t) narrow;
};

static void close_shard(struct reader *r)
{
    if (r->shard) {
        d9d_file_release(&r->tokens);
        d9d_file_release(&r->labels);
    }
    r->shard = 0;
}

static void reader_release(struct reader *r)
{
    close_shard(r);
    D9D_VEC_RELEASE(&r->ids);
    D9D_VEC_RELEASE(&r->targets);
    D9D_VEC_RELEASE(&r->narrow);
}

static d9d_status open_file(const struct reader *r, const d9di_unit_state *unit, const char *kind,
                            uint32_t shard, d9d_hash hash, d9d_file *out)
{
    char end[32], *path = NULL;
    d9d_status st;

    snprintf(end, sizeof(end), ".%s-%03u", kind, shard);
    D9D_TRY(d9di_unit_path(r->dir, unit->piece, unit->unit, end, &path));
    st = r->check ? d9di_unit_check_file(path, hash) : D9D_OK;
    if (st == D9D_OK)
        st = d9d_file_open(path, out);
    free(path);
    return st;
}

static d9d_status open_shard(struct reader *r, const d9di_unit_state *unit, uint32_t shard)
{
    const struct d9di_unit_shard *x = &unit->shards.data[shard];

    if (r->shard == (size_t)shard + 1)
        return D9D_OK;
    close_shard(r);
    r->tokens.fd = r->labels.fd = -1;
    r->tokens.path = r->labels.path = NULL;
    r->shard = (size_t)shard + 1;
    D9D_TRY(open_file(r, unit, "tokens", shard, x->hash, &r->tokens));
    return unit->labels == 1 ? open_file(r, unit, "labels", shard, x->labels_hash, &r->labels)
                             : D9D_OK;
}

static d9d_status read_ids(struct reader *r, const struct d9di_spooled *x)
{
    r->ids.len = r->narrow.len = 0;
    D9D_TRY(D9D_VEC_RESERVE(&r->ids, x->stored));
    if (r->wide)
        return d9d_file_read_at(&r->tokens, r->ids.data, x->stored * sizeof(*r->ids.data),
                                x->offset * sizeof(*r->ids.data));
    D9D_TRY(D9D_VEC_RESERVE(&r->narrow, x->stored));
    D9D_TRY(d9d_file_read_at(&r->tokens, r->narrow.data, x->stored * sizeof(*r->narrow.data),
                             x->offset * sizeof(*r->narrow.data)));
    for (size_t i = 0; i < x->stored; i++)
        r->ids.data[i] = r->narrow.data[i];
    return D9D_OK;
}

static d9d_status check_record(const char *path, const d9di_unit_state *unit, size_t n_splits,
                               const struct d9di_spooled *x)
{
    uint64_t end;

    if (x->split < n_splits && x->shard < unit->shards.len && x->n_segments == 1 &&
        d9d_add_u64(x->offset, x->stored, &end) &&
        end <= (uint64_t)unit->shards.data[x->shard].tokens && d9di_join_length(unit, x) >= 1)
        return D9D_OK;
    return D9D_FAIL(D9D_EFORMAT, "%s: a record of split %u, shard %u, %u tokens at %llu", path,
                    x->split, x->shard, x->stored, (unsigned long long)x->offset);
}

/* The document goes to the packer. */
static d9d_status pass_on(struct reader *r, const d9di_unit_state *unit,
                          const struct d9di_spooled *x, d9di_packer *to)
{
    D9D_TRY(open_shard(r, unit, x->shard));
    D9D_TRY(read_ids(r, x));
    if (unit->labels == 1) {
        D9D_TRY(D9D_VEC_RESERVE(&r->targets, x->stored));
        D9D_TRY(d9d_file_read_at(&r->labels, r->targets.data, x->stored * sizeof(*r->targets.data),
                                 x->offset * sizeof(*r->targets.data)));
    }
    return d9di_packer_add(to, x->key, r->ids.data, unit->labels == 1 ? r->targets.data : NULL,
                           x->stored, d9di_join_length(unit, x));
}

/* --- units of packs ----------------------------------------------------------------------------
 */

static void maker_release(struct maker *m)
{
    for (size_t i = 0; i < D9DI_MAX_SPLITS; i++)
        d9di_packer_free(m->packers[i]);
    d9di_unit_free(m->unit);
}

static d9d_status begin(const struct packing *p, int64_t piece, int64_t unit, struct maker *m)
{
    return d9di_unit_create(&p->out, piece, unit, &m->unit);
}

static d9d_status packer_of(const struct packing *p, struct maker *m, size_t split,
                            d9di_packer **out)
{
    if (!m->packers[split])
        D9D_TRY(d9di_packer_create(m->unit, split, &p->how->packer, &m->packers[split]));
    *out = m->packers[split];
    return D9D_OK;
}

static d9d_status seal(struct maker *m)
{
    for (size_t i = 0; i < D9DI_MAX_SPLITS; i++)
        if (m->packers[i])
            D9D_TRY(d9di_packer_flush(m->packers[i]));
    return d9di_unit_seal(m->unit);
}

/* --- what no cut takes: each unit's own --------------------------------------------------------
 */

struct left {
    const struct packing *p;
    struct reader reader;
    struct maker maker;
};

static d9d_status take_left(void *arg, const char *path, const d9di_unit_state *unit,
                            const struct d9di_spooled *x)
{
    struct left *l = arg;
    d9di_packer *to = NULL;

    D9D_TRY(check_record(path, unit, l->p->out.n_splits, x));
    if (d9di_cuts_find(l->p->cuts, x->key))
        return D9D_OK;
    D9D_TRY(packer_of(l->p, &l->maker, x->split, &to));
    return pass_on(&l->reader, unit, x, to);
}

/* What is to be told of the documents is told of this unit. */
static d9d_status copy_facts(const d9di_unit_state *from, d9di_unit_state *to)
{
    to->documents = from->documents;
    to->bound = from->bound;
    to->last = from->last;
    to->next = from->next;
    for (size_t i = 0; i < from->ended.len; i++)
        D9D_TRY(D9D_VEC_PUSH(&to->ended, from->ended.data[i]));
    return D9D_OK;
}

static d9d_status pack_unit(void *arg, int worker, size_t item)
{
    const struct packing *p = arg;
    const struct place *at = &p->units.data[item];
    d9di_unit_how from = p->how->unit;
    struct left l = {.p = p};
    d9di_unit_state unit;
    d9d_status st;

    (void)worker;
    l.reader.dir = from.dir = p->how->dir[at->piece];
    l.reader.wide = from.wide;
    l.reader.check = p->how->check;
    D9D_TRY(d9di_unit_read(&from, at->piece, at->unit, &unit));
    D9D_TRY_OR(st, begin(p, at->piece, at->unit, &l.maker), out);
    D9D_TRY_OR(st, d9di_join_each_record(from.dir, &unit, take_left, &l), out);
    D9D_TRY_OR(st, copy_facts(&unit, d9di_unit_at(l.maker.unit)), out);
    st = seal(&l.maker);
out:
    maker_release(&l.maker);
    reader_release(&l.reader);
    d9di_unit_state_release(&unit);
    return st;
}

/* --- what cuts take: together ------------------------------------------------------------------
 */

struct taken {
    const struct packing *p;
    struct reader reader; /* of one unit after another */
    struct maker makers[D9DI_MAX_SPLITS];
};

static d9d_status take(void *arg, const char *path, const d9di_unit_state *unit,
                       const struct d9di_spooled *x)
{
    struct taken *t = arg;
    const d9di_cut *cut = d9di_cuts_find(t->p->cuts, x->key);
    d9di_packer *to = NULL;

    D9D_TRY(check_record(path, unit, t->p->out.n_splits, x));
    if (!cut)
        return D9D_OK;
    D9D_TRY(packer_of(t->p, &t->makers[cut - t->p->cuts->list], cut->split, &to));
    return pass_on(&t->reader, unit, x, to);
}

static d9d_status take_unit(void *arg, const char *dir, const d9di_unit_state *unit)
{
    struct taken *t = arg;
    d9d_status st;

    t->reader.dir = dir;
    st = d9di_join_each_record(dir, unit, take, t);
    close_shard(&t->reader);
    return st;
}

static d9d_status pack_taken(const struct packing *p)
{
    struct taken *t = calloc(1, sizeof(*t));
    const size_t n = p->cuts->n;
    d9d_status st = D9D_OK;

    if (!t)
        return D9D_FAIL(D9D_ENOMEM, "no memory to pack documents");
    t->p = p;
    t->reader.wide = p->out.wide;
    t->reader.check = p->how->check;
    for (size_t i = 0; i < n && st == D9D_OK; i++)
        st = begin(p, (int64_t)p->how->n_pieces, (int64_t)i, &t->makers[i]);
    if (st == D9D_OK)
        st = d9di_join_each_unit(p->how, take_unit, t);
    for (size_t i = 0; i < n && st == D9D_OK; i++) {
        d9di_unit_at(t->makers[i].unit)->last = i + 1 == n;
        st = seal(&t->makers[i]);
    }
    for (size_t i = 0; i < n; i++)
        maker_release(&t->makers[i]);
    reader_release(&t->reader);
    free(t);
    return st;
}

/* --- all of it ---------------------------------------------------------------------------------
 */

static d9d_status list_unit(void *arg, const char *dir, const d9di_unit_state *unit)
{
    struct packing *p = arg;

    (void)dir;
    return D9D_VEC_PUSH(&p->units, (struct place){unit->piece, unit->unit});
}

static d9d_status make_folder(const char *path)
{
    D9D_TRY(d9d_fs_remove_tree(path)); /* of a run that was interrupted here */
    return mkdir(path, 0777) == 0 ? D9D_OK : D9D_FAIL(D9D_EIO, "%s: cannot be made: %m", path);
}

static d9d_status pack_all(struct packing *p)
{
    const int cpus = d9d_thread_cpus();

    D9D_TRY(make_folder(p->out.dir));
    D9D_TRY(d9di_join_each_unit(p->how, list_unit, p));
    D9D_TRY(d9d_thread_run(cpus < MOST_JOBS ? cpus : MOST_JOBS, p->units.len, pack_unit, p));
    return pack_taken(p);
}

d9d_status d9di_join_pack(const d9di_join_how *how, const d9di_cuts *cuts, d9d_arena *arena,
                          d9di_join_how *out)
{
    struct packing p = {.how = how, .cuts = cuts, .out = how->unit};
    const char **dir = d9d_arena_alloc(arena, (how->n_pieces + 1) * sizeof(*dir));
    const char *folder = d9d_fs_join(arena, how->unit.dir, D9DI_JOIN_PACKS);
    d9d_status st;

    if (!dir || !folder)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", how->unit.dir);
    p.out.dir = folder;
    p.out.find_bound = false; /* is what the documents' units say */
    for (size_t i = 0; i <= how->n_pieces; i++)
        dir[i] = folder;
    st = pack_all(&p);
    D9D_VEC_RELEASE(&p.units);
    *out = *how;
    out->dir = dir;
    out->n_pieces++;
    out->own = true;
    out->check = false; /* they are this run's own */
    out->packer.size = 0;
    return st;
}
