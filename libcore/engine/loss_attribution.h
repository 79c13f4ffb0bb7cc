/* loss_attribution.h - the documents that made a step's loss: which of them stand out.
 *
 * Losses come back behind the step that has made them, as predictions do for metrics
 * (tasks/run_metrics.h), and are summed for each document on the host, in the order of its
 * positions, so that the sums are those of one rank on any mesh.  Of a step's documents those are
 * worst that raise its mean loss most: with sum s over t targets, and the step's mean m, those of
 * the largest s - m t.  Each group of ranks that has samples of its own finds its worst ones; these
 * cross behind the next step, and the worst of all are there with that one's report.
 *
 *     D9D_TRY(d9di_loss_attribution_documents_list(&batch, pooled, paired, &list));    // when a
 * batch is there D9D_TRY(d9di_loss_attribution_enqueue(&d, &list, loss));                 // when
 * its losses are
 *     ...
 *     D9D_TRY(d9di_loss_attribution_update(&d, n, mean));     // one step late: n micro-batches
 *     D9D_TRY(d9di_loss_attribution_sync_begin(&d));
 *     ...
 *     D9D_TRY(d9di_loss_attribution_sync_end(&d));                // two steps late: d.worst
 */
#ifndef D9DI_ENGINE_LOSS_ATTRIBUTION_H
#define D9DI_ENGINE_LOSS_ATTRIBUTION_H

#include "d9d/data/loader/pooling.h"
#include "d9d/device/async_host_reduce.h"
#include "d9d/tensor/tensor.h"
#include "d9d/track/track.h"

/* What the losses of a micro-batch are of. */
typedef struct d9di_loss_attribution_document {
    d9d_track_document_loss info; /* without a loss */
    int64_t first, n;             /* of the losses */
} d9di_loss_attribution_document;
typedef struct d9di_loss_attribution_documents {
    D9D_VEC(d9di_loss_attribution_document) items;
    int64_t losses;                /* as many must come */
} d9di_loss_attribution_documents; /* zero-initialised is empty */

/* Losses on their way. */
typedef struct d9di_loss_attribution_pending {
    d9di_loss_attribution_documents list;
    d9d_readback *loss;
} d9di_loss_attribution_pending;

typedef struct d9di_loss_attribution {
    int64_t max_n;           /* that are wanted; 0: nothing is done */
    bool is_reader;          /* losses are read back here, not by another rank that has them too */
    int64_t group, n_groups; /* this group of ranks, of how many */
    d9d_device *dev;
    d9d_comm *world; /* NULL: alone */
    D9D_VEC(d9di_loss_attribution_pending) watched;
    double mean;                    /* of the step that was judged last */
    double *records;                /* [all, most, ...]: of this group, the others' are 0 */
    d9d_track_document_loss *worst; /* [most] */
    int64_t n_worst;
    bool syncing;
    d9d_async_host_reduce reduce;
} d9di_loss_attribution;

/* `most`, `mine`, `slot`, `all`, `dev` and `world` are set; the rest begins as zeros. */
d9d_status d9di_loss_attribution_open(d9di_loss_attribution *d, d9d_arena *a);
void d9di_loss_attribution_release(d9di_loss_attribution *d); /* before the device */

/* Documents that have targets.  pooled: a loss for each document; or, paired, for each pair, which
 * goes by its first one; else for each position of whole rows. */
d9d_status d9di_loss_attribution_documents_list(const d9d_batch *b, bool pooled, bool paired,
                                                d9di_loss_attribution_documents *out);
void d9di_loss_attribution_documents_release(d9di_loss_attribution_documents *l);

/* Takes the list; loss is float32.  EINVAL where it has not as many as the list has. */
d9d_status d9di_loss_attribution_enqueue(d9di_loss_attribution *d,
                                         d9di_loss_attribution_documents *list,
                                         const d9d_tensor *loss);
/* The n oldest of the watched, which are one step, whose mean loss is this. */
d9d_status d9di_loss_attribution_update(d9di_loss_attribution *d, size_t n, double mean);
/* Collective: over the world. */
d9d_status d9di_loss_attribution_sync_begin(d9di_loss_attribution *d);
/* The worst first; as many as are wanted, or all there are. */
d9d_status d9di_loss_attribution_sync_end(d9di_loss_attribution *d);

#endif /* D9DI_ENGINE_LOSS_ATTRIBUTION_H */
