/* test_executor.c - pipeline programs of one rank with several stages, and malformed programs.
 * Many ranks: tests/multirank/pipeline_driver.c. */
#include <string.h>

#include "d9d/nn/module.h"
#include "d9d/op/op.h"
#include "d9d/pipe/executor.h"
#include "d9d/pipe/timeline.h"
#include "support/unit.h"

enum { STAGES = 4, MICROS = 5, ROWS = 2, MANY_ROWS = 5 };

/* Stage s multiplies by weight[s], 1 by 1; the loss is the sum of the outputs.  With `tuple` the
 * stages pass on more: what the first one gives, which the last one adds, a counter, and something
 * that nobody reads. */
typedef struct chain {
    d9d_device *dev;
    d9d_program program;
    d9d_executor *x;
    d9d_param weight[STAGES];
    int forwards, backwards, lasts, done[MICROS];
    int fails; /* index of the forward that fails; 0: none */
    bool tuple;
    int64_t rows; /* that the first stage gives, if not as declared; 0: as declared */
} chain;

static d9d_status ones(d9d_node *n)
{
    d9d_tensor g;

    D9D_TRY(d9d_node_alloc(n, D9D_F32, D9D_SHAPE(ROWS, 1), &g));
    for (int i = 0; i < ROWS; i++)
        ((float *)d9d_tensor_data(&g))[i] = 1;
    return d9d_node_accumulate_grad(n, 0, &g);
}

static d9d_status train_on(d9d_tape *t, d9d_var *y)
{
    static const d9d_node_ops root = {.name = "sum", .dgrad = ones};
    d9d_var *sum;
    d9d_node *n;

    if (!d9d_tape_should_record(t, &y, 1, NULL, 0))
        return D9D_OK;
    D9D_TRY(d9d_tape_output(t, D9D_F32, D9D_SCALAR, &sum));
    D9D_TRY(d9d_tape_record(t, &root, &y, 1, &sum, 1, NULL, 0, 0, &n));
    d9d_node_make_root(n);
    return D9D_OK;
}

enum { X, MEMORY, COUNT, UNREAD, EMPTY, TENSORS };

static d9d_status make_leaf(const chain *c, d9d_tape *t, d9d_dtype dtype, d9d_shape shape,
                            const void *v, d9d_var **out)
{
    d9d_tensor x;
    d9d_status st;

    D9D_TRY(d9d_tensor_from_host(c->dev, dtype, shape, v, &x));
    st = d9d_tape_leaf(t, &x, false, out);
    d9d_tensor_release(&x);
    return st;
}

/* A stage's part of the tuple: the first stage's output goes on to the last one, which adds it; the
 * counter must be the stage's number. */
static d9d_status pass_on(const chain *c, int stage, d9d_tape *t, d9d_var *const *in, d9d_var **out)
{
    const int32_t next = stage + 1;
    const float v[MANY_ROWS] = {0};

    if (stage > 0 && *(int32_t *)d9d_tensor_data(d9d_var_tensor(in[COUNT])) != stage)
        return D9D_FAIL(D9D_EINVAL, "stage %d: another counter came", stage);
    if (stage > 0 && stage + 1 == c->program.stages)
        return d9d_op_add(t, out[X], in[MEMORY], &out[X]);
    if (stage == 0) {
        D9D_TRY(d9d_op_scale(t, out[X], 1, &out[MEMORY]));
        D9D_TRY(d9d_op_scale(t, out[X], 3, &out[UNREAD]));
        D9D_TRY(make_leaf(c, t, D9D_F32, D9D_SHAPE(0), v, &out[EMPTY]));
    } else {
        out[MEMORY] = in[MEMORY];
        out[UNREAD] = in[UNREAD];
        out[EMPTY] = in[EMPTY];
    }
    if (c->rows > 0)
        D9D_TRY(make_leaf(c, t, D9D_F32, D9D_SHAPE(c->rows, 1), v, &out[MEMORY]));
    return make_leaf(c, t, D9D_I32, D9D_SHAPE(1), &next, &out[COUNT]);
}

static d9d_status forward(void *self, int stage, int micro, d9d_tape *t, d9d_var *const *inputs,
                          d9d_var **out)
{
    chain *c = self;
    const float v[ROWS] = {(float)(micro + 1), (float)(micro + 1)};
    d9d_var *in = inputs[X];
    d9d_tensor x;
    d9d_status st = D9D_OK;

    if (++c->forwards == c->fails)
        return D9D_FAIL(D9D_EINVAL, "the forward of stage %d", stage);
    if (stage == 0) {
        D9D_TRY(d9d_tensor_from_host(c->dev, D9D_F32, D9D_SHAPE(ROWS, 1), v, &x));
        st = d9d_tape_leaf(t, &x, false, &in);
        d9d_tensor_release(&x);
    }
    if (st == D9D_OK)
        st = d9d_op_linear(t, in, &c->weight[stage], out);
    if (st == D9D_OK && c->tuple)
        st = pass_on(c, stage, t, inputs, out);
    return st == D9D_OK && stage + 1 == c->program.stages ? train_on(t, *out) : st;
}

static d9d_status tensors(void *self, int stage, int micro, d9d_stage_tensor *out, size_t *n)
{
    const d9d_stage_tensor all[TENSORS] = {
        [X] = {"x", D9D_F32, D9D_SHAPE(ROWS, 1), false},
        [MEMORY] = {"memory", D9D_F32, D9D_SHAPE(ROWS, 1), false},
        [COUNT] = {"count", D9D_I32, D9D_SHAPE(1), true},
        [UNREAD] = {"unread", D9D_F32, D9D_SHAPE(ROWS, 1), false},
        [EMPTY] = {"empty", D9D_F32, D9D_SHAPE(0), true},
    };

    (void)stage, (void)micro;
    *n = ((chain *)self)->tuple ? TENSORS : 1;
    memcpy(out, all, *n * sizeof(*out));
    return D9D_OK;
}

static d9d_status backward(void *self, int stage, int micro, bool last)
{
    chain *c = self;

    (void)stage, (void)micro;
    c->backwards++;
    c->lasts += last;
    return D9D_OK;
}

static void done(void *self, int micro)
{
    ((chain *)self)->done[micro]++;
}

static const d9d_executor_ops ops = {forward, tensors, backward, done};

static void open_weights(chain *c, d9d_module *m)
{
    char name[16];

    assert_ok(d9d_device_open("cpu", &c->dev));
    d9d_module_init(m);
    for (int s = 0; s < STAGES; s++) {
        (void)snprintf(name, sizeof(name), "w%d", s);
        assert_ok(
            d9d_module_param(m, name, &c->weight[s], D9D_F32, D9D_SHAPE(1, 1), D9D_INIT_ONES, 0));
    }
    assert_ok(d9d_module_bind(m));
    assert_ok(d9d_module_materialise(m, c->dev, true));
    for (int s = 0; s < STAGES; s++)
        *(float *)d9d_tensor_data(&c->weight[s].local.data) = (float)(s + 2);
}

static d9d_status create(chain *c)
{
    return d9d_executor_create(
        &(d9d_executor_opts){
            .program = &c->program, .dev = c->dev, .tensors = TENSORS, .ops = &ops, .self = c},
        &c->x);
}

/* With a tuple the loss of input x is the product of all weights times x, and the first times x. */
static void check_gradients(const chain *c)
{
    const float sum = ROWS * MICROS * (MICROS + 1) / 2.0f; /* over all inputs */
    const bool adds = c->tuple && c->program.stages > 1;
    float all = 1;

    for (int s = 0; s < c->program.stages; s++)
        all *= (float)(s + 2);
    for (int s = 0; s < c->program.stages; s++)
        assert_true(*(float *)d9d_tensor_data(&c->weight[s].local.grad) ==
                    sum * all / (float)(s + 2) + (adds && s == 0 ? sum : 0));
}

static int live_of(const d9d_program *p)
{
    const d9d_stage_costs prices[STAGES] = {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}};
    d9d_timeline t;
    int live;

    assert_ok(d9d_timeline_make(p, &(d9d_pipe_costs){.stages = prices}, &t));
    live = t.live[0];
    d9d_timeline_release(&t);
    return live;
}

static void every_schedule(bool tuple)
{
    static const d9d_pipe_schedule_opts schedules[] = {
        {.kind = D9D_PIPE_GPIPE},
        {.kind = D9D_PIPE_LOOPED_BFS, .stages_per_rank = 4},
        {.kind = D9D_PIPE_1F1B, .stages_per_rank = 1},
        {.kind = D9D_PIPE_1F1B, .stages_per_rank = 3},
        {.kind = D9D_PIPE_1F1B, .stages_per_rank = 4, .zero_bubble = true},
        {.kind = D9D_PIPE_1F1B, .stages_per_rank = 2, .deep_warmup = true},
        {.kind = D9D_PIPE_ZERO_BUBBLE_V},
        {.kind = D9D_PIPE_DUAL_PIPE_V},
    };
    d9d_module m;
    chain c = {.tuple = tuple};

    open_weights(&c, &m);
    for (size_t i = 0; i < sizeof(schedules) / sizeof(schedules[0]); i++) {
        assert_ok(d9d_program_build(&schedules[i], 1, MICROS, &c.program));
        assert_ok(d9d_program_insert_p2p(&c.program));
        assert_ok(create(&c));
        for (int play = 1; play <= 2; play++) {
            d9d_module_clear_grads(&m);
            c.backwards = c.lasts = 0;
            assert_ok(d9d_executor_run(c.x));
            check_gradients(&c);
            assert_int_equal(c.lasts, c.program.stages);
            for (int k = 0; k < MICROS; k++)
                assert_int_equal(c.done[k], play);
        }
        assert_int_equal(d9d_executor_max_live(c.x), live_of(&c.program));
        d9d_executor_free(c.x);
        d9d_program_release(&c.program);
        memset(c.done, 0, sizeof(c.done));
    }
    d9d_module_release(&m);
    d9d_device_close(c.dev);
}

static void every_schedule_of_one_rank(void **state)
{
    (void)state;
    every_schedule(false);
}

static void every_schedule_with_a_tuple(void **state)
{
    (void)state;
    every_schedule(true);
}

/* What a stage gives is not what it declares: one sentence has both. */
static void another_shape_than_declared(void **state)
{
    const d9d_pipe_schedule_opts opts = {.kind = D9D_PIPE_1F1B, .stages_per_rank = 3};
    d9d_module m;
    chain c = {.tuple = true, .rows = MANY_ROWS};

    (void)state;
    open_weights(&c, &m);
    assert_ok(d9d_program_build(&opts, 1, MICROS, &c.program));
    assert_ok(d9d_program_insert_p2p(&c.program));
    assert_ok(create(&c));
    assert_int_equal(d9d_executor_run(c.x), D9D_EMISMATCH);
    assert_string_equal(d9d_err_message(), "pipeline: stage 0 gives \"memory\" as float32 [5, 1], "
                                           "and stage 1 takes float32 [2, 1]");
    d9d_executor_free(c.x);
    d9d_program_release(&c.program);
    d9d_module_release(&m);
    d9d_device_close(c.dev);
}

static void refuse_spec(d9d_stage_spec spec, const char *why)
{
    const d9d_stage_spec both[] = {{.name = "x", .dtype = D9D_F32, .rank = 1, .shape = {4}}, spec};

    assert_int_equal(d9d_stage_specs_check(both, 2, "mine"), D9D_ECONFIG);
    if (strstr(d9d_err_message(), why) == NULL)
        fail_msg("%s: %s", why, d9d_err_message());
}

static void declarations_that_are_none(void **state)
{
    const d9d_stage_spec good[] = {
        {.name = "x", .dtype = D9D_BF16, .rank = 1, .shape = {4}},
        {.name = "y", .dtype = D9D_I64, .per = D9D_STAGE_PER_SEQUENCE, .constant = true},
        {.name = "z", .dtype = D9D_F32, .per = D9D_STAGE_PER_RAGGED, .field = "image"}};

    (void)state;
    assert_ok(d9d_stage_specs_check(good, 3, "mine"));
    assert_int_equal(d9d_stage_specs_check(&good[1], 1, "mine"), D9D_ECONFIG);
    assert_string_equal(d9d_err_message(), "mine: all 1 tensors that enter a stage are constants, "
                                           "so that the stages before it would learn nothing");
    refuse_spec((d9d_stage_spec){.name = NULL}, "mine: a stage tensor has no name");
    refuse_spec((d9d_stage_spec){.name = "x", .dtype = D9D_F32}, "two stage tensors have the name");
    refuse_spec((d9d_stage_spec){.name = "y", .dtype = D9D_I32},
                "the stage tensor \"y\" is int32; one with a gradient is float32 or bfloat16");
    refuse_spec((d9d_stage_spec){.name = "y", .dtype = D9D_U8, .constant = true}, "is uint8;");
    refuse_spec((d9d_stage_spec){.name = "y", .per = D9D_STAGE_PER_DOCUMENT},
                "is per document and names no field");
    refuse_spec((d9d_stage_spec){.name = "y", .field = "f"},
                "names a field and is not per document");
    refuse_spec((d9d_stage_spec){.name = "y", .per = D9D_STAGE_PER_MICRO_BATCH},
                "has 0 dimensions, not 1 to 4");
    refuse_spec((d9d_stage_spec){.name = "y", .rank = 5}, "has 5 dimensions, not 0 to 4");
    refuse_spec((d9d_stage_spec){.name = "y", .rank = 2, .shape = {3, 0}},
                "dimension 1 of the stage tensor \"y\" has 0 elements");
}

static void inference_holds_one_tape(void **state)
{
    d9d_module m;
    chain c = {.tuple = true};

    (void)state;
    open_weights(&c, &m);
    assert_ok(d9d_program_build(&(d9d_pipe_schedule_opts){.kind = D9D_PIPE_INFERENCE}, 1, MICROS,
                                &c.program));
    assert_ok(d9d_program_insert_p2p(&c.program));
    assert_ok(create(&c));
    assert_ok(d9d_executor_run(c.x));
    assert_int_equal(d9d_executor_max_live(c.x), 1);
    assert_int_equal(c.backwards, 0);
    d9d_executor_free(c.x);
    d9d_program_release(&c.program);
    d9d_module_release(&m);
    d9d_device_close(c.dev);
}

/* After a failure anywhere everything can be freed. */
static void a_forward_that_fails(void **state)
{
    const d9d_pipe_schedule_opts opts = {
        .kind = D9D_PIPE_1F1B, .stages_per_rank = 3, .zero_bubble = true};
    d9d_module m;
    chain c = {0};

    (void)state;
    open_weights(&c, &m);
    assert_ok(d9d_program_build(&opts, 1, MICROS, &c.program));
    assert_ok(d9d_program_insert_p2p(&c.program));
    for (c.fails = 1; c.fails <= 3 * MICROS; c.fails++) {
        c.forwards = 0;
        assert_ok(create(&c));
        assert_int_equal(d9d_executor_run(c.x), D9D_EINVAL);
        d9d_executor_free(c.x);
    }
    d9d_program_release(&c.program);
    d9d_module_release(&m);
    d9d_device_close(c.dev);
}

static void refuse(chain *c, const char *lane, const char *why)
{
    assert_ok(d9d_program_init(1, 2, 1, D9D_PIPE_LOOP, true, &c->program));
    assert_ok(d9d_program_parse(&c->program, 0, lane));
    assert_ok(create(c));
    assert_int_equal(d9d_executor_run(c->x), D9D_EINVAL);
    if (strstr(d9d_err_message(), why) == NULL)
        fail_msg("%s: %s", lane, d9d_err_message());
    d9d_executor_free(c->x);
    d9d_program_release(&c->program);
}

static void programs_that_are_none(void **state)
{
    d9d_module m;
    chain c = {0};

    (void)state;
    open_weights(&c, &m);
    refuse(&c, "1F0", "1F0: its input was not received");
    refuse(&c, "0F0 0B0", "0B0: its input was not received");
    refuse(&c, "1B0", "1B0: comes before its forward");
    refuse(&c, "0F0 0SEND_F0", "0SEND_F0: its output was not computed");
    assert_ok(d9d_program_init(2, 1, 1, D9D_PIPE_LOOP, true, &c.program));
    assert_int_equal(create(&c), D9D_EINVAL); /* two ranks without a process group */
    d9d_program_release(&c.program);
    d9d_module_release(&m);
    d9d_device_close(c.dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_schedule_of_one_rank),
        cmocka_unit_test(every_schedule_with_a_tuple),
        cmocka_unit_test(another_shape_than_declared),
        cmocka_unit_test(declarations_that_are_none),
        cmocka_unit_test(inference_holds_one_tape),
        cmocka_unit_test(a_forward_that_fails),
        cmocka_unit_test(programs_that_are_none),
    };

    return cmocka_run_group_tests_name("executor", tests, NULL, NULL);
}
