/* reference_config.c - configurations of the reference framework, d9d for PyTorch 0.16 to 0.24.
 *
 * Where it names a key as this suite does, there is nothing to do.  What it names otherwise is
 * moved or renamed, and what has no meaning here is left out; each with a line in the log.  The
 * table of all its keys is tests/golden/reference_configs/keys.tsv.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "d9d/base/json.h"
#include "d9d/job/job.h"

typedef enum rule_kind {
    MOVE_OF_INFERENCE, /* the next, where nothing is trained */
    MOVE,              /* to the path `to`, unless it is null there */
    MOVE_MEMBERS,      /* each to the object at the path `to` */
    RENAME,            /* to the key `to` of the same object, or of each of a list of objects */
    DROP,
    DROP_EMPTY /* an object whose members have been moved; another is an unknown key */
} rule_kind;

/* In this order; a moved object is gone from where it was. */
static const struct rule {
    rule_kind kind;
    const char *from, *to;
    const char *note; /* of DROP: why it is left out */
} rules[] = {
    {MOVE, "inference", "trainer", NULL},
    /* the programs of the guides of its documentation, from 0.22 on */
    {MOVE, "model", "model_provider.model", NULL},
    {MOVE, "lora", "peft", NULL},
    {MOVE_MEMBERS, "auto_data", "data", NULL},
    {DROP, "data.dataset_config", NULL, "d9d-shard has read the texts"},
    {DROP, "data.max_length", NULL, "d9d-shard --max-length has cut the samples"},
    /* 0.17: the job's length, and the automatic data provider in the place of two sections */
    {MOVE, "trainer.schedule.total_steps", "trainer.run.steps", NULL},
    {DROP_EMPTY, "trainer.schedule", NULL, NULL},
    {MOVE, "data.global_batch_size", "trainer.batching.global_batch_size", NULL},
    {MOVE, "data.microbatch_size", "trainer.batching.microbatch_size", NULL},
    {MOVE, "data.num_workers", "trainer.data_loading.num_workers", NULL},
    {MOVE, "data.prefetch_factor", "trainer.data_loading.prefetch_factor", NULL},
    {MOVE, "data.pin_memory", "trainer.data_loading.pin_memory", NULL},
    {MOVE, "data.persistent_workers", "trainer.data_loading.persistent_workers", NULL},
    {DROP, "data.shard_indexing_mode", NULL, "data.order is the same on any mesh"},
    {DROP, "data.drop_last", NULL,
     "training ends with the last whole batch, inference with the last sample"},
    {DROP, "data.timeout", NULL, "trainer.timeout limits the time of a step"},
    /* 0.20, 0.21, 0.24 */
    {DROP, "trainer.data_prefetch.prefetch_factor", NULL,
     "trainer.data_loading says how far batches are read ahead"},
    {DROP_EMPTY, "trainer.data_prefetch", NULL, NULL},
    {DROP, "trainer.profiling.record_shapes", NULL, "traces have the names of operations alone"},
    {DROP, "trainer.profiling.with_stack", NULL, "traces have no stacks of calls"},
    {DROP, "trainer.logging.max_pending_steps", NULL, "values lag behind by one or two steps"},
    {RENAME, "trainer.logging.tracker.log_dir", "dir", NULL},
    /* the programs of its examples, which tokenize while they train */
    {MOVE, "data.shuffle_seed", "data.seed", NULL},
    {DROP, "data.text_column", NULL, "d9d-shard has read the texts"},
    {DROP, "data.tokenizer", NULL, "d9d-shard has tokenized the texts"},
    {DROP, "data.num_proc", NULL, "d9d-shard has tokenized the texts"},
    {DROP, "data.use_samples", NULL, "the dataset has the texts that d9d-shard was given"},
    /* to 0.18: a model with its head; from 0.19 on a backbone and heads */
    {MOVE, "model_provider.model.num_labels", "task.num_labels", NULL},
    {MOVE, "model_provider.model.classifier_dropout", "task.classifier_dropout", NULL},
    {MOVE, "model_provider.model.embedding_dim", "task.embedding_dim", NULL},
    {MOVE_OF_INFERENCE, "model_provider.model.normalize", "task.normalize", NULL},
    {DROP, "model_provider.model.normalize", NULL, "the loss of embeddings compares directions"},
    {MOVE, "model_provider.head.kind", "task.name", NULL},
    {MOVE, "model_provider.head.num_labels", "task.num_labels", NULL},
    {MOVE, "model_provider.head.dropout", "task.classifier_dropout", NULL},
    {MOVE, "model_provider.head.embedding_dim", "task.embedding_dim", NULL},
    {MOVE_OF_INFERENCE, "model_provider.head.normalize", "task.normalize", NULL},
    {DROP, "model_provider.head.normalize", NULL, "the loss of embeddings compares directions"},
    {DROP_EMPTY, "model_provider.head", NULL, NULL},
};

/* The object at the first n bytes of a dotted path of the table; NULL: there is none.  `create`:
 * makes the ones that are missing or null. */
static json_t *object_at(json_t *of, const char *path, size_t n, bool create)
{
    while (of != NULL && n > 0) {
        const size_t len = strcspn(path, "."), used = len < n ? len : n;
        char name[64]; /* jansson 2.13 reads whole strings */
        json_t *next;

        assert(used < sizeof(name));
        snprintf(name, sizeof(name), "%.*s", (int)used, path);
        next = json_object_get(of, name);
        if (create && (next == NULL || json_is_null(next)) &&
            json_object_set_new(of, name, json_object()) == 0)
            next = json_object_get(of, name);
        of = next;
        path += used + (used < n);
        n -= used + (used < n);
    }
    return of;
}

static const char *last_key(const char *path)
{
    const char *dot = strrchr(path, '.');

    return dot != NULL ? dot + 1 : path;
}

static json_t *parent_of(json_t *doc, const char *path, bool create)
{
    const char *key = last_key(path);

    return object_at(doc, path, key > path ? (size_t)(key - path) - 1 : 0, create);
}

static d9d_status no_memory(const char *key)
{
    return D9D_FAIL(D9D_ENOMEM, "%s: out of memory", key);
}

static d9d_status key_move(json_t *from, const char *path, json_t *to, const char *to_path,
                           const d9d_log *log)
{
    json_t *v = json_object_get(from, last_key(path));

    if (json_object_get(to, last_key(to_path)) != NULL)
        return D9D_FAIL(D9D_ECONFIG, "%s: is %s here, which is given too", path, to_path);
    if (!json_is_object(to))
        return D9D_FAIL(D9D_ECONFIG, "%s: is %s here, and a section of that path is no object",
                        path, to_path);
    if (!json_is_null(v) && json_object_set(to, last_key(to_path), v) != 0)
        return no_memory(path);
    d9d_log_info(log, "%s: is %s here", path, to_path);
    return json_object_del(from, last_key(path)) == 0 ? D9D_OK : no_memory(path);
}

static d9d_status members_move(json_t *of, json_t *to, const struct rule *r, const d9d_log *log)
{
    const char *key;
    json_t *v;

    if (!json_is_object(of) || !json_is_object(to))
        return D9D_FAIL(D9D_ECONFIG, "%s: its keys are those of %s here, and one is no object",
                        r->from, r->to);
    json_object_foreach(of, key, v)
    {
        if (json_object_get(to, key) != NULL)
            return D9D_FAIL(D9D_ECONFIG, "%s.%s: is %s.%s here, which is given too", r->from, key,
                            r->to, key);
    }
    d9d_log_info(log, "%s: is %s here", r->from, r->to);
    return json_object_update(to, of) == 0 ? D9D_OK : no_memory(r->from);
}

static d9d_status rename_in(json_t *parent, const struct rule *r, const d9d_log *log)
{
    json_t *v;
    size_t i;

    if (json_is_object(parent) && json_object_get(parent, last_key(r->from)) != NULL)
        return key_move(parent, r->from, parent, r->to, log);
    if (json_is_array(parent))
        json_array_foreach(parent, i, v) D9D_TRY(json_is_object(v) ? rename_in(v, r, log) : D9D_OK);
    return D9D_OK;
}

static d9d_status rule_apply(json_t *doc, const struct rule *r, const d9d_log *log)
{
    json_t *parent = parent_of(doc, r->from, false);

    if (r->kind == RENAME)
        return rename_in(parent, r, log);
    if (json_object_get(parent, last_key(r->from)) == NULL)
        return D9D_OK;
    if (r->kind == MOVE || r->kind == MOVE_OF_INFERENCE)
        return key_move(parent, r->from, parent_of(doc, r->to, true), r->to, log);
    if (r->kind == MOVE_MEMBERS)
        D9D_TRY(members_move(json_object_get(parent, last_key(r->from)),
                             object_at(doc, r->to, strlen(r->to), true), r, log));
    if (r->kind == DROP_EMPTY && json_object_size(json_object_get(parent, last_key(r->from))) > 0)
        return D9D_OK;
    if (r->kind == DROP)
        d9d_log_info(log, "%s: left out; %s", r->from, r->note);
    return json_object_del(parent, last_key(r->from)) == 0 ? D9D_OK : no_memory(r->from);
}

/* --- what one key does not say --------------------------------------------------------- */

/* The guides' programs have one method. */
static d9d_status name_method(json_t *doc)
{
    json_t *lora = json_object_get(doc, "lora");

    if (!json_is_object(lora) || json_object_get(lora, "kind") != NULL)
        return D9D_OK;
    return json_object_set_new(lora, "kind", json_string("lora")) == 0 ? D9D_OK
                                                                       : no_memory("lora.kind");
}

/* To 0.18 the dimensions are one level deeper. */
static d9d_status unwrap_model(json_t *doc, const d9d_log *log)
{
    json_t *provider = json_object_get(doc, "model_provider");
    json_t *model = json_object_get(provider, "model"), *inner = json_object_get(model, "model");

    if (!json_is_object(inner) || json_object_size(model) != 1)
        return D9D_OK;
    d9d_log_info(log, "model_provider.model.model: is model_provider.model here");
    json_incref(inner);
    return json_object_set_new(provider, "model", inner) == 0 ? D9D_OK
                                                              : no_memory("model_provider.model");
}

/* There the program says which model it is; here its name does. */
static d9d_status name_model(json_t *doc)
{
    json_t *provider = json_object_get(doc, "model_provider");
    json_t *layer = object_at(provider, "model.layer", strlen("model.layer"), false);
    const bool moe = json_object_get(layer, "num_experts") != NULL;

    if (!json_is_object(layer) || json_object_get(provider, "name") != NULL)
        return D9D_OK;
    return json_object_set_new(provider, "name", json_string(moe ? "qwen3_moe" : "qwen3_dense")) ==
                   0
               ? D9D_OK
               : no_memory("model_provider.name");
}

/* There the program chooses the type of the weights; this optimizer trains one alone. */
static d9d_status type_model(json_t *doc, const d9d_log *log)
{
    json_t *provider = json_object_get(doc, "model_provider");
    const char *optimizer =
        json_string_value(json_object_get(json_object_get(doc, "optimizer"), "name"));

    if (!json_is_object(provider) || json_object_get(provider, "dtype") != NULL ||
        optimizer == NULL || strcmp(optimizer, "stochastic_adamw") != 0)
        return D9D_OK;
    d9d_log_info(log, "model_provider.dtype: is bfloat16, which stochastic_adamw trains");
    return json_object_set_new(provider, "dtype", json_string("bfloat16")) == 0
               ? D9D_OK
               : no_memory("model_provider.dtype");
}

static d9d_status name_task(json_t *doc)
{
    json_t *task = json_object_get(doc, "task");
    const bool labels = json_object_get(task, "num_labels") != NULL;

    if (!json_is_object(task) || json_object_get(task, "name") != NULL ||
        (!labels && json_object_get(task, "embedding_dim") == NULL))
        return D9D_OK;
    return json_object_set_new(task, "name",
                               json_string(labels ? "classification" : "embedding")) == 0
               ? D9D_OK
               : no_memory("task.name");
}

/* `shuffle`, and sorting by length in a buffer, are orders here. */
static d9d_status order_data(json_t *doc, const d9d_log *log)
{
    static const char *const keys[] = {"shuffle", "presort_buffer_size"};
    static const char *const orders[] = {"shuffled", "bucketed"};
    json_t *data = json_object_get(doc, "data");
    const bool has_order = json_object_get(data, "order") != NULL;

    for (size_t i = 0; i < 2; i++) {
        json_t *v = json_object_get(data, keys[i]);
        const bool is_set = json_is_true(v) || json_is_integer(v);

        if (!is_set && !json_is_false(v))
            continue;
        if (has_order)
            return D9D_FAIL(D9D_ECONFIG, "data.%s: is data.order here, which is given too",
                            keys[i]);
        d9d_log_info(log, "data.%s: is data.order here", keys[i]);
        if ((is_set && json_object_set_new(data, "order", json_string(orders[i])) != 0) ||
            json_object_del(data, keys[i]) != 0)
            return no_memory("data.order");
    }
    return D9D_OK;
}

d9d_status d9d_job_translate_reference(json_t *doc, const d9d_log *log)
{
    static const char provider[] = "model_provider.";
    const bool trains = json_object_get(doc, "optimizer") != NULL;
    /* A model that is named has the keys of its family or plugin. */
    const bool is_named = json_object_get(json_object_get(doc, "model_provider"), "name") != NULL;

    if (!json_is_object(doc))
        return D9D_OK;
    D9D_TRY(name_method(doc));
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
        if (!(rules[i].kind == MOVE_OF_INFERENCE && trains) &&
            (!is_named || strncmp(rules[i].from, provider, sizeof(provider) - 1) != 0))
            D9D_TRY(rule_apply(doc, &rules[i], log));
    if (is_named)
        return order_data(doc, log);
    D9D_TRY(unwrap_model(doc, log));
    D9D_TRY(name_model(doc));
    D9D_TRY(type_model(doc, log));
    D9D_TRY(name_task(doc));
    return order_data(doc, log);
}
