/* fuzz_hf_config.c - any bytes as config.json: rejected, or parsed to dimensions in range, which
 * survive a rewrite for another layout. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "d9d/model/family/family.h"
#include "d9d/model/hf/hf_config.h"
#include "d9d/models/models.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds)
        abort();
}

/* The family of its model_type; of others any, which refuses it. */
static const d9d_family *family_of(const json_t *doc)
{
    const char *type = json_string_value(json_object_get(doc, "model_type"));
    const d9d_model_provider *p = type != NULL ? d9d_model_find(d9d_model_choices, type) : NULL;

    return p != NULL ? p->family : d9d_qwen3_moe_provider.family;
}

/* Dimensions of a model: a small one can be built, or is refused. */
static void check_range(const d9d_family_config *c)
{
    const d9d_family_dims *d = c->dims;
    const d9d_model_opts opts = {.dtype = D9D_F32};
    d9d_model *m;

    must(d->hidden_size > 0 && d->num_hidden_layers > 0 && d->vocab_size > 0);
    must(d->num_attention_heads > 0 && d->num_key_value_heads > 0 && d->head_dim > 0);
    must(d->num_attention_heads % d->num_key_value_heads == 0);
    must(d->max_position_embeddings > 0 && d->norm_eps >= 0 && d->norm_eps <= 1);
    must(d->rope_theta >= 0 && d->initializer_range >= 0);
    must(d->attention_dropout >= 0 && d->attention_dropout < 1);
    must(c->n_splits == 1 && c->splits[0].size == d->vocab_size);
    must(c->head != D9D_HEAD_CLASSIFICATION || c->labels > 0);
    if (d->num_hidden_layers > 8)
        return;
    if (d9d_family_create(c, D9D_WHOLE_MODEL, &opts, &m) == D9D_OK)
        d9d_model_free(m);
    else
        must(d9d_err_message()[0] != '\0');
}

static size_t field_size(const d9d_key *k)
{
    return k->kind == D9D_KIND_BOOL     ? sizeof(bool)
           : k->kind == D9D_KIND_INT    ? sizeof(int64_t)
           : k->kind == D9D_KIND_REAL   ? sizeof(double)
           : k->kind == D9D_KIND_CUSTOM ? k->custom->size
                                        : 0;
}

static void check_list(const d9d_key *k, const d9d_list *a, const d9d_list *b)
{
    must(a->n == b->n);
    for (size_t i = 0; i < a->n; i++)
        if (k->elem->kind == D9D_KIND_STR)
            must(strcmp(((const char *const *)a->items)[i], ((const char *const *)b->items)[i]) ==
                 0);
        else
            must(memcmp((const char *)a->items + i * field_size(k->elem),
                        (const char *)b->items + i * field_size(k->elem),
                        field_size(k->elem)) == 0);
}

/* Every key of the table has the same value. */
static void check_keys(const d9d_family *f, const char *a, const char *b)
{
    for (const d9d_key *k = f->config->keys; k->name != NULL; k++)
        if (k->kind == D9D_KIND_LIST)
            check_list(k, (const void *)(a + k->offset), (const void *)(b + k->offset));
        else
            must(field_size(k) > 0 && memcmp(a + k->offset, b + k->offset, field_size(k)) == 0);
}

/* `doc` says what c is, whatever its head was marked as. */
static void check_same(const json_t *doc, d9d_arena *a, const d9d_family_config *c)
{
    d9d_family_config now;

    must(d9d_family_read(c->family, doc, "config.json", false, a, &now) == D9D_OK);
    check_keys(c->family, c->dims, now.dims);
    must(memcmp(c->dims, now.dims, sizeof(d9d_family_dims)) == 0);
    must(now.splits[0].size == c->splits[0].size);
    must(now.head == c->head && now.labels == c->labels);
    must(now.embedding_dim == c->embedding_dim && now.prefixed == c->prefixed);
    must(now.custom_router == c->custom_router);
}

/* The text for `doc`, from a file with these bytes, is `doc`. */
static void check_text(const json_t *doc, const uint8_t *data, size_t size)
{
    int fd = memfd_create("config.json", MFD_CLOEXEC);
    d9d_buf text = {0};
    char path[64];
    json_t *read;

    must(fd >= 0 && pwrite(fd, data, size, 0) == (ssize_t)size);
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    must(d9d_hf_config_text(doc, path, &text) == D9D_OK);
    must(d9d_json_parse("config.json", text.data, text.len, &read) == D9D_OK);
    must(json_equal(read, doc));
    json_decref(read);
    d9d_buf_release(&text);
    (void)close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    d9d_arena a = {0};
    d9d_family_config c = {0};
    json_t *doc;

    if (d9d_json_parse("config.json", (const char *)data, size, &doc) != D9D_OK)
        return 0;
    if (json_is_object(doc) &&
        d9d_family_read(family_of(doc), doc, "config.json", false, &a, &c) == D9D_OK) {
        check_range(&c);
        must(d9d_family_mark(&c, doc, size % 2 == 0) == D9D_OK);
        check_text(doc, data, size);
        for (int generation = 4; generation <= 5; generation++) {
            must(d9d_hf_config_set_generation(doc, generation) == D9D_OK);
            check_same(doc, &a, &c);
        }
        d9d_hf_config_unmark(doc);
        check_text(doc, data, size);
    }
    json_decref(doc);
    d9d_arena_release(&a);
    return 0;
}
