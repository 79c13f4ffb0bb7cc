/* train_step_result.h - what is known of a step when its report is collected. */
#ifndef D9DI_TRAIN_TRAIN_STEP_RESULT_H
#define D9DI_TRAIN_TRAIN_STEP_RESULT_H

#include <stddef.h>
#include <stdint.h>

/* The report of a step, and the position of the run after it. */
typedef struct d9di_train_step_result {
    double loss, norm; /* NaN: no target in the step */
    double lr, ms, data_ms;
    double mfu;          /* NaN if the device's peak is unknown */
    uint64_t host_bytes; /* of optimizer states and activations in this rank's host memory */
    int64_t targets;
    int64_t step, tokens, samples;
    size_t n_predictions;       /* micro-batches with pending predictions */
    size_t n_losses;            /* micro-batches with pending losses of documents */
    const double *expert_stats; /* of d9di_moe_stats; valid until the next report is collected */
    double flags,
        saved; /* sums over ranks: of d9di_train_control_flags(), of the save's progress */
} d9di_train_step_result;

#endif /* D9DI_TRAIN_TRAIN_STEP_RESULT_H */
