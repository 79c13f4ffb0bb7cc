/* test_chat_jinja.c - templates of checkpoints: where they are found, what they see, what of the
 * text is the assistant's. */
#include "support/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "data/chat/chat_jinja.h"
#include "support/json_memory.h"

static void put(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void check_render(const char *path, const char *chat, bool prompt, const char *want)
{
    json_t *v = json_loads(chat, 0, NULL);
    d9di_chat_jinja *c;
    d9d_buf text = {0};

    assert_non_null(v);
    assert_ok(d9di_chat_jinja_load(path, &c));
    assert_ok(d9di_chat_jinja_render(c, v, prompt, NULL, &text));
    assert_string_equal(text.data, want);
    d9d_buf_release(&text);
    d9di_chat_jinja_free(c);
    json_decref(v);
}

static void test_files(void **state)
{
    const char *chat = "{\"messages\": []}";
    d9di_chat_jinja *c;

    (void)state;
    put("tokenizer_config.json",
        "{\"bos_token\": {\"content\": \"<s>\"}, \"eos_token\": \"</s>\","
        " \"pad_token\": null, \"chat_template\": [{\"name\": \"tools\","
        " \"template\": \"no\"}, {\"name\": \"default\", \"template\":"
        " \"c{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}\"}]}");
    check_render(".", chat, false, "c<s></s>False");
    check_render("tokenizer_config.json", chat, false, "c<s></s>False");
    put("chat_template.jinja", "j{{ bos_token }}{{ tools }}{{ add_generation_prompt }}\n");
    check_render(".", chat, true, "j<s>NoneTrue");
    check_render("chat_template.jinja", chat, false, "j<s>NoneFalse");
    check_render("tokenizer_config.json", chat, false, "c<s></s>False");
    put("tokenizer_config.json", "{}");
    assert_fails(d9di_chat_jinja_load("tokenizer_config.json", &c), D9D_ECONFIG,
                 "tokenizer_config.json: has no \"chat_template\"");
    put("tokenizer_config.json", "{\"chat_template\": \"\\n{{ x\"}");
    assert_fails(d9di_chat_jinja_load("tokenizer_config.json", &c), D9D_EFORMAT,
                 "tokenizer_config.json: chat_template: line 2: a tag has no \"}}\"");
    assert_int_equal(d9di_chat_jinja_load("nowhere.jinja", &c), D9D_ENOTFOUND);
}

static void test_context(void **state)
{
    (void)state;
    put("t.jinja", "{% for m in messages %}{{ m }};{% endfor %}{{ x }}{{ documents }}");
    check_render("t.jinja",
                 "{\"x\": 5, \"messages\": [{\"role\": \"a\", \"content\": null}, {\"role\": \"b\","
                 " \"reasoning\": \"r\"}]}",
                 false,
                 "{'role': 'a'};{'thinking': 'r', 'role': 'b', 'reasoning': 'r', "
                 "'reasoning_content': 'r'};5None");
}

/* The assistant's text, in brackets. */
static void check_spans(const char *template, const char *chat, const char *want)
{
    json_t *v = json_loads(chat, 0, NULL);
    d9d_jinja_spans spans = {0};
    d9di_chat_jinja *c;
    d9d_buf text = {0}, got = {0};
    size_t at = 0;

    put("t.jinja", template);
    assert_ok(d9di_chat_jinja_load("t.jinja", &c));
    assert_ok(d9di_chat_jinja_render_spans(c, v, NULL, &text, &spans));
    for (size_t i = 0; i < spans.len; at = spans.data[i++].end)
        assert_ok(d9d_buf_printf(&got, "%.*s[%.*s]", (int)(spans.data[i].begin - at),
                                 text.data + at, (int)(spans.data[i].end - spans.data[i].begin),
                                 text.data + spans.data[i].begin));
    assert_ok(d9d_buf_printf(&got, "%s", text.data + at));
    assert_string_equal(got.data, want);
    D9D_VEC_RELEASE(&spans);
    d9d_buf_release(&text);
    d9d_buf_release(&got);
    d9di_chat_jinja_free(c);
    json_decref(v);
}

static void test_spans(void **state)
{
    static const char chat[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"},"
                               "{\"role\": \"assistant\", \"content\": \"ho\"},"
                               "{\"role\": \"user\", \"content\": \"a\"},"
                               "{\"role\": \"assistant\", \"content\": \"b\"}]}";

    (void)state;
    check_spans(
        "{% for m in messages %}{{ m.role[0] }}:{% if m.role == 'assistant' %}{% generation "
        "%}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}.{% endfor %}",
        chat, "u:hi.a:[ho].u:a.a:[b].");
    check_spans("{% for m in messages %}{{ m.role[0] }}:{{ m.content }}.{% endfor %}{{ 'a:' if "
                "add_generation_prompt }}",
                chat, "u:hi.a:[ho.]u:a.a:[b.]");
    /* Earlier answers are left out, so that their texts do not begin the chat's. */
    check_spans("{% for m in messages %}{{ m.role[0] }}:{{ m.content if m.role == 'user' or "
                "loop.last }}.{% endfor %}{{ 'a:' if add_generation_prompt }}",
                chat, "u:hi.a:.u:a.a:[b.]");
    /* A chat that ends with the user's turn is refused, so that nothing is known. */
    check_spans("{% if messages[-1].role == 'user' %}{{ raise_exception('no') }}{% endif %}x", chat,
                "x");
}

static void test_chats(void **state)
{
    json_t *none = json_object(), *bad = json_pack("{s:[i]}", "messages", 1);
    d9di_chat_jinja *c;
    d9d_buf text = {0};

    (void)state;
    put("t.jinja", "x");
    assert_ok(d9di_chat_jinja_load("t.jinja", &c));
    assert_fails(d9di_chat_jinja_render(c, none, false, NULL, &text), D9D_EFORMAT,
                 "the chat has no list of \"messages\"");
    assert_fails(d9di_chat_jinja_render(c, bad, false, NULL, &text), D9D_EFORMAT,
                 "message 0 of the chat is no object");
    json_decref(none);
    json_decref(bad);
    d9d_buf_release(&text);
    d9di_chat_jinja_free(c);
}

/* Without memory for the context there is an error, or the whole text. */
static void test_memory(void **state)
{
    json_t *chat = json_loads("{\"messages\": [{\"role\": \"a\", \"reasoning\": \"b\"}]}", 0, NULL);
    d9d_buf text = {0};
    bool out = true;

    (void)state;
    put("t.jinja", "{{ messages[0].thinking }}{{ messages[0].role }}");
    for (int left = 0; out; left++) {
        d9di_chat_jinja *c = NULL;
        d9d_status st;

        text.len = 0;
        json_memory_begin(left);
        st = d9di_chat_jinja_load("t.jinja", &c);
        if (st == D9D_OK)
            st = d9di_chat_jinja_render(c, chat, false, NULL, &text);
        out = json_memory_end();
        if (st == D9D_OK)
            assert_string_equal(text.data, "ba");
        else
            assert_int_equal(st, D9D_ENOMEM);
        d9di_chat_jinja_free(c);
    }
    json_decref(chat);
    d9d_buf_release(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        unit_test_in_dir(test_files), unit_test_in_dir(test_context), unit_test_in_dir(test_spans),
        unit_test_in_dir(test_chats), unit_test_in_dir(test_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
