/* assemble.c - see assemble.h. */
#include "data/build/assemble_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "d9d/base/num_format.h"
#include "d9d/base/rng.h"
#include "d9d/base/thread.h"
#include "data/dataset/dataset_index.h"
#include "data/io/out_file.h"

enum { RECORDS_PER_READ = 512 };

/* A sample in the spool of its split; shards are numbered in the dataset. */
struct assembled_record {
    uint32_t shard, bucket;
    uint64_t offset;
    uint32_t stored, n_segments;
    uint64_t segments_at; /* offset in the spool of segments, if there are several */
};

struct assembly {
    const d9di_assemble_opts *opts;
    d9di_assemble_opts packed; /* options for the packed units that were made here */
    d9di_dataset_manifest *m;
    d9di_out_file records[D9DI_MAX_SPLITS], segments;
    uint64_t n_segments;
    d9di_shard_split_stats split[D9DI_MAX_SPLITS];
    d9di_assemble_splits sized_splits; /* of units whose samples are not assigned to splits yet */
    D9D_VEC(d9di_dataset_file) files;
    D9D_VEC(const char *) from; /* [files.len] original paths of the shards, for messages */
};

static bool has_prefix(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

/* --- counting ------------------------------------------------------------------------------ */

d9d_status d9di_assemble_each_unit(const d9di_assemble_opts *opts, d9di_assemble_unit_fn fn,
                                   void *arg)
{
    d9di_shard_unit_opts unit = opts->unit;
    size_t p;

    for (p = 0; p < opts->n_input_splits; p++) {
        int64_t i = 0, last = 0;

        for (unit.dir = opts->dir[p]; unit.dir && !last; i++) {
            d9di_shard_unit_state s;
            d9d_status st;

            D9D_TRY(d9di_shard_unit_state_read(&unit, (int64_t)p, i, &s));
            st = fn(arg, unit.dir, &s);
            last = s.last;
            d9di_shard_unit_state_release(&s);
            D9D_TRY(st);
        }
    }
    return D9D_OK;
}

static void add_documents(d9di_dataset_documents *to, const d9di_dataset_documents *d)
{
    to->read += d->read;
    to->kept += d->kept;
    to->empty += d->empty;
    to->untrained += d->untrained;
    to->dropped += d->dropped;
    to->truncated += d->truncated;
    to->split += d->split;
    to->turns_lost += d->turns_lost;
    to->targets_lost += d->targets_lost;
    to->special_twice += d->special_twice;
    for (int i = 0; i < D9D_SHARD_BAD_REASONS; i++)
        to->skipped[i] += d->skipped[i];
}

static void add_split_stats(d9di_shard_split_stats *to, const d9di_shard_split_stats *s)
{
    int i;

    to->samples += s->samples;
    to->segments += s->segments;
    to->positions += s->positions;
    to->longest = s->longest > to->longest ? s->longest : to->longest;
    for (i = 0; i < D9DI_LENGTH_BINS; i++)
        to->lengths[i] += s->lengths[i];
}

struct count {
    d9di_dataset_manifest *m;
    d9di_shard_split_stats *split;
    int64_t bound, labels;
    int64_t input_split; /* the unit's documents have labels, or have none */
    uint64_t shards;
    int64_t longest[D9D_FIELDS_MAX]; /* rows of ragged fields */
    d9di_field_ranges all, ranges[D9DI_MAX_SPLITS];
    bool unranged; /* a unit does not know its ranges */
};

static d9d_status count_unit(void *arg, const char *dir, const d9di_shard_unit_state *s)
{
    struct count *c = arg;
    size_t i;

    if (s->labels >= 0 && c->labels >= 0 && s->labels != c->labels)
        return D9D_FAIL(D9D_EFORMAT,
                        "%s: documents of input split %lld have %s labels, of input split %lld %s",
                        dir, (long long)c->input_split, c->labels ? "their" : "no",
                        (long long)s->input_split, s->labels ? "they have" : "they have none");
    if (s->labels >= 0) {
        c->labels = s->labels;
        c->input_split = s->input_split;
    }
    c->bound = s->bound > c->bound ? s->bound : c->bound;
    c->shards += s->shards.len;
    for (i = 0; i < D9D_FIELDS_MAX; i++)
        c->longest[i] = s->longest[i] > c->longest[i] ? s->longest[i] : c->longest[i];
    for (i = 0; i < c->m->n_splits; i++) {
        d9di_field_ranges_merge(&c->ranges[i], &s->ranges[i]);
        d9di_field_ranges_merge(&c->all, &s->ranges[i]);
    }
    c->unranged = c->unranged || !s->ranged;
    c->m->tokens += s->tokens;
    add_documents(&c->m->documents, &s->documents);
    for (i = 0; i < c->m->n_splits; i++)
        add_split_stats(&c->split[i], &s->split[i]);
    for (i = 0; i < s->source_ends.len; i++)
        if (s->source_ends.data[i].source < (int64_t)c->m->n_sources)
            c->m->sources[s->source_ends.data[i].source].bytes = s->source_ends.data[i].bytes;
    return D9D_OK;
}

/* Assigns consecutive sample ranges to the splits. */
static void assign_split_ranges(const d9di_shard_split_stats *split, d9di_dataset_manifest *m)
{
    m->samples = m->positions = 0;
    for (size_t i = 0; i < m->n_splits; i++) {
        m->splits[i] =
            (d9di_dataset_split){m->splits[i].name,  m->samples,       split[i].samples,
                                 split[i].positions, split[i].longest, m->splits[i].ranges};
        m->samples += split[i].samples;
        m->positions += split[i].positions;
    }
}

/* The declared fields with the rows and the values that were found. */
static d9d_status set_fields(const d9di_assemble_opts *opts, const struct count *c,
                             d9di_dataset_manifest *m)
{
    const d9d_field_list declared = opts->unit.fields;
    d9d_field *v = d9d_arena_alloc(&m->arena, (declared.n + 1) * sizeof(*v));

    if (v == NULL)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %zu fields", opts->unit.dir, declared.n);
    for (size_t i = 0; i < declared.n; i++) {
        v[i] = declared.v[i];
        v[i].longest = v[i].ragged ? c->longest[i] : 0;
        v[i].range = c->unranged ? (d9d_field_range){.known = false} : c->all.field[i];
    }
    m->fields = (d9d_field_list){v, declared.n};
    return D9D_OK;
}

/* Units do not know what goes into a split of given size. */
static bool are_split_ranges_known(const d9di_assemble_opts *opts, const struct count *c)
{
    bool known = !c->unranged && c->m->n_splits > 1 && (c->m->labels || c->m->fields.n > 0);

    for (size_t i = 0; known && i < c->m->n_splits; i++)
        known = opts->counts[i] <= 0;
    return known;
}

/* One split has the ranges of the dataset. */
static d9d_status set_split_ranges(const d9di_assemble_opts *opts, const struct count *c,
                                   d9di_dataset_manifest *m)
{
    const size_t n = m->n_splits * sizeof(c->ranges[0]);
    d9di_field_ranges *v = NULL;

    if (are_split_ranges_known(opts, c)) {
        v = d9d_arena_alloc(&m->arena, n);
        if (v == NULL)
            return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %zu splits", opts->unit.dir,
                            m->n_splits);
        memcpy(v, c->ranges, n);
    }
    for (size_t i = 0; i < m->n_splits; i++)
        m->splits[i].ranges = v != NULL ? &v[i] : NULL;
    return D9D_OK;
}

static d9d_status count_units(const d9di_assemble_opts *opts, d9di_shard_split_stats *split,
                              d9di_dataset_manifest *m)
{
    struct count c = {.m = m, .split = split, .labels = -1};

    memset(split, 0, D9DI_MAX_SPLITS * sizeof(*split));
    m->documents = (d9di_dataset_documents){.read = 0};
    m->tokens = 0;
    D9D_TRY(d9di_assemble_each_unit(opts, count_unit, &c));
    if (!m->has_tokenizer)
        m->vocab_size = c.bound;
    m->wide = opts->unit.wide;
    m->labels = c.labels == 1;
    m->label_range = c.unranged ? (d9d_field_range){.known = false} : c.all.label;
    D9D_TRY(set_fields(opts, &c, m));
    D9D_TRY(set_split_ranges(opts, &c, m));
    if (c.shards > D9DI_MAX_SHARDS)
        return D9D_FAIL(
            D9D_EFORMAT,
            "%llu file%s of tokens, and a dataset has at most %d; a larger --shard-size or "
            "--unit-size makes fewer",
            (unsigned long long)c.shards, D9D_PLURAL(c.shards), D9DI_MAX_SHARDS);
    m->n_shards = (uint32_t)c.shards;
    assign_split_ranges(split, m);
    return D9D_OK;
}

d9d_status d9di_assemble_count(const d9di_assemble_opts *opts, d9di_dataset_manifest *m)
{
    d9di_shard_split_stats split[D9DI_MAX_SPLITS];

    return count_units(opts, split, m);
}

/* --- token files --------------------------------------------------------------------------- */

static d9d_status move_file(const char *from, const char *to, bool own)
{
    if (own) {
        if (rename(from, to) == 0 || (errno == ENOENT && d9d_fs_exists(to)))
            return D9D_OK; /* or moved by an interrupted assembly */
        return D9D_FAIL(D9D_EIO, "%s: cannot be renamed to %s: %s", from, to, strerror(errno));
    }
    D9D_TRY(d9d_fs_remove_tree(to));
    return linkat(AT_FDCWD, from, AT_FDCWD, to, AT_SYMLINK_FOLLOW) == 0 ? D9D_OK
                                                                        : d9d_fs_copy(from, to);
}

static d9d_status add_file(struct assembly *j, d9di_dataset_file f, const char *from)
{
    const char *copy = d9d_arena_strdup(&j->m->arena, from);

    if (!copy)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", from);
    D9D_TRY(D9D_VEC_PUSH(&j->from, copy));
    return D9D_VEC_PUSH(&j->files, f);
}

static d9d_status install_file(struct assembly *j, const char *dir, const d9di_shard_unit_state *s,
                               size_t shard, const char *kind, int64_t bytes, d9d_hash hash)
{
    d9d_arena *a = &j->m->arena;
    const char *name = d9d_arena_printf(a, "%s-%05u.bin", kind, j->m->n_shards);
    char *from = NULL, *to = NULL, end[32];
    uint64_t has = 0;
    d9d_status st;

    snprintf(end, sizeof(end), ".%s-%03zu", kind, shard);
    D9D_TRY(d9di_shard_unit_path(dir, s->input_split, s->unit, end, &from));
    if (!name || asprintf(&to, "%s/%s", j->opts->unit.dir, name) < 0) {
        to = NULL;
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory", dir);
        goto out;
    }
    D9D_TRY_OR(st, move_file(from, to, j->opts->move_files || strcmp(dir, j->opts->unit.dir) == 0),
               out);
    D9D_TRY_OR(st, d9d_fs_size(to, &has), out);
    if (has != (uint64_t)bytes)
        st = D9D_FAIL(D9D_EFORMAT, "%s: has %llu bytes, must have %lld", from,
                      (unsigned long long)has, (long long)bytes);
    else
        st = add_file(j, (d9di_dataset_file){name, bytes, hash}, from);
out:
    free(from);
    free(to);
    return st;
}

static d9d_status install_shards(struct assembly *j, const char *dir,
                                 const d9di_shard_unit_state *s)
{
    const int64_t elem = j->m->wide ? 4 : 2;
    size_t i;

    for (i = 0; i < s->shards.len; i++, j->m->n_shards++) {
        const struct d9di_shard_unit_shard *x = &s->shards.data[i];

        D9D_TRY(install_file(j, dir, s, i, "tokens", x->tokens * elem, x->hash));
        if (s->labels == 1)
            D9D_TRY(install_file(j, dir, s, i, "labels", x->tokens * 4, x->labels_hash));
        if (j->m->fields.n > 0) {
            D9D_TRY(install_file(j, dir, s, i, "fields", x->fields_bytes, x->fields_hash));
            D9D_TRY(install_file(j, dir, s, i, "documents",
                                 x->documents * (int64_t)sizeof(struct d9di_field_document),
                                 x->documents_hash));
        }
    }
    return D9D_OK;
}

/* --- records ------------------------------------------------------------------------------- */

static d9d_status append_record(void *arg, const char *path, const d9di_shard_unit_state *s,
                                const struct d9di_shard_unit_record *r)
{
    struct assembly *j = arg;
    const struct assembled_record out = {.shard = j->m->n_shards + r->shard,
                                         .bucket = r->bucket,
                                         .offset = r->offset,
                                         .stored = r->stored,
                                         .n_segments = r->n_segments,
                                         .segments_at = j->n_segments};
    const d9di_assemble_split *cut = d9di_assemble_splits_find(&j->sized_splits, r->key);
    const size_t split = cut ? cut->split : r->split;
    const int64_t length = d9di_assemble_sample_length(s, r);

    if (r->split >= j->m->n_splits || r->shard >= s->shards.len || r->n_segments == 0 || length < 1)
        return D9D_FAIL(D9D_EFORMAT, "%s: a record of split %u, shard %u, %u segments", path,
                        r->split, r->shard, r->n_segments);
    d9di_shard_split_stats_add(&j->split[split], length, r->n_segments);
    j->n_segments += r->n_segments > 1 ? r->n_segments : 0;
    return d9di_out_file_write(&j->records[split], &out, sizeof(out));
}

d9d_status d9di_assemble_each_bytes(const char *dir, const d9di_shard_unit_state *s,
                                    const char *end, uint64_t bytes, d9di_assemble_bytes_fn fn,
                                    void *arg)
{
    char input_split[RECORDS_PER_READ * sizeof(struct d9di_shard_unit_record)], *path = NULL;
    d9d_file file = {.fd = -1};
    uint64_t has = 0, at;
    d9d_status st;

    D9D_TRY(d9di_shard_unit_path(dir, s->input_split, s->unit, end, &path));
    D9D_TRY_OR(st, d9d_fs_size(path, &has), out);
    if (has != bytes) {
        st = D9D_FAIL(D9D_EFORMAT, "%s: has %llu bytes, must have %llu", path,
                      (unsigned long long)has, (unsigned long long)bytes);
        goto out;
    }
    D9D_TRY_OR(st, d9d_file_open(path, &file), out);
    for (at = 0; at < bytes; at += sizeof(input_split)) {
        const size_t n =
            bytes - at < sizeof(input_split) ? (size_t)(bytes - at) : sizeof(input_split);

        D9D_TRY_OR(st, d9d_file_read_at(&file, input_split, n, at), out);
        D9D_TRY_OR(st, fn(arg, path, s, input_split, n), out);
    }
out:
    d9d_file_release(&file);
    free(path);
    return st;
}

struct records {
    d9di_assemble_record_fn fn;
    void *arg;
};

static d9d_status for_each_record(void *arg, const char *path, const d9di_shard_unit_state *s,
                                  const void *p, size_t n)
{
    const struct records *to = arg;
    const char *at = p;
    size_t i;

    for (i = 0; i < n; i += sizeof(struct d9di_shard_unit_record)) {
        struct d9di_shard_unit_record r;

        memcpy(&r, at + i, sizeof(r));
        D9D_TRY(to->fn(to->arg, path, s, &r));
    }
    return D9D_OK;
}

d9d_status d9di_assemble_each_record(const char *dir, const d9di_shard_unit_state *s,
                                     d9di_assemble_record_fn fn, void *arg)
{
    struct records to = {fn, arg};

    return d9di_assemble_each_bytes(dir, s, ".records",
                                    (uint64_t)s->samples * sizeof(struct d9di_shard_unit_record),
                                    for_each_record, &to);
}

int64_t d9di_assemble_sample_length(const d9di_shard_unit_state *s,
                                    const struct d9di_shard_unit_record *r)
{
    return (int64_t)r->stored - (s->labels ? 0 : (int64_t)r->n_segments);
}

static d9d_status append_segments(void *arg, const char *path, const d9di_shard_unit_state *s,
                                  const void *p, size_t n)
{
    struct assembly *j = arg;

    (void)path;
    (void)s;
    return d9di_out_file_write(&j->segments, p, n);
}

/* --- splits of given size ------------------------------------------------------------------ */

bool d9di_assemble_defers_packing(int64_t pack, const int64_t *counts, size_t n_splits)
{
    bool given = false;

    for (size_t i = 0; i < n_splits; i++)
        given = given || counts[i] > 0;
    return given && pack > 0;
}

/* Decides which documents the splits of given size take, and packs documents if that had to
 * wait. */
static d9d_status assign_documents(struct assembly *j, const d9d_log *log)
{
    D9D_TRY(d9di_assemble_choose_splits(j->opts, j->m, &j->sized_splits));
    if (j->opts->packer.size == 0)
        return D9D_OK;
    d9d_log_info(log, "packing %lld document%s", (long long)j->m->samples,
                 D9D_PLURAL(j->m->samples));
    D9D_TRY(d9di_assemble_pack(j->opts, &j->sized_splits, &j->m->arena, &j->packed));
    j->opts = &j->packed;
    j->sized_splits.n = 0; /* packed units have their splits already */
    return count_units(j->opts, j->split, j->m);
}

/* Logs splits that miss their number: documents are not divided, and copies stay together. */
static void log_missed_counts(const struct assembly *j, const d9d_log *log)
{
    for (size_t i = 0; i < j->m->n_splits; i++)
        if (j->opts->counts[i] > 0 && j->opts->counts[i] != j->m->splits[i].samples)
            d9d_log_info(log,
                         "the split \"%s\" has %lld sample%s for the %lld asked for: documents are "
                         "whole, and copies together",
                         j->m->splits[i].name, (long long)j->m->splits[i].samples,
                         D9D_PLURAL(j->m->splits[i].samples), (long long)j->opts->counts[i]);
}

static void drop_empty_rest(struct assembly *j)
{
    const size_t last = j->m->n_splits - 1;

    if (j->opts->counts[last] == D9DI_ASSEMBLE_REST && j->split[last].samples == 0)
        j->m->n_splits--;
}

/* --- units --------------------------------------------------------------------------------- */

static d9d_status check_spool(const char *dir, const d9di_shard_unit_state *s, const char *end,
                              d9d_hash want)
{
    char *path = NULL;
    d9d_status st;

    D9D_TRY(d9di_shard_unit_path(dir, s->input_split, s->unit, end, &path));
    st = d9di_shard_unit_check_file(path, want);
    free(path);
    return st;
}

static d9d_status check_spools(void *arg, const char *dir, const d9di_shard_unit_state *s)
{
    (void)arg;
    if (!s->hashed)
        return D9D_OK;
    D9D_TRY(check_spool(dir, s, ".records", s->records_hash));
    return check_spool(dir, s, ".segments", s->segments_hash);
}

static d9d_status install_unit(void *arg, const char *dir, const d9di_shard_unit_state *s)
{
    struct assembly *j = arg;
    const uint64_t before = j->n_segments;

    D9D_TRY(d9di_assemble_each_record(dir, s, append_record, j));
    if (j->n_segments - before != (uint64_t)s->segments)
        return D9D_FAIL(D9D_EFORMAT,
                        "%s: records of unit %lld-%lld have %llu segments, it has %lld", dir,
                        (long long)s->input_split, (long long)s->unit,
                        (unsigned long long)(j->n_segments - before), (long long)s->segments);
    D9D_TRY(d9di_assemble_each_bytes(dir, s, ".segments", (uint64_t)s->segments * 4,
                                     append_segments, j));
    return install_shards(j, dir, s);
}

static d9d_status open_spool(const struct assembly *j, const char *name, d9di_out_file *out)
{
    char *path = NULL;
    d9d_status st;

    if (asprintf(&path, "%s/assemble.%s", j->opts->unit.dir, name) < 0)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", j->opts->unit.dir);
    st = d9di_out_file_create(out, path);
    free(path);
    return st;
}

static d9d_status install_units(struct assembly *j)
{
    char name[32];
    size_t i;

    D9D_TRY(open_spool(j, "segments", &j->segments));
    for (i = 0; i < j->m->n_splits; i++) {
        snprintf(name, sizeof(name), "records-%zu", i);
        D9D_TRY(open_spool(j, name, &j->records[i]));
    }
    j->m->n_shards = 0;
    memset(j->split, 0, sizeof(j->split)); /* units have no counts for splits of given size */
    D9D_TRY(d9di_assemble_each_unit(j->opts, install_unit, j));
    for (i = 0; i < j->m->n_splits; i++)
        D9D_TRY(d9di_out_file_flush(&j->records[i]));
    drop_empty_rest(j);
    assign_split_ranges(j->split, j->m);
    return d9di_out_file_flush(&j->segments);
}

static d9d_status check_shard(void *arg, int worker, size_t item)
{
    const struct assembly *j = arg;
    const d9di_dataset_file *f = &j->files.data[item];
    char have[D9D_HASH_HEX], want[D9D_HASH_HEX], *path = NULL;
    uint64_t bytes;
    d9d_hash hash;
    d9d_status st;

    (void)worker;
    if (asprintf(&path, "%s/%s", j->opts->unit.dir, f->name) < 0)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", j->opts->unit.dir);
    st = d9d_hash_file(path, &hash, &bytes);
    free(path);
    D9D_TRY(st);
    if (d9d_hash_equal(hash, f->hash))
        return D9D_OK;
    d9d_hash_hex(hash, have);
    d9d_hash_hex(f->hash, want);
    return D9D_FAIL(D9D_EFORMAT, "%s: its hash is %s, it was written with %s", j->from.data[item],
                    have, want);
}

/* Checks token files of other runs, which are in place by now. */
static d9d_status check_shards(struct assembly *j)
{
    return j->opts->check ? d9d_thread_run(0, j->files.len, check_shard, j) : D9D_OK;
}

/* --- the index ----------------------------------------------------------------------------- */

/* Reads records of a spool: sequentially through the buffer, or at random. */
struct record_reader {
    d9d_file file;
    struct assembled_record buffer[RECORDS_PER_READ];
    uint64_t from, n;
    D9D_VEC(uint32_t) segments;
};

static d9d_status read_record(struct record_reader *r, const struct assembly *j, uint64_t i,
                              uint64_t total, bool in_order, d9di_dataset_index_record *out)
{
    const struct assembled_record *at;

    if (i < r->from || i >= r->from + r->n) {
        const uint64_t max_n = in_order ? RECORDS_PER_READ : 1;

        r->from = i;
        r->n = total - i < max_n ? total - i : max_n;
        D9D_TRY(d9d_file_read_at(&r->file, r->buffer, r->n * sizeof(*r->buffer),
                                 i * sizeof(*r->buffer)));
    }
    at = &r->buffer[i - r->from];
    *out = (d9di_dataset_index_record){at->shard,  at->bucket,     at->offset,
                                       at->stored, at->n_segments, &at->stored};
    if (at->n_segments == 1)
        return D9D_OK;
    D9D_TRY(D9D_VEC_RESERVE(&r->segments, at->n_segments));
    out->segments = r->segments.data;
    return d9d_file_read_at(&j->segments.file, r->segments.data, at->n_segments * 4,
                            at->segments_at * 4);
}

static d9d_status index_split(const struct assembly *j, size_t split, d9di_dataset_index_writer *w)
{
    const int64_t seed = j->m->recipe.seed;
    const uint64_t n = (uint64_t)j->m->splits[split].samples;
    const d9d_rng rng = {(uint64_t)seed, split};
    struct record_reader *r = calloc(1, sizeof(*r));
    d9d_status st = D9D_OK;
    uint64_t i;

    if (!r)
        return D9D_FAIL(D9D_ENOMEM, "no memory to read records");
    r->file = j->records[split].file;
    for (i = 0; i < n && st == D9D_OK; i++) {
        d9di_dataset_index_record record;

        st = read_record(r, j, seed < 0 ? i : d9d_rng_permute(rng, i, n), n, seed < 0, &record);
        if (st == D9D_OK)
            st = d9di_dataset_index_put(w, (uint64_t)j->m->splits[split].first + i, &record);
    }
    D9D_VEC_RELEASE(&r->segments);
    free(r);
    return st;
}

static d9d_status write_summary(const d9di_shard_split_stats *x, const char *name,
                                d9di_dataset_index_writer *w)
{
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
    st = d9di_dataset_index_put_summary(w, name, text.data, text.len);
out:
    d9d_buf_release(&text);
    return st;
}

static d9d_status write_index(const struct assembly *j)
{
    d9di_dataset_index_writer *w = NULL;
    char *path = NULL;
    d9d_status st;
    size_t i;

    if (asprintf(&path, "%s/index.lmdb", j->opts->unit.dir) < 0)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", j->opts->unit.dir);
    st = d9di_dataset_index_create(j->opts->unit.dir, path, (uint64_t)j->m->samples, j->n_segments,
                                   &w);
    free(path);
    if (st != D9D_OK)
        return st;
    for (i = 0; i < j->m->n_splits && st == D9D_OK; i++) {
        st = index_split(j, i, w);
        if (st == D9D_OK)
            st = write_summary(&j->split[i], j->m->splits[i].name, w);
    }
    if (st == D9D_OK)
        return d9di_dataset_index_finish(w);
    d9di_dataset_index_abandon(w);
    return st;
}

/* --- the other files ----------------------------------------------------------------------- */

bool d9di_assemble_is_temp(const char *name)
{
    static const char *const former = "join."; /* as 0.1 called them */

    return has_prefix(name, "unit-") || has_prefix(name, "assemble.") || has_prefix(name, former) ||
           strcmp(name, D9DI_ASSEMBLE_PACKS_DIR) == 0 || has_prefix(name, "plan.json") ||
           has_prefix(name, "index.work");
}

static bool is_shard_file(const char *name)
{
    return has_prefix(name, "tokens-") || has_prefix(name, "labels-") ||
           has_prefix(name, "fields-") || has_prefix(name, "documents-");
}

static d9d_status hash_files(struct assembly *j, const d9d_fs_names *names)
{
    size_t i;

    for (i = 0; i < names->n; i++) {
        d9di_dataset_file f = {.name = names->name[i]};
        const char *path = d9d_fs_join(&j->m->arena, j->opts->unit.dir, f.name);
        uint64_t bytes = 0;

        if (d9di_assemble_is_temp(f.name) || is_shard_file(f.name) ||
            has_prefix(f.name, "manifest.json"))
            continue;
        if (!path)
            return D9D_FAIL(D9D_ENOMEM, "%s: no memory", j->opts->unit.dir);
        D9D_TRY(d9d_hash_file(path, &f.hash, &bytes));
        f.bytes = (int64_t)bytes;
        D9D_TRY(D9D_VEC_PUSH(&j->files, f));
    }
    return D9D_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const d9di_dataset_file *)a)->name, ((const d9di_dataset_file *)b)->name);
}

static d9d_status list_files(struct assembly *j, const d9d_fs_names *names)
{
    d9di_dataset_manifest *m = j->m;

    D9D_TRY(hash_files(j, names));
    m->n_files = j->files.len;
    m->files = d9d_arena_alloc(&m->arena, (m->n_files + 1) * sizeof(*m->files));
    if (!m->files)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %zu files", j->opts->unit.dir, m->n_files);
    qsort(j->files.data, m->n_files, sizeof(*m->files), compare_names);
    memcpy(m->files, j->files.data, m->n_files * sizeof(*m->files));
    return D9D_OK;
}

static d9d_status remove_file(d9d_arena *a, const char *dir, const char *name)
{
    const char *path = d9d_fs_join(a, dir, name);

    return path ? d9d_fs_remove_tree(path) : D9D_FAIL(D9D_ENOMEM, "%s: no memory", dir);
}

d9d_status d9di_assemble_clean(const char *dir)
{
    d9d_arena a = {0};
    d9d_fs_names names;
    d9d_status st;
    size_t i;

    D9D_TRY_OR(st, d9d_fs_list(dir, &a, &names), out);
    for (i = 0; i < names.n && st == D9D_OK; i++)
        if (d9di_assemble_is_temp(names.name[i]) && strcmp(names.name[i], "plan.json") != 0)
            st = remove_file(&a, dir, names.name[i]);
    if (st == D9D_OK)
        st = remove_file(&a, dir, "plan.json");
out:
    d9d_arena_release(&a);
    return st;
}

static d9d_status fail_no_samples(const d9di_dataset_manifest *m)
{
    const d9di_dataset_documents *d = &m->documents;
    const long long read = (long long)d->read, skipped = (long long)d9di_skipped_total(d->skipped);

    if (d->untrained > 0 && d->untrained == d->empty)
        return D9D_FAIL(D9D_EFORMAT,
                        "no samples: of %lld document%s in %zu input%s, %lld are chats in which no "
                        "message has a trained role (the assistant's, of a weight other than 0), "
                        "%lld were dropped and %lld skipped",
                        read, D9D_PLURAL(read), m->n_sources, D9D_PLURAL(m->n_sources),
                        (long long)d->untrained, (long long)d->dropped, skipped);
    return D9D_FAIL(D9D_EFORMAT,
                    "no samples: of %lld document%s in %zu input%s, %lld are too short to have a "
                    "target, %lld were dropped and %lld skipped",
                    read, D9D_PLURAL(read), m->n_sources, D9D_PLURAL(m->n_sources),
                    (long long)d->empty, (long long)d->dropped, skipped);
}

static d9d_status assemble_all(struct assembly *j, const d9d_log *log)
{
    d9d_fs_names names;

    if (j->opts->check)
        D9D_TRY(d9di_assemble_each_unit(j->opts, check_spools, j));
    D9D_TRY(count_units(j->opts, j->split, j->m));
    if (j->m->samples == 0)
        return fail_no_samples(j->m);
    D9D_TRY(d9di_assemble_skipped(j->opts, j->m));
    D9D_TRY(assign_documents(j, log));
    D9D_TRY(install_units(j));
    D9D_TRY(check_shards(j));
    log_missed_counts(j, log);
    d9d_log_info(log, "indexing %lld sample%s", (long long)j->m->samples,
                 D9D_PLURAL(j->m->samples));
    D9D_TRY(write_index(j));
    D9D_TRY(d9d_fs_list(j->opts->unit.dir, &j->m->arena, &names));
    return list_files(j, &names);
}

d9d_status d9di_assemble(const d9di_assemble_opts *opts, const d9d_log *log,
                         d9di_dataset_manifest *m)
{
    struct assembly j = {.opts = opts, .m = m};
    const d9d_status st = assemble_all(&j, log);
    size_t i;

    for (i = 0; i < D9DI_MAX_SPLITS; i++)
        d9di_out_file_release(&j.records[i]);
    d9di_out_file_release(&j.segments);
    D9D_VEC_RELEASE(&j.files);
    D9D_VEC_RELEASE(&j.from);
    return st;
}
