/* test_dequant.c - quantised checkpoints as a source: quantization_config, names, what does not
 * fit, and what is read.  What is decoded: tests/golden/test_golden_quant.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/ckpt/dir/checkpoint.h"
#include "support/mem_tensors.h"
#include "support/unit.h"

static const d9d_quantization fp8 = {.method = D9D_QUANTIZATION_FP8, .block = {4, 4}};
static const d9d_quantization mxfp4 = {.method = D9D_QUANTIZATION_MXFP4};
static const d9d_quantization packed = {D9D_QUANTIZATION_PACKED, {1, 16}, .bits = 4};
static const d9d_quantization zeros = {D9D_QUANTIZATION_PACKED_ZEROS, {1, 16}, .bits = 4};
static const d9d_quantization nvfp4 = {D9D_QUANTIZATION_NVFP4, {1, 16}, .bits = 4};
static const d9d_quantization mxfp4_packed = {D9D_QUANTIZATION_MXFP4_PACKED, {1, 32}, .bits = 4};
static const d9d_quantization fbgemm = {D9D_QUANTIZATION_FBGEMM_FP8, {1, 0}, .bits = 8};
static const d9d_quantization modelopt_fp8 = {.method = D9D_QUANTIZATION_MODELOPT_FP8};
static const d9d_quantization modelopt_mixed = {
    D9D_QUANTIZATION_MODELOPT_MIXED, {1, 16}, .bits = 4};
static const d9d_quantization modelopt_nvfp4 = {
    D9D_QUANTIZATION_MODELOPT_NVFP4, {1, 16}, .bits = 4};

#define SHAPE(...)                                                                                 \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[])                   \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

/* --- quantization_config ------------------------------------------------------------------------
 */

static d9d_status config_read(const char *text, d9d_quantization *q)
{
    json_t *doc;
    d9d_status st;

    assert_ok(d9d_json_parse("c", text, strlen(text), &doc));
    st = d9d_quantization_read(doc, "c", q);
    json_decref(doc);
    return st;
}

static void test_config(void **state)
{
    static const char fp8_text[] =
        "{\"quantization_config\": {\"activation_scheme\": \"dynamic\", \"fmt\": \"e4m3\", "
        "\"quant_method\": \"fp8\", \"weight_block_size\": [128, 64]}}";
    static const char one_text[] = "{\"quantization_config\": {\"quant_method\": \"fp8\", "
                                   "\"weight_block_size\": null, \"fmt\": null}}";
    static const char mxfp4_text[] = "{\"quantization_config\": {\"quant_method\": \"mxfp4\", "
                                     "\"modules_to_not_convert\": [\"lm_head\"]}}";
    static const char packed_text[] =
        "{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", "
        "\"format\": \"pack-quantized\", \"kv_cache_scheme\": null, \"transform_config\": {}, "
        "\"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], \"weights\": "
        "{\"num_bits\": 4, \"type\": \"int\", \"symmetric\": true, \"strategy\": \"group\", "
        "\"group_size\": 32, \"actorder\": null, \"observer\": \"minmax\"}}}}}";
    d9d_quantization q;

    (void)state;
    assert_ok(config_read("{}", &q));
    assert_int_equal(q.method, D9D_QUANTIZATION_NONE);
    assert_ok(config_read("{\"quantization_config\": null}", &q));
    assert_int_equal(q.method, D9D_QUANTIZATION_NONE);
    assert_ok(config_read(fp8_text, &q));
    assert_int_equal(q.method, D9D_QUANTIZATION_FP8);
    assert_int_equal(q.block[0], 128);
    assert_int_equal(q.block[1], 64);
    assert_ok(config_read(one_text, &q));
    assert_int_equal(q.method, D9D_QUANTIZATION_FP8);
    assert_int_equal(q.block[0], 0);
    assert_ok(config_read(mxfp4_text, &q));
    assert_int_equal(q.method, D9D_QUANTIZATION_MXFP4);
    assert_string_equal(d9d_quantization_name(q.method), "mxfp4");
    assert_ok(config_read(packed_text, &q));
    assert_int_equal(q.method, D9D_QUANTIZATION_PACKED);
    assert_int_equal(q.block[0], 1);
    assert_int_equal(q.block[1], 32);
}

static void test_config_of_libraries(void **state)
{
#define COMPRESSED(format, type, ...)                                                              \
    "{\"quant_method\": \"compressed-tensors\", \"format\": \"" format                             \
    "\", \"config_groups\": {\"a\": "                                                              \
    "{\"weights\": {\"num_bits\": 8, \"type\": \"" type "\", " __VA_ARGS__ "}}}}"
#define GROUP(...)                                                                                 \
    "{\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", "                  \
    "\"config_groups\": {\"a\": {\"weights\": {\"num_bits\": 4, " __VA_ARGS__ "}}}}"
#define FP4(format, ...)                                                                           \
    "{\"quant_method\": \"compressed-tensors\", \"format\": \"" format                             \
    "\", \"config_groups\": {\"a\": {\"format\": \"" format                                        \
    "\", \"weights\": {\"num_bits\": 4, \"type\": \"float\", " __VA_ARGS__ "}}}}"
    static const struct {
        const char *value;
        d9d_quantization q;
    } good[] = {
        {"{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 128, \"desc_act\": true, "
         "\"sym\": "
         "false, \"damp_percent\": 0.01}",
         {D9D_QUANTIZATION_GPTQ, {1, 128}, 4, true}},
        {"{\"quant_method\": \"gptq\", \"bits\": 8, \"group_size\": -1, \"checkpoint_format\": "
         "\"gptq_v2\", \"pack_dtype\": \"int32\", \"dynamic\": {}}",
         {D9D_QUANTIZATION_GPTQ, {1, 0}, 8, false}},
        {"{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 64, \"version\": \"gemm\", "
         "\"zero_point\": true, \"modules_to_not_convert\": null}",
         {D9D_QUANTIZATION_AWQ, {1, 64}, 4, false}},
        {"{\"quant_method\": \"bitsandbytes\", \"_load_in_4bit\": true, \"_load_in_8bit\": false, "
         "\"bnb_4bit_quant_type\": \"nf4\", \"llm_int8_threshold\": 6.0}",
         {D9D_QUANTIZATION_BNB4, {0, 0}, 4, false}},
        {"{\"quant_method\": \"bitsandbytes\", \"load_in_8bit\": true, \"load_in_4bit\": false}",
         {D9D_QUANTIZATION_BNB8, {0, 0}, 8, false}},
        /* transformers' AwqConfig, GPTQModel's AWQ, and AutoRound's GPTQ */
        {"{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 128, \"format\": \"gemm\", "
         "\"zero_point\": true, \"damp_percent\": 0.1, \"desc_act\": false, \"act_group_aware\": "
         "true, "
         "\"sym\": true, \"true_sequential\": true, \"backend\": \"auto\", \"batch_size\": 1, "
         "\"cache_block_outputs\": true, \"version\": \"gemm\"}",
         {D9D_QUANTIZATION_AWQ, {1, 128}, 4, false}},
        {"{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 128, \"checkpoint_format\": "
         "\"gemm\", \"version\": \"GEMM\", \"pack_dtype\": \"int32\", \"lm_head\": false, "
         "\"modules_to_not_convert\": [\"mlp.gate\"], \"meta\": {\"quantizer\": "
         "[\"gptqmodel:5\"]}}",
         {D9D_QUANTIZATION_AWQ, {1, 128}, 4, false}},
        {"{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 128, \"autoround_version\": "
         "\"0.4\", "
         "\"data_type\": \"int\", \"iters\": 200, \"lr\": 0.005, \"minmax_lr\": 0.005, "
         "\"enable_quanted_input\": true, \"scale_dtype\": \"torch.float16\", \"nsamples\": 128}",
         {D9D_QUANTIZATION_GPTQ, {1, 128}, 4, true}},
        {"{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 128, \"disable_exllama\": "
         "false, "
         "\"format\": \"GPTQ\", \"dynamic\": {\"-:.*attn.*\": {}, \"-:lm_head\": {}}, "
         "\"modules_to_not_convert\": [\"lm_head\"]}",
         {D9D_QUANTIZATION_GPTQ, {1, 128}, 4, true}},
        {"{\"load_in_4bit\": true, \"load_in_8bit\": false, \"llm_int8_threshold\": 6.0}",
         {D9D_QUANTIZATION_BNB4, {0, 0}, 4, false}},
        {COMPRESSED(
             "float-quantized", "float",
             "\"strategy\": \"tensor\", \"actorder\": false, \"zp_dtype\": \"torch.int8\"}}}, "
             "\"kv_cache_scheme\": {\"num_bits\": 8, \"type\": \"float\"}, \"sparsity_config\": "
             "{\"format\": \"dense\"}, \"ignore\": {\"a\": {\"a\": {\"a\": 1"),
         {D9D_QUANTIZATION_BYTES, {0, 0}, 8, false}},
        {COMPRESSED("float-quantized", "float", "\"strategy\": \"Tensor\""),
         {D9D_QUANTIZATION_BYTES, {0, 0}, 8, false}},
        {COMPRESSED("float-quantized", "float", "\"strategy\": \"channel\""),
         {D9D_QUANTIZATION_BYTES, {1, 0}, 8, false}},
        {COMPRESSED("float-quantized", "float",
                    "\"strategy\": \"block\", \"block_structure\": [128, 64]"),
         {D9D_QUANTIZATION_BYTES, {128, 64}, 8, false}},
        {COMPRESSED("int-quantized", "int", "\"strategy\": \"tensor\", \"symmetric\": true"),
         {D9D_QUANTIZATION_BYTES, {0, 0}, 8, false}},
        {COMPRESSED("pack-quantized", "int", "\"strategy\": \"channel\", \"symmetric\": true"),
         {D9D_QUANTIZATION_PACKED, {1, 0}, 8, false}},
        {COMPRESSED("pack-quantized", "int", "\"group_size\": -1, \"symmetric\": false"),
         {D9D_QUANTIZATION_PACKED_ZEROS, {1, 0}, 8, false}},
        {GROUP("\"symmetric\": false, \"group_size\": 128, \"zp_dtype\": \"torch.int8\""),
         {D9D_QUANTIZATION_PACKED_ZEROS, {1, 128}, 4, false}},
        {FP4("nvfp4-pack-quantized", "\"strategy\": \"tensor_group\", \"group_size\": 16, "
                                     "\"scale_dtype\": \"torch.float8_e4m3fn\""),
         {D9D_QUANTIZATION_NVFP4, {1, 16}, 4, false}},
        {FP4("mxfp4-pack-quantized", "\"strategy\": \"group\", \"group_size\": 32, "
                                     "\"scale_dtype\": \"torch.uint8\""),
         {D9D_QUANTIZATION_MXFP4_PACKED, {1, 32}, 4, false}},
        {"{\"quant_method\": \"fp8\", \"activation_scheme\": \"static\", \"ignored_layers\": "
         "[\"lm_head\"], \"kv_cache_scheme\": \"static\"}",
         {D9D_QUANTIZATION_FP8, {0, 0}, 0, false}},
        {"{\"quant_method\": \"fbgemm_fp8\", \"activation_scale_ub\": 1200.0, "
         "\"modules_to_not_convert\": [\"lm_head\"]}",
         {D9D_QUANTIZATION_FBGEMM_FP8, {1, 0}, 0, false}},
        {"{\"quant_method\": \"modelopt\", \"quant_algo\": \"FP8\", \"kv_cache_scheme\": "
         "{\"num_bits\": 8}, \"ignore\": [], \"producer\": {\"name\": \"modelopt\"}, "
         "\"config_groups\": {\"group_0\": {\"weights\": {\"num_bits\": 8}}}}",
         {D9D_QUANTIZATION_MODELOPT_FP8, {0, 0}, 8, false}},
        {"{\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\", \"group_size\": 16, "
         "\"kv_cache_quant_algo\": null, \"exclude_modules\": [\"lm_head\"]}",
         {D9D_QUANTIZATION_MODELOPT_NVFP4, {1, 16}, 4, false}},
        {"{\"quant_method\": \"modelopt\", \"quant_algo\": \"MIXED_PRECISION\", "
         "\"quantized_layers\": {\"a\": {\"quant_algo\": \"FP8\"}, \"b\": {\"quant_algo\": "
         "\"NVFP4\", "
         "\"group_size\": 16}}}",
         {D9D_QUANTIZATION_MODELOPT_MIXED, {1, 16}, 4, false}},
        {"{\"quant_algo\": \"W4A16_NVFP4\", \"quant_library\": \"modelopt\"}",
         {D9D_QUANTIZATION_MODELOPT_NVFP4, {1, 16}, 4, false}},
        {COMPRESSED("naive-quantized", "int", "\"group_size\": 32, \"actorder\": \"weight\""),
         {D9D_QUANTIZATION_BYTES, {1, 32}, 8, false}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        char text[1024];
        d9d_quantization q;

        (void)snprintf(text, sizeof(text), "{\"quantization_config\": %s}", good[i].value);
        assert_ok(config_read(text, &q));
        assert_int_equal(q.method, good[i].q.method);
        assert_int_equal(q.block[0], good[i].q.block[0]);
        assert_int_equal(q.block[1], good[i].q.block[1]);
        assert_int_equal(q.bits, good[i].q.bits);
        assert_int_equal(q.zeros_less, good[i].q.zeros_less);
    }
}

#define CURE                                                                                       \
    " is not supported; \"fp8\", \"mxfp4\", \"compressed-tensors\", \"bitsandbytes\", \"gptq\", "  \
    "\"awq\", \"fbgemm_fp8\" and \"modelopt\" are decoded when they are read, of others take the " \
    "unquantised weights"
#define ONLY(what) " is not decoded, only " what "; of others take the unquantised weights"
#define PACKED                                                                                     \
    ONLY("\"pack-quantized\" of 2, 4 and 8 bits, symmetric \"int-quantized\" and "                 \
         "\"float-quantized\" of 8, \"nvfp4-pack-quantized\" and \"mxfp4-pack-quantized\"")
#define MODELOPT                                                                                   \
    ONLY("\"FP8\", \"NVFP4\" and \"W4A16_NVFP4\" in groups of 16, and \"MIXED_PRECISION\" of "     \
         "these")
#define GPTQ ONLY("2, 4 or 8 bits in int32, \"gptq\" and \"gptq_v2\"")
#define AWQ  ONLY("\"gemm\" of 4 bits with zeros")
#define BLOCKS                                                                                     \
    "c: quantization_config.weight_block_size: must be two numbers of elements, such as [128, "    \
    "128]"

static void test_config_refused(void **state)
{
    static const struct {
        const char *value, *sentence;
        d9d_status st;
    } bad[] = {
        {"3", "c: quantization_config: must be an object", D9D_ECONFIG},
        {"{}", "c: quantization_config.quant_method: a missing quant_method" CURE, D9D_ENOTSUP},
        {"{\"quant_method\": \"hqq\", \"bits\": 4}",
         "c: quantization_config.quant_method: \"hqq\"" CURE, D9D_ENOTSUP},
        {"{\"quant_method\": \"bitsandbytes\", \"load_in_4bit\": false}",
         "c: quantization_config: one of load_in_4bit and load_in_8bit must be true", D9D_ECONFIG},
        {"{\"quant_method\": \"bitsandbytes\", \"load_in_4bit\": true, \"shuffled\": 1}",
         "c: quantization_config.shuffled: the decoder of bitsandbytes does not know this field",
         D9D_ENOTSUP},
        {"{\"quant_method\": \"gptq\", \"bits\": 3, \"group_size\": 128}",
         "c: quantization_config.bits: 3" GPTQ, D9D_ENOTSUP},
        {"{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 0}",
         "c: quantization_config.group_size: must be a number of inputs, or -1 for all",
         D9D_ECONFIG},
        {"{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 64, \"checkpoint_format\": "
         "\"marlin\"}",
         "c: quantization_config.checkpoint_format: \"marlin\"" GPTQ, D9D_ENOTSUP},
        {"{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 64, \"dynamic\": {\"-:b\": "
         "{}, \"+:a\": {\"bits\": 8}}}",
         "c: quantization_config.dynamic: {\"-:b\": {}, \"+:a\": {\"bits\": 8}}" GPTQ, D9D_ENOTSUP},
        {"{\"quant_method\": \"awq\", \"bits\": 4, \"version\": \"gemv\", \"group_size\": 64}",
         "c: quantization_config.version: \"gemv\"" AWQ, D9D_ENOTSUP},
        {"{\"quant_method\": \"awq\", \"bits\": 4, \"backend\": \"llm-awq\", \"group_size\": 64}",
         "c: quantization_config.backend: \"llm-awq\"" AWQ, D9D_ENOTSUP},
        {COMPRESSED("int-quantized", "int",
                    "\"symmetric\": true}}}, \"sparsity_config\": "
                    "{\"format\": \"sparse-bitmask\"}, \"ignore\": {\"a\": {\"a\": {\"a\": 1"),
         "c: quantization_config.sparsity_config: {\"format\": \"sparse-bitmask\"}" PACKED,
         D9D_ENOTSUP},
        {"{\"quant_method\": 7}", "c: quantization_config.quant_method: 7" CURE, D9D_ENOTSUP},
        {"{\"quant_method\": \"fp8\", \"fmt\": \"e5m2\"}",
         "c: quantization_config.fmt: must be \"e4m3\"", D9D_ENOTSUP},
        {"{\"quant_method\": \"fp8\", \"weight_block_size\": [128]}", BLOCKS, D9D_ECONFIG},
        {"{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 0]}", BLOCKS, D9D_ECONFIG},
        {"{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128, 1]}", BLOCKS, D9D_ECONFIG},
        {"{\"quant_method\": \"fp8\", \"weight_block_size\": [\"a\", 1]}", BLOCKS, D9D_ECONFIG},
        {"{\"quant_method\": \"fp8\", \"weight_block_size\": 128}", BLOCKS, D9D_ECONFIG},
        {"{\"quant_method\": \"mxfp4\", \"swizzled\": true}",
         "c: quantization_config.swizzled: the decoder of mxfp4 does not know this field",
         D9D_ENOTSUP},
        {"{\"quant_method\": \"compressed-tensors\", \"format\": \"mxfp8-quantized\"}",
         "c: quantization_config.format: \"mxfp8-quantized\"" PACKED, D9D_ENOTSUP},
        {FP4("nvfp4-pack-quantized", "\"strategy\": \"group\", \"group_size\": 16"),
         "c: quantization_config.strategy: \"group\"" PACKED, D9D_ENOTSUP},
        {FP4("nvfp4-pack-quantized", "\"strategy\": \"tensor_group\", \"group_size\": 32"),
         "c: quantization_config.group_size: 32" PACKED, D9D_ENOTSUP},
        {FP4("mxfp4-pack-quantized", "\"symmetric\": false, \"group_size\": 32"),
         "c: quantization_config.symmetric: false" PACKED, D9D_ENOTSUP},
        {COMPRESSED("int-quantized", "int", "\"symmetric\": false, \"strategy\": \"channel\""),
         "c: quantization_config.symmetric: false" PACKED, D9D_ENOTSUP},
        {"{\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", "
         "\"config_groups\": {\"a\": {\"weights\": {\"num_bits\": 3, \"group_size\": 32}}}}",
         "c: quantization_config.num_bits: 3" PACKED, D9D_ENOTSUP},
        {"{\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4_AWQ\"}",
         "c: quantization_config.quant_algo: \"NVFP4_AWQ\"" MODELOPT, D9D_ENOTSUP},
        {"{\"quant_method\": \"modelopt\", \"quant_algo\": \"MIXED_PRECISION\", "
         "\"quantized_layers\": {\"a\": {\"quant_algo\": \"FP8\"}, \"b\": {\"quant_algo\": "
         "\"W4A8_AWQ\"}}}",
         "c: quantization_config.quantized_layers.quant_algo: \"W4A8_AWQ\"" MODELOPT, D9D_ENOTSUP},
        {"{\"quant_method\": \"modelopt\"}", "c: quantization_config.quant_algo: null" MODELOPT,
         D9D_ENOTSUP},
        {"{\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\", \"group_size\": 32}",
         "c: quantization_config.group_size: 32" MODELOPT, D9D_ENOTSUP},
        {"{\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\", \"pre_quant_scale\": true}",
         "c: quantization_config.pre_quant_scale: the decoder of modelopt does not know this field",
         D9D_ENOTSUP},
        {"{\"quant_method\": \"fbgemm_fp8\", \"weight_block_size\": [128, 128]}",
         "c: quantization_config.weight_block_size: the decoder of fbgemm_fp8 does not know this "
         "field",
         D9D_ENOTSUP},
        {"{\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\"}",
         "c: quantization_config.config_groups: must be an object of groups", D9D_ECONFIG},
        {"{\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", "
         "\"config_groups\": {\"a\": {}}}",
         "c: quantization_config.config_groups: weights have no num_bits", D9D_ECONFIG},
        {GROUP("\"group_size\": 12"), "c: quantization_config.group_size: 12" PACKED, D9D_ENOTSUP},
        {GROUP("\"strategy\": \"tensor\""), "c: quantization_config.strategy: \"tensor\"" PACKED,
         D9D_ENOTSUP},
        {GROUP("\"group_size\": 32}}, \"b\": {\"weights\": {\"num_bits\": 8, \"group_size\": 32"),
         "c: quantization_config.config_groups: numbers have 4 bits in one group and 8 in another, "
         "which must be the same",
         D9D_ENOTSUP},
        {GROUP("\"group_size\": 32}}, \"b\": {\"weights\": {\"num_bits\": 4, \"group_size\": 32, "
               "\"symmetric\": false"),
         "c: quantization_config.symmetric: false" PACKED, D9D_ENOTSUP},
        {GROUP("\"actorder\": \"group\""), "c: quantization_config.actorder: \"group\"" PACKED,
         D9D_ENOTSUP},
        {GROUP("\"group_size\": 32}}, \"b\": {\"weights\": {\"num_bits\": 4, \"group_size\": 64"),
         "c: quantization_config.config_groups: scales are of 1 x 32 numbers in one group and 1 x "
         "64 "
         "in another, which must be the same (0: all)",
         D9D_ENOTSUP},
    };
    d9d_quantization q;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char text[1024];

        (void)snprintf(text, sizeof(text), "{\"quantization_config\": %s}", bad[i].value);
        assert_fails(config_read(text, &q), bad[i].st, bad[i].sentence);
    }
}

/* Decodes tensors in memory. */
static d9d_status dequant_open(const d9d_quantization *q, d9d_dtype to, mem_tensors *m,
                               d9d_dequant **d)
{
    const d9d_tensor_source stored = mem_tensors_source(m);

    return d9d_dequant_create(q, to, &stored, d);
}

/* --- names and shapes
 * ----------------------------------------------------------------------------- */

static void test_names(void **state)
{
    mem_tensors m = {.n = 0};
    d9d_tensor_source src;
    const char *pair[D9D_DEQUANT_MAX_STORED];
    d9d_dequant *d;

    (void)state;
    (void)mem_tensors_add(&m, "a.weight_scale_inv", D9D_F32, SHAPE(2, 1));
    (void)mem_tensors_add(&m, "norm", D9D_BF16, SHAPE(3));
    (void)mem_tensors_add(&m, "a.weight", D9D_F8_E4M3, SHAPE(5, 3));
    (void)mem_tensors_add(&m, "a.input_scale", D9D_F32, 0, NULL);
    assert_ok(dequant_open(&fp8, D9D_BF16, &m, &d));
    src = d9d_dequant_source(d);
    assert_int_equal(src.n, 2);
    assert_string_equal(src.at(src.self, 0)->name, "norm");
    assert_string_equal(src.at(src.self, 1)->name, "a.weight");
    assert_int_equal(src.at(src.self, 1)->dtype, D9D_BF16);
    assert_int_equal(src.at(src.self, 1)->bytes, 30);
    assert_int_equal(d9d_dequant_count(d), 1);
    assert_int_equal(d9d_dequant_stored(d, "a.weight", pair), 2);
    assert_string_equal(pair[0], "a.weight");
    assert_string_equal(pair[1], "a.weight_scale_inv");
    assert_int_equal(d9d_dequant_stored(d, "norm", pair), 0);
    assert_null(src.prefetch);
    assert_null(src.fingerprint);
    d9d_dequant_free(d);
    mem_tensors_free(&m);
}

/* Scales of caches and activations, and zeros of symmetric numbers, are no weights'. */
static void test_names_of_compressed(void **state)
{
    static const d9d_quantization q = {.method = D9D_QUANTIZATION_BYTES, .block = {1, 0}};
    mem_tensors m = {.n = 0};
    d9d_tensor_source src;
    d9d_dequant *d;

    (void)state;
    (void)mem_tensors_add(&m, "a.k_proj.weight", D9D_I8, SHAPE(2, 3));
    (void)mem_tensors_add(&m, "a.k_proj.weight_scale", D9D_BF16, SHAPE(2, 1));
    (void)mem_tensors_add(&m, "a.k_proj.weight_zero_point", D9D_I8, SHAPE(2, 1));
    (void)mem_tensors_add(&m, "a.k_proj.input_scale", D9D_BF16, SHAPE(1));
    (void)mem_tensors_add(&m, "a.k_proj.input_zero_point", D9D_I8, SHAPE(1));
    (void)mem_tensors_add(&m, "a.k_proj.output_scale", D9D_BF16, SHAPE(1));
    (void)mem_tensors_add(&m, "a.k_scale", D9D_BF16, SHAPE(1));
    (void)mem_tensors_add(&m, "a.v_scale", D9D_BF16, SHAPE(1));
    assert_ok(dequant_open(&q, D9D_BF16, &m, &d));
    src = d9d_dequant_source(d);
    assert_int_equal(src.n, 1);
    assert_string_equal(src.at(src.self, 0)->name, "a.k_proj.weight");
    d9d_dequant_free(d);
    mem_tensors_free(&m);
}

/* The longest suffix says what a tensor is; those of activations and caches are no weights'. */
static void test_names_of_modelopt(void **state)
{
    mem_tensors m = {.n = 0};
    d9d_tensor_source src;
    const char *parts[D9D_DEQUANT_MAX_STORED];
    d9d_dequant *d;

    (void)state;
    (void)mem_tensors_add(&m, "a.k_proj.weight_scale_2", D9D_F32, 0, NULL);
    (void)mem_tensors_add(&m, "a.k_proj.weight_scale", D9D_F8_E4M3, SHAPE(2, 1));
    (void)mem_tensors_add(&m, "a.k_proj.weight", D9D_U8, SHAPE(2, 8));
    (void)mem_tensors_add(&m, "a.k_proj.input_scale", D9D_F32, 0, NULL);
    (void)mem_tensors_add(&m, "a.k_proj.k_scale", D9D_F32, 0, NULL);
    (void)mem_tensors_add(&m, "a.k_proj.k_bias", D9D_F32, SHAPE(2));
    (void)mem_tensors_add(&m, "a.v_proj.v_scale", D9D_F32, 0, NULL);
    (void)mem_tensors_add(&m, "norm", D9D_BF16, SHAPE(3));
    assert_ok(dequant_open(&modelopt_nvfp4, D9D_BF16, &m, &d));
    src = d9d_dequant_source(d);
    assert_int_equal(src.n, 2);
    assert_string_equal(src.at(src.self, 0)->name, "a.k_proj.weight");
    assert_int_equal(src.at(src.self, 0)->shape[1], 16);
    assert_string_equal(src.at(src.self, 1)->name, "norm");
    assert_int_equal(d9d_dequant_stored(d, "a.k_proj.weight", parts), 3);
    assert_string_equal(parts[1], "a.k_proj.weight_scale");
    assert_string_equal(parts[2], "a.k_proj.weight_scale_2");
    d9d_dequant_free(d);
    mem_tensors_free(&m);
}

/* A bias of zeros that a quantiser added may be left out by a model without biases; no other. */
static void test_spare_biases(void **state)
{
    static const d9d_quantization q = {D9D_QUANTIZATION_GPTQ, {1, 8}, 4, true};
    static const char *const names[] = {"a.weight", "a.bias", "b.weight", "b.bias", "norm.bias"};
    const d9d_map_plan_opts opt = {0};
    mem_tensors m = {.n = 0};
    d9d_tensor_source src;
    d9d_mapper *mapper;
    d9d_dequant *d;
    uint8_t *last;

    (void)state;
    for (int i = 0; i < 2; i++) {
        static const char *const parts[2][4] = {{"a.qweight", "a.qzeros", "a.scales", "a.bias"},
                                                {"b.qweight", "b.qzeros", "b.scales", "b.bias"}};

        (void)mem_tensors_add(&m, parts[i][0], D9D_I32, SHAPE(2, 8));
        (void)mem_tensors_add(&m, parts[i][1], D9D_I32, SHAPE(2, 1));
        (void)mem_tensors_add(&m, parts[i][2], D9D_F16, SHAPE(2, 8));
        last = (uint8_t *)mem_tensors_add(&m, parts[i][3], D9D_F16, SHAPE(8))->data;
        memset(last, 0, 16);
    }
    (void)mem_tensors_add(&m, "norm.bias", D9D_F16, SHAPE(8));
    last[15] = 1;
    assert_ok(dequant_open(&q, D9D_BF16, &m, &d));
    src = d9d_dequant_source(d);
    assert_int_equal(src.n, 5);
    for (size_t i = 0; i < src.n; i++) {
        bool spare;

        assert_string_equal(src.at(src.self, i)->name, names[i]);
        assert_ok(src.is_spare(src.self, i, &spare));
        assert_int_equal(spare, i == 1);
    }
    assert_ok(d9d_mapper_create(&mapper));
    for (size_t i = 0; i < src.n; i++)
        if (i != 1)
            assert_ok(d9d_mapper_identity(mapper, names[i]));
    assert_ok(d9d_map_plan_check_names(mapper, &src, &opt));
    d9d_mapper_free(mapper);
    d9d_dequant_free(d);
    mem_tensors_free(&m);
}

/* A name alone does not make a tensor quantised: models may have scales of their own. */
static void test_guess(void **state)
{
    static const struct {
        const char *values, *scales, *methods;
    } guesses[] = {
        {"a.weight", "a.weight_scale_inv", "fp8"},
        {"a.weight", "a.weight_scale", "fp8, compressed-tensors, fbgemm_fp8 or modelopt"},
        {"a.weight_packed", "a.weight_scale", "compressed-tensors"},
        {"a.qweight", "a.scales", "gptq or awq"},
        {"a.weight", "a.weight.absmax", "bitsandbytes"},
    };
    mem_tensors m = {.n = 0};
    d9d_tensor_source src;
    const char *scales = NULL;
    d9d_buf names = {0};

    (void)state;
    (void)mem_tensors_add(&m, "b_scales", D9D_F32, SHAPE(2));
    (void)mem_tensors_add(&m, "b", D9D_F32, SHAPE(2));
    (void)mem_tensors_add(&m, "_scale_inv", D9D_F32, SHAPE(2));
    src = mem_tensors_source(&m);
    assert_ok(d9d_quantization_guess(&src, &scales, &names));
    assert_null(scales);
    assert_int_equal(names.len, 0);
    (void)mem_tensors_add(&m, "b_blocks", D9D_U8, SHAPE(2));
    src = mem_tensors_source(&m);
    assert_ok(d9d_quantization_guess(&src, &scales, &names));
    assert_string_equal(names.data, "mxfp4");
    assert_string_equal(scales, "b_scales");
    d9d_buf_release(&names);
    mem_tensors_free(&m);
    for (size_t i = 0; i < sizeof(guesses) / sizeof(guesses[0]); i++) {
        m = (mem_tensors){.n = 0};
        (void)mem_tensors_add(&m, guesses[i].values, D9D_U8, SHAPE(2, 2));
        (void)mem_tensors_add(&m, guesses[i].scales, D9D_F32, SHAPE(1, 1));
        src = mem_tensors_source(&m);
        assert_ok(d9d_quantization_guess(&src, &scales, &names));
        assert_string_equal(scales, guesses[i].scales);
        assert_string_equal(names.data, guesses[i].methods);
        d9d_buf_release(&names);
        mem_tensors_free(&m);
    }
}

typedef struct tensor_row {
    const char *name;
    d9d_dtype dtype;
    int ndim;
    int64_t shape[4];
} tensor_row;

typedef struct refused_row {
    const d9d_quantization *q;
    tensor_row t[3];
    const char *sentence;
} refused_row;

static void check_refused(const refused_row *bad, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        mem_tensors m = {.n = 0};
        d9d_dequant *d;

        for (size_t k = 0; k < 3 && bad[i].t[k].name != NULL; k++)
            (void)mem_tensors_add(&m, bad[i].t[k].name, bad[i].t[k].dtype, bad[i].t[k].ndim,
                                  bad[i].t[k].shape);
        assert_fails(dequant_open(bad[i].q, D9D_F32, &m, &d), D9D_EFORMAT, bad[i].sentence);
        mem_tensors_free(&m);
    }
}

static void test_refused(void **state)
{
    static const refused_row bad[] = {
        {&fp8,
         {{"w", D9D_F8_E4M3, 2, {5, 3}}},
         "memory: tensor w is quantised (fp8), and w_scale_inv is not there"},
        {&fp8,
         {{"w_scale_inv", D9D_F32, 2, {5, 3}}},
         "memory: tensor w_scale_inv is quantised (fp8), and w is not there"},
        {&fp8,
         {{"w", D9D_F8_E4M3, 2, {5, 3}}, {"w_scale_inv", D9D_F32, 2, {1, 1}}},
         "memory: tensor w is F8_E4M3 [5, 3] and w_scale_inv is F32 [1, 1], which must be F32 [2, "
         "1]"},
        {&fp8,
         {{"w", D9D_F8_E4M3, 2, {5, 3}}, {"w_scale_inv", D9D_F64, 2, {2, 1}}},
         "memory: tensor w is F8_E4M3 [5, 3] and w_scale_inv is F64 [2, 1], which must be F32 [2, "
         "1]"},
        {&fp8,
         {{"w", D9D_F8_E4M3, 2, {5, 3}}, {"w_scale_inv", D9D_F32, 0, {0}}},
         "memory: tensor w is F8_E4M3 [5, 3] and w_scale_inv is F32 [], which must be F32 [2, 1]"},
        {&fp8,
         {{"w", D9D_F8_E5M2, 2, {5, 3}}, {"w_scale_inv", D9D_F32, 2, {2, 1}}},
         "memory: tensor w is F8_E5M2 [5, 3] and w_scale_inv is F32 [2, 1], which must be scales "
         "of a matrix in F8_E4M3"},
        {&fp8,
         {{"w", D9D_F8_E4M3, 1, {5}}, {"w_scale_inv", D9D_F32, 1, {2}}},
         "memory: tensor w is F8_E4M3 [5] and w_scale_inv is F32 [2], which must be scales of a "
         "matrix in F8_E4M3"},
        {&mxfp4,
         {{"w_blocks", D9D_U8, 4, {2, 3, 1, 16}}},
         "memory: tensor w_blocks is quantised (mxfp4), and w_scales is not there"},
        {&mxfp4,
         {{"w_scales", D9D_U8, 3, {2, 3, 1}}},
         "memory: tensor w_scales is quantised (mxfp4), and w_blocks is not there"},
        {&mxfp4,
         {{"w_blocks", D9D_U8, 4, {2, 3, 1, 16}}, {"w_scales", D9D_U8, 3, {2, 1, 3}}},
         "memory: tensor w_blocks is U8 [2, 3, 1, 16] and w_scales is U8 [2, 1, 3], which must be "
         "U8 [2, 3, 1]"},
        {&mxfp4,
         {{"w_blocks", D9D_U8, 4, {2, 3, 1, 8}}, {"w_scales", D9D_U8, 3, {2, 3, 1}}},
         "memory: tensor w_blocks is U8 [2, 3, 1, 8] and w_scales is U8 [2, 3, 1], which must be "
         "scales of blocks U8 [experts, rows, groups, 16]"},
        {&mxfp4,
         {{"w_blocks", D9D_U8, 4, {2, 3, 1, 16}},
          {"w_scales", D9D_U8, 3, {2, 3, 1}},
          {"w", D9D_BF16, 1, {2}}},
         "memory: tensor w is there, and quantised as w_blocks too"},
        {&packed,
         {{"w_packed", D9D_I32, 2, {3, 4}}},
         "memory: tensor w_packed is quantised (compressed-tensors), and w_scale is not there"},
        {&packed,
         {{"w_packed", D9D_I32, 2, {3, 4}}, {"w_scale", D9D_BF16, 2, {3, 1}}},
         "memory: tensor w_packed is I32 [3, 4] and w_scale is BF16 [3, 1], which must be BF16 [3, "
         "2]"},
        {&packed,
         {{"w_packed", D9D_I32, 2, {3, 4}}, {"w_scale", D9D_F64, 2, {3, 2}}},
         "memory: tensor w_packed is I32 [3, 4] and w_scale is F64 [3, 2], which must be BF16 [3, "
         "2]"},
        {&packed,
         {{"w_packed", D9D_I32, 2, {3, 3}}, {"w_scale", D9D_BF16, 2, {3, 2}}},
         "memory: tensor w_packed is I32 [3, 3] and w_scale is BF16 [3, 2], which must be scales "
         "of a matrix of whole groups in I32"},
    };

    (void)state;
    check_refused(bad, sizeof(bad) / sizeof(bad[0]));
}

/* Zeros, FP4, and FP8 that is quantised for serving. */
static void test_refused_of_serving(void **state)
{
    static const refused_row bad[] = {
        {&zeros,
         {{"w_packed", D9D_I32, 2, {3, 4}}, {"w_scale", D9D_BF16, 2, {3, 2}}},
         "memory: tensor w_packed is quantised (compressed-tensors), and w_zero_point is not "
         "there"},
        {&zeros,
         {{"w_packed", D9D_I32, 2, {9, 4}},
          {"w_scale", D9D_BF16, 2, {9, 2}},
          {"w_zero_point", D9D_I32, 2, {1, 2}}},
         "memory: tensor w_packed is I32 [9, 4] and w_zero_point is I32 [1, 2], which must be I32 "
         "[2, 2]"},
        {&zeros,
         {{"w_packed", D9D_I32, 2, {8, 4}},
          {"w_scale", D9D_BF16, 2, {8, 2}},
          {"w_zero_point", D9D_I8, 2, {8, 2}}},
         "memory: tensor w_packed is I32 [8, 4] and w_zero_point is I8 [8, 2], which must be I32 "
         "[1, 2]"},
        {&zeros,
         {{"w_zero_point", D9D_I32, 2, {1, 2}}},
         "memory: tensor w_zero_point is quantised (compressed-tensors), and w_packed is not "
         "there"},
        {&nvfp4,
         {{"w_packed", D9D_U8, 2, {3, 16}}, {"w_scale", D9D_F8_E4M3, 2, {3, 2}}},
         "memory: tensor w_packed is quantised (compressed-tensors), and w_global_scale is not "
         "there"},
        {&nvfp4,
         {{"w_packed", D9D_U8, 2, {3, 16}},
          {"w_scale", D9D_F8_E4M3, 2, {3, 1}},
          {"w_global_scale", D9D_F32, 1, {1}}},
         "memory: tensor w_packed is U8 [3, 16] and w_scale is F8_E4M3 [3, 1], which must be "
         "F8_E4M3 [3, 2]"},
        {&nvfp4,
         {{"w_packed", D9D_U8, 2, {3, 16}},
          {"w_scale", D9D_BF16, 2, {3, 2}},
          {"w_global_scale", D9D_F32, 1, {1}}},
         "memory: tensor w_packed is U8 [3, 16] and w_scale is BF16 [3, 2], which must be F8_E4M3 "
         "[3, 2]"},
        {&nvfp4,
         {{"w_packed", D9D_U8, 2, {3, 16}},
          {"w_scale", D9D_F8_E4M3, 2, {3, 2}},
          {"w_global_scale", D9D_F32, 1, {3}}},
         "memory: tensor w_packed is U8 [3, 16] and w_global_scale is F32 [3], which must be one "
         "F32"},
        {&nvfp4,
         {{"w_packed", D9D_U8, 2, {3, 12}},
          {"w_scale", D9D_F8_E4M3, 2, {3, 2}},
          {"w_global_scale", D9D_F32, 1, {1}}},
         "memory: tensor w_packed is U8 [3, 12] and w_scale is F8_E4M3 [3, 2], which must be "
         "scales "
         "of a matrix U8 [rows, bytes] whose rows are whole groups of 16"},
        {&nvfp4,
         {{"w_global_scale", D9D_F32, 1, {1}}},
         "memory: tensor w_global_scale is quantised (compressed-tensors), and w_packed is not "
         "there"},
        {&mxfp4_packed,
         {{"w_packed", D9D_U8, 2, {3, 16}}, {"w_scale", D9D_F8_E4M3, 2, {3, 1}}},
         "memory: tensor w_packed is U8 [3, 16] and w_scale is F8_E4M3 [3, 1], which must be U8 "
         "[3, 1]"},
        {&fbgemm,
         {{"w", D9D_F8_E4M3, 2, {3, 16}}, {"w_scale", D9D_F32, 1, {3}}},
         "memory: tensor w is F8_E4M3 [3, 16] and w_scale is F32 [3], which must be F32 [3, 1]"},
        {&fbgemm,
         {{"w", D9D_F8_E4M3, 2, {3, 16}}},
         "memory: tensor w is quantised (fbgemm_fp8), and w_scale is not there"},
        {&fp8,
         {{"w", D9D_F8_E4M3, 2, {5, 3}}, {"w_scale", D9D_F32, 2, {2, 1}}},
         "memory: tensor w is F8_E4M3 [5, 3] and w_scale is F32 [2, 1], which must be F32 [1, 1]"},
        {&modelopt_fp8,
         {{"w", D9D_I8, 2, {5, 3}}, {"w_scale", D9D_F32, 0, {0}}},
         "memory: tensor w is I8 [5, 3] and w_scale is F32 [], which must be scales of a matrix in "
         "F8_E4M3"},
        {&modelopt_fp8,
         {{"w_scale", D9D_F32, 0, {0}}},
         "memory: tensor w_scale is quantised (modelopt), and w is not there"},
        {&modelopt_nvfp4,
         {{"w", D9D_U8, 2, {3, 16}}, {"w_scale", D9D_F8_E4M3, 2, {3, 2}}},
         "memory: tensor w is quantised (modelopt), and w_scale_2 is not there"},
        {&modelopt_nvfp4,
         {{"w", D9D_U8, 2, {3, 16}}},
         "memory: tensor w is quantised (modelopt), and w_scale is not there"},
        {&modelopt_mixed,
         {{"w", D9D_U8, 2, {3, 16}}, {"w_scale", D9D_F8_E4M3, 2, {3, 2}}},
         "memory: tensor w is U8 [3, 16] and w_scale is F8_E4M3 [3, 2], which must be scales of a "
         "matrix in F8_E4M3"},
        {&modelopt_mixed,
         {{"w", D9D_F8_E4M3, 2, {3, 16}}, {"w_scale", D9D_F32, 2, {3, 1}}},
         "memory: tensor w is F8_E4M3 [3, 16] and w_scale is F32 [3, 1], which must be F32 [1, 1]"},
        {&modelopt_mixed,
         {{"w", D9D_F8_E4M3, 2, {3, 16}}},
         "memory: tensor w is quantised (modelopt), and w_scale is not there"},
        {&modelopt_nvfp4,
         {{"w_scale_2", D9D_F32, 0, {0}}},
         "memory: tensor w_scale_2 is quantised (modelopt), and w is not there"},
        {&modelopt_nvfp4,
         {{"w", D9D_U8, 3, {3, 16, 16}},
          {"w_scale", D9D_F8_E4M3, 3, {3, 16, 2}},
          {"w_scale_2", D9D_F32, 1, {3}}},
         "memory: tensor w is U8 [3, 16, 16] and w_scale is F8_E4M3 [3, 16, 2], which must be "
         "scales of a matrix U8 [rows, bytes] whose rows are whole groups of 16"},
    };

    (void)state;
    check_refused(bad, sizeof(bad) / sizeof(bad[0]));
}

/* What bitsandbytes says of a matrix, and what is there. */
static void test_state_refused(void **state)
{
#define STATE "memory: tensor w.quant_state.bitsandbytes__nf4: "
    static const d9d_quantization q = {.method = D9D_QUANTIZATION_BNB4, .bits = 4};
    static const struct {
        const char *text, *sentence;
        int64_t codes, absmax;
    } bad[] = {
        {"{\"blocksize\": 64, \"dtype\": \"bfloat16\", \"shape\": [2, 64]}", NULL, 64, 2},
        {"{", STATE "must be the JSON of an object", 64, 2},
        {"[1]", STATE "must be the JSON of an object", 64, 2},
        {"{\"blocksize\": 63, \"dtype\": \"bfloat16\", \"shape\": [2, 64]}",
         STATE "must have blocksize, dtype (float32, bfloat16 or float16) and shape", 64, 2},
        {"{\"blocksize\": 64, \"dtype\": \"int8\", \"shape\": [2, 64]}",
         STATE "must have blocksize, dtype (float32, bfloat16 or float16) and shape", 64, 2},
        {"{\"blocksize\": 64, \"dtype\": \"bfloat16\", \"shape\": [2, -64]}",
         STATE "has a shape that is not of numbers from 1 on", 64, 2},
        {"{\"blocksize\": 64, \"dtype\": \"bfloat16\", \"shape\": [4611686018427387904, 64]}",
         STATE "has a shape of more numbers than can be counted", 64, 2},
        {"{\"blocksize\": 64, \"dtype\": \"bfloat16\", \"shape\": [3, 64]}",
         STATE "has another shape than the codes", 64, 2},
        {"{\"blocksize\": 64, \"dtype\": \"bfloat16\", \"shape\": [2, 64]}",
         "memory: tensor w is U8 [64, 1] and w.absmax is F32 [3], which must be F32, or U8 with "
         "nested "
         "scales, one for each block",
         64, 3},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        mem_tensors m = {.n = 0};
        d9d_dequant *d;

        (void)mem_tensors_add(&m, "w", D9D_U8, SHAPE(bad[i].codes, 1));
        (void)mem_tensors_add(&m, "w.absmax", D9D_F32, SHAPE(bad[i].absmax));
        (void)mem_tensors_add(&m, "w.quant_map", D9D_F32, SHAPE(16));
        memcpy(mem_tensors_add(&m, "w.quant_state.bitsandbytes__nf4", D9D_U8,
                               SHAPE((int64_t)strlen(bad[i].text)))
                   ->data,
               bad[i].text, strlen(bad[i].text));
        if (bad[i].sentence != NULL) {
            assert_fails(dequant_open(&q, D9D_F32, &m, &d), D9D_EFORMAT, bad[i].sentence);
        } else {
            assert_ok(dequant_open(&q, D9D_F32, &m, &d));
            d9d_dequant_free(d);
        }
        mem_tensors_free(&m);
    }
}

/* Integers in groups of inputs: shapes that do not fit, and an input of a group that is not there.
 */
static void test_columns_refused(void **state)
{
    static const d9d_quantization q = {D9D_QUANTIZATION_GPTQ, {1, 8}, 4, true};
    mem_tensors m = {.n = 0};
    d9d_tensor_source src;
    int32_t *groups;
    float x[16];
    d9d_dequant *d;

    (void)state;
    (void)mem_tensors_add(&m, "a.qweight", D9D_I32, SHAPE(2, 8));
    (void)mem_tensors_add(&m, "a.qzeros", D9D_I32, SHAPE(2, 1));
    (void)mem_tensors_add(&m, "a.scales", D9D_F16, SHAPE(3, 8));
    groups = (int32_t *)(void *)mem_tensors_add(&m, "a.g_idx", D9D_I32, SHAPE(16))->data;
    assert_fails(dequant_open(&q, D9D_F32, &m, &d), D9D_EFORMAT,
                 "memory: tensor a.qweight is I32 [2, 8] and a.scales is F16 [3, 8], which must be "
                 "F16 [2, 8]");
    m.a[2].t.shape[0] = 2;
    m.a[2].t.bytes = 32;
    groups[5] = 2;
    assert_ok(dequant_open(&q, D9D_F32, &m, &d));
    src = d9d_dequant_source(d);
    assert_ok(src.read(src.self, 0, 0, x, 5 * sizeof(*x)));
    assert_fails(src.read(src.self, 0, 0, x, 6 * sizeof(*x)), D9D_EFORMAT,
                 "memory: tensor a.qweight is I32 [2, 8] and a.g_idx is I32 [16], which must be of "
                 "groups that are there");
    d9d_dequant_free(d);
    mem_tensors_free(&m);
}

static void test_wrong_use(void **state)
{
    static const d9d_quantization none = {.method = D9D_QUANTIZATION_NONE};
    static const d9d_quantization no_bits = {D9D_QUANTIZATION_PACKED, {1, 16}, 0, false};
    mem_tensors m = {.n = 0};
    d9d_tensor_source src;
    d9d_dequant *d;
    char byte[8];

    (void)state;
    (void)mem_tensors_add(&m, "w", D9D_F8_E4M3, SHAPE(1, 2));
    (void)mem_tensors_add(&m, "w_scale_inv", D9D_BF16, SHAPE(1, 1));
    assert_fails(dequant_open(&fp8, D9D_F16, &m, &d), D9D_EINVAL,
                 "decoding: to float16, must be float32 or bfloat16");
    assert_fails(dequant_open(&none, D9D_F32, &m, &d), D9D_EINVAL, "decoding: without a method");
    assert_fails(dequant_open(&no_bits, D9D_F32, &m, &d), D9D_EINVAL,
                 "decoding: numbers of 0 bits, must be 2, 4 or 8");
    assert_ok(dequant_open(&fp8, D9D_BF16, &m, &d));
    src = d9d_dequant_source(d);
    assert_fails(src.read(src.self, 0, 0, byte, 3), D9D_EINVAL,
                 "tensor w: 3 bytes at 0, decoded it has 4 of 2 each");
    assert_fails(src.read(src.self, 0, 2, byte, 4), D9D_EINVAL,
                 "tensor w: 4 bytes at 2, decoded it has 4 of 2 each");
    assert_ok(src.read(src.self, 0, 4, byte, 0));
    d9d_dequant_free(d);
    mem_tensors_free(&m);
}

/* --- what is read -------------------------------------------------------------------------------
 */

/* A source that counts the bytes that are read of each tensor. */
typedef struct counted {
    d9d_tensor_source of;
    uint64_t bytes[4], prefetched[4];
} counted;

static const d9d_safetensors_tensor *counted_at(void *self, size_t i)
{
    counted *c = self;

    return c->of.at(c->of.self, i);
}

static const char *counted_path(void *self, size_t i)
{
    counted *c = self;

    return c->of.path(c->of.self, i);
}

static d9d_status counted_read(void *self, size_t i, uint64_t at, void *dst, uint64_t n)
{
    counted *c = self;

    c->bytes[i] += n;
    return c->of.read(c->of.self, i, at, dst, n);
}

static void counted_prefetch(void *self, size_t i, uint64_t at, uint64_t n)
{
    assert_true(at + n <= counted_at(self, i)->bytes);
    ((counted *)self)->prefetched[i] += n;
}

static d9d_tensor_source counted_source(counted *c, mem_tensors *m)
{
    *c = (counted){.of = mem_tensors_source(m)};
    return (d9d_tensor_source){.self = c,
                               .n = m->n,
                               .at = counted_at,
                               .path = counted_path,
                               .read = counted_read,
                               .prefetch = counted_prefetch};
}

/* One row of one block, of one expert: no more is read than that takes. */
static void test_reads_no_more(void **state)
{
    enum { R = 400, C = 256, G = 512 };
    mem_tensors m = {.n = 0};
    d9d_tensor_source stored, src;
    counted c;
    d9d_dequant *d;
    uint16_t out[R * C];

    (void)state;
    (void)mem_tensors_add(&m, "w", D9D_F8_E4M3, SHAPE(R, C));
    (void)mem_tensors_add(&m, "w_scale_inv", D9D_F32, SHAPE(R / 4, C / 4));
    stored = counted_source(&c, &m);
    assert_ok(d9d_dequant_create(&fp8, D9D_BF16, &stored, &d));
    src = d9d_dequant_source(d);
    assert_ok(src.read(src.self, 0, (uint64_t)8 * C * 2, out, (uint64_t)4 * C * 2));
    assert_int_equal(c.bytes[0], 4 * C);
    assert_int_equal(c.bytes[1], C / 4 * 4);
    src.prefetch(src.self, 0, (uint64_t)8 * C * 2, (uint64_t)4 * C * 2);
    assert_int_equal(c.prefetched[0], 4 * C);
    d9d_dequant_free(d);
    mem_tensors_free(&m);

    m = (mem_tensors){.n = 0};
    (void)mem_tensors_add(&m, "w_blocks", D9D_U8, SHAPE(2, 3, G, 16));
    (void)mem_tensors_add(&m, "w_scales", D9D_U8, SHAPE(2, 3, G));
    stored = counted_source(&c, &m);
    assert_ok(d9d_dequant_create(&mxfp4, D9D_BF16, &stored, &d));
    src = d9d_dequant_source(d);
    /* Row 40 of the second expert: the second group of three rows. */
    assert_ok(src.read(src.self, 0, (uint64_t)(G * 32 + 40) * 3 * 2, out, 3 * 2));
    assert_int_equal(c.bytes[0], 3 * 16);
    assert_true(c.bytes[1] <= 2 * G + 1);
    src.prefetch(src.self, 0, (uint64_t)(G * 32 + 40) * 3 * 2, 3 * 2);
    assert_int_equal(c.prefetched[0], 3 * G * 16);
    d9d_dequant_free(d);
    mem_tensors_free(&m);

    m = (mem_tensors){.n = 0};
    (void)mem_tensors_add(&m, "w_packed", D9D_I32, SHAPE(4, C / 8));
    (void)mem_tensors_add(&m, "w_scale", D9D_BF16, SHAPE(4, C / 16));
    (void)mem_tensors_add(&m, "w_shape", D9D_I32, SHAPE(2));
    stored = counted_source(&c, &m);
    assert_ok(d9d_dequant_create(&packed, D9D_BF16, &stored, &d));
    src = d9d_dequant_source(d);
    assert_int_equal(src.n, 1);
    /* The second row and a number more. */
    assert_ok(src.read(src.self, 0, (uint64_t)C * 2, out, (uint64_t)(C + 1) * 2));
    assert_int_equal(c.bytes[0], C / 2 + 1);
    assert_int_equal(c.bytes[1], (C / 16 + 1) * 2);
    src.prefetch(src.self, 0, (uint64_t)C * 2, (uint64_t)(C + 1) * 2);
    assert_int_equal(c.prefetched[0], C / 2 + 1);
    d9d_dequant_free(d);
    mem_tensors_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_config_of_libraries),
        cmocka_unit_test(test_config_refused),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_names_of_compressed),
        cmocka_unit_test(test_names_of_modelopt),
        cmocka_unit_test(test_spare_biases),
        cmocka_unit_test(test_guess),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_refused_of_serving),
        cmocka_unit_test(test_state_refused),
        cmocka_unit_test(test_columns_refused),
        cmocka_unit_test(test_wrong_use),
        cmocka_unit_test(test_reads_no_more),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
