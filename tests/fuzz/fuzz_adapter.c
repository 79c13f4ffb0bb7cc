/* fuzz_adapter.c - any bytes as a peft adapter directory: adapter_config.json, a zero byte, and the
 * header of adapter_model.safetensors, followed by as many zeros as its tensors need. */
#include <endian.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "d9d/base/fs.h"
#include "d9d/model/family/family.h"
#include "d9d/models/models.h"
#include "model/lora/adapter_private.h"

enum { MOST = 1 << 16 }; /* bytes of numbers */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(bool truth)
{
    if (!truth)
        abort();
}

/* A model with linear layers and experts. */
static const char model[] =
    "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 8, \"num_hidden_layers\": 2, "
    "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 4, "
    "\"intermediate_size\": 6, \"moe_intermediate_size\": 3, \"num_experts\": 2, "
    "\"num_experts_per_tok\": 1, \"mlp_only_layers\": [0], \"max_position_embeddings\": 64, "
    "\"vocab_size\": 50}";

static void list_matrices(d9d_arena *a, d9d_model_matrices *out)
{
    d9d_family_config c;
    json_t *doc;

    need(d9d_json_parse("model", model, sizeof(model) - 1, &doc) == D9D_OK);
    need(d9d_family_read(d9d_qwen3_moe_provider.family, doc, "model", true, a, &c) == D9D_OK);
    json_decref(doc);
    need(d9d_family_matrices(&c, a, out) == D9D_OK);
}

/* The numbers that the header speaks of, as far as it is one. */
static uint64_t bytes_of(const char *header, size_t n)
{
    json_t *doc = json_loadb(header, n, 0, NULL), *tensor;
    const char *name;
    json_int_t most = 0;

    json_object_foreach(doc, name, tensor)
    {
        const json_t *end = json_array_get(json_object_get(tensor, "data_offsets"), 1);

        if (json_integer_value(end) > most)
            most = json_integer_value(end);
    }
    json_decref(doc);
    return most > MOST ? MOST : (uint64_t)most;
}

static void write_file(d9d_arena *a, const char *dir, const char *name, const void *p, size_t n)
{
    const char *path = d9d_fs_join(a, dir, name);

    need(path != NULL && d9d_fs_write_atomic(path, p, n) == D9D_OK);
}

static void write_tensors(d9d_arena *a, const char *dir, const char *header, size_t n)
{
    const uint64_t length = htole64(n), zeros = bytes_of(header, n);
    char *all = calloc(1, sizeof(length) + n + zeros);

    need(all != NULL);
    memcpy(all, &length, sizeof(length));
    memcpy(all + sizeof(length), header, n);
    write_file(a, dir, D9DI_ADAPTER_TENSORS, all, sizeof(length) + n + zeros);
    free(all);
}

/* What was accepted are factors of matrices of the model, and parameters of it. */
static void check(const d9d_adapters *ad, const d9d_model_matrices *of)
{
    need(ad->list.len + ad->saved.len > 0);
    for (size_t i = 0; i < ad->saved.len; i++) {
        const d9di_adapters_saved *x = &ad->saved.data[i];
        const d9d_model_matrix *m = d9di_adapters_param_of(of, x->name);
        const d9d_shape want = m != NULL ? d9di_peft_own_shape(m) : x->shape;

        need(m != NULL && x->v != NULL && d9d_shape_equal(&x->shape, &want));
    }
    for (size_t i = 0; i < ad->list.len; i++) {
        const d9di_adapters_factors *f = &ad->list.data[i];
        const d9d_model_matrix *m = d9di_adapters_matrix_of(of, f);

        need(m != NULL && f->in == m->in && f->out == m->out);
        need(f->r > 0 || !d9di_adapters_has(f, D9D_ADAPTER_A));
        for (int role = 0; role < D9D_ADAPTER_PARAMS; role++)
            need((f->v[role] != NULL) == d9di_adapters_has(f, role));
        need(f->experts == (m->experts > 0 ? m->experts : 1));
        need(d9di_adapters_find(ad, m) == f);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data, *zero = size > 0 ? memchr(text, 0, size) : NULL;
    const size_t n = zero != NULL ? (size_t)(zero - text) : size;
    char dir[] = "/tmp/d9d-fuzz-XXXXXX";
    d9d_model_matrices of;
    d9d_adapters *ad = NULL;
    d9d_arena a = {0};

    need(mkdtemp(dir) != NULL);
    list_matrices(&a, &of);
    write_file(&a, dir, D9DI_ADAPTER_CONFIG, text, n);
    if (zero != NULL)
        write_tensors(&a, dir, zero + 1, size - n - 1);
    if (d9d_adapters_read(dir, &of, NULL, dir, NULL, &ad) == D9D_OK)
        check(ad, &of);
    else
        need(ad == NULL && d9d_err_message()[0] != '\0');
    d9d_adapters_free(ad);
    need(d9d_fs_remove_tree(dir) == D9D_OK);
    d9d_arena_release(&a);
    return 0;
}
