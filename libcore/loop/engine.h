/* engine.h - a model on a device, and one forward or backward of a batch.
 *
 * Shared by the training and the inference loop.  Opening builds the structure and finds what
 * is wrong with it; filling takes the memory, and loads or initialises.
 */
#ifndef D9DI_LOOP_ENGINE_H
#define D9DI_LOOP_ENGINE_H

#include "d9d/base/log.h"
#include "d9d/data/part.h"
#include "d9d/model/weights.h"
#include "d9d/optim/optim.h"
#include "d9d/parallel/sharded.h"
#include "loop/run_data.h"

typedef struct d9di_engine {
    d9d_device *dev;
    d9d_mesh *mesh;  /* these three from filling on */
    d9d_comm *world; /* NULL: alone */
    d9d_sharded *sharded;
    d9d_model_spec spec;
    d9d_model *model;
    d9d_params params;
    d9d_params base, adapters; /* of params: the model's own, and what adapts them */
    d9d_adapters *given;       /* of how->adapter, until they are where they belong */
    d9d_weights *weights;      /* planned, until they are read; NULL without a source */
    d9d_tape *tape;
    d9d_part_room room;
    d9d_arena arena;
} d9di_engine;

typedef struct d9di_engine_how {
    const d9d_job *where;
    const d9d_degrees *mesh;
    const d9d_union *provider;
    const d9d_union *peft; /* what is trained; NULL: everything */
    const char *source;    /* checkpoint directory, or NULL */
    const char *adapter;   /* directory: into the model's adapters, or else merged; or NULL */
    const d9di_data *data; /* must fit the model; NULL: none */
    uint64_t seed;
    bool train;      /* allocate gradients */
    bool initialise; /* false: leave parameters uncleared, a training checkpoint with all follows */
    const d9d_optimizer *optimizer;                /* whose state comes beside; NULL: none */
    const struct d9d_gradients_section *gradients; /* of training */
    double timeout_s;                              /* of collective calls */
    const char *flight;                            /* where they are recorded, or NULL */
} d9di_engine_how;

/* The structure alone, checked against the mesh, the dataset and the headers of the source. */
d9d_status d9di_engine_open(const d9di_engine_how *how, d9di_engine *out);
/* Everything else; may be left out when there is nothing to compute.  Collective: over the job, as
 * everything from here on. */
d9d_status d9di_engine_fill(d9di_engine *e, const d9di_engine_how *how);
void d9di_engine_release(d9di_engine *e);
/* The adapters of the model, which is whole here, or of a training checkpoint of it. */
d9d_status d9di_engine_adapters(const d9di_engine *e, const char *saved, d9d_adapters **out);
/* As peft writes them; a warning where HuggingFace's files have no place for one. */
d9d_status d9di_engine_adapters_write(const d9di_engine *e, const d9d_adapters *ad,
                                      const char *base, const char *dir, const d9d_log *log);
/* Elements of all parameters, and of those that are trained. */
int64_t d9di_engine_count(const d9di_engine *e, bool trainable_only);

/* Forward of a batch: loss [rows, length] float32 on the device, to be released. */
d9d_status d9di_engine_loss(d9di_engine *e, const d9d_batch *b, d9d_tensor *loss);
/* Forward and backward: gradients of the summed loss are accumulated; sum [1] float64 becomes
 * the sum of the batch's losses.  Alone, a batch without targets does nothing and sums to 0.
 * `last`: of the step; own_grad of every parameter is then the sum over the ranks. */
d9d_status d9di_engine_learn(d9di_engine *e, const d9d_batch *b, bool last, const d9d_tensor *sum);

/* "nan", "inf" or "-inf", whatever the sign of a NaN. */
static inline const char *d9di_nonfinite_word(double v)
{
    return v > 0 ? "inf" : v < 0 ? "-inf" : "nan";
}

#endif /* D9DI_LOOP_ENGINE_H */
