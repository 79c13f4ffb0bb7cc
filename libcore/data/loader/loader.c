/* loader.c - makes batches.  S is the padded length of a batch.  See d9d/data/loader/loader.h. */
#include "d9d/data/loader/loader.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/num_format.h"
#include "data/dataset/dataset_private.h"
#include "data/loader/batch_fields.h"
#include "data/loader/sample_order.h"

struct d9d_loader {
    d9di_sample_order order;
    d9d_loader_opts opts;
    bool packed;                  /* some dataset is packed */
    d9d_loader_collator collator; /* row NULL: none */
    int32_t first_virtual;        /* ids [this, + virtual_tokens) begin each sequence */
    int64_t virtual_tokens;
    d9di_loader_fields fields;
    pthread_mutex_t lock;     /* guards the order and the datasets' handles */
    d9d_batch_buffer *buffer; /* for d9d_loader_batch() */
};

/* A sample whose segments are [at, at + n) of the buffer's. */
struct batch_sample {
    d9d_sample sample;
    size_t first_segment;
};

struct d9d_batch_buffer {
    D9D_VEC(struct batch_sample) samples;
    D9D_VEC(d9d_sample_ref) refs;
    D9D_VEC(uint32_t) segments;
    D9D_VEC(int64_t) lengths;
    D9D_VEC(int32_t) ints;
    D9D_VEC(int32_t) cu_seqlens;
    d9di_batch_fields fields;
};

/* --- opening ---------------------------------------------------------------------------- */

static d9d_status check_opts(const char *dir, const d9d_loader_opts *opts, bool bucketed)
{
    const struct {
        const char *name;
        int64_t v;
        bool matters;
    } limits[] = {{"pack", opts->pack, bucketed}, {"multiple", opts->pad_to_multiple_of, true}};
    size_t i;

    for (i = 0; i < sizeof(limits) / sizeof(limits[0]); i++)
        if (limits[i].matters && (limits[i].v < 1 || limits[i].v > INT64_C(1) << 30))
            return D9D_FAIL(D9D_ECONFIG, "%s: %s is %lld; it must be from 1 to %lld", dir,
                            limits[i].name, (long long)limits[i].v, (long long)(INT64_C(1) << 30));
    return D9D_OK;
}

static d9d_status check_source(const d9d_loader_source *s, const d9d_loader_source *first)
{
    const char *dir = d9d_dataset_dir(s->dataset);
    const d9di_dataset_manifest *a = &first->dataset->manifest, *b = &s->dataset->manifest;
    const int64_t n = d9d_dataset_count(s->dataset);

    if (n == 0)
        return D9D_FAIL(D9D_ECONFIG, "%s: the split has no samples", dir);
    if (s->epochs < 0)
        return D9D_FAIL(D9D_ECONFIG, "%s: %lld epoch%s", dir, (long long)s->epochs,
                        D9D_PLURAL(s->epochs));
    if (s->skip != NULL && d9d_index_set_max(s->skip) >= n)
        return D9D_FAIL(D9D_ECONFIG, "%s: sample %lld is to be skipped, the split has %lld", dir,
                        (long long)d9d_index_set_max(s->skip), (long long)n);
    if (s->skip != NULL && d9d_index_set_count(s->skip) == n)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: all %lld sample%s of the split are to be skipped, and nothing is left",
                        dir, (long long)n, D9D_PLURAL(n));
    if ((s->order == D9D_LOADER_BUCKETED) != (first->order == D9D_LOADER_BUCKETED))
        return D9D_FAIL(D9D_ECONFIG,
                        "%s and %s: of datasets that are blended all are bucketed "
                        "or none",
                        d9d_dataset_dir(first->dataset), dir);
    if (a->has_tokenizer && b->has_tokenizer &&
        !d9d_hash_equal(a->tokenizer_hash, b->tokenizer_hash))
        return D9D_FAIL(D9D_EMISMATCH,
                        "%s and %s were made with different tokenizers, and cannot "
                        "be blended",
                        d9d_dataset_dir(first->dataset), dir);
    return D9D_OK;
}

/* The order of a stream is its own, and it goes by once. */
static d9d_status check_stream(const d9d_loader_source *s, size_t n)
{
    const char *dir = d9d_dataset_dir(s->dataset);

    if (!d9d_dataset_is_stream(s->dataset))
        return D9D_OK;
    if (n > 1)
        return D9D_FAIL(D9D_ECONFIG, "%s: is a stream, which cannot be blended with other data",
                        dir);
    if (s->order != D9D_LOADER_SEQUENTIAL)
        return D9D_FAIL(D9D_ECONFIG,
                        "%s: is a stream, whose samples come in their order; set "
                        "data.order sequential",
                        dir);
    if (s->epochs > 1)
        return D9D_FAIL(D9D_ECONFIG, "%s: is a stream, which cannot be read %lld times", dir,
                        (long long)s->epochs);
    return D9D_OK;
}

d9d_status d9d_loader_open(const d9d_loader_source *sources, size_t n, const d9d_loader_opts *opts,
                           d9d_loader **out)
{
    d9d_loader *l;
    d9d_status st;

    if (n < 1)
        return D9D_FAIL(D9D_EINVAL, "a loader needs a dataset");
    for (size_t i = 0; i < n; i++)
        D9D_TRY(check_source(&sources[i], &sources[0]));
    for (size_t i = 0; i < n; i++)
        D9D_TRY(check_stream(&sources[i], n));
    D9D_TRY(check_opts(d9d_dataset_dir(sources[0].dataset), opts,
                       sources[0].order == D9D_LOADER_BUCKETED));
    l = calloc(1, sizeof(*l));
    if (!l)
        return D9D_FAIL(D9D_ENOMEM, "%s: no memory", d9d_dataset_dir(sources[0].dataset));
    (void)pthread_mutex_init(&l->lock, NULL);
    l->opts = *opts;
    for (size_t i = 0; i < n; i++)
        l->packed = l->packed || d9d_dataset_is_packed(sources[i].dataset);
    st = d9di_sample_order_init(&l->order, sources, n, opts->pack);
    if (st == D9D_OK)
        st = d9d_batch_buffer_create(&l->buffer);
    if (st != D9D_OK) {
        d9d_loader_close(l);
        return d9d_err_pass(st, __FILE__, __LINE__);
    }
    *out = l;
    return D9D_OK;
}

void d9d_loader_close(d9d_loader *l)
{
    if (!l)
        return;
    d9di_sample_order_release(&l->order);
    d9di_loader_fields_release(&l->fields);
    d9d_batch_buffer_free(l->buffer);
    (void)pthread_mutex_destroy(&l->lock);
    free(l);
}

void d9d_loader_set_collator(d9d_loader *l, const d9d_loader_collator *c)
{
    l->collator = *c;
}

/* Virtual tokens begin a sequence: of packed documents only one would stand behind them. */
static d9d_status check_unpacked(const d9d_dataset *ds)
{
    if (!d9d_dataset_is_packed(ds))
        return D9D_OK;
    return D9D_FAIL(D9D_ENOTSUP,
                    "%s: has packed documents, and virtual tokens begin a sequence of one; make "
                    "%s without --pack",
                    d9d_dataset_dir(ds), d9d_dataset_is_stream(ds) ? "a dataset of it" : "it");
}

d9d_status d9d_loader_set_virtual_tokens(d9d_loader *l, int32_t first, int64_t n)
{
    for (size_t i = 0; i < l->order.n; i++)
        D9D_TRY(check_unpacked(l->order.sources[i].dataset));
    if (l->fields.n > 0)
        return D9D_FAIL(D9D_ENOTSUP,
                        "%s: has fields that are read, which virtual tokens would not have",
                        d9d_dataset_dir(l->order.sources[0].dataset));
    l->first_virtual = first;
    l->virtual_tokens = n;
    return D9D_OK;
}

d9d_status d9d_loader_set_fields(d9d_loader *l, const d9d_field_request *requests, size_t n)
{
    d9d_status st;

    (void)pthread_mutex_lock(&l->lock);
    st = d9di_loader_fields_set(&l->fields, l->order.sources, l->order.n, requests, n);
    (void)pthread_mutex_unlock(&l->lock);
    return st;
}

d9d_status d9d_loader_check_values(d9d_loader *l, int64_t classes)
{
    d9d_status st;

    (void)pthread_mutex_lock(&l->lock);
    st = d9di_loader_fields_check_values(&l->fields, l->order.sources, l->order.n, classes);
    (void)pthread_mutex_unlock(&l->lock);
    return st;
}

d9d_status d9d_batch_plan_fields(const d9d_loader *l, const d9d_field_request *requests, size_t n,
                                 d9d_arena *a, d9d_batch *b)
{
    return d9di_batch_fields_plan(l != NULL ? &l->fields : NULL, requests, n, a, b);
}

/* --- properties ---------------------------------------------------------------------------- */

int64_t d9d_loader_samples(const d9d_loader *l)
{
    return l->order.total;
}

d9d_dataset *d9d_loader_stream(const d9d_loader *l)
{
    d9d_dataset *ds = l->order.sources[0].dataset;

    return d9d_dataset_is_stream(ds) ? ds : NULL;
}

int32_t d9d_loader_last_source(const d9d_loader *l)
{
    return l->order.last_source;
}

size_t d9d_loader_sampler_sources(const d9d_loader *l, d9d_sampler_source *out)
{
    const d9di_sample_order *o = &l->order;

    for (size_t i = 0; i < o->n && !o->bucketed; i++)
        out[i] = d9di_sample_order_source(&o->sources[i]);
    return o->bucketed ? 0 : o->n;
}

bool d9d_loader_has_skips(const d9d_loader *l)
{
    for (size_t i = 0; i < l->order.n; i++)
        if (l->order.sources[i].skip != NULL)
            return true;
    return false;
}

static d9d_hash join_hashes(const d9d_loader *l, d9d_hash (*of)(const d9d_dataset *ds))
{
    d9d_hash all[D9D_BLEND_SOURCES];
    const size_t n = l->order.n;

    for (size_t i = 0; i < n; i++)
        all[i] = of(l->order.sources[i].dataset);
    return n == 1 ? all[0] : d9d_hash_bytes(all, n * sizeof(all[0]));
}

d9d_hash d9d_loader_samples_hash(const d9d_loader *l)
{
    return join_hashes(l, d9d_dataset_samples_hash);
}

d9d_hash d9d_loader_data_hash(const d9d_loader *l)
{
    return join_hashes(l, d9d_dataset_hash);
}

d9d_status d9d_loader_order_hash(const d9d_loader *l, d9d_hash *out)
{
    const d9di_sample_order *o = &l->order;
    d9d_buf text = {0};
    d9d_status st;

    for (size_t i = 0; i < o->n; i++) {
        const d9d_loader_source *s = &o->sources[i];

        D9D_TRY_OR(st,
                   d9d_buf_printf(&text, "split=%s order=%d seed=%lld pack=%lld until=%lld",
                                  s->dataset->split->name, (int)s->order, (long long)s->seed,
                                  o->bucketed ? (long long)o->pack : 0LL,
                                  o->bucketed ? (long long)o->total : 0LL),
                   out);
        if (o->n > 1)
            D9D_TRY_OR(st, d9d_buf_printf(&text, " weight=%.17g\n", s->weight), out);
    }
    *out = d9d_hash_bytes(text.data, text.len);
    st = D9D_OK;
out:
    d9d_buf_release(&text);
    return st;
}

static d9d_status check_range(const d9d_loader *l, int64_t first, int64_t n)
{
    if (first >= 0 && n >= 1 && first <= l->order.total && n <= l->order.total - first)
        return D9D_OK;
    return D9D_FAIL(D9D_EINVAL, "%s: %lld sample%s from %lld on; the stream has %lld",
                    d9d_dataset_dir(l->order.sources[0].dataset), (long long)n, D9D_PLURAL(n),
                    (long long)first, (long long)l->order.total);
}

d9d_status d9d_loader_sample_ref(d9d_loader *l, int64_t k, d9d_sample_ref *out)
{
    d9d_status st;

    D9D_TRY(check_range(l, k, 1));
    (void)pthread_mutex_lock(&l->lock);
    st = d9di_sample_order_at(&l->order, k, out);
    (void)pthread_mutex_unlock(&l->lock);
    return st;
}

/* Looks up sample k and its record; the caller holds the lock. */
static d9d_status look_up_sample(d9d_loader *l, int64_t k, d9d_sample_ref *draw, d9d_sample *out)
{
    D9D_TRY(d9di_sample_order_at(&l->order, k, draw));
    if (!draw->skipped)
        return d9d_dataset_sample(l->order.sources[draw->source].dataset, draw->sample, out);
    *out = (d9d_sample){0};
    return D9D_OK;
}

/* Positions of a sample, with virtual tokens. */
static int64_t seq_length(const d9d_loader *l, const d9d_sample *s)
{
    return s->length > 0 ? l->virtual_tokens + s->length : 0;
}

/* S of a batch whose longest sequence has `longest` positions. */
static int64_t padded_length(const d9d_loader *l, int64_t longest)
{
    const int64_t multiple = l->opts.pad_to_multiple_of, n = longest > 1 ? longest : 1;

    return (n + multiple - 1) / multiple * multiple;
}

d9d_status d9d_loader_measure_padding(d9d_loader *l, int64_t first, int64_t n, int64_t rows,
                                      int64_t *n_padded, int64_t *positions)
{
    d9d_status st = D9D_OK;
    int64_t longest = 0;

    D9D_TRY(check_range(l, first, n));
    *n_padded = *positions = 0;
    (void)pthread_mutex_lock(&l->lock);
    for (int64_t i = 0; i < n / rows * rows && st == D9D_OK; i++) {
        d9d_sample s;
        d9d_sample_ref draw;

        st = look_up_sample(l, first + i, &draw, &s);
        if (st != D9D_OK)
            break;
        longest = i % rows == 0 || seq_length(l, &s) > longest ? seq_length(l, &s) : longest;
        *positions += seq_length(l, &s);
        *n_padded += (i + 1) % rows == 0 ? padded_length(l, longest) * rows : 0;
    }
    (void)pthread_mutex_unlock(&l->lock);
    return st;
}

/* --- batches ---------------------------------------------------------------------------- */

/* The arrays of a batch, in consecutive memory. */
enum batch_array { IDS, LABELS, POSITIONS, SEGMENTS, BATCH_ARRAYS };

static const int32_t padding[BATCH_ARRAYS] = {
    [IDS] = 0, [LABELS] = -100, [POSITIONS] = 0, [SEGMENTS] = 0};

d9d_status d9d_batch_buffer_create(d9d_batch_buffer **out)
{
    *out = calloc(1, sizeof(**out));
    return *out != NULL ? D9D_OK : D9D_FAIL(D9D_ENOMEM, "no memory for a batch");
}

void d9d_batch_buffer_free(d9d_batch_buffer *r)
{
    if (r == NULL)
        return;
    D9D_VEC_RELEASE(&r->samples);
    D9D_VEC_RELEASE(&r->refs);
    D9D_VEC_RELEASE(&r->segments);
    D9D_VEC_RELEASE(&r->lengths);
    D9D_VEC_RELEASE(&r->ints);
    D9D_VEC_RELEASE(&r->cu_seqlens);
    d9di_batch_fields_release(&r->fields);
    free(r);
}

double d9d_loader_min_bytes(const d9d_loader *l, int64_t rows)
{
    const double n_padded = (double)padded_length(l, 1) * (l->packed ? BATCH_ARRAYS : SEGMENTS);

    return (double)rows * (n_padded * sizeof(int32_t) + sizeof(struct batch_sample) +
                           sizeof(d9d_sample_ref) + sizeof(int64_t) + sizeof(uint32_t));
}

static void seqs_clear(d9d_batch_buffer *buffer)
{
    buffer->samples.len = buffer->refs.len = buffer->segments.len = buffer->lengths.len = 0;
}

/* The next sequence of the batch. */
static d9d_status seq_add(const d9d_loader *l, d9d_batch_buffer *buffer, const d9d_sample_ref *draw,
                          const d9d_sample *sample)
{
    const struct batch_sample d = {.sample = *sample, .first_segment = buffer->segments.len};

    D9D_TRY(D9D_VEC_RESERVE(&buffer->segments, sample->n_segments));
    if (sample->n_segments > 0)
        memcpy(buffer->segments.data + d.first_segment, sample->segments,
               sample->n_segments * sizeof(*sample->segments));
    buffer->segments.len += sample->n_segments;
    D9D_TRY(D9D_VEC_PUSH(&buffer->samples, d));
    D9D_TRY(D9D_VEC_PUSH(&buffer->refs, *draw));
    return D9D_VEC_PUSH(&buffer->lengths, seq_length(l, sample));
}

/* Looks up the samples; only this needs the lock. */
static d9d_status look_up_seqs(d9d_loader *l, int64_t first, int64_t rows, d9d_batch_buffer *buffer)
{
    seqs_clear(buffer);
    for (int64_t r = 0; r < rows; r++) {
        d9d_sample_ref draw;
        d9d_sample sample;

        D9D_TRY(look_up_sample(l, first + r, &draw, &sample));
        D9D_TRY(seq_add(l, buffer, &draw, &sample));
    }
    return D9D_OK;
}

static int64_t longest_seq(const d9d_batch_buffer *buffer)
{
    int64_t longest = 0;

    for (size_t r = 0; r < buffer->lengths.len; r++)
        longest = buffer->lengths.data[r] > longest ? buffer->lengths.data[r] : longest;
    return longest;
}

/* Put the virtual tokens before a sequence of n tokens, whose rows begin there. */
static void fill_virtual(const d9d_loader *l, int32_t *row[BATCH_ARRAYS], int64_t n)
{
    const int64_t before = l->virtual_tokens;

    for (int64_t i = 0; i < before; i++) {
        row[IDS][i] = l->first_virtual + (int32_t)i;
        row[LABELS][i] = padding[LABELS];
        row[POSITIONS][i] = (int32_t)i;
        row[SEGMENTS][i] = padding[SEGMENTS];
    }
    for (int64_t i = before; i < before + n; i++)
        row[POSITIONS][i] += (int32_t)before;
}

/* Sequence r of the batch is `sample` of the stream. */
static d9d_status fill_seq(const d9d_loader *l, d9d_batch_buffer *buffer, int64_t r, int64_t sample,
                           int32_t *row[BATCH_ARRAYS], int64_t length)
{
    struct batch_sample *d = &buffer->samples.data[r];
    const d9d_sample_ref *draw = &buffer->refs.data[r];
    const int64_t before = d->sample.length > 0 ? l->virtual_tokens : 0;

    d->sample.segments = buffer->segments.data + d->first_segment;
    if (!draw->skipped)
        D9D_TRY(d9d_sample_expand(l->order.sources[draw->source].dataset, &d->sample,
                                  row[IDS] + before, row[LABELS] + before, row[POSITIONS] + before,
                                  row[SEGMENTS] + before));
    if (!draw->skipped && l->collator.row != NULL)
        l->collator.row(l->collator.arg, l->order.sources[draw->source].dataset, sample,
                        d->sample.length, row[IDS] + before, row[LABELS] + before);
    if (before > 0)
        fill_virtual(l, row, d->sample.length);
    for (int p = 0; p < BATCH_ARRAYS; p++)
        for (int64_t i = before + d->sample.length; i < length; i++)
            row[p][i] = padding[p];
    return D9D_OK;
}

/* Finds where segment numbers change and sequences begin. */
static d9d_status find_documents(d9d_batch_buffer *buffer, const int32_t *segments, d9d_batch *b)
{
    buffer->cu_seqlens.len = 0;
    for (int64_t i = 0; i < b->seqs * b->length; i++)
        if (i % b->length == 0 || segments[i] != segments[i - 1])
            D9D_TRY(D9D_VEC_PUSH(&buffer->cu_seqlens, (int32_t)i));
    b->documents = (int64_t)buffer->cu_seqlens.len;
    D9D_TRY(D9D_VEC_PUSH(&buffer->cu_seqlens, (int32_t)(b->seqs * b->length)));
    b->cu_seqlens = buffer->cu_seqlens.data;
    return D9D_OK;
}

static d9d_status fill_arrays(const d9d_loader *l, d9d_batch_buffer *buffer, d9d_batch *b)
{
    const size_t n_padded = (size_t)(b->seqs * b->length);

    for (int64_t r = 0; r < b->seqs; r++) {
        int32_t *row[BATCH_ARRAYS];

        for (int p = 0; p < BATCH_ARRAYS; p++)
            row[p] = buffer->ints.data + (size_t)p * n_padded + r * b->length;
        D9D_TRY(fill_seq(l, buffer, r, b->first + r, row, b->length));
        b->tokens += buffer->lengths.data[r];
        for (int64_t i = 0; i < b->length; i++)
            b->targets += row[LABELS][i] != -100;
    }
    b->ids = buffer->ints.data + IDS * n_padded;
    b->labels = buffer->ints.data + LABELS * n_padded;
    b->positions = buffer->ints.data + POSITIONS * n_padded;
    return l->packed ? find_documents(buffer, buffer->ints.data + SEGMENTS * n_padded, b) : D9D_OK;
}

static d9d_status fill_fields(const d9d_loader *l, d9d_batch_buffer *buffer, d9d_batch *b)
{
    d9d_status st = D9D_OK;

    for (int64_t r = 0; r < b->seqs && st == D9D_OK; r++) {
        const d9d_sample_ref *from = &b->refs[r];

        st = d9di_batch_fields_add(&buffer->fields,
                                   from->skipped ? NULL : l->order.sources[from->source].dataset,
                                   from->source, &buffer->samples.data[r].sample);
    }
    if (st == D9D_OK)
        st = d9di_batch_fields_fill(&l->fields, b, &buffer->fields);
    if (st == D9D_OK)
        b->targets -= d9di_batch_fields_drop_labels(
            &l->fields, b, &buffer->fields, buffer->ints.data + LABELS * b->seqs * b->length);
    d9di_batch_fields_clear(&buffer->fields);
    return st;
}

/* The batch of the sequences that were looked up. */
static d9d_status batch_make(d9d_loader *l, int64_t first, d9d_batch_buffer *buffer, d9d_batch *out)
{
    d9d_batch b = {.first = first, .seqs = (int64_t)buffer->lengths.len};
    uint64_t n_padded;

    b.length = padded_length(l, longest_seq(buffer));
    if (!d9d_checked_mul_u64((uint64_t)b.seqs, (uint64_t)b.length, &n_padded) ||
        n_padded > INT32_MAX)
        return D9D_FAIL(D9D_ENOMEM, "%s: a batch of %lld samples of %lld positions",
                        d9d_dataset_dir(l->order.sources[0].dataset), (long long)b.seqs,
                        (long long)b.length);
    buffer->ints.len = 0;
    D9D_TRY(D9D_VEC_RESERVE(&buffer->ints, (size_t)n_padded * BATCH_ARRAYS));
    b.lengths = buffer->lengths.data;
    b.refs = buffer->refs.data;
    D9D_TRY(fill_arrays(l, buffer, &b));
    if (l->fields.n > 0)
        D9D_TRY(fill_fields(l, buffer, &b));
    *out = b;
    return D9D_OK;
}

d9d_status d9d_loader_fill(d9d_loader *l, int64_t first, int64_t rows, d9d_batch_buffer *buffer,
                           d9d_batch *out)
{
    d9d_status st;

    D9D_TRY(check_range(l, first, rows));
    if (d9d_loader_stream(l) != NULL)
        D9D_TRY(d9d_dataset_wait(d9d_loader_stream(l), first + rows - 1));
    (void)pthread_mutex_lock(&l->lock);
    st = look_up_seqs(l, first, rows, buffer);
    (void)pthread_mutex_unlock(&l->lock);
    D9D_TRY(st);
    return batch_make(l, first, buffer, out);
}

d9d_status d9d_loader_fill_idle(d9d_loader *l, d9d_batch_buffer *buffer, d9d_batch *out)
{
    seqs_clear(buffer);
    D9D_TRY(seq_add(l, buffer, &(d9d_sample_ref){.skipped = true}, &(d9d_sample){0}));
    return batch_make(l, 0, buffer, out);
}

d9d_status d9d_loader_batch(d9d_loader *l, int64_t first, int64_t rows, d9d_batch *out)
{
    return d9d_loader_fill(l, first, rows, l->buffer, out);
}
