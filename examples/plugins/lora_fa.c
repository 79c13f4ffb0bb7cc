/* lora_fa.c - a method of fine-tuning as a plugin: LoRA whose A is drawn once and stays (LoRA-FA).
 *
 *     {"plugin": "liblora_fa.so",
 *      "peft": {"kind": "lora_fa", "module_name_pattern": ".*_proj", "params": {"r": 16, "alpha":
 * 32}},
 *      ...}
 *
 * Half of the parameters are trained, and the activations before A are not kept for backward.  The
 * adapter's parameters have the roles A and B, so products, sharding, merging and peft's files are
 * those of LoRA: another program does not tell the two apart.
 *
 * Zhang et al., "LoRA-FA", 2023.
 */
#include <d9d/tasks/plugin.h>

static const d9d_adapter_kind frozen_a = {
    .size = sizeof(d9d_adapter_kind),
    .name = "lora_fa",
    .params = {[D9D_ADAPTER_A] = {.name = "lora_A.weight", .frozen = true},
               [D9D_ADAPTER_B] = {.name = "lora_B.weight"}},
};

typedef struct section {
    d9d_peft_target target; /* first */
    d9d_peft_params params;
} section;
static const d9d_key keys[] = {
    D9D_PEFT_TARGET_KEYS(section),
    D9D_KEY_TABLE(section, params, &d9d_peft_params_table, "rank and scale"),
    D9D_KEY_END,
};
static const d9d_table table = D9D_TABLE(section, "lora_fa", keys, "LoRA with a frozen A");

static d9d_status adapt(const void *self, const char *name, const d9d_param *w,
                        const d9d_adapter_kind **kind, d9d_adapter_opts *opts)
{
    (void)w;
    *kind = &frozen_a;
    return d9d_peft_params_opts(&((const section *)self)->params, name, opts);
}

static const d9d_peft_method method = {
    .size = sizeof(d9d_peft_method), .table = &table, .adapt = adapt};
static const d9d_peft_method *const methods[] = {&method, NULL};
D9D_PLUGIN(.peft_methods = methods);
