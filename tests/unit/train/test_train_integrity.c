/* test_train_integrity.c - memory before a save: a bit that flips after the last update is found,
 * and nothing is saved. */
#include <string.h>

#include "d9d/base/fs.h"
#include "support/unit.h"
#include "train/train_integrity.h"

enum { N = 10 };

typedef struct fixture {
    d9d_device *dev;
    d9d_bootstrap *bootstrap;
    d9d_param param;
    d9d_param *list[1];
    d9d_tensor scale;
    d9di_engine engine;
    d9d_train_config config;
    d9d_job where;
    d9di_train_run run;
    d9di_train_integrity it;
    d9d_arena arena;
} fixture;

static void fixture_open(fixture *f, const char *dir, const d9d_job_event_handler *handlers)
{
    memset(f, 0, sizeof(*f));
    assert_ok(d9d_device_open("cpu", &f->dev));
    assert_ok(d9d_bootstrap_single(&f->bootstrap));
    f->param.name = "w";
    f->param.shard.shape = D9D_SHAPE(N);
    assert_ok(d9d_tensor_alloc(f->dev, D9D_F32, D9D_SHAPE(N), &f->param.shard.data));
    memset(d9d_tensor_data(&f->param.shard.data), 0, N * sizeof(float));
    assert_ok(d9d_tensor_alloc(f->dev, D9D_F32, D9D_SHAPE(1), &f->scale));
    *(float *)d9d_tensor_data(&f->scale) = 1;
    f->list[0] = &f->param;
    f->engine.dev = f->dev;
    f->engine.params = (d9d_params){f->list, 1};
    f->config.trainer.integrity.memory = true;
    f->config.trainer.integrity.period_steps = D9D_PERIOD_DISABLE;
    f->config.trainer.integrity.rerun_period_steps = D9D_PERIOD_DISABLE;
    f->where = (d9d_job){.bootstrap = f->bootstrap};
    f->run = (d9di_train_run){.c = &f->config, .where = &f->where, .total_steps = 10};
    f->run.dir.path = dir;
    f->run.dir.checkpoints = "c";
    assert_ok(d9d_job_events_create(&f->run.events));
    if (handlers != NULL)
        assert_ok(d9d_job_events_subscribe(f->run.events, handlers, NULL));
    f->it.good_step = -1;
    assert_ok(d9di_train_integrity_open(&f->it, &f->run, &f->engine, NULL, &f->scale, &f->arena));
}

static void fixture_close(fixture *f)
{
    d9di_train_integrity_close(&f->it);
    d9d_job_events_free(f->run.events);
    d9d_tensor_release(&f->param.shard.data);
    d9d_tensor_release(&f->scale);
    d9d_arena_release(&f->arena);
    d9d_bootstrap_close(f->bootstrap);
    d9d_device_close(f->dev);
}

/* The step after `step` steps, which changes the weights. */
static void step(fixture *f, int64_t step)
{
    float *w = d9d_tensor_data(&f->param.shard.data);

    assert_ok(d9di_train_integrity_begin_step(&f->it, &f->run, step));
    assert_ok(d9di_train_integrity_verify(&f->it, step));
    w[3] += 1;
    assert_ok(d9di_train_integrity_end_step(&f->it));
    assert_ok(d9di_train_integrity_collect(&f->it, &f->run, step));
}

static void flip(fixture *f)
{
    ((unsigned char *)d9d_tensor_data(&f->param.shard.data))[7] ^= 16;
}

static void a_bit_that_flips_before_a_save_is_found(void **state)
{
    fixture f;

    fixture_open(&f, *state, NULL);
    assert_ok(d9di_train_integrity_check_memory(&f.it, &f.run, 0)); /* no update yet */
    step(&f, 0);
    step(&f, 1);
    assert_ok(d9di_train_integrity_check_memory(&f.it, &f.run, 2));
    assert_ok(d9di_train_integrity_check_memory(&f.it, &f.run, 2));
    step(&f, 2);
    flip(&f);
    assert_fails_like(
        d9di_train_integrity_check_memory(&f.it, &f.run, 3), D9D_ECORRUPT,
        ": w changed between the updates of steps 3 and 4; no checkpoint precedes it");
    assert_true(d9d_fs_exists("excluded_nodes"));
    flip(&f);
    assert_ok(d9di_train_integrity_check_memory(&f.it, &f.run, 3));
    step(&f, 3);
    fixture_close(&f);
}

static d9d_status handle(void *self, const d9d_job_event *e)
{
    (void)self, (void)e;
    return D9D_OK;
}

/* A handler of an evaluation may write. */
static void what_handlers_may_change_is_not_looked_at(void **state)
{
    static const d9d_job_event_handler handlers[] = {{"train.evaluation.post", handle},
                                                     {NULL, NULL}};
    fixture f;

    fixture_open(&f, *state, handlers);
    step(&f, 0);
    flip(&f);
    assert_ok(d9di_train_integrity_check_memory(&f.it, &f.run, 1));
    step(&f, 1);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        unit_test_in_dir(a_bit_that_flips_before_a_save_is_found),
        unit_test_in_dir(what_handlers_may_change_is_not_looked_at),
    };

    return cmocka_run_group_tests_name("integrity", tests, NULL, NULL);
}
