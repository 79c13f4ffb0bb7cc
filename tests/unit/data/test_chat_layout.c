/* test_chat_layout.c - chats in the layouts of other projects, as messages. */
#include "support/unit.h"

#include <string.h>

#include "data/io/jsonl.h"

static const struct chat {
    const char *text, *messages;
} chats[] = {
    {"{\"conversations\": [{\"from\": \"system\", \"value\": \"s\"}, {\"from\": \"human\", "
     "\"value\": \"q\"}, {\"from\": \"gpt\", \"value\": \"a\"}, {\"from\": \"observation\", "
     "\"value\": \"o\"}]}",
     "[{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"q\"}, "
     "{\"role\": \"assistant\", \"content\": \"a\"}, {\"role\": \"tool\", \"content\": \"o\"}]"},
    {"{\"system\": \"s\", \"conversations\": [{\"role\": \"user\", \"content\": \"q\"}]}",
     "[{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"q\"}]"},
    {"{\"instruction\": \"q\", \"input\": \"\", \"output\": \"a\"}",
     "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"a\"}]"},
    {"{\"instruction\": \"q\", \"input\": \"i\", \"output\": \"a\", \"system\": \"s\", "
     "\"history\": [[\"q0\", \"a0\"]]}",
     "[{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"q0\"}, "
     "{\"role\": \"assistant\", \"content\": \"a0\"}, {\"role\": \"user\", \"content\": "
     "\"q\\ni\"}, {\"role\": \"assistant\", \"content\": \"a\"}]"},
    {"{\"instruction\": \"q\", \"context\": \"c\", \"response\": \"a\", \"category\": \"x\"}",
     "[{\"role\": \"user\", \"content\": \"q\\nc\"}, {\"role\": \"assistant\", \"content\": "
     "\"a\"}]"},
    {"{\"prompt\": \"q\", \"completion\": \"a\"}",
     "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"a\"}]"},
    {"{\"question\": \"q\", \"answer\": \"a\"}",
     "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"a\"}]"},
    {"{\"prompt\": [{\"role\": \"user\", \"content\": \"q\"}], \"completion\": [{\"role\": "
     "\"assistant\", \"content\": \"a\"}]}",
     "[{\"role\": \"user\", \"content\": \"q\", \"weight\": 0}, {\"role\": \"assistant\", "
     "\"content\": \"a\"}]"},
};

static void layouts_become_messages(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(chats) / sizeof(chats[0]); i++) {
        d9di_jsonl_error error = {.message = ""};
        json_t *chat = NULL, *want = json_loads(chats[i].messages, 0, NULL);

        assert_non_null(want);
        assert_ok(d9di_jsonl_get_chat(chats[i].text, strlen(chats[i].text), NULL, &chat, &error));
        assert_true(json_equal(json_object_get(chat, "messages"), want));
        assert_null(json_object_get(chat, "system"));
        json_decref(chat);
        json_decref(want);
    }
}

/* As LLaMA-Factory and Parquet have them; a template would write each character as a tool. */
static void tools_may_be_a_text(void **state)
{
    static const struct {
        const char *line, *tools;
    } rows[] = {
        {"{\"messages\": [], \"tools\": \"[{\\\"name\\\": \\\"f\\\"}]\"}", "[{\"name\": \"f\"}]"},
        {"{\"question\": \"q\", \"answer\": \"a\", \"tools\": \"\"}", "[]"},
        {"{\"messages\": [], \"tools\": [{\"name\": \"f\"}]}", "[{\"name\": \"f\"}]"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        d9di_jsonl_error error = {.message = ""};
        json_t *chat = NULL, *want = json_loads(rows[i].tools, 0, NULL);

        assert_ok(d9di_jsonl_get_chat(rows[i].line, strlen(rows[i].line), NULL, &chat, &error));
        assert_true(json_equal(json_object_get(chat, "tools"), want));
        json_decref(chat);
        json_decref(want);
    }
}

static void what_a_layout_lacks_is_said(void **state)
{
    static const struct bad {
        const char *text, *why;
    } bad[] = {
        {"{\"conversations\": 1}", "\"conversations\" is not an array"},
        {"{\"conversations\": [{\"from\": \"human\"}]}",
         "conversations[0] has no \"from\" and \"value\" that are strings"},
        {"{\"conversations\": [{\"from\": \"alien\", \"value\": \"x\"}]}",
         "conversations[0]: \"from\" is \"alien\", which is no role that is known"},
        {"{\"instruction\": \"q\", \"output\": null}", "\"output\" is not a string"},
        {"{\"instruction\": \"q\", \"input\": 1, \"output\": \"a\"}", "\"input\" is not a string"},
        {"{\"instruction\": \"q\", \"output\": \"a\", \"history\": [[\"x\"]]}",
         "history[0] is not a question and its answer"},
        {"{\"prompt\": [{\"role\": \"user\"}], \"completion\": []}",
         "prompt[0] has no \"role\" and \"content\""},
        {"{\"prompt\": \"q\", \"completion\": []}", "\"completion\" is not a string"},
        {"{\"messages\": [], \"tools\": \"[{\"}",
         "tools: line 1, column 2: string or '}' expected near end of file"},
        {"{\"messages\": [], \"tools\": \"{}\"}", "\"tools\" is not an array"},
        {"{\"messages\": [], \"tools\": [\"f\"]}", "tools[0] is not an object"},
        {"{\"instruction\": \"q\"}",
         "has no \"messages\", but \"instruction\": --format chat reads instructions and outputs"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        d9di_jsonl_error error = {.message = ""};
        json_t *chat = NULL;

        assert_int_equal(d9di_jsonl_get_chat(bad[i].text, strlen(bad[i].text), NULL, &chat, &error),
                         D9D_EFORMAT);
        assert_string_equal(error.message, bad[i].why);
        assert_null(chat);
    }
}

static bool reads_documents(const void *arg, const char *name)
{
    (void)arg;
    return strcmp(name, "documents") == 0;
}

/* A text that an answer may depend on is not passed over; a category is. */
static void texts_beside_a_question_are_refused(void **state)
{
    static const d9di_chat_reader reader = {reads_documents, NULL};
    static const struct {
        const char *line, *name; /* NULL: is taken */
    } all[] = {
        {"{\"question\": \"q\", \"answer\": \"a\", \"context\": \"c\"}", "context"},
        {"{\"instruction\": \"q\", \"output\": \"a\", \"context\": \"c\"}", "context"},
        {"{\"instruction\": \"q\", \"context\": \"c\", \"response\": \"a\", \"input\": \"i\"}",
         "input"},
        {"{\"prompt\": \"q\", \"completion\": \"a\", \"contexts\": [\"c\"]}", "contexts"},
        {"{\"prompt\": [], \"completion\": [], \"input\": \"i\"}", "input"},
        {"{\"question\": \"q\", \"answer\": \"a\", \"context\": \"\", \"input\": null}", NULL},
        {"{\"question\": \"q\", \"answer\": \"a\", \"context\": []}", NULL},
        {"{\"question\": \"q\", \"answer\": \"a\", \"documents\": [\"c\"]}", NULL},
        {"{\"question\": \"q\", \"answer\": \"a\", \"category\": \"c\", \"id\": \"x\"}", NULL},
        {"{\"messages\": [], \"question\": \"q\", \"answer\": \"a\", \"context\": \"c\"}", NULL},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        d9di_jsonl_error error = {.message = ""};
        json_t *chat = NULL;
        char want[64];

        assert_int_equal(
            d9di_jsonl_get_chat(all[i].line, strlen(all[i].line), &reader, &chat, &error),
            all[i].name != NULL ? D9D_EFORMAT : D9D_OK);
        if (all[i].name != NULL) {
            (void)snprintf(want, sizeof(want), "\"%s\" stands beside", all[i].name);
            assert_non_null(strstr(error.message, want));
            assert_int_equal(error.reason, D9D_SHARD_BAD_VALUE);
        }
        json_decref(chat);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_become_messages),
        cmocka_unit_test(tools_may_be_a_text),
        cmocka_unit_test(what_a_layout_lacks_is_said),
        cmocka_unit_test(texts_beside_a_question_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
