/* assemble_packs.c - packs documents once their splits are known.
 *
 *     units           | 0-0 | 0-1 | 1-0 |            unpacked documents
 *     packed units    | 0-0 | 0-1 | 1-0 | 2-0 |      2-0: the first split of given size
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "d9d/base/thread.h"
#include "data/build/assemble_private.h"

enum { MAX_JOBS = 8 }; /* each thread holds windows of documents in memory */

struct unit_id {
    int64_t input_split, unit;
};

struct packing {
    const d9di_assemble_opts *opts;
    const d9di_assemble_splits *sized_splits;
    d9di_shard_unit_opts out; /* options of packed units */
    D9D_VEC(struct unit_id) units;
};

/* A packed unit being written, with packers for some or all splits. */
struct pack_writer {
    d9di_shard_unit *unit;
    d9di_packer *packers[D9DI_MAX_SPLITS];
};

/* --- documents of a unit ------------------------------------------------------------------- */

struct reader {
    const char *dir;
    bool wide;
    bool check;   /* check the hashes of shards */
    size_t shard; /* index of the open shard, plus one */
    d9d_file tokens, labels, fields;
    d9d_field_list list; /* of the fields that documents have */
    D9D_VEC(struct d9di_field_document) documents;
    d9d_buf values;
    d9d_token_ids ids;
    d9di_token_labels targets;
    D9D_VEC(uint16_t) narrow;
};

static void close_shard(struct reader *r)
{
    if (r->shard) {
        d9d_file_release(&r->tokens);
        d9d_file_release(&r->labels);
        d9d_file_release(&r->fields);
    }
    r->shard = 0;
}

static void reader_release(struct reader *r)
{
    close_shard(r);
    D9D_VEC_RELEASE(&r->ids);
    D9D_VEC_RELEASE(&r->targets);
    D9D_VEC_RELEASE(&r->narrow);
    D9D_VEC_RELEASE(&r->documents);
    d9d_buf_release(&r->values);
}

static d9d_status open_file(const struct reader *r, const d9di_shard_unit_state *unit,
                            const char *kind, uint32_t shard, d9d_hash hash, d9d_file *out)
{
    char end[32], *path = NULL;
    d9d_status st;

    snprintf(end, sizeof(end), ".%s-%03u", kind, shard);
    D9D_TRY(d9di_shard_unit_path(r->dir, unit->input_split, unit->unit, end, &path));
    st = r->check ? d9di_shard_unit_check_file(path, hash) : D9D_OK;
    if (st == D9D_OK)
        st = d9d_file_open(path, out);
    free(path);
    return st;
}

/* Opens the shard's fields, and reads where its documents have theirs. */
static d9d_status open_fields(struct reader *r, const d9di_shard_unit_state *unit, uint32_t shard)
{
    const struct d9di_shard_unit_shard *x = &unit->shards.data[shard];
    const size_t n = (size_t)x->documents;
    d9d_file file = {.fd = -1};
    d9d_status st;

    D9D_TRY(open_file(r, unit, "fields", shard, x->fields_hash, &r->fields));
    D9D_TRY(open_file(r, unit, "documents", shard, x->documents_hash, &file));
    r->documents.len = 0;
    st = D9D_VEC_RESERVE(&r->documents, n);
    if (st == D9D_OK)
        st = d9d_file_read_at(&file, r->documents.data, n * sizeof(*r->documents.data), 0);
    r->documents.len = st == D9D_OK ? n : 0;
    d9d_file_release(&file);
    return st;
}

static d9d_status open_shard(struct reader *r, const d9di_shard_unit_state *unit, uint32_t shard)
{
    const struct d9di_shard_unit_shard *x = &unit->shards.data[shard];

    if (r->shard == (size_t)shard + 1)
        return D9D_OK;
    close_shard(r);
    r->tokens.fd = r->labels.fd = r->fields.fd = -1;
    r->tokens.path = r->labels.path = r->fields.path = NULL;
    r->shard = (size_t)shard + 1;
    D9D_TRY(open_file(r, unit, "tokens", shard, x->hash, &r->tokens));
    if (r->list.n > 0)
        D9D_TRY(open_fields(r, unit, shard));
    return unit->labels == 1 ? open_file(r, unit, "labels", shard, x->labels_hash, &r->labels)
                             : D9D_OK;
}

static d9d_status read_ids(struct reader *r, const struct d9di_shard_unit_record *x)
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

static d9d_status check_record(const char *path, const d9di_shard_unit_state *unit, size_t n_splits,
                               const struct d9di_shard_unit_record *x)
{
    uint64_t end;

    if (x->split < n_splits && x->shard < unit->shards.len && x->n_segments == 1 &&
        d9d_checked_add_u64(x->offset, x->stored, &end) &&
        end <= (uint64_t)unit->shards.data[x->shard].tokens &&
        d9di_assemble_sample_length(unit, x) >= 1)
        return D9D_OK;
    return D9D_FAIL(D9D_EFORMAT, "%s: a record of split %u, shard %u, %u tokens at %llu", path,
                    x->split, x->shard, x->stored, (unsigned long long)x->offset);
}

static d9d_status read_fields(struct reader *r, const d9di_shard_unit_state *unit,
                              const struct d9di_shard_unit_record *x)
{
    const uint64_t bytes = (uint64_t)unit->shards.data[x->shard].fields_bytes;
    size_t i, size;

    r->values.len = 0;
    D9D_TRY(d9di_field_document_find(r->documents.data, r->documents.len, bytes, x->offset,
                                     r->fields.path, &i, &size));
    D9D_TRY(d9d_buf_reserve(&r->values, size));
    r->values.len = size;
    return d9d_file_read_at(&r->fields, r->values.data, size, r->documents.data[i].byte);
}

/* Passes the document to the packer. */
static d9d_status pack_document(struct reader *r, const d9di_shard_unit_state *unit,
                                const struct d9di_shard_unit_record *x, d9di_packer *to)
{
    D9D_TRY(open_shard(r, unit, x->shard));
    D9D_TRY(read_ids(r, x));
    if (unit->labels == 1) {
        D9D_TRY(D9D_VEC_RESERVE(&r->targets, x->stored));
        D9D_TRY(d9d_file_read_at(&r->labels, r->targets.data, x->stored * sizeof(*r->targets.data),
                                 x->offset * sizeof(*r->targets.data)));
    }
    if (r->list.n > 0)
        D9D_TRY(read_fields(r, unit, x));
    return d9di_packer_add(
        to, x->key,
        &(d9di_shard_document){.tokens = r->ids.data,
                               .labels = unit->labels == 1 ? r->targets.data : NULL,
                               .n = x->stored,
                               .fields = r->values.data,
                               .fields_bytes = r->values.len},
        d9di_assemble_sample_length(unit, x));
}

/* --- packed units -------------------------------------------------------------------------- */

static void pack_writer_release(struct pack_writer *m)
{
    for (size_t i = 0; i < D9DI_MAX_SPLITS; i++)
        d9di_packer_free(m->packers[i]);
    d9di_shard_unit_free(m->unit);
}

static d9d_status open_pack_unit(const struct packing *p, int64_t input_split, int64_t unit,
                                 struct pack_writer *m)
{
    return d9di_shard_unit_create(&p->out, input_split, unit, &m->unit);
}

static d9d_status get_packer(const struct packing *p, struct pack_writer *m, size_t split,
                             d9di_packer **out)
{
    if (!m->packers[split])
        D9D_TRY(d9di_packer_create(m->unit, split, &p->opts->packer, &m->packers[split]));
    *out = m->packers[split];
    return D9D_OK;
}

static d9d_status commit_pack_unit(struct pack_writer *m)
{
    for (size_t i = 0; i < D9DI_MAX_SPLITS; i++)
        if (m->packers[i])
            D9D_TRY(d9di_packer_flush(m->packers[i]));
    return d9di_shard_unit_commit(m->unit);
}

/* --- documents outside splits of given size: packed unit by unit
 * --------------------------------------------------------
 */

struct rest_packing {
    const struct packing *p;
    struct reader reader;
    struct pack_writer writer;
};

static d9d_status pack_rest_document(void *arg, const char *path, const d9di_shard_unit_state *unit,
                                     const struct d9di_shard_unit_record *x)
{
    struct rest_packing *l = arg;
    d9di_packer *to = NULL;

    D9D_TRY(check_record(path, unit, l->p->out.n_splits, x));
    if (d9di_assemble_splits_find(l->p->sized_splits, x->key))
        return D9D_OK;
    D9D_TRY(get_packer(l->p, &l->writer, x->split, &to));
    return pack_document(&l->reader, unit, x, to);
}

/* Copies the document counts of a unit to its packed unit. */
static d9d_status copy_counts(const d9di_shard_unit_state *from, d9di_shard_unit_state *to)
{
    to->documents = from->documents;
    to->bound = from->bound;
    to->last = from->last;
    to->next = from->next;
    for (size_t i = 0; i < from->source_ends.len; i++)
        D9D_TRY(D9D_VEC_PUSH(&to->source_ends, from->source_ends.data[i]));
    return D9D_OK;
}

static d9d_status pack_unit_rest(void *arg, int worker, size_t item)
{
    const struct packing *p = arg;
    const struct unit_id *at = &p->units.data[item];
    d9di_shard_unit_opts from = p->opts->unit;
    struct rest_packing l = {.p = p};
    d9di_shard_unit_state unit;
    d9d_status st;

    (void)worker;
    l.reader.dir = from.dir = p->opts->dir[at->input_split];
    l.reader.wide = from.wide;
    l.reader.check = p->opts->check;
    l.reader.list = p->out.fields;
    D9D_TRY(d9di_shard_unit_state_read(&from, at->input_split, at->unit, &unit));
    D9D_TRY_OR(st, open_pack_unit(p, at->input_split, at->unit, &l.writer), out);
    D9D_TRY_OR(st, d9di_assemble_each_record(from.dir, &unit, pack_rest_document, &l), out);
    D9D_TRY_OR(st, copy_counts(&unit, d9di_shard_unit_get_state(l.writer.unit)), out);
    st = commit_pack_unit(&l.writer);
out:
    pack_writer_release(&l.writer);
    reader_release(&l.reader);
    d9di_shard_unit_state_release(&unit);
    return st;
}

/* --- splits of given size: packed as a whole
 * ------------------------------------------------------------------
 */

struct sized_packing {
    const struct packing *p;
    struct reader reader; /* reads one unit after another */
    struct pack_writer writers[D9DI_MAX_SPLITS];
};

static d9d_status pack_sized_document(void *arg, const char *path,
                                      const d9di_shard_unit_state *unit,
                                      const struct d9di_shard_unit_record *x)
{
    struct sized_packing *t = arg;
    const d9di_assemble_split *cut = d9di_assemble_splits_find(t->p->sized_splits, x->key);
    d9di_packer *to = NULL;

    D9D_TRY(check_record(path, unit, t->p->out.n_splits, x));
    if (!cut)
        return D9D_OK;
    D9D_TRY(get_packer(t->p, &t->writers[cut - t->p->sized_splits->list], cut->split, &to));
    return pack_document(&t->reader, unit, x, to);
}

static d9d_status pack_sized_unit(void *arg, const char *dir, const d9di_shard_unit_state *unit)
{
    struct sized_packing *t = arg;
    d9d_status st;

    t->reader.dir = dir;
    st = d9di_assemble_each_record(dir, unit, pack_sized_document, t);
    close_shard(&t->reader);
    return st;
}

static d9d_status pack_sized_splits(const struct packing *p)
{
    struct sized_packing *t = calloc(1, sizeof(*t));
    const size_t n = p->sized_splits->n;
    d9d_status st = D9D_OK;

    if (!t)
        return D9D_FAIL(D9D_ENOMEM, "no memory to pack documents");
    t->p = p;
    t->reader.wide = p->out.wide;
    t->reader.check = p->opts->check;
    t->reader.list = p->out.fields;
    for (size_t i = 0; i < n && st == D9D_OK; i++)
        st = open_pack_unit(p, (int64_t)p->opts->n_input_splits, (int64_t)i, &t->writers[i]);
    if (st == D9D_OK)
        st = d9di_assemble_each_unit(p->opts, pack_sized_unit, t);
    for (size_t i = 0; i < n && st == D9D_OK; i++) {
        d9di_shard_unit_get_state(t->writers[i].unit)->last = i + 1 == n;
        st = commit_pack_unit(&t->writers[i]);
    }
    for (size_t i = 0; i < n; i++)
        pack_writer_release(&t->writers[i]);
    reader_release(&t->reader);
    free(t);
    return st;
}

/* --- all of it ----------------------------------------------------------------------------- */

static d9d_status list_unit(void *arg, const char *dir, const d9di_shard_unit_state *unit)
{
    struct packing *p = arg;

    (void)dir;
    return D9D_VEC_PUSH(&p->units, (struct unit_id){unit->input_split, unit->unit});
}

static d9d_status make_packs_dir(const char *path)
{
    D9D_TRY(d9d_fs_remove_tree(path)); /* left by an interrupted run */
    return mkdir(path, 0777) == 0 ? D9D_OK : D9D_FAIL(D9D_EIO, "%s: cannot be made: %m", path);
}

static d9d_status pack_all(struct packing *p)
{
    const int cpus = d9d_thread_cpus();

    D9D_TRY(make_packs_dir(p->out.dir));
    D9D_TRY(d9di_assemble_each_unit(p->opts, list_unit, p));
    D9D_TRY(d9d_thread_run(cpus < MAX_JOBS ? cpus : MAX_JOBS, p->units.len, pack_unit_rest, p));
    return pack_sized_splits(p);
}

d9d_status d9di_assemble_pack(const d9di_assemble_opts *opts, const d9di_assemble_splits *cuts,
                              d9d_arena *arena, d9di_assemble_opts *out)
{
    struct packing p = {.opts = opts, .sized_splits = cuts, .out = opts->unit};
    const char **dir = d9d_arena_alloc(arena, (opts->n_input_splits + 1) * sizeof(*dir));
    const char *folder = d9d_fs_join(arena, opts->unit.dir, D9DI_ASSEMBLE_PACKS_DIR);
    d9d_status st;

    if (!dir || !folder)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", opts->unit.dir);
    p.out.dir = folder;
    p.out.find_bound = false; /* known from the units of documents */
    for (size_t i = 0; i <= opts->n_input_splits; i++)
        dir[i] = folder;
    st = pack_all(&p);
    D9D_VEC_RELEASE(&p.units);
    *out = *opts;
    out->dir = dir;
    out->n_input_splits++;
    out->move_files = true;
    out->check = false; /* this run made them */
    out->packer.size = 0;
    return st;
}
