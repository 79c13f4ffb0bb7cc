/* loss_attribution.h - loss attribution: the documents that raise a step's loss most.
 *
 * Losses are read back asynchronously after their step, as are predictions for metrics
 * (tasks/run_metrics.h).  The host sums them per document in the order of positions, so the sums
 * are the same on any mesh.  A document with sum s over t targets raises the step's mean loss m by
 * s - m t; the documents with the largest values are the worst.  Each data-parallel group finds its
 * worst ones. They are reduced over ranks after the next step, and arrive with that step's report.
 *
 *     // when a batch is loaded
 *     D9D_TRY(d9di_loss_attribution_documents_list(&batch, pooled, paired, &list));
 *     // when its losses are enqueued
 *     D9D_TRY(d9di_loss_attribution_enqueue(&d, &list, loss));
 *     ...
 *     D9D_TRY(d9di_loss_attribution_update(&d, n, mean));     // one step late: n micro-batches
 *     D9D_TRY(d9di_loss_attribution_sync_begin(&d));
 *     ...
 *     D9D_TRY(d9di_loss_attribution_sync_end(&d));            // two steps late: d.worst
 */
#ifndef D9DI_ENGINE_LOSS_ATTRIBUTION_H
#define D9DI_ENGINE_LOSS_ATTRIBUTION_H

#include "d9d/data/loader/pooling.h"
#include "d9d/device/async_host_reduce.h"
#include "d9d/tensor/tensor.h"
#include "d9d/track/track.h"

/* A document of a micro-batch, and its range of losses. */
typedef struct d9di_loss_attribution_document {
    d9d_track_document_loss info; /* without a loss */
    int64_t first, n;             /* range of its losses */
} d9di_loss_attribution_document;
typedef struct d9di_loss_attribution_documents {
    D9D_VEC(d9di_loss_attribution_document) items;
    int64_t losses;                /* number of losses to expect */
} d9di_loss_attribution_documents; /* zero-initialised: empty */

/* Losses whose readback is pending. */
typedef struct d9di_loss_attribution_pending {
    d9di_loss_attribution_documents list;
    d9d_readback *loss;
} d9di_loss_attribution_pending;

typedef struct d9di_loss_attribution {
    int64_t max_n;  /* documents wanted; 0: off */
    bool is_reader; /* this rank reads the losses back; false: another rank with the same ones does
                     */
    int64_t group, n_groups; /* index and number of data-parallel groups */
    d9d_device *dev;
    d9d_comm *world; /* NULL: a single rank */
    D9D_VEC(d9di_loss_attribution_pending) watched;
    double mean;                    /* of the last updated step */
    double *records;                /* [n_groups, max_n, ...]: this group's; others are 0 */
    d9d_track_document_loss *worst; /* [max_n] */
    int64_t n_worst;
    bool syncing;
    d9d_async_host_reduce reduce;
} d9di_loss_attribution;

/* `max_n`, `is_reader`, `group`, `n_groups`, `dev` and `world` are set by the caller; the rest must
 * be zero. */
d9d_status d9di_loss_attribution_open(d9di_loss_attribution *d, d9d_arena *a);
void d9di_loss_attribution_release(d9di_loss_attribution *d); /* before the device is closed */

/* Lists the documents that have targets.  pooled: one loss per document; with paired one per pair,
 * attributed to its first document.  Otherwise one loss per position of whole rows. */
d9d_status d9di_loss_attribution_documents_list(const d9d_batch *b, bool pooled, bool paired,
                                                d9di_loss_attribution_documents *out);
/* One loss per record of answers, of so many documents, attributed to the first that has targets.
 */
d9d_status d9di_loss_attribution_records_list(const d9d_batch *b, int64_t width,
                                              d9di_loss_attribution_documents *out);
void d9di_loss_attribution_documents_release(d9di_loss_attribution_documents *l);

/* Takes the list, and enqueues the readback of `loss`, float32.  EINVAL unless its size matches the
 * list. */
d9d_status d9di_loss_attribution_enqueue(d9di_loss_attribution *d,
                                         d9di_loss_attribution_documents *list,
                                         const d9d_tensor *loss);
/* Evaluates the n oldest pending micro-batches, which form one step with this mean loss. */
d9d_status d9di_loss_attribution_update(d9di_loss_attribution *d, size_t n, double mean);
/* Collective over the world. */
d9d_status d9di_loss_attribution_sync_begin(d9di_loss_attribution *d);
/* Sets d->worst, the worst first: as many as wanted, or all. */
d9d_status d9di_loss_attribution_sync_end(d9di_loss_attribution *d);

#endif /* D9DI_ENGINE_LOSS_ATTRIBUTION_H */
