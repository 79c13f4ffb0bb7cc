/* sentence_modules.h - how a folder of sentence-transformers makes vectors of texts.
 *
 *     modules.json          [{"path": "", "type": "sentence_transformers.models.Transformer"},
 *                            {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
 *                            {"path": "2_Normalize", "type": "....Normalize"}]
 *     1_Pooling/config.json {"pooling_mode_lasttoken": true, ...}
 *
 * Newer folders have "pooling_mode": "lasttoken".
 */
#ifndef D9D_MODEL_HF_SENTENCE_MODULES_H
#define D9D_MODEL_HF_SENTENCE_MODULES_H

#include "d9d/data/loader/pooling.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct d9d_hf_sentence_modules {
    const char *file;         /* modules.json, in the arena; NULL: the folder has none */
    const char *pooling_file; /* the same of the pooling; NULL: there is none */
    d9d_pooling pooling;      /* D9D_POOLING_NONE without a pooling_file */
    bool normalize;           /* vectors are divided by their length */
} d9d_hf_sentence_modules;

/* Read them from a directory.  ENOTSUP for a module that is not computed, such as Dense, and for a
 * pooling that is not, such as that of maxima; EFORMAT, EIO. */
D9D_API D9D_MUST_USE d9d_status d9d_hf_sentence_modules_read(const char *dir, d9d_arena *a,
                                                             d9d_hf_sentence_modules *out);

#ifdef __cplusplus
}
#endif
#endif /* D9D_MODEL_HF_SENTENCE_MODULES_H */
