/* cuda_options.c - see device/cuda_options.h. */
#include "device/cuda_options.h"

#include <stdlib.h>
#include <string.h>

#include "d9d/config/config.h"

#define VARIABLE "D9D_BACKEND_AUTO_SDPA"

/* --- the value --------------------------------------------------------------------------- */

typedef struct fused {
    bool deterministic;
    int64_t scratch_mb;
} fused;
typedef struct torch {
    d9d_list backends; /* of int */
} torch;
typedef struct choice {
    d9d_union sdpa;
} choice;

enum { CUDNN, FLASH_2, FLASH_4, TORCH, EAGER };
enum { CUDNN_ATTENTION = 3 };

static const char *const kind_tag[] = {"kind", NULL};
static const char *const torch_words[] = {"MATH", "FLASH_ATTENTION", "EFFICIENT_ATTENTION",
                                          "CUDNN_ATTENTION", NULL};

static const d9d_key no_keys[] = {D9D_KEY_END};
static const d9d_key cudnn_keys[] = {
    D9D_KEY_BOOL(fused, deterministic, "true", "gradients with the same bits in every run"),
    D9D_KEY_INT(fused, scratch_mb, "4096", 1, 1 << 20, "MiB of scratch that this may take"),
    D9D_KEY_END,
};
static const d9d_key torch_elem = {
    .kind = D9D_KIND_ENUM, .names = torch_words, .doc = "a kernel of PyTorch's"};
static const d9d_key torch_keys[] = {
    {.name = "backends",
     .kind = D9D_KIND_LIST,
     .flags = D9D_NULLABLE,
     .offset = offsetof(torch, backends),
     .def = "null",
     .elem = &torch_elem,
     .doc = "the kernels that may be used; null: any"},
    D9D_KEY_END,
};

#define KIND(var, word, type, k, d)                                                                \
    static const d9d_table var = {.name = word, .size = sizeof(type), .keys = k, .doc = d}
KIND(cudnn_table, "cudnn", fused, cudnn_keys, "cuDNN");
KIND(flash_2_table, "flash_attention_2", fused, no_keys, "as cudnn");
KIND(flash_4_table, "flash_attention_4", fused, no_keys, "as cudnn");
KIND(torch_table, "torch", torch, torch_keys, "as cudnn, where the backends allow it");
KIND(eager_table, "eager", fused, no_keys, "built-in SIMT kernels");
static const d9d_table *const kinds[] = {
    [CUDNN] = &cudnn_table, [FLASH_2] = &flash_2_table, [FLASH_4] = &flash_4_table,
    [TORCH] = &torch_table, [EAGER] = &eager_table,     NULL,
};

static const d9d_key choice_keys[] = {
    D9D_KEY_UNION(choice, sdpa, D9D_REQUIRED, kind_tag, kinds, "which kernels compute attention"),
    D9D_KEY_END,
};
static const d9d_table choice_table =
    D9D_TABLE(choice, "kernels", choice_keys, "kernels that a GPU runs");

/* --- reading it --------------------------------------------------------------------------- */

static bool lists_cudnn(const torch *t)
{
    const int *word = t->backends.items;

    for (size_t i = 0; i < t->backends.n; i++)
        if (word[i] == CUDNN_ATTENTION)
            return true;
    return t->backends.n == 0;
}

static void apply_choice(const choice *x, d9d_cuda_opts *out)
{
    const bool own =
        x->sdpa.which == EAGER || (x->sdpa.which == TORCH && !lists_cudnn(x->sdpa.value));

    out->attention = own ? D9D_CUDA_ATTENTION_SIMT : D9D_CUDA_ATTENTION_CUDNN;
    if (x->sdpa.which == CUDNN) {
        const fused *f = x->sdpa.value;

        out->nondeterministic = !f->deterministic;
        out->max_score_bytes = f->scratch_mb << 20;
    }
}

d9d_status d9di_device_cuda_opts(d9d_cuda_opts *out)
{
    const char *text = getenv(VARIABLE);
    d9d_arena arena = {0};
    json_t *doc = NULL, *value;
    choice x;
    d9d_status st;

    *out = (d9d_cuda_opts){0};
    if (text == NULL)
        return D9D_OK;
    D9D_TRY(d9d_json_parse(VARIABLE, text, strlen(text), &value));
    doc = json_pack("{s:o}", "sdpa", value);
    if (doc == NULL)
        return D9D_FAIL(D9D_ENOMEM, VARIABLE ": no memory for its value");
    st = d9d_config_bind(&choice_table, doc, VARIABLE, NULL, &arena, &x);
    if (st == D9D_OK)
        apply_choice(&x, out);
    json_decref(doc);
    d9d_arena_release(&arena);
    return st;
}
