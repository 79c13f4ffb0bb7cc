/* dequant_bitsandbytes.c - what bitsandbytes writes with load_in_4bit (NF4 and FP4, with double
 * quantisation or without) and load_in_8bit (LLM.int8()).  See d9d/ckpt/quant/dequant.h.
 *
 *     X [R C / 2, 1], any type        two codes a byte, the first in its upper half
 *     X.quant_map F32 [16]            what a code means
 *     X.absmax F32 [blocks]           scales of `blocksize` numbers, which are counted through X
 *     X.quant_state.bitsandbytes__nf4 JSON: shape, dtype, blocksize, ...
 *
 * With double quantisation absmax is U8, and a scale
 *
 *     nested_quant_map[absmax[b]] nested_absmax[b / nested_blocksize] + nested_offset
 */
#include <stdlib.h>
#include <string.h>

#include "ckpt/quant/dequant_bytes.h"

#define NAME "bitsandbytes"

/* --- the configuration ------------------------------------------------------------------------ */

static bool is_on(const json_t *o, const char *member, const char *private)
{
    return json_is_true(json_object_get(o, member)) || json_is_true(json_object_get(o, private));
}

static bool is_of4(const json_t *o)
{
    return is_on(o, "load_in_4bit", "_load_in_4bit");
}

static bool is_of8(const json_t *o)
{
    return is_on(o, "load_in_8bit", "_load_in_8bit");
}

static d9d_status configure(const json_t *o, const char *where, d9d_quantization *q)
{
    q->bits = is_of4(o) ? 4 : 8;
    return is_of4(o) != is_of8(o) ? D9D_OK
                                  : D9D_FAIL(D9D_ECONFIG,
                                             "%s: one of load_in_4bit and load_in_8bit "
                                             "must be true",
                                             where);
}

static const char *const members[] = {"quant_method",
                                      "load_in_4bit",
                                      "load_in_8bit",
                                      "_load_in_4bit",
                                      "_load_in_8bit",
                                      "bnb_4bit_compute_dtype",
                                      "bnb_4bit_quant_storage",
                                      "bnb_4bit_quant_type",
                                      "bnb_4bit_use_double_quant",
                                      "llm_int8_enable_fp32_cpu_offload",
                                      "llm_int8_has_fp16_weight",
                                      "llm_int8_skip_modules",
                                      "llm_int8_threshold",
                                      NULL};

/* --- 4 bits: the state ------------------------------------------------------------------------ */

enum { VALUES, ABSMAX, MAP, NESTED_ABSMAX, NESTED_MAP, STATE_NF4, STATE_FP4 }; /* places */
enum {
    CODES = 16,
    NESTED_CODES = 256,
    RUN = 1 << 15, /* numbers that are decoded at a time */
    MAX_STATE = 1 << 16,
    MIN_BLOCK = 32,
    MAX_BLOCK = 1 << 20
};

typedef struct bnb_state {
    int64_t block, nested_block; /* nested_block 0: absmax is F32 */
    float nested_offset;
    d9d_dtype dtype; /* of the matrix that was quantised */
} bnb_state;

static int state_place(const d9di_dequant_item *p)
{
    return d9di_dequant_has(p, STATE_NF4) ? STATE_NF4 : STATE_FP4;
}

static d9d_status fail_state(const d9di_dequant_item *p, const char *what)
{
    const int place = state_place(p);

    return D9D_FAIL(D9D_EFORMAT, "%s: tensor %s: %s", p->src->path(p->src->self, p->stored[place]),
                    d9di_dequant_stored(p, place)->name, what);
}

static bool is_block(int64_t n)
{
    return n >= MIN_BLOCK && n <= MAX_BLOCK && n % 2 == 0;
}

static d9d_status nested_read(d9di_dequant_item *p, const json_t *o, bnb_state *s)
{
    if (!d9di_dequant_has(p, NESTED_ABSMAX) || !d9di_dequant_has(p, NESTED_MAP))
        return fail_state(p, "says nothing of nested_absmax or nested_quant_map, which are to "
                             "scale absmax");
    s->nested_block = json_integer_value(json_object_get(o, "nested_blocksize"));
    s->nested_offset = (float)json_number_value(json_object_get(o, "nested_offset"));
    return is_block(s->nested_block) && json_is_number(json_object_get(o, "nested_offset"))
               ? D9D_OK
               : fail_state(p, "has no nested_blocksize or no nested_offset");
}

/* The members of the state, and the decoded shape. */
static d9d_status members_read(d9di_dequant_item *p, const json_t *o, bnb_state *s)
{
    const json_t *dims = json_object_get(o, "shape"), *dtype = json_object_get(o, "dtype");
    const int type = json_is_string(dtype) ? d9d_dtype_find(json_string_value(dtype)) : -1;

    s->block = json_integer_value(json_object_get(o, "blocksize"));
    s->dtype = (d9d_dtype)type;
    if (!is_block(s->block) || type < 0 || !d9di_dequant_is_float(s->dtype) ||
        json_array_size(dims) < 1 || json_array_size(dims) > D9D_MAX_DIMS)
        return fail_state(p, "must have blocksize, dtype (float32, bfloat16 or float16) and shape");
    p->decoded.ndim = (int)json_array_size(dims);
    for (int i = 0; i < p->decoded.ndim; i++) {
        p->decoded.shape[i] = json_integer_value(json_array_get(dims, (size_t)i));
        if (p->decoded.shape[i] < 1)
            return fail_state(p, "has a shape that is not of numbers from 1 on");
    }
    return d9di_dequant_stored(p, ABSMAX)->dtype == D9D_U8 ? nested_read(p, o, s) : D9D_OK;
}

static d9d_status state_read(d9di_dequant_item *p, bnb_state *s)
{
    const int place = state_place(p);
    const d9d_safetensors_tensor *t = d9di_dequant_stored(p, place);
    char *text = t->bytes <= MAX_STATE ? malloc(t->bytes + 1) : NULL;
    json_t *o = NULL;
    d9d_status st;

    if (t->bytes > MAX_STATE)
        return fail_state(p, "is too long for a state");
    if (text == NULL)
        return d9di_dequant_no_memory(p);
    st = d9di_dequant_read(p, place, 0, text, t->bytes);
    if (st == D9D_OK &&
        (d9d_json_parse(t->name, text, t->bytes, &o) != D9D_OK || !json_is_object(o)))
        st = fail_state(p, "must be the JSON of an object");
    free(text);
    if (st == D9D_OK)
        st = members_read(p, o, s);
    json_decref(o);
    return st;
}

/* --- 4 bits: shapes --------------------------------------------------------------------------- */

static bool is_of_floats(const d9di_dequant_item *p, int place, int64_t n)
{
    const d9d_safetensors_tensor *t = d9di_dequant_stored(p, place);

    return t->dtype == D9D_F32 && t->bytes == (uint64_t)n * sizeof(float);
}

static uint64_t blocks(uint64_t n, int64_t block)
{
    return block > 0 ? (n + (uint64_t)block - 1) / (uint64_t)block : 0;
}

/* Do all parts have as many elements as the shape needs? */
static d9d_status parts_check(const d9di_dequant_item *p, const bnb_state *s, uint64_t n)
{
    const d9d_safetensors_tensor *v = d9di_dequant_stored(p, VALUES),
                                 *absmax = d9di_dequant_stored(p, ABSMAX);
    const uint64_t scales = blocks(n, s->block);

    if (v->bytes != (n + 1) / 2)
        return fail_state(p, "has another shape than the codes");
    if (absmax->bytes != scales * (s->nested_block > 0 ? 1 : sizeof(float)) ||
        (absmax->dtype != D9D_U8 && absmax->dtype != D9D_F32))
        return d9di_dequant_fail(p, ABSMAX, "F32, or U8 with nested scales, one for each block");
    if (!is_of_floats(p, MAP, CODES))
        return d9di_dequant_fail(p, MAP, "F32 [16]");
    if (s->nested_block == 0)
        return D9D_OK;
    if (!is_of_floats(p, NESTED_MAP, NESTED_CODES))
        return d9di_dequant_fail(p, NESTED_MAP, "F32 [256]");
    return is_of_floats(p, NESTED_ABSMAX, (int64_t)blocks(scales, s->nested_block))
               ? D9D_OK
               : d9di_dequant_fail(p, NESTED_ABSMAX, "F32, one for each nested block");
}

static d9d_status shape4(d9di_dequant_item *p, d9d_arena *a)
{
    bnb_state *s = d9d_arena_alloc(a, sizeof(*s));
    uint64_t bytes;

    if (s == NULL)
        return d9di_dequant_no_memory(p);
    *s = (bnb_state){0};
    if (d9di_dequant_has(p, STATE_NF4) == d9di_dequant_has(p, STATE_FP4))
        return d9di_dequant_fail(p, ABSMAX, "beside one quant_state.bitsandbytes__nf4 or __fp4");
    D9D_TRY(state_read(p, s));
    if (!d9d_safetensors_shape_bytes(D9D_U8, p->decoded.ndim, p->decoded.shape, &bytes))
        return fail_state(p, "has a shape of more numbers than can be counted");
    p->state = s;
    return parts_check(p, s, bytes);
}

/* --- 4 bits: decoding ------------------------------------------------------------------------- */

struct run {
    uint8_t packed[RUN / 2 + 1];
    float scales[RUN / MIN_BLOCK + 2];
    uint8_t nested[RUN / MIN_BLOCK + 2];
    float nested_scales[RUN / MIN_BLOCK / MIN_BLOCK + 2];
    float map[CODES], nested_map[NESTED_CODES];
};

/* The scales of blocks [first, first + n). */
static d9d_status scales_read(const d9di_dequant_item *p, struct run *r, uint64_t first, uint64_t n)
{
    const bnb_state *s = p->state;
    const uint64_t group = (uint64_t)s->nested_block;
    uint64_t base;

    if (s->nested_block == 0)
        return d9di_dequant_read_floats(p, ABSMAX, first, n, r->scales);
    base = first / group;
    D9D_TRY(d9di_dequant_read(p, ABSMAX, first, r->nested, n));
    D9D_TRY(d9di_dequant_read_floats(p, NESTED_ABSMAX, base, (first + n - 1) / group - base + 1,
                                     r->nested_scales));
    for (uint64_t i = 0; i < n; i++) {
        const float scaled =
            r->nested_map[r->nested[i]] * r->nested_scales[(first + i) / group - base];

        r->scales[i] = scaled + s->nested_offset;
    }
    return D9D_OK;
}

static void run_decode(const d9di_dequant_item *p, const struct run *r, uint64_t first, uint64_t n,
                       void *dst)
{
    const bnb_state *s = p->state;
    const uint64_t block = (uint64_t)s->block, base = first / block;

    for (uint64_t i = 0; i < n; i++) {
        const uint64_t at = first + i;
        const uint8_t byte = r->packed[at / 2 - first / 2];
        const float x = d9di_dequant_round(
            r->map[at % 2 == 0 ? byte >> 4 : byte & 15] * r->scales[at / block - base], s->dtype);

        if (p->decoded.dtype == D9D_F32)
            ((float *)dst)[i] = x;
        else
            ((uint16_t *)dst)[i] = d9d_bf16_from_f32(x);
    }
}

static d9d_status runs_decode(const d9di_dequant_item *p, struct run *r, uint64_t first, uint64_t n,
                              unsigned char *dst)
{
    const uint64_t block = (uint64_t)((const bnb_state *)p->state)->block;
    const uint64_t width = d9d_dtype_size(p->decoded.dtype);

    D9D_TRY(d9di_dequant_read_floats(p, MAP, 0, CODES, r->map));
    if (d9di_dequant_has(p, NESTED_MAP))
        D9D_TRY(d9di_dequant_read_floats(p, NESTED_MAP, 0, NESTED_CODES, r->nested_map));
    for (uint64_t k; n > 0; first += k, n -= k, dst += k * width) {
        uint64_t at, bytes;

        k = n < RUN ? n : RUN;
        d9di_dequant_span_of_bits(p, first, k, &at, &bytes);
        D9D_TRY(d9di_dequant_read(p, VALUES, at, r->packed, bytes));
        D9D_TRY(scales_read(p, r, first / block, (first + k - 1) / block - first / block + 1));
        run_decode(p, r, first, k, dst);
    }
    return D9D_OK;
}

static d9d_status read4(const d9di_dequant_item *p, uint64_t first, uint64_t n, void *dst)
{
    struct run *r = malloc(sizeof(*r));
    d9d_status st = r != NULL ? runs_decode(p, r, first, n, dst) : d9di_dequant_no_memory(p);

    free(r);
    return st;
}

/* bitsandbytes stores a matrix's codes as one column. */
static bool is_codes(d9d_dtype type)
{
    return type == D9D_U8;
}

const d9di_dequant_method d9di_dequant_bnb4 = {
    .name = NAME,
    .is_of = is_of4,
    .suffix = {[VALUES] = "",
               [ABSMAX] = ".absmax",
               [MAP] = ".quant_map",
               [NESTED_ABSMAX] = ".nested_absmax",
               [NESTED_MAP] = ".nested_quant_map",
               [STATE_NF4] = (".quant_state." NAME "__nf4"),
               [STATE_FP4] = (".quant_state." NAME "__fp4")},
    .optional = 1u << NESTED_ABSMAX | 1u << NESTED_MAP | 1u << STATE_NF4 | 1u << STATE_FP4,
    .members = members,
    .is_values = is_codes,
    .configure = configure,
    .shape = shape4,
    .read = read4,
    .span = d9di_dequant_span_of_bits,
};

/* --- 8 bits ----------------------------------------------------------------------------------- */

static d9d_status shape8(d9di_dequant_item *p, d9d_arena *a)
{
    const d9d_safetensors_tensor *v = d9di_dequant_stored(p, D9DI_DEQUANT_VALUES),
                                 *s = d9di_dequant_stored(p, D9DI_DEQUANT_SCALES);

    (void)a;
    if (v->dtype != D9D_I8 || v->ndim != 2 || s->dtype != D9D_F32 || s->ndim != 1 ||
        s->shape[0] != v->shape[0])
        return d9di_dequant_fail(p, D9DI_DEQUANT_SCALES, "F32 [rows] of a matrix in I8");
    p->block[0] = 1;
    p->decoded.ndim = v->ndim;
    memcpy(p->decoded.shape, v->shape, sizeof(v->shape));
    return D9D_OK;
}

/* SCB is the largest magnitude of a row, which is the integer 127. */
static void numbers8(const d9di_dequant_item *p, float scale, float out[256])
{
    (void)p;
    for (int i = 0; i < 256; i++)
        out[i] = d9di_dequant_byte(D9D_I8, i) * scale * 7.874015718698502e-3f;
}

static bool is_integers(d9d_dtype type)
{
    return type == D9D_I8;
}

static const char *const hidden[] = {".weight_format", NULL};
const d9di_dequant_method d9di_dequant_bnb8 = {.name = NAME,
                                               .is_of = is_of8,
                                               .suffix = {".weight", ".SCB"},
                                               .decoded = ".weight",
                                               .hidden = hidden,
                                               .members = members,
                                               .is_values = is_integers,
                                               .configure = configure,
                                               .shape = shape8,
                                               .bytes = numbers8,
                                               .read = d9di_dequant_bytes_read,
                                               .span = d9di_dequant_bytes_span};
