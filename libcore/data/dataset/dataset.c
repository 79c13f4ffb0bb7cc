/* dataset.c - opens a dataset and reads its samples. */
#include "d9d/data/dataset/dataset.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "d9d/base/fs.h"
#include "d9d/base/json.h"
#include "d9d/data/dataset/dataset_kind.h"
#include "data/dataset/dataset_private.h"

#define MAX_MANIFEST (UINT64_C(256) << 20)

/* --- opening ---------------------------------------------------------------------------------- */

static d9d_status path_in(const d9d_dataset *ds, const char *name, char **out)
{
    if (asprintf(out, "%s/%s", ds->dir, name) >= 0)
        return D9D_OK;
    *out = NULL;
    return D9D_FAIL(D9D_ENOMEM, "%s: no memory", ds->dir);
}

d9d_status d9di_dataset_check_file(const d9d_dataset *ds, const d9di_dataset_file *f,
                                   uint64_t bytes, const d9d_hash *hash)
{
    char have[D9D_HASH_HEX], want[D9D_HASH_HEX];

    if (bytes != (uint64_t)f->bytes)
        return D9D_FAIL(D9D_EFORMAT, "%s/%s: has %llu bytes, the manifest says %lld", ds->dir,
                        f->name, (unsigned long long)bytes, (long long)f->bytes);
    if (!hash || d9d_hash_equal(*hash, f->hash))
        return D9D_OK;
    d9d_hash_hex(*hash, have);
    d9d_hash_hex(f->hash, want);
    return D9D_FAIL(D9D_EFORMAT, "%s/%s: its hash is %s, the manifest says %s", ds->dir, f->name,
                    have, want);
}

/* Checks the size of a file of the manifest; for the index, also the hash. */
static d9d_status check_file_size(const d9d_dataset *ds, const d9di_dataset_file *f)
{
    const bool is_index = strcmp(f->name, "index.lmdb") == 0;
    char *path = NULL;
    uint64_t bytes = 0;
    d9d_hash hash;
    d9d_status st;

    D9D_TRY(path_in(ds, f->name, &path));
    st = is_index ? d9d_hash_file(path, &hash, &bytes) : d9d_fs_size(path, &bytes);
    free(path);
    D9D_TRY(st);
    return d9di_dataset_check_file(ds, f, bytes, is_index ? &hash : NULL);
}

static d9d_status read_manifest(d9d_dataset *ds)
{
    char *path = NULL;
    d9d_status st;

    D9D_TRY(path_in(ds, "manifest.json", &path));
    D9D_TRY_OR(st, d9d_fs_read(path, MAX_MANIFEST, &ds->text), out);
    ds->hash = d9d_hash_bytes(ds->text.data ? ds->text.data : "", ds->text.len);
    st = d9di_dataset_manifest_parse(path, ds->text.data ? ds->text.data : "", ds->text.len,
                                     &ds->manifest);
out:
    free(path);
    return st;
}

static d9d_status choose_split(d9d_dataset *ds, const char *name)
{
    const d9di_dataset_manifest *m = &ds->manifest;
    char known[256] = "";
    size_t i, at = 0;

    for (i = 0; i < m->n_splits; i++) {
        if (!name || strcmp(m->splits[i].name, name) == 0) {
            ds->split = &m->splits[i];
            return D9D_OK;
        }
        if (at < sizeof(known) - 1)
            at += (size_t)snprintf(known + at, sizeof(known) - at, "%s%s", i ? ", " : "",
                                   m->splits[i].name);
    }
    return D9D_FAIL(D9D_ECONFIG, "%s: has no split \"%s\"; it has %s", ds->dir, name ? name : "",
                    known);
}

/* Maps the file, or records its identity if it is not mapped. */
static d9d_status map_file(d9d_dataset *ds, const char *name, struct d9di_dataset_map *out)
{
    const size_t bytes = (size_t)d9di_dataset_manifest_file(&ds->manifest, name)->bytes;
    const bool mapped = ds->n_maps < ds->max_maps;
    d9d_file file = {.fd = -1};
    struct stat s;
    d9d_status st = D9D_OK;
    void *p = NULL;

    D9D_TRY(path_in(ds, name, &out->path));
    if (mapped)
        D9D_TRY(d9d_file_open(out->path, &file));
    if ((mapped ? fstat(file.fd, &s) : stat(out->path, &s)) != 0)
        st = D9D_FAIL(D9D_EIO, "%s: cannot be looked at: %s", out->path, strerror(errno));
    else if (mapped && (p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, file.fd, 0)) == MAP_FAILED)
        st = D9D_FAIL(D9D_EIO, "%s: cannot map %zu bytes: %s", out->path, bytes, strerror(errno));
    else
        *out = (struct d9di_dataset_map){p, bytes, out->path, s.st_dev, s.st_ino};
    ds->n_maps += mapped && st == D9D_OK;
    d9d_file_release(&file);
    return st;
}

static d9d_status map_shards(d9d_dataset *ds)
{
    const d9di_dataset_manifest *m = &ds->manifest;
    uint32_t i;

    const struct {
        const char *kind;
        bool has;
        struct d9di_dataset_map **maps;
    } kinds[] = {{"tokens", true, &ds->tokens},
                 {"labels", m->labels, &ds->labels},
                 {"fields", m->fields.n > 0, &ds->fields},
                 {"documents", m->fields.n > 0, &ds->documents}};
    enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

    for (i = 0; i < KINDS; i++)
        if ((*kinds[i].maps = calloc(m->n_shards, sizeof(**kinds[i].maps))) == NULL)
            return D9D_FAIL(D9D_ENOMEM, "%s: no memory for %u shards", ds->dir, m->n_shards);
    for (i = 0; i < m->n_shards * KINDS; i++) {
        char name[32];

        (void)snprintf(name, sizeof(name), "%s-%05u.bin", kinds[i % KINDS].kind, i / KINDS);
        if (kinds[i % KINDS].has)
            D9D_TRY(map_file(ds, name, &(*kinds[i % KINDS].maps)[i / KINDS]));
    }
    return D9D_OK;
}

static d9d_status open_index(d9d_dataset *ds)
{
    char *path = NULL;
    d9d_status st;

    D9D_TRY(path_in(ds, "index.lmdb", &path));
    st = d9di_dataset_index_open(path, (uint64_t)ds->manifest.samples, &ds->index);
    free(path);
    return st;
}

/* Rejects an unfinished dataset, or a task's part: it has a plan but no manifest yet. */
static d9d_status check_finished(const d9d_dataset *ds)
{
    char *plan = NULL, *manifest = NULL;
    bool whole = true;

    if (path_in(ds, "plan.json", &plan) == D9D_OK &&
        path_in(ds, "manifest.json", &manifest) == D9D_OK)
        whole = d9d_fs_exists(manifest) || !d9d_fs_exists(plan);
    free(plan);
    free(manifest);
    return whole ? D9D_OK
                 : D9D_FAIL(D9D_ECONFIG,
                            "%s: is a part of a dataset, or one that was not finished: d9d-shard "
                            "merge joins all parts",
                            ds->dir);
}

static d9d_status open_files(d9d_dataset *ds, const char *split)
{
    size_t i;

    D9D_TRY(check_finished(ds));
    D9D_TRY(read_manifest(ds));
    D9D_TRY(d9di_dataset_manifest_samples_hash(&ds->manifest, &ds->samples_hash));
    D9D_TRY(choose_split(ds, split));
    for (i = 0; i < ds->manifest.n_files; i++)
        D9D_TRY(check_file_size(ds, &ds->manifest.files[i]));
    D9D_TRY(open_index(ds));
    return map_shards(ds);
}

d9d_status d9d_dataset_open(const char *dir, const char *split, d9d_dataset **out)
{
    return d9di_dataset_open(dir, split, D9DI_MAX_MAPS, out);
}

d9d_status d9di_dataset_open(const char *dir, const char *split, uint32_t max_maps,
                             d9d_dataset **out)
{
    d9d_dataset *ds = calloc(1, sizeof(*ds));
    d9d_status st;

    if (ds)
        ds->max_maps = max_maps;
    if (!ds || !(ds->dir = strdup(dir)))
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory", dir);
    else
        st = open_files(ds, split);
    if (st != D9D_OK) {
        d9d_dataset_close(ds);
        return d9d_err_pass(st, __FILE__, __LINE__);
    }
    *out = ds;
    return D9D_OK;
}

static void unmap_files(struct d9di_dataset_map *maps, uint32_t n)
{
    uint32_t i;

    for (i = 0; maps && i < n; i++) {
        if (maps[i].data)
            munmap(maps[i].data, maps[i].bytes);
        free(maps[i].path);
    }
    free(maps);
}

void d9d_dataset_close(d9d_dataset *ds)
{
    if (!ds)
        return;
    if (ds->kind != NULL && ds->kind->close != NULL)
        ds->kind->close(ds->self);
    d9d_tokenizer_free(ds->tokenizer);
    d9di_dataset_index_close(ds->index);
    unmap_files(ds->tokens, ds->manifest.n_shards);
    unmap_files(ds->labels, ds->manifest.n_shards);
    unmap_files(ds->fields, ds->manifest.n_shards);
    unmap_files(ds->documents, ds->manifest.n_shards);
    d9di_dataset_manifest_release(&ds->manifest);
    d9d_buf_release(&ds->text);
    free(ds->dir);
    free(ds);
}

/* --- facts ------------------------------------------------------------------------------------ */

const char *d9d_dataset_dir(const d9d_dataset *ds)
{
    return ds->dir;
}

int64_t d9d_dataset_count(const d9d_dataset *ds)
{
    return ds->split->samples;
}

d9d_hash d9d_dataset_hash(const d9d_dataset *ds)
{
    return ds->hash;
}

d9d_hash d9d_dataset_samples_hash(const d9d_dataset *ds)
{
    return ds->kind == NULL ? ds->samples_hash : ds->hash;
}

int64_t d9d_dataset_vocab(const d9d_dataset *ds)
{
    return ds->manifest.vocab_size;
}

int64_t d9d_dataset_max_length(const d9d_dataset *ds)
{
    return ds->split->longest + (ds->no_targets && !ds->manifest.labels);
}

int64_t d9d_dataset_positions(const d9d_dataset *ds)
{
    return ds->split->positions;
}

const char *d9d_dataset_reordered(const d9d_dataset *ds)
{
    const d9di_dataset_manifest *m = &ds->manifest;

    if (m->documents.read == 0)
        return NULL;
    return m->recipe.seed >= 0                     ? "its samples were shuffled"
           : m->n_splits > 1                       ? "its documents were dealt to splits at random"
           : m->documents.split > 0                ? "documents were split into several samples"
           : m->documents.kept < m->documents.read ? "documents were left out"
                                                   : NULL;
}

bool d9d_dataset_is_packed(const d9d_dataset *ds)
{
    return ds->manifest.recipe.pack > 0 || ds->manifest.recipe.record_documents > 0;
}

int64_t d9d_dataset_record_documents(const d9d_dataset *ds)
{
    return ds->manifest.recipe.record_documents;
}

d9d_status d9d_dataset_check_tokenizer(const d9d_dataset *ds, const char *path)
{
    char have[D9D_HASH_HEX], want[D9D_HASH_HEX];
    uint64_t size;
    d9d_hash h;

    if (!ds->manifest.has_tokenizer)
        return D9D_OK;
    D9D_TRY(d9d_hash_file(path, &h, &size));
    if (d9d_hash_equal(h, ds->manifest.tokenizer_hash))
        return D9D_OK;
    d9d_hash_hex(h, have);
    d9d_hash_hex(ds->manifest.tokenizer_hash, want);
    return D9D_FAIL(D9D_EMISMATCH, "%s: was made with the tokenizer %s, %s is %s", ds->dir, want,
                    path, have);
}

d9d_status d9d_dataset_describe(d9d_dataset *ds, d9d_buf *out)
{
    json_t *root = NULL, *summaries = json_object();
    int bad = 0;
    size_t i;
    d9d_status st;

    D9D_TRY_OR(st, d9d_json_parse(ds->dir, ds->text.data, ds->text.len, &root), out);
    for (i = 0; i < ds->manifest.n_splits; i++) {
        json_t *summary = NULL;
        int64_t targets = 0;
        const char *text;
        size_t n;

        D9D_TRY_OR(st, d9di_dataset_count_targets(ds, &ds->manifest.splits[i], &targets), out);
        D9D_TRY_OR(
            st, d9di_dataset_index_get_summary(ds->index, ds->manifest.splits[i].name, &text, &n),
            out);
        D9D_TRY_OR(st, d9d_json_parse(ds->dir, text, n, &summary), out);
        bad |= json_object_set_new(summary, "targets", json_integer(targets));
        bad |= json_object_set_new(summaries, ds->manifest.splits[i].name, summary);
    }
    if (bad != 0 || json_object_set(root, "summary", summaries) != 0) {
        st = D9D_FAIL(D9D_ENOMEM, "%s: no memory for its description", ds->dir);
        goto out;
    }
    D9D_TRY_OR(st, d9d_json_put(out, root, 1), out);
    st = d9d_buf_append(out, "\n", 1);
out:
    json_decref(root);
    json_decref(summaries);
    return st;
}

bool d9d_dataset_has_labels(const d9d_dataset *ds)
{
    return ds->manifest.labels;
}

d9d_field_list d9d_dataset_fields(const d9d_dataset *ds)
{
    return ds->manifest.fields;
}

const d9d_field_range *d9di_dataset_field_range(const d9d_dataset *ds,
                                                const d9di_dataset_split *split, size_t index)
{
    return split->ranges != NULL ? &split->ranges->field[index]
                                 : &ds->manifest.fields.v[index].range;
}

const d9d_field_range *d9di_dataset_label_range(const d9d_dataset *ds,
                                                const d9di_dataset_split *split)
{
    return split->ranges != NULL ? &split->ranges->label : &ds->manifest.label_range;
}

d9d_dataset_special d9d_dataset_get_special(const d9d_dataset *ds)
{
    return ds->manifest.recipe.add_special;
}

void d9d_dataset_set_no_targets(d9d_dataset *ds)
{
    ds->no_targets = true;
}

void d9d_dataset_set_last_token(d9d_dataset *ds)
{
    ds->no_targets = ds->next_targets = true;
}

/* --- samples ---------------------------------------------------------------------------------- */

static d9d_status check_segments(const d9d_dataset *ds, int64_t number,
                                 const d9di_dataset_index_record *r)
{
    const uint32_t least = ds->manifest.labels ? 1 : 2;
    uint64_t total = 0;
    uint32_t i;

    for (i = 0; i < r->n_segments; i++) {
        if (r->segments[i] < least)
            return D9D_FAIL(D9D_EFORMAT, "%s/index.lmdb: sample %lld: segment %u has %u tokens",
                            ds->dir, (long long)number, i, r->segments[i]);
        total += r->segments[i];
    }
    if (total != r->stored)
        return D9D_FAIL(D9D_EFORMAT,
                        "%s/index.lmdb: sample %lld: its segments have %llu tokens, it has %u",
                        ds->dir, (long long)number, (unsigned long long)total, r->stored);
    return D9D_OK;
}

d9d_status d9di_dataset_sample(d9d_dataset *ds, int64_t number, d9d_sample *out)
{
    const d9di_dataset_manifest *m = &ds->manifest;
    uint64_t end, has;
    d9di_dataset_index_record r;

    D9D_TRY(d9di_dataset_index_get(ds->index, (uint64_t)number, &r));
    has = r.shard < m->n_shards ? (uint64_t)m->shard_tokens[r.shard] : 0;
    if (!d9d_checked_add_u64(r.offset, r.stored, &end) || end > has || r.stored > D9DI_MAX_LENGTH)
        return D9D_FAIL(D9D_EFORMAT,
                        "%s/index.lmdb: sample %lld: %u tokens at %llu of shard %u, which has %llu",
                        ds->dir, (long long)number, r.stored, (unsigned long long)r.offset, r.shard,
                        (unsigned long long)has);
    D9D_TRY(check_segments(ds, number, &r));
    *out = (d9d_sample){
        .number = number,
        .length = (int64_t)r.stored - (m->labels || ds->no_targets ? 0 : r.n_segments),
        .shard = r.shard,
        .bucket = r.bucket,
        .offset = r.offset,
        .stored = r.stored,
        .n_segments = r.n_segments,
        .segments = r.segments,
    };
    return D9D_OK;
}

d9d_status d9d_dataset_sample(d9d_dataset *ds, int64_t k, d9d_sample *out)
{
    if (k < 0 || k >= ds->split->samples)
        return D9D_FAIL(D9D_ECONFIG, "%s: sample %lld of the split \"%s\", which has %lld", ds->dir,
                        (long long)k, ds->split->name, (long long)ds->split->samples);
    return ds->kind != NULL ? d9di_dataset_synthetic_sample(ds, k, out)
                            : d9di_dataset_sample(ds, ds->split->first + k, out);
}

static d9d_status check_not_truncated(const struct d9di_dataset_map *m)
{
    struct stat s;

    if (stat(m->path, &s) != 0 || s.st_dev != m->device || s.st_ino != m->inode ||
        (uint64_t)s.st_size >= m->bytes)
        return D9D_OK;
    return D9D_FAIL(D9D_EIO, "%s: has %lld bytes, had %zu: it was cut under the program", m->path,
                    (long long)s.st_size, m->bytes);
}

d9d_status d9di_sample_check_not_truncated(const d9d_dataset *ds, const d9d_sample *s)
{
    D9D_TRY(check_not_truncated(&ds->tokens[s->shard]));
    if (ds->manifest.fields.n > 0) {
        D9D_TRY(check_not_truncated(&ds->fields[s->shard]));
        D9D_TRY(check_not_truncated(&ds->documents[s->shard]));
    }
    return ds->manifest.labels ? check_not_truncated(&ds->labels[s->shard]) : D9D_OK;
}

/* --- tokens ----------------------------------------------------------------------------------- */

/* Reads a range of a file that is not mapped. */
static d9d_status read_range(const struct d9di_dataset_map *m, uint64_t at, size_t bytes,
                             void **out)
{
    d9d_file file = {.fd = -1};
    void *p = malloc(bytes + 1);
    struct stat s;
    d9d_status st;

    if (!p)
        return D9D_FAIL(D9D_ENOMEM, "%s: out of memory: %zu bytes requested", m->path, bytes);
    D9D_TRY_OR(st, d9d_file_open(m->path, &file), out);
    if (fstat(file.fd, &s) != 0 || s.st_dev != m->device || s.st_ino != m->inode)
        st = D9D_FAIL(D9D_EIO, "%s: was replaced under the program", m->path);
    else if ((uint64_t)s.st_size != m->bytes)
        st = D9D_FAIL(D9D_EIO, "%s: has %lld bytes, had %zu: it was cut under the program", m->path,
                      (long long)s.st_size, m->bytes);
    else
        st = d9d_file_read_at(&file, p, bytes, at);
out:
    d9d_file_release(&file);
    if (st == D9D_OK)
        *out = p;
    else
        free(p);
    return st;
}

d9d_status d9di_dataset_map_get(const struct d9di_dataset_map *m, uint64_t at, size_t bytes,
                                void **owned, const void **out)
{
    if (m->data) {
        *out = (const char *)m->data + at;
        return D9D_OK;
    }
    D9D_TRY(read_range(m, at, bytes, owned));
    *out = *owned;
    return D9D_OK;
}

d9d_status d9di_dataset_tokens_read(const d9d_dataset *ds, const d9d_sample *s, size_t from,
                                    size_t n, d9di_dataset_tokens *out)
{
    const size_t elem = ds->manifest.wide ? 4 : 2;
    const uint64_t at = s->offset + from;
    const void *labels = NULL;
    d9d_status st;

    *out = (d9di_dataset_tokens){.tokens = NULL};
    st = d9di_dataset_map_get(&ds->tokens[s->shard], at * elem, n * elem, &out->read[0],
                              &out->tokens);
    if (st == D9D_OK && ds->manifest.labels)
        st = d9di_dataset_map_get(&ds->labels[s->shard], at * 4, n * 4, &out->read[1], &labels);
    out->labels = labels;
    if (st != D9D_OK)
        d9di_dataset_tokens_release(out);
    return st;
}

void d9di_dataset_tokens_release(d9di_dataset_tokens *t)
{
    free(t->read[0]);
    free(t->read[1]);
    t->read[0] = t->read[1] = NULL;
}

/* Token i of the sample; -1 if it is outside the vocabulary. */
static int32_t token_at(const d9d_dataset *ds, const d9di_dataset_tokens *t, size_t i)
{
    const uint32_t id =
        ds->manifest.wide ? ((const uint32_t *)t->tokens)[i] : ((const uint16_t *)t->tokens)[i];

    return id < ds->manifest.vocab_size ? (int32_t)id : -1;
}

static d9d_status check_position(const d9d_dataset *ds, const d9d_sample *s, size_t at, int32_t id,
                                 int32_t label)
{
    const bool label_fits = label == -100 || (label >= 0 && label < ds->manifest.vocab_size);

    if (id >= 0 && label_fits)
        return D9D_OK;
    return D9D_FAIL(
        D9D_EFORMAT,
        "%s: sample %lld: the %s at token %llu of shard %u is outside the vocabulary of "
        "%lld",
        ds->dir, (long long)s->number, id < 0 ? "id" : "label",
        (unsigned long long)(s->offset + at), s->shard, (long long)ds->manifest.vocab_size);
}

static d9d_status expand_segments(const d9d_dataset *ds, const d9d_sample *s,
                                  const d9di_dataset_tokens *t, int32_t *ids, int32_t *labels,
                                  int32_t *positions, int32_t *segments)
{
    const bool has_next = !ds->no_targets || ds->next_targets;
    size_t at = 0, to = 0;
    uint32_t seg, i;

    for (seg = 0; seg < s->n_segments; seg++) {
        const uint32_t n = s->segments[seg] - (t->labels || ds->no_targets ? 0 : 1);

        for (i = 0; i < n; i++, to++) {
            ids[to] = token_at(ds, t, at + i);
            labels[to] = t->labels                              ? t->labels[at + i]
                         : i + 1 < s->segments[seg] && has_next ? token_at(ds, t, at + i + 1)
                                                                : -100;
            positions[to] = (int32_t)i;
            if (segments)
                segments[to] = (int32_t)seg + 1;
            D9D_TRY(check_position(ds, s, at + i, ids[to], labels[to]));
        }
        at += s->segments[seg];
    }
    return d9di_sample_check_not_truncated(ds, s);
}

d9d_status d9d_sample_expand(const d9d_dataset *ds, const d9d_sample *s, int32_t *ids,
                             int32_t *labels, int32_t *positions, int32_t *segments)
{
    d9di_dataset_tokens t;
    d9d_status st;

    if (ds->kind != NULL)
        return d9di_dataset_synthetic_expand(ds, s, ids, labels, positions, segments);
    D9D_TRY(d9di_dataset_tokens_read(ds, s, 0, s->stored, &t));
    st = expand_segments(ds, s, &t, ids, labels, positions, segments);
    d9di_dataset_tokens_release(&t);
    return st;
}
