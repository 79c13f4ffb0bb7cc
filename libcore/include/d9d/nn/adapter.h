/* adapter.h - adapters of the matrices of a model: a few parameters beside a matrix W, which alone
 * are trained, change what linear ops make of it.
 *
 * Which parameters an adapter has is its kind, a table of names by role (d9d/tape/param.h):
 *
 *     static const d9d_adapter_kind lora = {
 *         .size = sizeof(lora), .name = "lora",
 *         .params = {[D9D_ADAPTER_A] = {"lora_A.weight"}, [D9D_ADAPTER_B] = {"lora_B.weight"}}};
 *
 *     y = x W^T + alpha / r * (x A^T) B^T        A [r, in], B [out, r]
 *     y = x W_e + alpha / r * (x A_e) B_e        of a stack of experts: A [E, in, r], B [E, r, out]
 *     y = W[ids] + alpha / r * B[ids] A          of an embedding: A [r, in], B [ids, r]
 *
 * From the roles follow forward and backward (op/linear/op_adapter.c), sharding
 * (d9d/parallel/parallel_plan.h), merging and files (d9d/model/lora/adapters.h).  A matrix refers
 * to its adapter and the ops that multiply by it apply it, so that blocks and models need no code:
 *
 *     D9D_TRY(d9d_adapter_add(&attention->q_proj.module, &lora, &opts));  // before names are bound
 *     ... placed, materialised, W loaded ...
 *     D9D_TRY(d9d_adapter_start(&attention->q_proj.weight, dev));         // of random adapters
 *
 * declares the parameters next to the module's "weight".  A begins uniformly in +-1/sqrt(in), B
 * with zeros, factors of features with ones and magnitudes with the norms of W's rows: an untrained
 * adapter changes nothing.
 *
 * In training, dropout with probability p zeroes features of the x that A reads and divides the
 * others by 1 - p.  Stacks of experts, embeddings and heads have A and B alone; embeddings have no
 * dropout, as in peft.
 *
 * A kind with a forward of its own (d9d/op/adapter_forward.h) has parameters of its own instead of
 * roles.  It says of what sizes they are and how they begin, and what a row of W becomes when it is
 * merged.  LoHa, W' = W + alpha / r * (A1 B1) * (A2 B2), element by element:
 *
 *     static d9d_status merge(const d9d_adapter_arrays *a, int64_t row, float *w)
 *     {
 *         for (int64_t j = 0; j < a->in; j++)
 *             w[j] += a->scale * product(a, 0, row, j) * product(a, 2, row, j);
 *         return D9D_OK;
 *     }
 *
 *     static const d9d_adapter_files files = {"LOHA", .rank = "r", .alpha = "alpha"};
 *     static const d9d_adapter_kind loha = {
 *         .size = sizeof(loha), .name = "loha",
 *         .params = {{"hada_w1_a", .dim = {D9D_ADAPTER_OUT, D9D_ADAPTER_RANK}, ...},
 *                    {"hada_w1_b", .dim = {D9D_ADAPTER_RANK, D9D_ADAPTER_IN}, ...},
 *                    ...},
 *         .forward = forward, .merge = merge, .files = &files};
 *
 * examples/plugins/loha.c is whole.  From the sizes follow sharding on every mesh, checkpoints and
 * their resharding; from the names, peft's files.  Such a kind is of linear layers alone.
 *
 * Sizes may be those of blocks: {IN_BLOCKS, PAIRS} is a triangle for each block of r inputs, which
 * examples/plugins/oft.c makes rotations of.  Matrices may share an array, of which each has the
 * part that its sizes cut out: examples/plugins/vera.c.
 *
 *     {"vera_A", .dim = {D9D_ADAPTER_RANK, D9D_ADAPTER_IN}, .frozen = true, .shared = true}
 *
 * draw() makes the whole array, which has the most inputs or outputs of all the matrices, and files
 * have it once.  Matrices that need the same part, divided in the same way, share one parameter:
 *
 *     layers.0.q_proj.vera_A [r, 32]   <- layers.0.k_proj, layers.1.q_proj, layers.1.k_proj, ...
 *     layers.0.o_proj.vera_A [r, 32]   <- layers.1.o_proj, ...   tensor parallelism divides the 32
 *     layers.0.down_proj.vera_A [r, 48]   <- layers.1.down_proj, ...
 *
 * d9d_adapter_share() gives the first matrix's to the others.  A rank has it once, whole or the
 * part that tensor parallelism leaves: FSDP does not divide it.  Each stage of a pipeline has an
 * instance with the name that it has in the whole model, and checkpoints have the first stage's.
 *
 * Hu et al., "LoRA", 2021.  Liu et al., "DoRA", 2024.  Liu et al., "(IA)^3", 2022.
 */
#ifndef D9D_NN_ADAPTER_H
#define D9D_NN_ADAPTER_H

#include "d9d/nn/module.h"
#include "d9d/op/adapter_forward.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The size of a dimension of a parameter of W [out, in].  Ranks that divide W divide it too. */
typedef enum d9d_adapter_dim {
    D9D_ADAPTER_NO_DIM,
    D9D_ADAPTER_RANK, /* r, of the options */
    D9D_ADAPTER_IN,
    D9D_ADAPTER_OUT,       /* of dimension 0 alone: a layer may ask for some rows */
    D9D_ADAPTER_IN_BLOCKS, /* in / r: blocks of r inputs, which none divides */
    D9D_ADAPTER_PAIRS,     /* r (r - 1) / 2: the triangle of a block */
    D9D_ADAPTER_DIMS
} d9d_adapter_dim;

typedef struct d9d_adapter_param {
    const char *name; /* in the module: "lora_A.weight"; NULL: it has none of this role */
    bool frozen;      /* it keeps the numbers that it begins with */
    /* Of a kind with a forward: */
    d9d_adapter_dim dim[2]; /* the second may be none */
    d9d_init_kind init;     /* an untrained adapter must change nothing */
    float init_scale;       /* bound, deviation or value; 0 of UNIFORM: 1 / sqrt(last dimension) */
    const char *file;       /* its name in peft's files, behind the module's; NULL: as above */
    bool shared; /* a part of one array of all matrices, which is frozen and that draw() makes;
                    `file` is its whole name.  One dimension is r, or it has one alone.  Another
                    parameter is the matrix's own */
} d9d_adapter_param;

/* A whole adapter in host memory, float32. */
typedef struct d9d_adapter_arrays {
    int64_t in, out, r;
    float scale;                        /* alpha / r */
    const float *v[D9D_ADAPTER_PARAMS]; /* of whole shapes; NULL: it has none */
    uint64_t seed;                      /* of the options */
} d9d_adapter_arrays;

/* What peft's files say of a kind: adapter_config.json, beside the modules, which are known. */
typedef struct d9d_adapter_files {
    const char *peft_type; /* "LOHA" */
    const char *rank;      /* the key of r, to which rank_pattern belongs; NULL: it has none */
    const char *alpha;     /* that of alpha, of one with r; NULL: it is r, and scales nothing */
    const char *fields;    /* other fields as a JSON object, which are written; NULL: none */
    const char *needs;     /* the same, and a directory that has another value is refused */
    bool one_rank;         /* all modules have the same r: there is no rank_pattern */
    /* Of kinds with shared arrays; NULL: there is none.  The keys of the options' seed, and of
     * whether the arrays are in the file: where they are not, draw() makes them. */
    const char *seed, *has_shared;
} d9d_adapter_files;

typedef struct d9d_adapter_kind {
    size_t size;      /* sizeof(d9d_adapter_kind) */
    const char *name; /* "lora", in messages */
    d9d_adapter_param params[D9D_ADAPTER_PARAMS];
    /* Of a kind whose parameters have no roles; NULL: they have. */
    d9d_param_adapter_forward *forward;
    /* Make row `row` of W, [in], that of the layer that the adapter makes. */
    d9d_status (*merge)(const d9d_adapter_arrays *a, int64_t row, float *w);
    /* Set what begins by W (d9d_adapter_start()); NULL: nothing does. */
    d9d_status (*start)(d9d_param *w, d9d_device *dev);
    bool reads_matrix;              /* the forward reads W besides multiplying by it: W is not
                                       quantised */
    const d9d_adapter_files *files; /* NULL: peft has no such method */
    /* Make all numbers of shared parameter i, for sizes `in` and `out` that are the most of all
     * matrices, and no arrays.  The same on every rank. */
    d9d_status (*draw)(const d9d_adapter_arrays *of, int i, float *to);
} d9d_adapter_kind;

typedef struct d9d_adapter_opts {
    int64_t r; /* for A and B */
    double alpha;
    double dropout; /* of the input of A, in training */
    uint64_t seed;  /* for draw() */
} d9d_adapter_opts;

/* A plain LoRA, LoRA with a magnitude (DoRA), factors of a layer's output, and of its input, as
 * (IA)^3 has them for feed-forward layers. */
D9D_API extern const d9d_adapter_kind d9d_adapter_lora, d9d_adapter_dora, d9d_adapter_ia3,
    d9d_adapter_ia3_feedforward;

/* Has it the roles A and B and no other parameters?  Stacks of experts have such adapters alone. */
D9D_API bool d9d_adapter_is_low_rank(const d9d_adapter_kind *kind);

/* The matrix of a module that an adapter can be added to: of a linear layer, of a stack of experts,
 * or the one table of an embedding or a head (`adaptable`).  NULL: none. */
D9D_API d9d_param *d9d_adapter_matrix(const d9d_module *m);
/* Is it a table, which has LoRA alone?  Ids choose rows of B, and y = x W^T is its head. */
D9D_API bool d9d_adapter_is_table(const d9d_module *m);

/* Has a kind what it needs, and nothing without a meaning, and is it of this version's size?
 * ECONFIG says what is wrong. */
D9D_API D9D_MUST_USE d9d_status d9d_adapter_kind_check(const d9d_adapter_kind *kind);

/* Add an adapter to that matrix; the module owns it.  EINVAL for a module without such a matrix,
 * for one that has an adapter, and for a stack with more than A and B.  ENOTSUP for a table with
 * more than these, and for factors of an output that is divided by its input and has a bias.
 * ECONFIG for a kind that lacks what it needs, or has a parameter without a role, and for blocks
 * that do not divide the inputs. */
D9D_API D9D_MUST_USE d9d_status d9d_adapter_add(d9d_module *m, const d9d_adapter_kind *kind,
                                                const d9d_adapter_opts *opts);

/* Set what begins by the matrix, as magnitudes do, the norms of its rows; nothing to do for others.
 * Collective over the ranks that have its parts. */
D9D_API D9D_MUST_USE d9d_status d9d_adapter_start(d9d_param *w, d9d_device *dev);

/* Let matrices of a model that need the same part of a shared array have one parameter, that of the
 * first; the others' leave their modules.  Once, before names are bound. */
D9D_API D9D_MUST_USE d9d_status d9d_adapter_share(d9d_module *root);
/* Give the shared parameters of a stage, `params`, the names that they have in the `whole` model,
 * which owns these; both are bound.  One whose first matrix is of another stage is not primary. */
D9D_API void d9d_adapter_shared_set_names(const d9d_params *whole, const d9d_params *params);
/* Do matrices of `params` that share arrays have one r and one seed?  ECONFIG. */
D9D_API D9D_MUST_USE d9d_status d9d_adapter_shared_check(const d9d_params *params);
/* Draw the arrays that matrices share, of the sizes that all matrices of the model need, `whole`,
 * and set the parts of those in `params`. */
D9D_API D9D_MUST_USE d9d_status d9d_adapter_shared_start(const d9d_params *whole,
                                                         const d9d_params *params, d9d_device *dev);
/* Cut parameter i, of `shape`, out of a shared array whose rows have `columns` numbers, from row
 * and column `first` on. */
D9D_API void d9d_adapter_shared_part(const float *all, int64_t columns, const d9d_shape *shape,
                                     const int64_t *first, float *to);

/* Shape of an adapter's parameter i, for a matrix of this shape; kind NULL: that of the role. */
D9D_API d9d_shape d9d_adapter_shape(const d9d_adapter_kind *kind, int i, const d9d_shape *matrix,
                                    int64_t r);
/* The dimension of its own that is the matrix's dimension `dim`; -1: none.  Of stacks: the
 * experts. */
D9D_API int d9d_adapter_shared_dim(const d9d_adapter_kind *kind, int i, const d9d_shape *matrix,
                                   int dim);
/* Is parameter i of a matrix's adapter a part of a shared array? */
D9D_API bool d9d_adapter_is_shared(const d9d_param *w, int i);
/* The dimension of parameter i of its adapter that tensor parallelism divides with the matrix; -1:
 * none. */
D9D_API int d9d_adapter_divided_dim(const d9d_param *w, int i);
/* The row of a merged magnitude: V = W + scale B A, divided by its norm. */
D9D_API D9D_MUST_USE d9d_status d9d_adapter_merge_magnitude(const d9d_adapter_arrays *a,
                                                            int64_t row, float *w);

#ifdef __cplusplus
}
#endif
#endif /* D9D_NN_ADAPTER_H */
