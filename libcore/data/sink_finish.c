/* sink_finish.c - from spools to the index, and what the manifest says of the files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "d9d/base/rng.h"
#include "d9d/base/thread.h"
#include "data/dataset_index.h"
#include "data/sink_private.h"

/* Spools of one split, mapped. */
struct spools {
    const struct d9di_spooled *records;
    const uint32_t *segments;
    size_t record_bytes, segment_bytes;
};

static d9d_status map_out(const struct d9di_out *o, size_t bytes, const void **out)
{
    void *p;

    *out = NULL;
    if (bytes == 0)
        return D9D_OK;
    p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, o->file.fd, 0);
    if (p == MAP_FAILED)
        return D9D_FAIL(D9D_EIO, "%s: cannot map %zu bytes: %m", o->file.path, bytes);
    *out = p;
    return D9D_OK;
}

static void unmap_spools(struct spools *sp)
{
    if (sp->records)
        munmap((void *)(uintptr_t)sp->records, sp->record_bytes);
    if (sp->segments)
        munmap((void *)(uintptr_t)sp->segments, sp->segment_bytes);
}

static d9d_status map_spools(const d9di_sink *s, size_t split, struct spools *sp)
{
    const d9di_split_state *st = &s->state.split[split];
    const void *p;

    *sp = (struct spools){.record_bytes = (size_t)st->samples * sizeof(struct d9di_spooled),
                          .segment_bytes = (size_t)st->segments * sizeof(uint32_t)};
    D9D_TRY(map_out(&s->records[split], sp->record_bytes, &p));
    sp->records = p;
    D9D_TRY(map_out(&s->segments[split], sp->segment_bytes, &p));
    sp->segments = p;
    return D9D_OK;
}

static d9d_status index_split(const d9di_sink *s, size_t split, int64_t first, int64_t seed,
                              d9di_index_writer *w)
{
    const int64_t n = s->state.split[split].samples;
    const d9d_rng rng = {(uint64_t)seed, split};
    struct spools sp;
    d9d_status st = D9D_OK;
    int64_t i;

    st = map_spools(s, split, &sp);
    for (i = 0; i < n && sp.records && st == D9D_OK; i++) {
        const uint64_t from =
            seed < 0 ? (uint64_t)i : d9d_rng_permute(rng, (uint64_t)i, (uint64_t)n);
        const struct d9di_spooled *r = &sp.records[from];
        const d9di_record record = {r->shard,  r->bucket,     r->offset,
                                    r->stored, r->n_segments, sp.segments + r->segments_at};

        st = d9di_index_put(w, (uint64_t)(first + i), &record);
    }
    unmap_spools(&sp);
    return st;
}

static d9d_status put_summary(const d9di_sink *s, size_t split, const char *name,
                              d9di_index_writer *w)
{
    const d9di_split_state *x = &s->state.split[split];
    d9d_buf text = {0};
    d9d_status st;
    int i, last = 0;

    for (i = 0; i < D9DI_LENGTH_BINS; i++)
        if (x->lengths[i])
            last = i + 1;
    D9D_TRY_OR(st,
               d9d_buf_printf(&text,
                              "{\"samples\": %lld, \"positions\": %lld, \"longest\": %lld, "
                              "\"lengths\": [",
                              (long long)x->samples, (long long)x->positions,
                              (long long)x->longest),
               out);
    for (i = 0; i < last; i++)
        D9D_TRY_OR(st, d9d_buf_printf(&text, "%s%lld", i ? ", " : "", (long long)x->lengths[i]),
                   out);
    D9D_TRY_OR(st, d9d_buf_append(&text, "]}", 2), out);
    st = d9di_index_summary(w, name, text.data, text.len);
out:
    d9d_buf_release(&text);
    return st;
}

static d9d_status write_index(const d9di_sink *s, int64_t seed, const d9di_manifest *m)
{
    uint64_t records = 0, segments = 0;
    d9di_index_writer *w = NULL;
    char *path = NULL;
    d9d_status st;
    size_t i;

    for (i = 0; i < s->how.n_splits; i++) {
        records += (uint64_t)s->state.split[i].samples;
        segments += (uint64_t)s->state.split[i].segments;
    }
    if (asprintf(&path, "%s/index.lmdb", s->how.dir) < 0)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", s->how.dir);
    st = d9di_index_create(s->how.dir, path, records, segments, &w);
    free(path);
    if (st != D9D_OK)
        return st;
    for (i = 0; i < s->how.n_splits && st == D9D_OK; i++) {
        st = index_split(s, i, m->splits[i].first, seed, w);
        if (st == D9D_OK)
            st = put_summary(s, i, m->splits[i].name, w);
    }
    if (st == D9D_OK)
        return d9di_index_finish(w);
    d9di_index_abandon(w);
    return st;
}

static void count(const d9di_sink *s, d9di_manifest *m)
{
    size_t i;

    m->wide = s->how.wide;
    m->labels = s->state.labels == 1;
    m->tokens = s->state.tokens;
    m->n_shards = (uint32_t)(s->state.shard + 1);
    m->samples = m->positions = 0;
    for (i = 0; i < m->n_splits; i++) {
        const d9di_split_state *x = &s->state.split[i];

        m->splits[i].first = m->samples;
        m->splits[i].samples = x->samples;
        m->splits[i].positions = x->positions;
        m->splits[i].longest = x->longest;
        m->samples += x->samples;
        m->positions += x->positions;
    }
}

static d9d_status remove_spools(d9di_sink *s)
{
    size_t i;

    for (i = 0; i < s->how.n_splits; i++) {
        D9D_TRY(d9d_fs_remove_tree(s->records[i].file.path));
        D9D_TRY(d9d_fs_remove_tree(s->segments[i].file.path));
    }
    return D9D_OK;
}

/* --- files --------------------------------------------------------------------------------- */

struct hashing {
    const char *dir;
    d9di_manifest *m;
};

static d9d_status hash_one(void *arg, int worker, size_t item)
{
    const struct hashing *h = arg;
    d9di_data_file *f = &h->m->files[item];
    char *path = NULL;
    uint64_t bytes = 0;
    d9d_status st;

    (void)worker;
    if (asprintf(&path, "%s/%s", h->dir, f->name) < 0)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", h->dir);
    st = d9d_hash_file(path, &f->hash, &bytes);
    f->bytes = (int64_t)bytes;
    free(path);
    return st;
}

/* Files of the directory that belong to the dataset: not what is of the work. */
static bool is_work(const char *name)
{
    return strncmp(name, "spool-", 6) == 0 || strncmp(name, "journal.json", 12) == 0 ||
           strcmp(name, "manifest.json") == 0;
}

static d9d_status list_files(const d9di_sink *s, d9di_manifest *m)
{
    struct hashing h = {s->how.dir, m};
    d9d_fs_names names;
    size_t i;

    D9D_TRY(d9d_fs_list(s->how.dir, &m->arena, &names));
    m->files = d9d_arena_alloc(&m->arena, (names.n + 1) * sizeof(*m->files));
    if (!m->files)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %zu names", s->how.dir, names.n);
    for (i = 0; i < names.n; i++)
        if (!is_work(names.name[i]))
            m->files[m->n_files++].name = names.name[i];
    return d9d_thread_run(0, m->n_files, hash_one, &h);
}

d9d_status d9di_sink_finish(d9di_sink *s, int64_t seed, const d9d_log *log, d9di_manifest *m)
{
    D9D_TRY(d9di_sink_sync(s));
    count(s, m);
    d9d_log_info(log, "indexing %lld samples", (long long)m->samples);
    D9D_TRY(write_index(s, seed, m));
    D9D_TRY(list_files(s, m));
    return remove_spools(s);
}
