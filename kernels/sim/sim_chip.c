/* sim_chip.c - data sheets of chips. See d9d/kernels/sim.h and docs/design/cost-model.md. */
#include <string.h>

#include "sim/sim_private.h"

#define MIB(n) (UINT64_C(n) << 20)

/* Fractions of the data sheet's rate, measured on an H200: docs/benchmarks/kernels.md. Other NVIDIA
 * GPUs are assumed to reach the same fractions. */
#define MEASURED                                                                                   \
    {                                                                                              \
        [D9D_SIM_GEMM] = 0.73, [D9D_SIM_FP8_GEMM] = 0.58, [D9D_SIM_GROUPED_GEMM] = 0.66,           \
        [D9D_SIM_FP8_GROUPED_GEMM] = 0.33, [D9D_SIM_ATTENTION] = 0.55,                             \
        [D9D_SIM_ATTENTION_BWD] = 0.37, [D9D_SIM_ATTENTION_BUILTIN] = 0.025,                       \
        [D9D_SIM_LINEAR_CROSS_ENTROPY] = 0.63, [D9D_SIM_MEMORY] = 0.05                             \
    }

/* A row of NVIDIA GPUs, 8 per node: FLOP rates in tera, memory in GB/s and MiB, links in GB/s.
 * Between nodes each GPU has one adapter. */
#define NVIDIA(word, says, of_hopper, n_sms, tflops, tflops_f32, tflops_fp8, gb_s, mib, nvlink,    \
               adapter, pcie)                                                                      \
    {                                                                                              \
        .name = (word), .title = (says), .is_gpu = true, .is_sm90 = (of_hopper), .sms = (n_sms),   \
        .flops = (tflops)*1e12, .flops_f32 = (tflops_f32)*1e12, .flops_fp8 = (tflops_fp8)*1e12,    \
        .efficiency = MEASURED, .memory_rate = (gb_s)*1e9, .memory_efficiency = 0.78,              \
        .memory = MIB(mib), .library_memory = MIB(1024), .launch_s = 3e-6,                         \
        .part_s = {10e-6, 60e-6}, .per_node = 8, .link = {                                         \
            [D9D_SIM_LINK_NODE] = {(nvlink)*0.72e9, 15e-6},                                        \
            [D9D_SIM_LINK_NETWORK] = {(adapter)*0.85e9, 30e-6},                                    \
            [D9D_SIM_LINK_HOST] = {(pcie)*0.55e9, 0},                                              \
            [D9D_SIM_LINK_HOST_COPY] = {(pcie)*0.81e9, 0},                                         \
        }                                                                                          \
    }

static const d9d_sim_chip chips[] = {
    NVIDIA("h200", "NVIDIA H200", true, 132, 989, 60, 1979, 4800, 143771, 450, 50, 64),
    NVIDIA("h100", "NVIDIA H100 SXM 80 GB", true, 132, 989, 60, 1979, 3350, 81559, 450, 50, 64),
    NVIDIA("a100", "NVIDIA A100 SXM 80 GB", false, 108, 312, 19.5, 0, 2039, 81920, 300, 25, 32),
    NVIDIA("b200", "NVIDIA B200", false, 148, 2250, 75, 4500, 8000, 183359, 900, 50, 64),
    {.name = "cpu",
     .title = "a processor core",
     .flops = 30e9,
     .flops_f32 = 30e9,
     .flops_fp8 = 30e9, /* as float32 */
     .efficiency = {[D9D_SIM_GEMM] = 0.7,
                    [D9D_SIM_FP8_GEMM] = 0.7,
                    [D9D_SIM_GROUPED_GEMM] = 0.7,
                    [D9D_SIM_FP8_GROUPED_GEMM] = 0.7,
                    [D9D_SIM_ATTENTION] = 0.3,
                    [D9D_SIM_ATTENTION_BWD] = 0.3,
                    [D9D_SIM_ATTENTION_BUILTIN] = 0.3,
                    [D9D_SIM_LINEAR_CROSS_ENTROPY] = 0.7,
                    [D9D_SIM_MEMORY] = 0.1},
     .memory_rate = 10e9,
     .memory_efficiency = 0.7,
     .launch_s = 1e-6,
     .per_node = 64,
     .link = {[D9D_SIM_LINK_NODE] = {3e9, 5e-6},
              [D9D_SIM_LINK_NETWORK] = {1e9, 20e-6},
              [D9D_SIM_LINK_HOST] = {7e9, 0},
              [D9D_SIM_LINK_HOST_COPY] = {7e9, 0}}},
};

enum { CHIPS = sizeof(chips) / sizeof(chips[0]) };

const d9d_sim_chip *d9d_sim_chip_find(const char *name)
{
    for (int i = 0; i < CHIPS; i++)
        if (strcmp(chips[i].name, name) == 0)
            return &chips[i];
    return NULL;
}

const char *const *d9d_sim_chip_names(void)
{
    static const char *const names[] = {"h200", "h100", "a100", "b200", "cpu", NULL};

    return names;
}

const char *d9d_sim_kind_name(d9d_sim_kind kind)
{
    static const char *const texts[] = {
#define X(name, text) text,
        D9D_SIM_KIND_MAP(X)
#undef X
    };

    return texts[kind];
}

const char *d9d_sim_link_name(d9d_sim_link link)
{
    static const char *const texts[] = {"node", "network", "host", "host"};

    return texts[link];
}
