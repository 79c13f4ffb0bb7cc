/* train_stream.h - a run over a stream, whose samples may come late or not at all
 * (d9d/data/dataset/dataset_kind.h).
 *
 *     D9D_TRY(d9di_train_stream_await(&stream, &run, &control, first, &next));
 *
 * Before each step all ranks wait until its samples are there.  All come to the same answer: they
 * read the same stream, each by itself, or exchange surveys of it, some steps ahead of the threads
 * that read batches.  A run ends with the last step that the stream fills.
 *
 * Checkpoints have the place where the stream goes on, as rank state.
 */
#ifndef D9DI_TRAIN_TRAIN_STREAM_H
#define D9DI_TRAIN_TRAIN_STREAM_H

#include "train/train_control.h"
#include "train/train_run.h"

enum {
    D9DI_TRAIN_STREAM_SAMPLE,
    D9DI_TRAIN_STREAM_BYTES, /* -1: it cannot be read again */
    D9DI_TRAIN_STREAM_ENDED, /* no step follows */
    D9DI_TRAIN_STREAM_PLACE,
    D9DI_TRAIN_STREAM_WORDS = D9DI_TRAIN_STREAM_PLACE + D9D_DATASET_STATE_MAX / sizeof(int64_t)
};

typedef struct d9di_train_stream {
    d9d_dataset *dataset;                   /* NULL: the data have an end */
    bool shares;                            /* ranks exchange surveys */
    int64_t state[D9DI_TRAIN_STREAM_WORDS]; /* what checkpoints have */
} d9di_train_stream;

void d9di_train_stream_open(d9di_train_stream *s, const d9di_train_run *run);
d9d_status d9di_train_stream_rank_state(d9di_train_stream *s, d9d_arena *a,
                                        d9d_checkpointer_set *set);
/* Before a save: the next step begins at `sample`. */
d9d_status d9di_train_stream_store(d9di_train_stream *s, const d9di_train_run *run, int64_t sample);
/* True if the checkpoint at `path`, of `sample` samples, is that of the stream's last step, as far
 * as was known when it was saved.  Before anything else is read. */
d9d_status d9di_train_stream_peek(d9di_train_stream *s, const d9di_train_run *run, const char *path,
                                  int64_t sample, bool *ended);
/* After a checkpoint was read: goes on at `sample`.  Collective over the job. */
d9d_status d9di_train_stream_resume(d9di_train_stream *s, const d9di_train_run *run,
                                    int64_t sample);

typedef enum d9di_train_stream_next {
    D9DI_TRAIN_STREAM_STEP,
    D9DI_TRAIN_STREAM_END,
    D9DI_TRAIN_STREAM_EXIT /* a single rank is to exit, or to sleep */
} d9di_train_stream_next;
/* Waits for the samples of the step that begins at `first`, and forgets those before it. */
d9d_status d9di_train_stream_await(d9di_train_stream *s, const d9di_train_run *run,
                                   d9di_train_control *control, int64_t first,
                                   d9di_train_stream_next *out);

#endif /* D9DI_TRAIN_TRAIN_STREAM_H */
