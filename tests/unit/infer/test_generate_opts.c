/* test_generate_opts.c - how tokens are chosen: by a job's section, generation_config.json and
 * config.json.  What is expected is what transformers 5.24 made of the same files. */
#include "support/unit.h"

#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "d9d/base/fs.h"
#include "infer/generate_opts.h"

static d9d_arena arena;

/* The folders of the weights and of the provider's configuration. */
static d9d_status read_of(const char *weights, const char *hf_config, d9di_generation_config *out)
{
    d9d_model_section section = {.hf_config = hf_config};
    const d9d_union provider = {.value = &section};

    return d9di_generation_config_read(&(d9di_model_aux_files_places){&provider, weights}, &arena,
                                       out);
}

static void write_text(const char *path, const char *text)
{
    assert_ok(d9d_fs_write_atomic(path, text, strlen(text)));
}

static int setup(void **state)
{
    return unit_dir_setup(state) != 0 || mkdir("w", 0777) != 0 || mkdir("c", 0777) != 0;
}

static int teardown(void **state)
{
    d9d_arena_release(&arena);
    return unit_dir_teardown(state);
}

/* --- the files -------------------------------------------------------------------------------- */

static void one_file_counts(void **state)
{
    static const struct {
        const char *generation, *config, *other; /* NULL: no such file; other: of the provider */
        int n;                                   /* tokens that end a generation */
        uint32_t eos[3];
    } rows[] = {
        {NULL, "{\"eos_token_id\": 7}", NULL, 1, {7}},
        {"{\"eos_token_id\": [7, 8]}", "{\"eos_token_id\": 9}", NULL, 2, {7, 8}},
        {"{\"temperature\": 0.5}", "{\"eos_token_id\": 7}", NULL, 0, {0}},
        {"{\"eos_token_id\": null}", "{\"eos_token_id\": 7}", NULL, 0, {0}},
        {"{\"eos_token_id\": []}", "{\"eos_token_id\": 7}", NULL, 0, {0}},
        {"{\"eos_token_id\": -1}", "{\"eos_token_id\": 7}", NULL, 0, {0}},
        {"{\"eos_token_id\": [5, -1, 6]}", NULL, NULL, 2, {5, 6}},
        {NULL, "{\"eos_token_id\": null, \"text_config\": {\"eos_token_id\": [3]}}", NULL, 1, {3}},
        {NULL, "{\"eos_token_id\": 2, \"text_config\": {\"eos_token_id\": [3]}}", NULL, 1, {2}},
        {NULL, "{\"decoder\": {}, \"text_config\": {\"eos_token_id\": 3}}", NULL, 1, {3}},
        {"{\"text_config\": {\"eos_token_id\": 3}}", NULL, NULL, 0, {0}},
        {NULL, "{\"eos_token_id\": 2}", "{\"eos_token_id\": 4}", 1, {2}},
        {NULL, NULL, "{\"eos_token_id\": 4}", 1, {4}},
        {"{\"eos_token_id\": 2}", NULL, "{\"eos_token_id\": 4}", 1, {2}},
        {NULL, NULL, NULL, 0, {0}},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        d9di_generation_config g;
        d9d_token_ids ids = {0};

        (void)remove("w/generation_config.json");
        (void)remove("w/config.json");
        (void)remove("c/generation_config.json");
        if (rows[i].generation != NULL)
            write_text("w/generation_config.json", rows[i].generation);
        if (rows[i].config != NULL)
            write_text("w/config.json", rows[i].config);
        if (rows[i].other != NULL)
            write_text("c/generation_config.json", rows[i].other);
        assert_ok(read_of("w", "c/config.json", &g));
        assert_ok(d9di_generation_config_stops(&g, &ids));
        assert_int_equal(ids.len, rows[i].n);
        if (ids.len > 0)
            assert_memory_equal(ids.data, rows[i].eos, ids.len * sizeof(*ids.data));
        D9D_VEC_RELEASE(&ids);
    }
}

/* Members that would change what is generated, and nothing else. */
static void what_is_not_done_is_named(void **state)
{
    static const char *const rows[][2] = {
        {"{\"num_beams\": 1, \"typical_p\": 1.0, \"no_repeat_ngram_size\": 0, \"token_healing\": "
         "false, \"suppress_tokens\": null, \"pad_token_id\": 3, \"use_cache\": false, "
         "\"length_penalty\": 2.0, \"transformers_version\": \"4.51.0\"}",
         ""},
        {"{\"num_beams\": 4, \"temperature\": 0.5, \"stop_strings\": [\"a b\"]}",
         "num_beams 4, stop_strings [\"a b\"]"},
        {"{\"chat_format\": \"chatml\", \"min_new_tokens\": 3}",
         "chat_format \"chatml\", min_new_tokens 3"},
        {"{\"bad_words_ids\": [[1111111111], [1111111112], [1111111113], [4]]}",
         "bad_words_ids [[1111111111], [1111111112], [1111111113..."},
        {"{\"typical_p\": true}", "typical_p true"},
    };
    d9di_generation_config g;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        write_text("w/generation_config.json", rows[i][0]);
        assert_ok(read_of("w", NULL, &g));
        assert_string_equal(g.left_out, rows[i][1]);
        assert_string_equal(g.path, "w/generation_config.json");
    }
    /* Members of a config.json are a model's. */
    assert_int_equal(remove("w/generation_config.json"), 0);
    write_text("w/config.json", "{\"hidden_size\": 4, \"num_beams\": 4, \"top_k\": 3}");
    assert_ok(read_of("w", NULL, &g));
    assert_string_equal(g.left_out, "num_beams 4");
    assert_int_equal(g.top_k, 3);
}

static void what_no_generation_can_have_is_refused(void **state)
{
    static const struct {
        const char *text;
        d9d_status st;
        const char *sentence;
    } rows[] = {
        {"{\"eos_token_id\": \"7\"}", D9D_ECONFIG,
         "w/generation_config.json: eos_token_id: expected an integer"},
        {"{\"eos_token_id\": [7, 1.5]}", D9D_ECONFIG, "w/generation_config.json: eos_token_id[1]"},
        {"{\"temperature\": -1}", D9D_ECONFIG, "w/generation_config.json: temperature: -1"},
        {"{\"top_k\": -1}", D9D_ECONFIG, "w/generation_config.json: top_k: -1"},
        {"{\"min_p\": 2}", D9D_ECONFIG, "w/generation_config.json: min_p: 2"},
        {"{\"repetition_penalty\": 0}", D9D_ECONFIG,
         "w/generation_config.json: repetition_penalty: 0"},
        {"{\"do_sample\": \"yes\"}", D9D_ECONFIG, "w/generation_config.json: do_sample: "},
        {"{\"max_new_tokens\": 0}", D9D_ECONFIG, "w/generation_config.json: max_new_tokens: 0"},
        {"[]", D9D_EFORMAT, "w/generation_config.json: is not a JSON object"},
        {"{\"top_k\": 1, \"top_k\": 2}", D9D_EFORMAT, "w/generation_config.json: "},
        {"{", D9D_EFORMAT, "w/generation_config.json: "},
    };
    d9di_generation_config g;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        write_text("w/generation_config.json", rows[i].text);
        assert_fails_like(read_of("w", NULL, &g), rows[i].st, rows[i].sentence);
    }
}

/* --- the choice ------------------------------------------------------------------------------- */

#define LEFT_OPEN                                                                                  \
    {                                                                                              \
        .max_new_tokens = D9D_INT_NULL, .temperature = (double)NAN, .top_k = D9D_INT_NULL,         \
        .top_p = (double)NAN, .min_p = (double)NAN, .repetition_penalty = (double)NAN              \
    }

static d9di_generate_opts chosen(const char *file, const d9d_job_generate_section *s,
                                 const char *says)
{
    d9di_generation_config g;
    d9di_generate_opts o;
    d9d_buf text = {0};

    write_text("w/generation_config.json", file);
    assert_ok(read_of("w", NULL, &g));
    assert_ok(d9di_generate_opts_choose(s, &g, &text, &o));
    assert_string_equal(text.len > 0 ? text.data : "", says);
    d9d_buf_release(&text);
    return o;
}

static void assert_sampler(const d9di_generate_opts *o, double temperature, int64_t top_k,
                           double top_p, double min_p, double penalty)
{
    assert_true(o->sampler.temperature == temperature);
    assert_int_equal(o->sampler.top_k, top_k);
    assert_true(o->sampler.top_p == top_p);
    assert_true(o->sampler.min_p == min_p);
    assert_true(o->sampler.repetition_penalty == penalty);
}

static void the_file_decides_what_is_left_open(void **state)
{
    const d9d_job_generate_section open = LEFT_OPEN;
    d9di_generate_opts o;

    (void)state;
    o = chosen("{}", &open, "");
    assert_sampler(&o, 0, 0, 1, 0, 1);
    assert_int_equal(o.max_new, 128);
    assert_true(o.max_length == INT64_MAX);
    /* Without do_sample nothing is drawn, and a penalty counts. */
    o = chosen("{\"temperature\": 0.5, \"top_k\": 3, \"repetition_penalty\": 1.25}", &open,
               "repetition_penalty 1.25");
    assert_sampler(&o, 0, 0, 1, 0, 1.25);
    o = chosen("{\"do_sample\": true}", &open, "do_sample true");
    assert_sampler(&o, 1, 50, 1, 0, 1);
    o = chosen("{\"do_sample\": true, \"temperature\": 0.5, \"top_k\": 0, \"top_p\": 0.75, "
               "\"min_p\": 0.125}",
               &open, "do_sample true, temperature 0.5, top_k 0, top_p 0.75, min_p 0.125");
    assert_sampler(&o, 0.5, 0, 0.75, 0.125, 1);
    /* Lengths: of what is new before that of all. */
    o = chosen("{\"max_length\": 40}", &open, "max_length 40");
    assert_int_equal(o.max_length, 40);
    o = chosen("{\"max_length\": 40, \"max_new_tokens\": 9}", &open, "max_new_tokens 9");
    assert_int_equal(o.max_new, 9);
    assert_true(o.max_length == INT64_MAX);
}

static void the_section_comes_first(void **state)
{
    static const char file[] =
        "{\"do_sample\": true, \"temperature\": 0.5, \"top_k\": 4, \"max_length\": 40, \"min_p\": "
        "0.25, \"repetition_penalty\": 2}";
    d9d_job_generate_section s = LEFT_OPEN;
    d9di_generate_opts o, same;

    (void)state;
    s.temperature = 0;
    o = chosen(file, &s, "repetition_penalty 2, max_length 40");
    assert_sampler(&o, 0, 0, 1, 0, 2);
    s.temperature = 2;
    s.top_p = 0.5;
    s.max_new_tokens = 3;
    o = chosen(file, &s, "top_k 4, min_p 0.25, repetition_penalty 2");
    assert_sampler(&o, 2, 4, 0.5, 0.25, 2);
    assert_int_equal(o.max_new, 3);
    assert_true(o.max_length == INT64_MAX);
    s.top_k = 0;
    s.min_p = 0;
    s.repetition_penalty = 1;
    o = chosen(file, &s, "");
    assert_sampler(&o, 2, 0, 0.5, 0, 1);
    /* What comes to the same is the same, wherever it is said. */
    same = chosen("{}", &s, "");
    assert_true(d9d_hash_equal(d9di_generate_opts_hash(&o), d9di_generate_opts_hash(&same)));
    s.min_p = 0.5;
    same = chosen("{}", &s, "");
    assert_false(d9d_hash_equal(d9di_generate_opts_hash(&o), d9di_generate_opts_hash(&same)));
}

static void nothing_is_drawn_at_temperature_zero(void **state)
{
    d9d_job_generate_section s = LEFT_OPEN;
    d9di_generation_config g;
    d9di_generate_opts o;
    d9d_buf text = {0};

    (void)state;
    write_text("w/generation_config.json", "{\"do_sample\": true, \"temperature\": 0}");
    assert_ok(read_of("w", NULL, &g));
    assert_fails_like(d9di_generate_opts_choose(&s, &g, &text, &o), D9D_ECONFIG,
                      "w/generation_config.json: temperature is 0 and do_sample true");
    s.temperature = 0;
    assert_ok(d9di_generate_opts_choose(&s, &g, &text, &o));
    d9d_buf_release(&text);
}

#define in_folders(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_folders(one_file_counts),
        in_folders(what_is_not_done_is_named),
        in_folders(what_no_generation_can_have_is_refused),
        in_folders(the_file_decides_what_is_left_open),
        in_folders(the_section_comes_first),
        in_folders(nothing_is_drawn_at_temperature_zero),
    };

    return cmocka_run_group_tests_name("generate opts", tests, NULL, NULL);
}
