/* dequant_method.h - one way of quantising, as a row of functions.  See dequant.c. */
#ifndef D9DI_CKPT_QUANT_DEQUANT_METHOD_H
#define D9DI_CKPT_QUANT_DEQUANT_METHOD_H

#include "d9d/ckpt/quant/dequant.h"

/* A decoded tensor and the two that it is stored as. */
typedef struct d9di_dequant_pair {
    const d9d_tensor_source *src;
    size_t values, scales; /* indices in the source */
    int64_t block[2];      /* as d9d_quantization.block */
    d9d_safetensors_tensor decoded;
} d9di_dequant_pair;

typedef struct d9di_dequant_method {
    const char *name;            /* of "quant_method" */
    const char *values, *scales; /* suffixes of the stored names */
    const char *const *hidden;   /* suffixes of tensors that weights do not need; NULL: none */
    const char *const *members;  /* of quantization_config; NULL after the last */
    bool (*is_values)(d9d_dtype type); /* must such a tensor have scales? */
    /* Read what the members say; NULL: they change no weight. */
    d9d_status (*configure)(const json_t *o, const char *where, d9d_quantization *q);
    /* Check both stored tensors, and set the decoded shape. */
    d9d_status (*shape)(d9di_dequant_pair *p);
    /* Decode n elements from element `first` on. */
    d9d_status (*read)(const d9di_dequant_pair *p, uint64_t first, uint64_t n, void *dst);
    /* The stored span [*at, *at + *bytes) that n elements from `first` on are decoded of. */
    void (*span)(const d9di_dequant_pair *p, uint64_t first, uint64_t n, uint64_t *at,
                 uint64_t *bytes);
} d9di_dequant_method;

extern const d9di_dequant_method d9di_dequant_fp8, d9di_dequant_mxfp4, d9di_dequant_packed;
/* NULL for NONE. */
const d9di_dequant_method *d9di_dequant_method_of(d9d_quantization_method m);

static inline const d9d_safetensors_tensor *d9di_dequant_values(const d9di_dequant_pair *p)
{
    return p->src->at(p->src->self, p->values);
}

static inline const d9d_safetensors_tensor *d9di_dequant_scales(const d9di_dequant_pair *p)
{
    return p->src->at(p->src->self, p->scales);
}

/* Read n scales, float32 or bfloat16, from scale `first` of the tensor on, as float32. */
d9d_status d9di_dequant_read_scales(const d9di_dequant_pair *p, uint64_t first, uint64_t n,
                                    float *out);

/* EFORMAT: both stored tensors, and `need`, what the scales must be. */
d9d_status d9di_dequant_fail_pair(const d9di_dequant_pair *p, const char *need);

#endif /* D9DI_CKPT_QUANT_DEQUANT_METHOD_H */
