/* test_weights.c - loading checkpoints into models: what is read, and what is rejected before
 * anything is read. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "d9d/ckpt/dir/checkpoint.h"
#include "d9d/convert/convert.h"
#include "d9d/job/job.h"
#include "d9d/model/hf/hf_config.h"
#include "d9d/model/model.h"
#include "d9d/model/weights/random_weights.h"
#include "d9d/model/weights/weights.h"
#include "d9d/models/models.h"
#include "support/family.h"
#include "support/unit.h"

/* No matrix of this model is square, so that each has another shape when it is transposed. */
#define CONFIG                                                                                     \
    "\"hidden_size\": 20, \"num_hidden_layers\": 5, \"num_attention_heads\": 3, "                  \
    "\"num_key_value_heads\": 1, \"head_dim\": 8, \"vocab_size\": 11, \"intermediate_size\": 14"

static const char *const families[] = {
    "\"model_type\": \"qwen3\"",
    "\"model_type\": \"qwen3_moe\", \"num_experts\": 4, \"num_experts_per_tok\": 2, "
    "\"moe_intermediate_size\": 40, \"mlp_only_layers\": [1]"};
static const char *const classes[] = {"ForCausalLM", "ForSequenceClassification", "Model"};
static const d9d_weights_layout layouts[] = {D9D_LAYOUT_D9D, D9D_LAYOUT_HF, D9D_LAYOUT_HF_FUSED};
enum { N_FAMILIES = 2, N_CLASSES = 3, N_LAYOUTS = 3 };

/* config.json in the current directory. */
static void write_config(int family, int class, bool tied)
{
    d9d_buf b = {0};

    assert_ok(d9d_buf_printf(&b,
                             "{%s, \"architectures\": [\"Qwen3%s%s\"], \"num_labels\": 7, "
                             "\"tie_word_embeddings\": %s, " CONFIG "}",
                             families[family], family > 0 ? "Moe" : "", classes[class],
                             tied ? "true" : "false"));
    assert_ok(d9d_fs_write_atomic("config.json", b.data, b.len));
    d9d_buf_release(&b);
}

/* --- a source that counts ------------------------------------------------------------- */

struct counter {
    d9d_tensor_source inner;
    uint64_t *bytes; /* of each tensor */
};

static const d9d_safetensors_tensor *counted_at(void *self, size_t i)
{
    const struct counter *c = self;

    return c->inner.at(c->inner.self, i);
}

static const char *counted_place(void *self, size_t i)
{
    const struct counter *c = self;

    return c->inner.path(c->inner.self, i);
}

static d9d_status counted_read(void *self, size_t i, uint64_t at, void *dst, uint64_t n)
{
    struct counter *c = self;

    (void)__atomic_fetch_add(&c->bytes[i], n, __ATOMIC_RELAXED);
    return c->inner.read(c->inner.self, i, at, dst, n);
}

static d9d_tensor_source counted(struct counter *c, d9d_tensor_source inner)
{
    c->inner = inner;
    c->bytes = calloc(inner.n, sizeof(*c->bytes));
    assert_non_null(c->bytes);
    return (d9d_tensor_source){
        .self = c, .n = inner.n, .at = counted_at, .path = counted_place, .read = counted_read};
}

/* A sink that makes every output and keeps none; self is where they are listed. */
static d9d_status take_any(void *self, const d9d_safetensors_tensor *outputs, size_t n,
                           size_t *n_items, uint64_t *bytes)
{
    const d9d_safetensors_tensor **list = self;

    *list = outputs;
    *n_items = n;
    *bytes = 0;
    return D9D_OK;
}

static d9d_status forget(void *self, size_t item, d9d_map_reader *make)
{
    const d9d_safetensors_tensor *const *list = self;
    const uint64_t n = (*list)[item].bytes;
    void *scratch;

    D9D_TRY(d9d_map_reader_scratch(make, n, &scratch));
    return d9d_map_read(make, item, 0, scratch, n);
}

/* --- making checkpoints ------------------------------------------------------------------ */

/* Random weights of config.json here, in `layout`, by files of so many bytes. */
static void make_by(const char *dir, d9d_weights_layout layout, uint64_t shard_bytes)
{
    const d9d_convert_opts opt = {.to = layout == D9D_LAYOUT_D9D ? D9D_CONVERT_D9D : D9D_CONVERT_HF,
                                  .expert_layout = layout == D9D_LAYOUT_HF_FUSED
                                                       ? D9D_CONVERT_EXPERTS_FUSED
                                                       : D9D_CONVERT_EXPERTS_SEPARATE,
                                  .shard_bytes = shard_bytes};
    d9d_convert *c;

    assert_ok(d9d_convert_open_random("config.json", 17, &opt, &c));
    assert_ok(d9d_convert_run(c, dir, &(d9d_convert_run_opts){.replace = true, .jobs = 1}));
    d9d_convert_close(c);
}

static void make(const char *dir, d9d_weights_layout layout)
{
    make_by(dir, layout, 3000);
}

/* The tensor of "m" whose name has `part` in it. */
static size_t tensor_with(const d9d_tensor_source *src, const char *part)
{
    size_t i = 0;

    while (i < src->n && strstr(src->at(src->self, i)->name, part) == NULL)
        i++;
    assert_true(i < src->n);
    return i;
}

/* Gives the head in "m" the numbers of the embedding. */
static void head_become_copy(void)
{
    d9d_checkpoint *ckpt;
    d9d_tensor_source src;
    const d9d_safetensors_tensor *head;
    size_t i;
    void *bytes;
    int fd;

    assert_ok(d9d_checkpoint_open("m", &ckpt));
    src = d9d_checkpoint_source(ckpt);
    i = tensor_with(&src, "lm_head");
    head = src.at(src.self, i);
    bytes = malloc(head->bytes);
    assert_non_null(bytes);
    assert_ok(src.read(src.self, tensor_with(&src, "embed_tokens"), 0, bytes, head->bytes));
    fd = open(src.path(src.self, i), O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, head->bytes, (off_t)head->offset), head->bytes);
    assert_int_equal(close(fd), 0);
    free(bytes);
    d9d_checkpoint_close(ckpt);
}

/* Which stages of `count` map the tensor: bit s for stage s.  By its name alone. */
static unsigned owners(const d9d_family_config *c, const char *name, int count)
{
    const d9d_family_dims *dims = c->dims;
    const char *layer = strstr(name, "layers.");
    unsigned who = 0;

    for (int s = 0; s < count; s++) {
        int64_t first, end;
        bool own;

        assert_ok(
            d9d_stage_layers(dims->num_hidden_layers, 0, 0, (d9d_stage){s, count}, &first, &end));
        if (layer != NULL)
            own = atoi(layer + 7) >= first && atoi(layer + 7) < end;
        else if (strstr(name, "embed_tokens") != NULL)
            own = s == 0 ||
                  (s == count - 1 && dims->tie_word_embeddings && c->head == D9D_HEAD_CAUSAL_LM);
        else
            own = s == count - 1;
        who |= own ? 1u << s : 0;
    }
    return who;
}

/* The tensors that a stage's mapping reads: all of each of its own, and nothing of another's. */
static void check_stage(const d9d_family_config *c, const d9d_tensor_source *disk, d9d_stage stage)
{
    const d9d_map_plan_opts opt = {.allow_unused = true};
    const d9d_safetensors_tensor *outputs = NULL;
    const d9d_tensor_sink nowhere = {.self = &outputs, .begin = take_any, .fill = forget};
    struct counter counter;
    d9d_tensor_source src = counted(&counter, *disk);
    d9d_map_plan *plan;
    d9d_mapper *m;

    assert_ok(d9d_family_mapper(c, stage, &src, D9D_LAYOUT_D9D, &m));
    assert_ok(d9d_map_plan_create(m, &src, &opt, &plan));
    assert_ok(d9d_map_plan_run(plan, &nowhere, 2, NULL));
    for (size_t i = 0; i < src.n; i++) {
        const d9d_safetensors_tensor *t = src.at(src.self, i);
        bool own = (owners(c, t->name, stage.count) >> stage.index & 1) != 0;

        if (counter.bytes[i] != (own ? t->bytes : 0))
            fail_msg("stage %d of %d read %llu of %llu bytes of %s", stage.index, stage.count,
                     (unsigned long long)counter.bytes[i], (unsigned long long)t->bytes, t->name);
    }
    d9d_map_plan_free(plan);
    d9d_mapper_free(m);
    free(counter.bytes);
}

static void a_stage_reads_its_own_tensors_once_and_no_other(void **state)
{
    (void)state;
    for (int form = 0; form < N_FAMILIES * N_CLASSES * N_LAYOUTS * 2; form++) {
        const int family = form & 1, tied = form >> 1 & 1, class = (form >> 2) % N_CLASSES;
        d9d_arena a = {0};
        d9d_family_config c;
        d9d_checkpoint *ckpt;
        d9d_tensor_source src;

        write_config(family, class, tied);
        make_by("m", layouts[(form >> 2) / N_CLASSES], 1 << 20);
        assert_ok(family_read("config.json", &a, &c));
        assert_ok(d9d_checkpoint_open("m", &ckpt));
        src = d9d_checkpoint_source(ckpt);
        for (int count = 1; count <= 3; count++)
            for (int s = 0; s < count; s++)
                check_stage(&c, &src, (d9d_stage){s, count});
        d9d_checkpoint_close(ckpt);
        d9d_arena_release(&a);
    }
}

/* --- into a model ---------------------------------------------------------------------------- */

/* Bytes that this process has read so far, by its own account in /proc, with or without these. */
static uint64_t bytes_read(bool own)
{
    char text[512];
    int fd = open("/proc/self/io", O_RDONLY | O_CLOEXEC);
    ssize_t n = read(fd, text, sizeof(text) - 1);

    assert_true(n > 0);
    text[n] = '\0';
    assert_int_equal(close(fd), 0);
    assert_true(strncmp(text, "rchar: ", 7) == 0);
    return strtoull(text + 7, NULL, 10) + (own ? (uint64_t)n : 0);
}

/* valgrind reads files of its own. */
static bool is_alone(void)
{
    const char *loaded = getenv("LD_PRELOAD");

    return loaded == NULL || strstr(loaded, "vgpreload") == NULL;
}

struct cost {
    uint64_t open, read;
};

/* Part i of `parts` of every parameter along its first dimension, or its last one. */
struct cut {
    int64_t parts, i;
    bool last;
};
static const struct cut whole_model = {1, 0, false};

/* Load a part of a stage of "m" into a model of its own, which must then be the one with these
 * seeds. */
static struct cost load(const d9d_family_config *c, d9d_stage stage, struct cut cut)
{
    const d9d_model_opts options = {.dtype = D9D_F32};
    const d9d_model_spec spec = {.provider = &d9d_qwen3_moe_provider, .config = c, .opts = options};
    struct cost cost;
    d9d_arena a = {0};
    d9d_device *dev;
    d9d_model *m[2]; /* loaded, and made from the seed */
    d9d_params p[2];
    d9d_weights *w;
    uint64_t mark;

    assert_ok(d9d_device_open("cpu", &dev));
    for (int i = 0; i < 2; i++) {
        assert_ok(d9d_family_create(c, stage, &options, &m[i]));
        assert_ok(d9d_module_bind(m[i]->module));
        assert_ok(d9d_module_params(m[i]->module, &a, &p[i]));
        for (size_t k = 0; k < p[i].n; k++)
            d9d_param_partition(p[i].p[k], cut.last ? p[i].p[k]->spec.shape.ndim - 1 : 0, cut.parts,
                                cut.i);
        assert_ok(d9d_module_materialise(m[i]->module, dev, false));
    }
    assert_ok(d9d_module_reset(m[1]->module, 17));
    mark = bytes_read(true);
    assert_ok(d9d_weights_open(&spec, stage, "m", NULL, &w));
    cost.open = bytes_read(false) - mark;
    mark = bytes_read(true);
    assert_ok(d9d_weights_read(w, &p[0], NULL));
    cost.read = bytes_read(false) - mark;
    d9d_weights_close(w);
    for (size_t i = 0; i < p[0].n; i++)
        assert_memory_equal(d9d_tensor_data(&p[0].p[i]->local.data),
                            d9d_tensor_data(&p[1].p[i]->local.data),
                            d9d_tensor_bytes(&p[0].p[i]->local.data));
    for (int i = 0; i < 2; i++)
        d9d_model_free(m[i]);
    d9d_device_close(dev);
    d9d_arena_release(&a);
    return cost;
}

/* What loading must read: the index, the headers of files with a tensor of this stage, and its
 * tensors. */
static struct cost needed(const d9d_family_config *c, d9d_stage stage)
{
    struct cost cost;
    const char *last = "";
    d9d_checkpoint *ckpt;
    uint64_t config;

    cost.read = 0;
    assert_ok(d9d_fs_size("m/" D9D_CHECKPOINT_INDEX_NAME, &cost.open));
    assert_ok(d9d_fs_size("m/" D9D_HF_CONFIG_NAME, &config));
    cost.open += config; /* it may say that weights are quantised */
    assert_ok(d9d_checkpoint_open("m", &ckpt));
    for (size_t i = 0; i < d9d_checkpoint_count(ckpt); i++) {
        const d9d_safetensors_tensor *t = d9d_checkpoint_at(ckpt, i);
        const char *file = d9d_checkpoint_file_path(ckpt, i);

        if ((owners(c, t->name, stage.count) >> stage.index & 1) == 0)
            continue;
        cost.read += t->bytes;
        if (strcmp(file, last) != 0) {
            d9d_file f;
            uint64_t n;

            assert_ok(d9d_file_open(file, &f));
            assert_ok(d9d_file_read_at(&f, &n, sizeof(n), 0));
            d9d_file_release(&f);
            cost.open += sizeof(n) + n;
            last = file;
        }
    }
    d9d_checkpoint_close(ckpt);
    return cost;
}

static void loading_reads_each_byte_once_and_a_stage_its_own_headers(void **state)
{
    (void)state;
    for (int form = 0; form < N_FAMILIES * N_LAYOUTS; form++) {
        const struct cost none = {0};
        struct cost all = none, whole;
        d9d_arena a = {0};
        d9d_family_config c;

        write_config(form % N_FAMILIES, 0, false);
        make("m", layouts[form / N_FAMILIES]);
        assert_ok(family_read("config.json", &a, &c));
        for (int count = 1; count <= 3; count++) {
            all = none;
            for (int s = 0; s < count; s++) {
                struct cost want = needed(&c, (d9d_stage){s, count});
                struct cost got = load(&c, (d9d_stage){s, count}, whole_model);

                if (is_alone()) {
                    assert_int_equal(got.open, want.open);
                    assert_int_equal(got.read, want.read);
                }
                all.open += got.open;
                all.read += got.read;
            }
            if (count == 1)
                whole = all;
            if (is_alone())
                assert_int_equal(all.read, whole.read);
        }
        d9d_arena_release(&a);
    }
}

/* Ranks that cut the weights read what they keep: together each byte once where the cut follows the
 * files, and elsewhere no more than lies between. */
static void parts_are_read_as_they_are_kept(void **state)
{
    static const int64_t counts[] = {2, 3, 25}; /* more than there are rows: some keep nothing */

    (void)state;
    for (int form = 0; form < N_FAMILIES * N_LAYOUTS; form++) {
        d9d_arena a = {0};
        d9d_family_config c;

        write_config(form % N_FAMILIES, 0, false);
        make("m", layouts[form / N_FAMILIES]);
        assert_ok(family_read("config.json", &a, &c));
        for (int k = 0; k < (form == 5 ? 3 : 2); k++) {
            const int64_t parts = counts[k];
            uint64_t read[2] = {0, 0};

            for (int64_t i = 0; i < parts; i++)
                for (int last = 0; last < 2; last++)
                    read[last] += load(&c, D9D_WHOLE_MODEL, (struct cut){parts, i, last}).read;
            if (is_alone()) {
                assert_int_equal(read[0], needed(&c, D9D_WHOLE_MODEL).read);
                assert_true(read[1] >= read[0]);
            }
        }
        d9d_arena_release(&a);
    }
}

/* Experts that are larger than what is filled at once. */
static void large_experts_are_read_once_too(void **state)
{
    static const char config[] =
        "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 1536, \"num_hidden_layers\": 1, "
        "\"num_attention_heads\": 1, \"num_key_value_heads\": 1, \"head_dim\": 8, \"vocab_size\": "
        "11, \"num_experts\": 3, "
        "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": 1024, \"intermediate_size\": 8}";
    d9d_arena a = {0};
    d9d_family_config c;

    (void)state;
    if (!is_alone())
        skip();
    assert_ok(d9d_fs_write_atomic("config.json", config, sizeof(config) - 1));
    assert_ok(family_read("config.json", &a, &c));
    for (int i = 1; i < N_LAYOUTS; i++) {
        make("m", layouts[i]);
        assert_int_equal(load(&c, D9D_WHOLE_MODEL, whole_model).read,
                         needed(&c, D9D_WHOLE_MODEL).read);
    }
    d9d_arena_release(&a);
}

static void a_tied_head_that_is_there_does_not_come_along(void **state)
{
    d9d_arena a = {0};
    d9d_family_config c;

    (void)state;
    for (int i = 0; i < N_LAYOUTS; i++) {
        write_config(1, 0, false);
        make("m", layouts[i]);
        head_become_copy();
        write_config(1, 0, true);
        assert_ok(family_read("config.json", &a, &c));
        (void)load(&c, D9D_WHOLE_MODEL, whole_model);
    }
    d9d_arena_release(&a);
}

/* Qwen3-Embedding's names and class, for one who trains it as the language model it says to be. */
static void a_base_model_gives_a_tied_language_model(void **state)
{
    d9d_arena a = {0};
    d9d_family_config c;

    (void)state;
    for (int i = 0; i < N_LAYOUTS; i++) {
        write_config(1, 2, true);
        make("m", layouts[i]);
        write_config(1, 0, true);
        assert_ok(family_read("config.json", &a, &c));
        (void)load(&c, D9D_WHOLE_MODEL, whole_model);
    }
    d9d_arena_release(&a);
}

/* --- what does not fit ---------------------------------------------------------------------- */

struct list {
    d9d_safetensors_tensor t[512];
    size_t n;
};

static const d9d_safetensors_tensor *list_at(void *self, size_t i)
{
    return &((struct list *)self)->t[i];
}

static const char *list_place(void *self, size_t i)
{
    (void)self, (void)i;
    return "file";
}

static d9d_status list_read(void *self, size_t i, uint64_t at, void *dst, uint64_t n)
{
    (void)self, (void)i, (void)at, (void)dst, (void)n;
    fail_msg("a tensor was read");
    return D9D_EIO;
}

static d9d_tensor_source list_source(struct list *l)
{
    return (d9d_tensor_source){
        .self = l, .n = l->n, .at = list_at, .path = list_place, .read = list_read};
}

/* All tensors of the configuration in a layout. */
static void list_make(const d9d_family_config *c, d9d_weights_layout layout, d9d_arena *a,
                      struct list *l)
{
    d9d_random_weights *r;
    d9d_map_plan *plan;
    d9d_mapper *m;
    d9d_tensor_source src;

    assert_ok(family_weights(c, D9D_F32, 0, a, &r));
    src = d9d_random_weights_source(r);
    assert_ok(d9d_family_mapper(c, D9D_WHOLE_MODEL, &src, layout, &m));
    assert_ok(d9d_map_plan_create(m, &src, NULL, &plan));
    l->n = d9d_map_plan_output_count(plan);
    assert_true(l->n < 512);
    for (size_t i = 0; i < l->n; i++) {
        l->t[i] = *d9d_map_plan_output(plan, i);
        l->t[i].name = d9d_arena_strdup(a, l->t[i].name);
    }
    d9d_map_plan_free(plan);
    d9d_mapper_free(m);
    d9d_random_weights_close(r);
}

/* Each makes a tensor wrong; false where it cannot. */
static bool lose(d9d_safetensors_tensor *t)
{
    t->name = "of another model";
    return true;
}

static bool grow(d9d_safetensors_tensor *t)
{
    t->shape[t->ndim - 1]++;
    return true;
}

static bool shrink(d9d_safetensors_tensor *t)
{
    t->shape[0]--;
    return true;
}

static bool flatten(d9d_safetensors_tensor *t)
{
    for (int d = 1; d < t->ndim; d++)
        t->shape[0] *= t->shape[d];
    t->ndim--;
    return t->ndim > 0;
}

static bool wrap(d9d_safetensors_tensor *t)
{
    t->shape[t->ndim++] = 1;
    return true;
}

static bool turn(d9d_safetensors_tensor *t)
{
    int64_t last = t->ndim > 1 ? t->shape[t->ndim - 1] : 0;

    if (t->ndim < 2)
        return false;
    t->shape[t->ndim - 1] = t->shape[t->ndim - 2];
    t->shape[t->ndim - 2] = last;
    return true;
}

static bool make_whole(d9d_safetensors_tensor *t)
{
    t->dtype = D9D_I32;
    return true;
}

static bool (*const faults[])(d9d_safetensors_tensor *t) = {lose, grow, shrink,    flatten,
                                                            wrap, turn, make_whole};
enum { N_FAULTS = sizeof(faults) / sizeof(faults[0]) };

struct problems {
    size_t n;
    d9d_buf text;
};

static void note_problem(void *arg, const char *sentence)
{
    struct problems *h = arg;

    h->n++;
    assert_ok(d9d_buf_printf(&h->text, "%s\n", sentence));
}

/* Plan the list; every one of `names` must be in what is said. */
static void refused(const d9d_family_config *c, struct list *l, const char *const *names, size_t n)
{
    struct problems problems = {0};
    const d9d_map_plan_opts opt = {.floating = true, .on_problem = note_problem, .arg = &problems};
    const d9d_tensor_source src = list_source(l);
    d9d_mapper *m;
    d9d_map_plan *plan;

    assert_ok(d9d_family_mapper(c, D9D_WHOLE_MODEL, &src, D9D_LAYOUT_D9D, &m));
    if (d9d_map_plan_create(m, &src, &opt, &plan) != D9D_EMISMATCH)
        fail_msg("%s was accepted", n > 0 ? names[0] : "a list");
    assert_true(problems.n >= n);
    for (size_t i = 0; i < n; i++)
        unit_check_has(problems.text.data, names[i], __FILE__, __LINE__);
    d9d_mapper_free(m);
    d9d_buf_release(&problems.text);
}

static d9d_weights_layout layout_of(struct list *l)
{
    const d9d_tensor_source src = list_source(l);

    return d9d_family_layout(&src);
}

/* Every tensor in turn with every fault, one tensor too many, and all of it at once. */
static void check_faults(const d9d_family_config *c, struct list *whole)
{
    static struct list broken;
    const d9d_weights_layout layout = layout_of(whole);
    const char *names[512], *extra = "model.layers.0.self_attn.q_proj.bias";
    size_t n_unknown = 0;
    bool known;

    for (size_t f = 0; f < N_FAULTS; f++) {
        for (size_t i = 0; i < whole->n; i++) {
            broken = *whole;
            if (!faults[f](&broken.t[i]))
                continue;
            /* Without the one name that shows the layout, other names are missed. */
            known = layout_of(&broken) == layout;
            refused(c, &broken, &whole->t[i].name, known);
            n_unknown += !known;
        }
    }
    broken = *whole;
    broken.t[broken.n] = broken.t[0];
    broken.t[broken.n++].name = extra;
    refused(c, &broken, &extra, 1);
    for (size_t i = 0; i < whole->n; i++) {
        names[i] = whole->t[i].name;
        assert_true(wrap(&broken.t[i]));
    }
    refused(c, &broken, names, whole->n);
    assert_true(n_unknown <= 1);
}

static void whatever_does_not_fit_is_listed_before_anything_is_read(void **state)
{
    static struct list whole;

    (void)state;
    for (int form = 0; form < N_FAMILIES * N_CLASSES * N_LAYOUTS; form++) {
        const d9d_weights_layout layout = layouts[form / (N_FAMILIES * N_CLASSES)];
        d9d_arena a = {0};
        d9d_family_config c;

        write_config(form % N_FAMILIES, form / N_FAMILIES % N_CLASSES, false);
        assert_ok(family_read("config.json", &a, &c));
        list_make(&c, layout, &a, &whole);
        check_faults(&c, &whole);
        d9d_arena_release(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        unit_test_in_dir(a_stage_reads_its_own_tensors_once_and_no_other),
        unit_test_in_dir(loading_reads_each_byte_once_and_a_stage_its_own_headers),
        unit_test_in_dir(parts_are_read_as_they_are_kept),
        unit_test_in_dir(large_experts_are_read_once_too),
        unit_test_in_dir(a_tied_head_that_is_there_does_not_come_along),
        unit_test_in_dir(a_base_model_gives_a_tied_language_model),
        unit_test_in_dir(whatever_does_not_fit_is_listed_before_anything_is_read),
    };

    return cmocka_run_group_tests_name("weights", tests, NULL, NULL);
}
