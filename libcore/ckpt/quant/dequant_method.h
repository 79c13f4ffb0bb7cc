/* dequant_method.h - one way of quantising, as a row of functions.  See dequant.c. */
#ifndef D9DI_CKPT_QUANT_DEQUANT_METHOD_H
#define D9DI_CKPT_QUANT_DEQUANT_METHOD_H

#include "d9d/ckpt/quant/dequant.h"

typedef struct d9di_dequant_method d9di_dequant_method;
typedef struct d9di_dequant_codes d9di_dequant_codes; /* dequant_codes.h */

/* The tensors that a decoded one is stored as, by place.  Further ones are the method's. */
enum { D9DI_DEQUANT_VALUES, D9DI_DEQUANT_SCALES, D9DI_DEQUANT_MORE };

/* A decoded tensor and those that it is stored as. */
typedef struct d9di_dequant_item {
    const d9d_tensor_source *src;
    const d9di_dequant_method *method; /* the source's, unless shape() sets another */
    const d9d_quantization *q;
    size_t stored[D9D_DEQUANT_MAX_STORED]; /* indices in the source; D9DI_DEQUANT_NONE */
    int64_t block[2]; /* as d9d_quantization.block, unless shape() sets another */
    void *state;      /* the method's, made by shape() */
    d9d_safetensors_tensor decoded;
} d9di_dequant_item;

#define D9DI_DEQUANT_NONE SIZE_MAX /* this tensor is not there */

struct d9di_dequant_method {
    const char *name; /* of "quant_method" */
    /* Is it this method of those with this name?  NULL: it is. */
    bool (*is_of)(const json_t *o);
    /* One with this name and configuration, of checkpoints with other names of tensors; NULL. */
    const d9di_dequant_method *or_else;
    /* Suffixes of the stored names by place; NULL after the last. */
    const char *suffix[D9D_DEQUANT_MAX_STORED + 1];
    unsigned optional;          /* bit i: place i may be missing */
    const char *decoded;        /* the decoded name's suffix in place of the values' */
    const char *const *hidden;  /* suffixes of tensors that weights do not need; NULL: none */
    const char *const *members; /* of quantization_config; NULL after the last */
    /* Must a tensor of this type and such a name have scales?  NULL: nothing else is called so. */
    bool (*is_values)(d9d_dtype type);
    /* Read what the members say; NULL: they change no weight. */
    d9d_status (*configure)(const json_t *o, const char *where, d9d_quantization *q);
    const d9di_dequant_codes *codes;                       /* of dequant_codes.c */
    void (*bytes)(const d9di_dequant_item *p, float scale, /* of dequant_bytes.c: what each byte */
                  float out[256]);                         /* means in a block of this scale */
    /* Check the stored tensors, and set the decoded shape.  State is of the arena. */
    d9d_status (*shape)(d9di_dequant_item *p, d9d_arena *a);
    /* Decode n elements from element `first` on. */
    d9d_status (*read)(const d9di_dequant_item *p, uint64_t first, uint64_t n, void *dst);
    /* The span [*at, *at + *bytes) of the values that n elements from `first` on are decoded of. */
    void (*span)(const d9di_dequant_item *p, uint64_t first, uint64_t n, uint64_t *at,
                 uint64_t *bytes);
};

extern const d9di_dequant_method d9di_dequant_fp8, d9di_dequant_mxfp4, d9di_dequant_packed,
    d9di_dequant_packed_zeros, d9di_dequant_bytes, d9di_dequant_nvfp4, d9di_dequant_mxfp4_packed,
    d9di_dequant_bnb4, d9di_dequant_bnb8, d9di_dequant_gptq, d9di_dequant_awq,
    d9di_dequant_fbgemm_fp8, d9di_dequant_modelopt_fp8, d9di_dequant_modelopt_nvfp4,
    d9di_dequant_modelopt_mixed;
/* NULL for NONE. */
const d9di_dequant_method *d9di_dequant_method_of(d9d_quantization_method m);

/* The stored tensor of a place, which is there. */
static inline const d9d_safetensors_tensor *d9di_dequant_stored(const d9di_dequant_item *p,
                                                                int place)
{
    return p->src->at(p->src->self, p->stored[place]);
}
static inline bool d9di_dequant_has(const d9di_dequant_item *p, int place)
{
    return p->stored[place] != D9DI_DEQUANT_NONE;
}

/* Read n bytes at byte `at` of a stored tensor. */
d9d_status d9di_dequant_read(const d9di_dequant_item *p, int place, uint64_t at, void *dst,
                             uint64_t n);
/* Read n numbers from number `first` of a stored tensor on, as float32: of a type of
 * d9di_dequant_is_float(), F8_E4M3, or U8, which are scales of two's powers (e8m0). */
d9d_status d9di_dequant_read_floats(const d9di_dequant_item *p, int place, uint64_t first,
                                    uint64_t n, float *out);
/* Is it float32, bfloat16 or float16? */
bool d9di_dequant_is_float(d9d_dtype type);
/* x rounded to one of these types. */
static inline float d9di_dequant_round(float x, d9d_dtype type)
{
    return type == D9D_BF16  ? d9d_bf16_to_f32(d9d_bf16_from_f32(x))
           : type == D9D_F16 ? d9d_f16_to_f32(d9d_f16_from_f32(x))
                             : x;
}

/* The span of numbers of d9d_quantization.bits, up to eight, which are counted through the tensor.
 */
void d9di_dequant_span_of_bits(const d9di_dequant_item *p, uint64_t first, uint64_t n, uint64_t *at,
                               uint64_t *bytes);

/* Columns of a stored matrix: `n` bytes at byte `at` of the first row, and of each of the rows
 * behind it, `stride` bytes apart. */
typedef struct d9di_dequant_columns {
    uint64_t at, n, stride;
    int64_t rows;
} d9di_dequant_columns;
/* Read them, one row behind the other, by one call where what lies between is little.  `dst` has
 * d9di_dequant_columns_bytes(). */
d9d_status d9di_dequant_read_columns(const d9di_dequant_item *p, int place,
                                     const d9di_dequant_columns *c, void *dst);
uint64_t d9di_dequant_columns_bytes(const d9di_dequant_columns *c);

/* EFORMAT: the values and the tensor of this place, and `need`, what the latter must be. */
d9d_status d9di_dequant_fail(const d9di_dequant_item *p, int place, const char *need);
/* ENOMEM */
d9d_status d9di_dequant_no_memory(const d9di_dequant_item *p);
/* Is a member of quantization_config among the values of a JSON array?  Words may be of any case,
 * as in transformers.  A member that is not there is. */
d9d_status d9di_dequant_is_in(const char *where, const char *list, const json_t *v, bool *out);
/* ENOTSUP: a member of quantization_config that has another value than `only`. */
d9d_status d9di_dequant_fail_member(const char *where, const char *name, const json_t *v,
                                    const char *only);

#endif /* D9DI_CKPT_QUANT_DEQUANT_METHOD_H */
