/* loader.h - data loader: batches from datasets, in an order that is a function of numbers alone.
 *
 * Sample k of the stream, k = 0, 1, 2, ..., is a function of (manifests, splits, weights, orders,
 * seeds, k) and, when bucketed, of the pack size.  It does not depend on earlier samples, ranks or
 * threads.  So a loader's state is one integer, the number of samples consumed, and it stays valid
 * for another number of ranks.
 *
 * The blend (d9d/data/loader/blend.h) decides which dataset provides sample k.  The order decides
 * which of its samples that is:
 *
 *     sequential  k mod n
 *     shuffled    a permutation of the split for each epoch
 *     bucketed    the shuffled order, in buffers of some thousand samples; each is sorted
 *                 by length and cut into packs, the packs are shuffled and so are the
 *                 samples of each, so that a batch has samples of about one length
 *
 *         shuffled   | 3 9 2 8 1 7 4 6 | ...       a buffer, by lengths
 *         sorted     | 1 2 3 4 | 6 7 8 9 | ...     two packs of four
 *         bucketed   | 8 6 9 7 | 2 4 1 3 | ...     shuffled by (seed, buffer)
 *
 * Buffers continue across epochs, so packs stay whole up to the end of the stream, where the last
 * one may be short.  Blended datasets are bucketed together, with the first one's seed.
 *
 * A skipped sample keeps its number in the stream; its sequence is empty.  So no other sample
 * moves, and a run may start to skip samples when it resumes.
 *
 *     D9D_TRY(d9d_loader_open(&source, 1, &opts, &loader));
 *     D9D_TRY(d9d_loader_batch(loader, first, n, &batch));    // samples [first, first + n)
 *
 * d9d/data/loader/prefetch.h reads batches ahead on other threads.
 */
#ifndef D9D_DATA_LOADER_LOADER_H
#define D9D_DATA_LOADER_LOADER_H

#include "d9d/data/dataset/dataset.h"
#include "d9d/data/loader/index_set.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum d9d_loader_order {
    D9D_LOADER_SEQUENTIAL,
    D9D_LOADER_SHUFFLED,
    D9D_LOADER_BUCKETED
} d9d_loader_order;

/* One dataset of the stream; pointers are borrowed. */
typedef struct d9d_loader_source {
    d9d_dataset *dataset; /* used by the loader only while it is open */
    d9d_loader_order order;
    uint64_t seed;
    int64_t epochs;            /* 0: as many as the others need */
    double weight;             /* share of the samples; may be 0 if there is only one source */
    const d9d_index_set *skip; /* sample numbers of the split to skip; NULL: none */
} d9d_loader_source;

typedef struct d9d_loader_opts {
    int64_t pack; /* bucketed: consecutive samples of about one length; the global batch size */
    int64_t pad_to_multiple_of; /* pad sequences to a multiple of this; 1: to the longest */
} d9d_loader_opts;

typedef struct d9d_loader d9d_loader;

/* ECONFIG: a split has no samples, the stream would be longer than 2^62, only some sources are
 * bucketed, a source is to skip a sample that it does not have, or a stream is to be blended,
 * shuffled or repeated.  EMISMATCH: the datasets have
 * different tokenizers.  Several threads may use a loader concurrently, except
 * d9d_loader_batch(). */
D9D_API D9D_MUST_USE d9d_status d9d_loader_open(const d9d_loader_source *sources, size_t n,
                                                const d9d_loader_opts *opts, d9d_loader **out);
D9D_API void d9d_loader_close(d9d_loader *l);

/* Length of the stream, in samples: up to the end of the first source with limited epochs; 2^62 if
 * no source is limited. */
D9D_API int64_t d9d_loader_samples(const d9d_loader *l);
/* The source that ends the stream; -1: the stream does not end. */
D9D_API int32_t d9d_loader_last_source(const d9d_loader *l);
/* The stream that it reads (d9d/data/dataset/dataset_kind.h), in its order, sample k as number k;
 * NULL: a dataset with an end. */
D9D_API d9d_dataset *d9d_loader_stream(const d9d_loader *l);
/* samples_hash: hash of what the samples of all datasets are. data_hash: of all manifests, which
 * also tell how the samples were made. order_hash: of everything else that decides the stream,
 * namely seeds, orders, weights and, if bucketed, the pack size and the stream's length.  Epochs
 * may change if the order is not bucketed; skipped samples may always change. */
D9D_API d9d_hash d9d_loader_samples_hash(const d9d_loader *l);
D9D_API d9d_hash d9d_loader_data_hash(const d9d_loader *l);
D9D_API D9D_MUST_USE d9d_status d9d_loader_order_hash(const d9d_loader *l, d9d_hash *out);

/* Changes each sequence once it is read, such as to mask tokens: `row` gets its number in the
 * stream, the dataset that it is from, and n positions.  It runs on any thread, several at a time,
 * and the loader's promise holds as far as what it writes is a function of these arguments. */
typedef struct d9d_loader_collator {
    void (*row)(void *arg, const d9d_dataset *ds, int64_t sample, int64_t n, int32_t *ids,
                int32_t *labels);
    void *arg;
} d9d_loader_collator;
/* Call it before any sample is read. */
D9D_API void d9d_loader_set_collator(d9d_loader *l, const d9d_loader_collator *c);

/* Begins every sequence with n ids [first, first + n) that have no targets (prompt tuning); its
 * positions follow theirs.  Skipped samples stay empty.  Call it before any sample is read.
 * ENOTSUP for packed documents and with fields. */
D9D_API D9D_MUST_USE d9d_status d9d_loader_set_virtual_tokens(d9d_loader *l, int32_t first,
                                                              int64_t n);

/* Asks for named tensors of every sample, which batches then carry; strings are copied.  Call it
 * before any sample is read; the same list again changes nothing.  ECONFIG: a dataset has no such
 * field, or one of another type or shape. */
D9D_API D9D_MUST_USE d9d_status d9d_loader_set_fields(d9d_loader *l,
                                                      const d9d_field_request *requests, size_t n);
/* EMISMATCH: a sample is known to have a value that is not below its request's limit, or a document
 * a label that is none of so many classes (0: any).  Only where a split's values are known to leave
 * these limits are its samples read, once. */
D9D_API D9D_MUST_USE d9d_status d9d_loader_check_values(d9d_loader *l, int64_t classes);

/* Where a sample of the stream comes from. */
typedef struct d9d_sample_ref {
    int32_t source;
    bool skipped;
    int64_t sample; /* number in the split */
} d9d_sample_ref;
/* Sample k of the stream.  EINVAL: k is outside the stream.  EFORMAT: the index is damaged. */
D9D_API D9D_MUST_USE d9d_status d9d_loader_sample_ref(d9d_loader *l, int64_t k,
                                                      d9d_sample_ref *out);

/* Least host memory of a batch of `rows` sequences, in bytes, however short they are. */
D9D_API double d9d_loader_min_bytes(const d9d_loader *l, int64_t rows);

/* Measures padding for samples [first, first + n), cut to whole batches of `rows` samples:
 * *n_padded counts their positions with padding, *positions those without. */
D9D_API D9D_MUST_USE d9d_status d9d_loader_measure_padding(d9d_loader *l, int64_t first, int64_t n,
                                                           int64_t rows, int64_t *n_padded,
                                                           int64_t *positions);

/* Appends the share of padding in batches of `batch` samples with lengths rounded up to a multiple
 * of `multiple`, for each order, and for samples padded to the upper
 * bound of their bucket.  For people or as JSON. */
D9D_API D9D_MUST_USE d9d_status d9d_dataset_print_padding(d9d_dataset *ds, int64_t batch,
                                                          int64_t multiple, bool json,
                                                          d9d_buf *out);

/* A named tensor of a batch's samples.
 *
 *     per token, per target   [seqs, length, shape], padded like the ids
 *     per sample              [documents, shape]: of document i of d9d_batch_next_document()
 *     ragged                  [documents, most rows, shape], padded as its dataset says
 *
 * A skipped sample has the field's padding. */
typedef struct d9d_batch_field {
    const char *name;
    d9d_dtype dtype;  /* F32 or I32 */
    bool is_sequence; /* [seqs, length, ...] */
    bool classes;     /* -100 is an ignored one (d9d_field_request.classes) */
    int rank;
    int64_t shape[D9D_MAX_DIMS];
    const void *data;
    const int32_t *rows; /* ragged: [documents] rows without padding; NULL: not ragged */
} d9d_batch_field;
D9D_API size_t d9d_batch_field_row_bytes(const d9d_batch_field *f, int first_dim);

/* A batch: sequences padded on the right to one length, ids with 0, labels with -100, positions
 * with 0.  Arrays are [seqs, length] int32.  If all sequences are empty, each has one position of
 * padding. */
typedef struct d9d_batch {
    int64_t first; /* number in the stream of sequence 0 */
    int64_t seqs, length;
    const int32_t *ids, *labels, *positions;
    /* Packed documents; the padding of each sequence counts as one more.  Document i begins at
     * position cu_seqlens[i] of the flattened batch; cu_seqlens[documents] = seqs * length.  NULL
     * unless documents are packed. */
    int64_t documents;
    const int32_t *cu_seqlens;
    const int64_t *lengths;        /* [seqs], without padding; 0: skipped */
    const d9d_sample_ref *refs;    /* [seqs] */
    int64_t tokens;                /* without padding */
    int64_t targets;               /* labels other than -100 */
    const d9d_batch_field *fields; /* [n_fields], as d9d_loader_set_fields() lists them */
    size_t n_fields;
} d9d_batch;

/* The field of this name; NULL: nobody asked for it. */
D9D_API const d9d_batch_field *d9d_batch_find_field(const d9d_batch *b, const char *name);
/* Sets the fields of a batch of zeros, for a plan: those of the loader, or without one (NULL) what
 * the requests say.  Their memory is the arena's. */
D9D_API D9D_MUST_USE d9d_status d9d_batch_plan_fields(const d9d_loader *l,
                                                      const d9d_field_request *requests, size_t n,
                                                      d9d_arena *a, d9d_batch *b);

/* Reusable memory that a batch points into. */
typedef struct d9d_batch_buffer d9d_batch_buffer;
D9D_API D9D_MUST_USE d9d_status d9d_batch_buffer_create(d9d_batch_buffer **out);
D9D_API void d9d_batch_buffer_free(d9d_batch_buffer *buf);

/* Reads samples [first, first + rows) of the stream.  EINVAL if some are outside it.  The batch
 * points into `buf` until that is reused; each thread needs its own. */
D9D_API D9D_MUST_USE d9d_status d9d_loader_fill(d9d_loader *l, int64_t first, int64_t rows,
                                                d9d_batch_buffer *buf, d9d_batch *out);
/* A batch of one skipped sample, whatever the stream has: what a rank without samples computes
 * along with others, and what counts for nothing. */
D9D_API D9D_MUST_USE d9d_status d9d_loader_fill_idle(d9d_loader *l, d9d_batch_buffer *buf,
                                                     d9d_batch *out);
/* Samples [first, first + rows), in a buffer that the loader owns. */
D9D_API D9D_MUST_USE d9d_status d9d_loader_batch(d9d_loader *l, int64_t first, int64_t rows,
                                                 d9d_batch *out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_DATA_LOADER_LOADER_H */
