/* preference_layout.c - see preference_layout.h. */
#include "data/io/preference_layout.h"

#include <stdio.h>

#include "d9d/base/num_format.h"
#include "data/io/chat_layout.h"

void d9di_answer_pair_release(d9di_answer_pair *p)
{
    json_decref(p->chosen);
    json_decref(p->rejected);
    *p = (d9di_answer_pair){NULL, NULL};
}

static d9d_status no_memory(void)
{
    return D9D_FAIL(D9D_ENOMEM, "no memory for a record of answers");
}

#define REFUSE(error, why, ...)                                                                    \
    ((error)->reason = (why),                                                                      \
     (void)d9d_num_format((error)->message, sizeof((error)->message), __VA_ARGS__), D9D_EFORMAT)

static d9d_status check_record(json_t *record, d9di_jsonl_error *error)
{
    if (!json_is_object(record))
        return REFUSE(error, D9D_SHARD_BAD_JSON, "is not one JSON object");
    error->reason = D9D_SHARD_BAD_VALUE;
    return d9di_chat_layout_tools(record, error->message, sizeof(error->message));
}

static d9d_status parse_record(const char *line, size_t n, json_t **out, d9di_jsonl_error *error)
{
    json_t *record = NULL;
    d9d_status st = d9d_json_parse("the record", line, n, &record);
    d9d_err_copy why;

    if (st == D9D_EFORMAT) {
        d9d_err_save(&why, st);
        return REFUSE(error, D9D_SHARD_BAD_JSON, "%.300s", why.text);
    }
    if (st == D9D_OK)
        st = check_record(record, error);
    if (st == D9D_OK)
        *out = record;
    else
        json_decref(record);
    return st;
}

static d9d_status check_messages(const json_t *list, const char *key, d9di_jsonl_error *error)
{
    json_t *m;
    size_t i;

    if (!json_is_array(list) && !json_is_string(list))
        return REFUSE(error, D9D_SHARD_BAD_VALUE, "\"%s\" is not a text or a list of messages",
                      key);
    json_array_foreach(list, i, m)
    {
        if (!json_is_string(json_object_get(m, "role")) || json_object_get(m, "content") == NULL)
            return REFUSE(error, D9D_SHARD_BAD_MEMBER,
                          "\"%s\"[%zu] has no \"role\" and \"content\"", key, i);
    }
    return D9D_OK;
}

static d9d_status get_messages(const json_t *record, const char *key, const json_t **out,
                               d9di_jsonl_error *error)
{
    *out = json_object_get(record, key);
    if (*out == NULL)
        return REFUSE(error, D9D_SHARD_BAD_MEMBER, "has no \"%s\"", key);
    return check_messages(*out, key, error);
}

/* Appends a text as one message, or elements [from, to) of a list; those of a prompt have the
 * weight 0. */
static d9d_status append_messages(json_t *to, const json_t *from, size_t first, size_t end,
                                  const char *role, bool trained)
{
    if (json_is_string(from)) {
        json_t *m = json_pack("{s:s, s:O}", "role", role, "content", from);

        if (m == NULL || (!trained && json_object_set_new(m, "weight", json_integer(0)) != 0) ||
            json_array_append_new(to, m) != 0)
            return no_memory();
        return D9D_OK;
    }
    for (size_t i = first; i < end; i++) {
        json_t *m = json_copy(json_array_get(from, i));

        if (m == NULL || (!trained && json_object_set_new(m, "weight", json_integer(0)) != 0) ||
            json_array_append_new(to, m) != 0)
            return no_memory();
    }
    return D9D_OK;
}

/* A chat of a prompt and an answer, of which the first `shared` messages are prompt too, with the
 * other members of the record. */
static d9d_status chat_make(const json_t *record, const json_t *prompt, const json_t *answer,
                            size_t shared, json_t **out)
{
    static const char *const keys[] = {"prompt",     "chosen", "rejected",
                                       "completion", "label",  "messages"};
    const size_t n = json_array_size(answer);
    json_t *chat = json_copy((json_t *)(uintptr_t)record), *messages = json_array();
    d9d_status st = D9D_OK;

    for (size_t i = 0; chat != NULL && i < sizeof(keys) / sizeof(keys[0]); i++)
        (void)json_object_del(chat, keys[i]);
    if (chat == NULL || messages == NULL)
        st = no_memory();
    if (st == D9D_OK && prompt != NULL)
        st = append_messages(messages, prompt, 0, json_array_size(prompt), "user", false);
    if (st == D9D_OK && shared > 0)
        st = append_messages(messages, answer, 0, shared, "user", false);
    if (st == D9D_OK)
        st = append_messages(messages, answer, shared, n, "assistant", true);
    if (st == D9D_OK && json_object_set(chat, "messages", messages) != 0)
        st = no_memory();
    if (st == D9D_OK)
        st = d9di_chat_layout_system(chat);
    json_decref(messages);
    if (st == D9D_OK)
        *out = chat;
    else
        json_decref(chat);
    return st;
}

/* What two lists begin with, if they have the prompt. */
static size_t count_shared(const json_t *a, const json_t *b)
{
    size_t n = 0;

    while (n < json_array_size(a) && n < json_array_size(b) &&
           json_equal(json_array_get(a, n), json_array_get(b, n)))
        n++;
    return n;
}

/* Without a prompt the answers have it. */
static d9d_status check_texts(const json_t *record, const char *answer, const char *other,
                              const d9di_chat_reader *reader, d9di_jsonl_error *error)
{
    const bool prompted = json_object_get(record, "prompt") != NULL;

    error->reason = D9D_SHARD_BAD_VALUE;
    return d9di_chat_layout_check_texts(record, prompted ? "prompt" : answer,
                                        prompted ? answer : other, NULL, reader, error->message,
                                        sizeof(error->message));
}

static d9d_status make_pair(const json_t *record, const d9di_chat_reader *reader,
                            d9di_answer_pair *out, d9di_jsonl_error *error)
{
    const json_t *prompt = json_object_get(record, "prompt"), *chosen, *rejected;
    size_t shared = 0;

    D9D_TRY(get_messages(record, "chosen", &chosen, error));
    D9D_TRY(get_messages(record, "rejected", &rejected, error));
    if (json_is_array(chosen) != json_is_array(rejected))
        return REFUSE(error, D9D_SHARD_BAD_VALUE,
                      "one of \"chosen\" and \"rejected\" is a text, the other a list");
    if (json_is_string(chosen) || json_is_array(prompt)) {
        D9D_TRY(get_messages(record, "prompt", &prompt, error));
    } else {
        prompt = NULL;
        shared = count_shared(chosen, rejected);
    }
    if (json_is_array(chosen) &&
        (shared == json_array_size(chosen) || shared == json_array_size(rejected)))
        return REFUSE(error, D9D_SHARD_BAD_VALUE,
                      "\"chosen\" and \"rejected\" begin alike and one of them ends there");
    D9D_TRY(check_texts(record, "chosen", "rejected", reader, error));
    D9D_TRY(chat_make(record, prompt, chosen, shared, &out->chosen));
    return chat_make(record, prompt, rejected, shared, &out->rejected);
}

d9d_status d9di_answer_pair_read(const char *line, size_t n, const d9di_chat_reader *reader,
                                 d9di_answer_pair *out, d9di_jsonl_error *error)
{
    d9di_answer_pair p = {NULL, NULL};
    json_t *record;
    d9d_status st;

    D9D_TRY(parse_record(line, n, &record, error));
    st = make_pair(record, reader, &p, error);
    json_decref(record);
    if (st == D9D_OK)
        *out = p;
    else
        d9di_answer_pair_release(&p);
    return st;
}

static d9d_status get_unpaired(const json_t *record, const json_t **prompt,
                               const json_t **completion, d9di_jsonl_error *error)
{
    D9D_TRY(get_messages(record, "prompt", prompt, error));
    return get_messages(record, "completion", completion, error);
}

static d9d_status make_unpaired(const json_t *record, const d9di_chat_reader *reader,
                                d9di_answer_pair *out, d9di_jsonl_error *error)
{
    const json_t *label = json_object_get(record, "label"), *prompt, *completion;

    D9D_TRY(get_unpaired(record, &prompt, &completion, error));
    if (!json_is_boolean(label))
        return REFUSE(error, label != NULL ? D9D_SHARD_BAD_VALUE : D9D_SHARD_BAD_MEMBER,
                      "\"label\" is not true or false");
    D9D_TRY(check_texts(record, "completion", "label", reader, error));
    return chat_make(record, prompt, completion, 0,
                     json_is_true(label) ? &out->chosen : &out->rejected);
}

d9d_status d9di_answer_pair_read_unpaired(const char *line, size_t n,
                                          const d9di_chat_reader *reader, d9di_answer_pair *out,
                                          d9di_jsonl_error *error)
{
    json_t *record;
    d9d_status st;

    *out = (d9di_answer_pair){NULL, NULL};
    D9D_TRY(parse_record(line, n, &record, error));
    st = make_unpaired(record, reader, out, error);
    json_decref(record);
    return st;
}

d9d_status d9di_answer_pair_read_mismatch(const char *line, size_t n, const char *other, size_t m,
                                          json_t **out, d9di_jsonl_error *error)
{
    const json_t *prompt, *completion, *unused;
    json_t *record = NULL, *second = NULL;
    d9d_status st = parse_record(line, n, &record, error);

    if (st == D9D_OK)
        st = parse_record(other, m, &second, error);
    if (st == D9D_OK)
        st = get_unpaired(record, &prompt, &unused, error);
    if (st == D9D_OK)
        st = get_unpaired(second, &unused, &completion, error);
    if (st == D9D_OK)
        st = chat_make(record, prompt, completion, 0, out);
    json_decref(record);
    json_decref(second);
    return st;
}
