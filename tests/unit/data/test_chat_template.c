/* test_chat_template.c - chat templates: where they are found, what they see, what of the text is
 * trained. */
#include "support/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "d9d/base/fs.h"
#include "data/chat/chat_private.h"
#include "support/json_memory.h"

static void put(const char *path, const char *text)
{
    assert_ok(d9d_fs_write_atomic(path, text, strlen(text)));
}

static d9d_status load(const char *path, d9di_chat_template **out)
{
    const d9d_chat_opts opts = {.chat_template = path, .tokenizer = "tokenizer.json"};

    return d9di_chat_template_load(&opts, out);
}

static void check_opts(const d9d_chat_opts *opts, const char *chat, bool prompt, const char *want)
{
    json_t *v = json_loads(chat, 0, NULL);
    d9di_chat_rendering r = {.text = {0}};
    d9di_chat_template *t;

    assert_non_null(v);
    assert_ok(d9di_chat_template_load(opts, &t));
    assert_ok(d9di_chat_render(t, v, json_array_size(json_object_get(v, "messages")), prompt, &r));
    assert_string_equal(r.text.data, want);
    assert_int_equal(r.trace.data.len, r.text.len);
    d9di_chat_rendering_release(&r);
    d9di_chat_template_free(t);
    json_decref(v);
}

static void check_render(const char *path, const char *chat, bool prompt, const char *want)
{
    const d9d_chat_opts opts = {.chat_template = path, .tokenizer = "tokenizer.json"};

    check_opts(&opts, chat, prompt, want);
}

/* A file that is given, chat_template.jinja, tokenizer_config.json. */
static void test_files(void **state)
{
    const char *chat = "{\"messages\": []}";
    d9di_chat_template *t;

    (void)state;
    assert_fails_like(load(NULL, &t), D9D_ECONFIG,
                      "has no chat_template.jinja and no tokenizer_config.json");
    put("tokenizer_config.json",
        "{\"bos_token\": {\"content\": \"<s>\"}, \"eos_token\": \"</s>\","
        " \"pad_token\": null, \"chat_template\": [{\"name\": \"tool_use\","
        " \"template\": \"tools\"}, {\"name\": \"default\", \"template\":"
        " \"c{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}\"}]}");
    check_render(NULL, chat, false, "c<s></s>False");
    check_render("tokenizer_config.json", chat, false, "c<s></s>False");
    check_render(NULL, "{\"messages\": [], \"tools\": [{}]}", false, "tools");
    check_render(NULL, "{\"messages\": [], \"tools\": []}", false, "c<s></s>False");
    put("chat_template.jinja", "j{{ bos_token }}{{ tools }}{{ add_generation_prompt }}\n");
    check_render(NULL, chat, true, "j<s>NoneTrue");
    check_render(".", chat, false, "j<s>NoneFalse");
    put("given.jinja", "g{{ bos_token }}");
    check_render("given.jinja", chat, false, "g<s>");
    check_render("tokenizer_config.json", chat, false, "c<s></s>False");
    assert_ok(d9d_fs_mkdirs("additional_chat_templates"));
    put("additional_chat_templates/tool_use.jinja", "{{ tools | length }} tools");
    check_render(NULL, "{\"messages\": [], \"tools\": [{}]}", false, "1 tools");
    put("special_tokens_map.json", "{\"unk_token\": \"<unk>\", \"bos_token\": \"no\"}");
    put("given.jinja", "{{ bos_token }}{{ unk_token }}");
    check_render("given.jinja", chat, false, "<s><unk>");
    put("tokenizer_config.json", "{}");
    assert_fails(load("tokenizer_config.json", &t), D9D_ECONFIG,
                 "tokenizer_config.json: has no \"chat_template\"; give the file of a chat "
                 "template");
    put("tokenizer_config.json", "{\"chat_template\": \"\\n{{ x\"}");
    assert_fails(load("tokenizer_config.json", &t), D9D_EFORMAT,
                 "tokenizer_config.json: chat_template: line 2: a tag has no \"}}\"");
    put("chat.json", "{\"schema\": \"d9d.chat.v1\"}");
    assert_fails_like(load("chat.json", &t), D9D_ECONFIG, "d9d.chat.v1 is not read any more");
    assert_int_equal(load("nowhere.jinja", &t), D9D_ENOTFOUND);
}

/* Variables that the user gives, and the date. */
static void test_variables(void **state)
{
    json_t *kwargs = json_pack("{s:b, s:s}", "thinking", 0, "bos_token", "<b>");
    d9d_chat_opts opts = {.chat_template = "t.jinja", .kwargs = kwargs};
    d9di_chat_template *t, *other;

    (void)state;
    put("t.jinja", "{{ thinking }} {{ bos_token }} {{ strftime_now('%d %b %Y %j') if d else '' }}");
    check_opts(&opts, "{\"messages\": []}", false, "False <b> ");
    check_opts(&opts, "{\"messages\": [], \"thinking\": 1, \"bos_token\": 2}", false, "1 <b> ");
    opts.date = "2024-02-29";
    check_opts(&opts, "{\"messages\": [], \"d\": 1}", false, "False <b> 29 Feb 2024 060");
    /* All of it is in the hash. */
    assert_ok(d9di_chat_template_load(&opts, &t));
    opts.date = "2024-03-01";
    assert_ok(d9di_chat_template_load(&opts, &other));
    assert_false(d9d_hash_equal(t->hash, other->hash));
    d9di_chat_template_free(other);
    opts.date = "2024-02-29";
    opts.kwargs = NULL;
    assert_ok(d9di_chat_template_load(&opts, &other));
    assert_false(d9d_hash_equal(t->hash, other->hash));
    d9di_chat_template_free(other);
    d9di_chat_template_free(t);
    opts.date = "2023-02-29";
    assert_fails(d9di_chat_template_load(&opts, &t), D9D_ECONFIG,
                 "the date 2023-02-29 is in no calendar");
    opts.date = "yesterday";
    assert_fails(d9di_chat_template_load(&opts, &t), D9D_ECONFIG,
                 "the date \"yesterday\" must be YYYY-MM-DD");
    opts = (d9d_chat_opts){.chat_template = "t.jinja", .kwargs = kwargs};
    put("t.jinja", "{{ bos_token }}");
    assert_fails(d9di_chat_template_load(&opts, &t), D9D_ECONFIG,
                 "t.jinja: does not use \"thinking\", so that it changes nothing");
    json_decref(kwargs);
}

static void test_messages(void **state)
{
    (void)state;
    put("t.jinja", "{% for m in messages %}{{ m }};{% endfor %}{{ x }}{{ documents }}");
    check_render("t.jinja",
                 "{\"x\": 5, \"messages\": [{\"role\": \"a\", \"content\": null, \"name\": null},"
                 " {\"role\": \"b\", \"reasoning\": \"r\"}]}",
                 false,
                 "{'role': 'a', 'content': None};{'thinking': 'r', 'role': 'b', 'reasoning': 'r', "
                 "'reasoning_content': 'r'};5None");
    put("t.jinja", "{{ messages[0].content }}");
    check_render("t.jinja",
                 "{\"messages\": [{\"content\": [{\"type\": \"text\", \"text\": \"a\"},"
                 " {\"type\": \"text\", \"text\": \"b\"}]}]}",
                 false, "ab");
    check_render("t.jinja", "{\"messages\": [{\"content\": [{\"type\": \"image\"}]}]}", false,
                 "[{'type': 'image'}]");
    put("t.jinja", "{{ messages[0].content[1]['text'] }}");
    check_render("t.jinja",
                 "{\"messages\": [{\"content\": [{\"type\": \"text\", \"text\": \"a\"},"
                 " {\"type\": \"text\", \"text\": \"b\"}]}]}",
                 false, "b");
}

/* --- what is trained -------------------------------------------------------------------------- */

static const char chat[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"},"
                           "{\"role\": \"assistant\", \"content\": \"ho\"},"
                           "{\"role\": \"user\", \"content\": \"a\"},"
                           "{\"role\": \"assistant\", \"content\": \"b \"}]}";

/* The trained text, in brackets. */
static void check_chat(const char *template, const char *of, const char *want)
{
    json_t *v = json_loads(of, 0, NULL);
    d9di_chat_rendering r = {.text = {0}};
    d9di_chat_template *t;
    d9d_buf got = {0};
    size_t at = 0;

    put("t.jinja", template);
    assert_ok(load("t.jinja", &t));
    assert_ok(d9di_chat_render_spans(t, v, json_array_size(json_object_get(v, "messages")), &r));
    for (size_t i = 0; i < r.loss_spans.len; at = r.loss_spans.data[i++].end) {
        const d9d_jinja_span s = r.loss_spans.data[i];

        assert_ok(d9d_buf_printf(&got, "%.*s[%.*s]", (int)(s.begin - at), r.text.data + at,
                                 (int)(s.end - s.begin), r.text.data + s.begin));
    }
    assert_ok(d9d_buf_printf(&got, "%s", r.text.data + at));
    assert_string_equal(got.data, want);
    d9d_buf_release(&got);
    d9di_chat_rendering_release(&r);
    d9di_chat_template_free(t);
    json_decref(v);
}

static void check_refused_chat(const char *template, const char *of, const char *sentence)
{
    json_t *v = json_loads(of, 0, NULL);
    d9di_chat_rendering r = {.text = {0}};
    d9di_chat_template *t;

    put("t.jinja", template);
    assert_ok(load("t.jinja", &t));
    assert_fails_like(d9di_chat_render_spans(t, v, 4, &r), D9D_EFORMAT, sentence);
    d9di_chat_rendering_release(&r);
    d9di_chat_template_free(t);
    json_decref(v);
}

static void check_refused(const char *template, const char *sentence)
{
    check_refused_chat(template, chat, sentence);
}

static void test_generation(void **state)
{
    (void)state;
    check_chat("{% for m in messages %}{{ m.role[0] }}:{% if m.role == 'assistant' %}{% generation "
               "%}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}.{% endfor "
               "%}",
               chat, "u:hi.a:[ho].u:a.a:[b ].");
}

#define CHATML                                                                                     \
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}</s>\n{% endfor %}"                   \
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"

/* What the loop writes of an answer behind the generation prompt. */
static void test_loop(void **state)
{
    (void)state;
    check_chat(CHATML, chat,
               "<|user|>\nhi</s>\n<|assistant|>\n[ho</s>]\n"
               "<|user|>\na</s>\n<|assistant|>\n[b </s>]\n");
    /* No generation prompt; white space of an answer is its own. */
    check_chat("{% for m in messages %}{% if m.role == 'user' %}[I] {{ m.content }} [/I]{% else %} "
               "{{ m.content }}{% endif %}{% endfor %}",
               chat, "[I] hi [/I][ ho][I] a [/I][ b ]");
    /* Thoughts of earlier turns go, so that no beginning of the chat is that of the whole. */
    check_chat("{% for m in messages %}{{ m.role[0] }}:\n{{ 't.' if m.role != 'user' and loop.last "
               "}}{{ m.content }}.{% endfor %}{{ 'a:\\n' if add_generation_prompt }}",
               chat, "u:\nhi.a:\n[ho.]u:\na.a:\n[t.b .]");
    /* A prompt that begins thoughts, which are not in the chat. */
    check_chat("{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"
               "{{ '<assistant><think>\\n' if add_generation_prompt }}",
               chat, "<user>hi</s><assistant>[ho</s>]<user>a</s><assistant>[b </s>]");
    /* Text that stands behind the last message, prompt or not. */
    check_chat("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<end>"
               "{{ '<assistant>' if add_generation_prompt }}",
               chat, "<user>hi<assistant>[ho]<user>a<assistant>[b ]<end>");
    /* One prompt behind the user, another behind a tool. */
    check_chat("{% for m in messages %}{% if m.role == 'user' %}U{{ m.content }}{% elif m.role == "
               "'tool' %}T{{ m.content }}{% else %}{{ 'E' if loop.previtem.role == 'tool' else 'A' "
               "}}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'E' if "
               "messages[-1].role == 'tool' else 'A' }}{% endif %}",
               "{\"messages\": [{\"role\": \"user\", \"content\": \"1\"}, {\"role\": \"assistant\","
               " \"content\": \"2\"}, {\"role\": \"tool\", \"content\": \"3\"},"
               " {\"role\": \"assistant\", \"content\": \"4\"}]}",
               "U1A[2]T3E[4]");
    /* A prompt within the iteration of the last message. */
    check_chat("{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% if loop.last and "
               "add_generation_prompt %}<assistant>{% endif %}{% endfor %}",
               chat, "<user>hi</s><assistant>[ho</s>]<user>a</s><assistant>[b </s>]");
    check_chat("{% for m in messages %}{{ '\n<' ~ m.role ~ '>' ~ m.content }}{{ '\n<assistant>' if "
               "loop.last and add_generation_prompt }}{% endfor %}{{ '\n!' }}",
               chat, "\n<user>hi\n<assistant>[ho]\n<user>a\n<assistant>[b ]\n!");
    /* A prompt with other white space around it than a turn's. */
    check_chat("{% for m in messages %}{{ m.role }}: {{ m.content }}{{ '\n\n' if not loop.last }}"
               "{% endfor %}{{ '\n\nassistant:' if add_generation_prompt }}",
               chat, "user: hi\n\nassistant:[ ho\n\n]user: a\n\nassistant:[ b ]");
    /* A prompt in place of what stands behind the last message. */
    check_chat("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
               "{{ '<assistant>' if add_generation_prompt else '<end>' }}",
               chat, "<user>hi<assistant>[ho]<user>a<assistant>[b ]<end>");
    /* Results that are written within the turn that called. */
    check_chat("{% for m in messages %}{% if m.role == 'user' %}U{{ m.content }}{% elif m.role == "
               "'assistant' %}A{{ m.content }}{% for r in messages if r.role == 'tool' %}({{ "
               "r.content }}){% endfor %}!{% endif %}{% endfor %}{{ 'A' if add_generation_prompt "
               "}}",
               "{\"messages\": [{\"role\": \"user\", \"content\": \"1\"}, {\"role\": \"assistant\","
               " \"content\": \"2\"}, {\"role\": \"tool\", \"content\": \"3\"}]}",
               "U1A[2](3)[!]");
    /* A chat that ends with the user's turn is refused: the prompt is not known. */
    check_refused("{% if messages[-1].role == 'user' %}{{ raise_exception('no') }}{% endif %}"
                  "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
                  "{{ '?' if add_generation_prompt }}",
                  "messages[1] does not begin with the generation prompt");
}

#define RESULTS(behind)                                                                            \
    "{%- for m in messages %}{%- if m.role != 'tool' %}<{{ m.role }}>{{ m.tool_calls }}"           \
    "{%- if m.role == 'assistant' and not m.tool_calls %}{{ m.content }}</s>{% endif %}"           \
    "{%- if m.role == 'user' %}{{ m.content }}</s>{% endif %}"                                     \
    "{%- if m.tool_calls %}<wait>{%- for k in range(loop.index, messages | length) %}"             \
    "{%- if messages[k].role == 'tool' %}<result of={{ m.tool_calls }}>{{ messages[k].content }}"  \
    "</result>{%- endif %}{%- endfor %}" behind "{%- endif %}{%- endif %}{%- endfor %}"            \
    "{{ '<assistant>' if add_generation_prompt }}"

/* Results of calls that the iteration of the call writes, by their index. */
static void test_results_in_turn(void **state)
{
    static const char calls[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"1\"}, {\"role\": \"assistant\","
        " \"content\": \"2\", \"tool_calls\": \"f()\"}, {\"role\": \"tool\", \"content\": \"3\"},"
        " {\"role\": \"assistant\", \"content\": \"4\"}]}";

    (void)state;
    check_chat(RESULTS(""), calls,
               "<user>1</s><assistant>[f()<wait>]<result of=f()>3</result><assistant>[4</s>]");
    /* What follows "<" may begin alike. */
    check_chat(RESULTS("<r>"), calls,
               "<user>1</s><assistant>[f()<wait>]<result of=f()>3</result><r><assistant>[4</s>]");
    /* No chat ends there. */
    check_refused_chat("{{ raise_exception('no') if messages[-1].tool_calls }}" RESULTS(""), calls,
                       "the turn of messages[1] has text of other messages in it");
    /* The rest of the answer is behind the results. */
    check_refused_chat(RESULTS("{{ m.content }}"), calls,
                       "the turn of messages[1] has text of other messages in it, so that what the "
                       "assistant writes is not known; enclose that in {% generation %}");
}

#define LAST_BEHIND(condition)                                                                     \
    "{%- for m in messages[:-1] %}<{{ m.role }}>{{ m.content }}</s>{%- endfor %}{%- set m = "      \
    "messages[-1] %}<{{ m.role }}>{%- if m.role == 'user' or " condition " %}{{ m.content }}</s>"  \
    "{% endif %}{{ '<assistant>' if add_generation_prompt }}"

/* The last answer is written behind the loop. */
static void test_last_behind_loop(void **state)
{
    (void)state;
    check_chat(LAST_BEHIND("true"), chat,
               "<user>hi</s><assistant>[ho</s>]<user>a</s><assistant>[b </s>]");
    /* It is left out. */
    check_chat(LAST_BEHIND("false"), chat, "<user>hi</s><assistant>[ho</s>]<user>a</s><assistant>");
}

/* What a template is refused for before there is a chat. */
static void test_check_trains(void **state)
{
    static const struct {
        const char *text, *sentence;
    } cases[] = {
        {CHATML, NULL},
        {"{% for m in messages %}<{{ m.role }}>{{ m.content[0].text }}</s>{% endfor %}"
         "{{ '<assistant>' if add_generation_prompt }}",
         NULL},
        {"{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}",
         "t.jinja: nothing of an answer is trained; enclose what the assistant writes in {% "
         "generation %} and {% endgeneration %}"},
        /* A text that ends answers where the next message begins. */
        {"{% for m in messages %}{{ '</s>\n' if not loop.first }}<{{ m.role }}>{{ m.content }}"
         "{% endfor %}{{ '</s>\n' }}{{ '<assistant>' if add_generation_prompt }}",
         "t.jinja: \"</s>\", which ends an answer, is written with the next message, so that it "
         "would not be trained; enclose it, with the answer, in {% generation %} and {% "
         "endgeneration %}"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const d9d_chat_opts opts = {.chat_template = "t.jinja"};
        d9di_chat *c;

        put("t.jinja", cases[i].text);
        assert_ok(d9di_chat_load(&opts, NULL, &c));
        if (cases[i].sentence == NULL)
            assert_ok(d9di_chat_check_trains(c));
        else
            assert_fails(d9di_chat_check_trains(c), D9D_ECONFIG, cases[i].sentence);
        d9di_chat_free(c);
    }
}

/* Templates that do not loop over the messages themselves. */
static void test_differences(void **state)
{
    (void)state;
    check_chat("{% for i in range(messages | length) %}{{ messages[i].role[0] }}:{{ "
               "messages[i].content }}.\n{% endfor %}{{ 'a:' if add_generation_prompt }}",
               chat, "u:hi.\na:[ho.]\nu:a.\na:[b .]\n");
    check_refused("{% for i in range(messages | length) %}{{ messages[i].role[0] }}:{{ "
                  "messages[i].content if messages[i].role == 'user' or loop.last }}.{% endfor %}"
                  "{{ 'a:' if add_generation_prompt }}",
                  "t.jinja: the text up to after messages[1] does not begin the text of the chat, "
                  "so that what the assistant writes is not known; enclose that in {% generation "
                  "%} and {% endgeneration %} in a copy of the template");
}

static void test_weights(void **state)
{
    static const char weighed[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"1\"},"
        "{\"role\": \"assistant\", \"content\": \"2\", \"weight\": 0},"
        "{\"role\": \"user\", \"content\": \"3\"},"
        "{\"role\": \"assistant\", \"content\": \"4\", \"weight\": 1.0}]}";

    (void)state;
    check_chat("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
               "{{ '<assistant>' if add_generation_prompt }}",
               weighed, "<user>1<assistant>2<user>3<assistant>[4]");
    check_chat("{% for m in messages %}<{{ m.role }}>{% generation %}{{ m.content }}"
               "{% endgeneration %}{% endfor %}",
               weighed, "<user>[1]<assistant>2<user>[3]<assistant>[4]");
    check_chat("{% for i in range(4) %}{% if messages[i] %}<{{ messages[i].role }}>{{ "
               "messages[i].content }}{% endif %}{% endfor %}"
               "{{ '<assistant>' if add_generation_prompt }}",
               weighed, "<user>1<assistant>2<user>3<assistant>[4]");
}

/* Without memory for the context there is an error, or the whole text. */
static void test_memory(void **state)
{
    json_t *v = json_loads("{\"messages\": [{\"role\": \"a\", \"reasoning\": \"b\"}]}", 0, NULL);
    bool out = true;

    (void)state;
    put("t.jinja", "{{ messages[0].thinking }}{{ messages[0].role }}");
    for (int left = 0; out; left++) {
        d9di_chat_rendering r = {.text = {0}};
        d9di_chat_template *t = NULL;
        d9d_status st;

        json_memory_begin(left);
        st = load("t.jinja", &t);
        if (st == D9D_OK)
            st = d9di_chat_render(t, v, 1, false, &r);
        out = json_memory_end();
        if (st == D9D_OK)
            assert_string_equal(r.text.data, "ba");
        else
            assert_int_equal(st, D9D_ENOMEM);
        d9di_chat_rendering_release(&r);
        d9di_chat_template_free(t);
    }
    json_decref(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        unit_test_in_dir(test_files),
        unit_test_in_dir(test_variables),
        unit_test_in_dir(test_messages),
        unit_test_in_dir(test_generation),
        unit_test_in_dir(test_loop),
        unit_test_in_dir(test_differences),
        unit_test_in_dir(test_weights),
        unit_test_in_dir(test_memory),
        unit_test_in_dir(test_results_in_turn),
        unit_test_in_dir(test_last_behind_loop),
        unit_test_in_dir(test_check_trains),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
