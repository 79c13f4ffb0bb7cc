/* stepper.h - a model that goes on with rows: each row has its cells of one cache.
 *
 *     D9D_TRY(d9di_stepper_open(&engine, rows, room, &stepper));
 *     piece = {.row = 0, .first = 0, .n = 5, .ids = prompt};
 *     D9D_TRY(d9di_stepper_run(stepper, &piece, 1, &logits));      // of what follows the prompt
 *     piece = {.row = 0, .first = 5, .n = 1, .ids = &token};       // and so on
 *
 * Pieces of one call do not see each other, and on the CPU the logits of a piece are the same, to
 * the bit, with any others beside it and however its row was cut.
 */
#ifndef D9DI_LOOP_STEPPER_H
#define D9DI_LOOP_STEPPER_H

#include "d9d/model/cache.h"
#include "loop/engine.h"

typedef struct d9di_stepper d9di_stepper;

/* Some tokens of a row, behind the `first` that it has. */
typedef struct d9di_piece {
    int64_t row, first, n;
    const uint32_t *ids; /* [n] */
} d9di_piece;

/* What `rows` rows of at most `room` tokens keep. */
uint64_t d9di_stepper_bytes(const d9di_engine *e, int64_t rows, int64_t room);

/* EOOM. */
d9d_status d9di_stepper_open(d9di_engine *e, int64_t rows, int64_t room, d9di_stepper **out);
void d9di_stepper_close(d9di_stepper *d); /* NULL is fine */

/* Rows ascending, each at most once.  logits [n, V] on the host, valid until the next call; the
 * same on all tp ranks and all stages of a pipeline, which have them one after the other.
 * Collective: over the ranks that share the model's parameters, stages or experts; one that has
 * nothing to do calls with n = 0. */
d9d_status d9di_stepper_run(d9di_stepper *d, const d9di_piece *pieces, size_t n,
                            const float **logits);

#endif /* D9DI_LOOP_STEPPER_H */
