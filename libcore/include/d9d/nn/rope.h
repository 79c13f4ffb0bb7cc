/* rope.h - frequencies of rotary position embedding (RoPE), and their scaling for longer sequences.
 *
 * Feature pair i of d rotated features is rotated by position * f_i; unscaled, f_i = base^(-2i /
 * d). A model for sequences longer than the `original` positions that it was trained on uses lower
 * frequencies:
 *
 *     linear    f_i / factor
 *     ntk       base * factor^(d / (d - 2)) in place of base
 *     yarn      f_i where pair i turns more than `fast` times over `original` positions,
 *               f_i / factor where it turns less than `slow` times, between them in proportion
 *               to i; cosines and sines times 0.1 ln(factor) + 1  (Peng et al., arXiv:2309.00071)
 *     llama3    the same with bounds of the wave's length, original / fast and original / slow,
 *               and between them in proportion to original / length; cosines and sines unscaled
 *
 *     longrope  f_i / short_i, or f_i / long_i where sequences may be longer than `original`;
 *               cosines and sines times sqrt(1 + ln(factor) / ln(original))  (Ding et al.,
 *               arXiv:2402.13753)
 *
 * Frequencies are computed in float32 in the order of transformers, and are its bits.  They are
 * part of a trained model: one that is 1e-7 off, relatively, turns 0.01 further at position
 * 100,000. `whole` rounds the bounds of yarn outwards to whole pairs.
 */
#ifndef D9D_NN_ROPE_H
#define D9D_NN_ROPE_H

#include <stdbool.h>
#include <stdint.h>

#include "d9d/base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum d9d_rope_kind {
    D9D_ROPE_PLAIN,
    D9D_ROPE_LINEAR,
    D9D_ROPE_NTK,
    D9D_ROPE_YARN,
    D9D_ROPE_LLAMA3,
    D9D_ROPE_LONGROPE,
    D9D_ROPE_KIND_COUNT
} d9d_rope_kind;

enum { D9D_ROPE_MAX_PAIRS = 128 }; /* of longrope */

/* Zeroed it is plain.  Members that a kind does not use are ignored. */
typedef struct d9d_rope_scaling {
    d9d_rope_kind kind;
    double factor;     /* at least 1 */
    double original;   /* positions; above 0 */
    double fast, slow; /* fast above slow, or of yarn equal; both above 0 */
    bool whole;
    double mscale;     /* multiplies cosines and sines; 0: the kind's default */
    double mscale_all; /* yarn of MLA: scales the scores of all features too; 0: not */
    bool is_long;      /* longrope: sequences may be longer than `original` */
    int64_t pairs;     /* of longrope's factors, each above 0 */
    float short_factor[D9D_ROPE_MAX_PAIRS], long_factor[D9D_ROPE_MAX_PAIRS];
} d9d_rope_scaling;

/* "plain", "linear", "ntk", "yarn", "llama3", "longrope". */
D9D_API const char *d9d_rope_kind_name(d9d_rope_kind kind);
/* ECONFIG names the member that is out of range, as config.json does: of the object `field` in the
 * file `where`. */
D9D_API D9D_MUST_USE d9d_status d9d_rope_check(const char *where, const char *field,
                                               const d9d_rope_scaling *s);

/* The base of the frequencies, changed by ntk.  Not finite where ntk has none, such as for two
 * features. */
D9D_API double d9d_rope_base(const d9d_rope_scaling *s, double base, int64_t features);
/* f [features / 2]. */
D9D_API void d9d_rope_frequencies(const d9d_rope_scaling *s, double base, int64_t features,
                                  float *f);
/* The factor of cosines and sines. */
D9D_API float d9d_rope_mscale(const d9d_rope_scaling *s);

#ifdef __cplusplus
}
#endif
#endif /* D9D_NN_ROPE_H */
