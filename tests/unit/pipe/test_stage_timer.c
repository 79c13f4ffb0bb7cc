/* test_stage_timer.c - stage times from events in a device's stream.  On the simulated device time
 * is exact. */
#include <math.h>

#include "d9d/device/simulated.h"
#include "d9d/pipe/stage_timer.h"
#include "support/unit.h"

typedef struct bench {
    d9d_device *dev;
    d9d_stage_timer *meter;
    double unit; /* duration of work() in seconds */
} bench;

static void work(const bench *b, int times)
{
    const d9d_gemm g = {.t = D9D_BF16, .ct = D9D_BF16, .m = 4096, .n = 4096, .k = 4096};

    for (int i = 0; i < times; i++)
        assert_ok(b->dev->kernels->gemm->dense(b->dev->stream, &g, NULL, NULL, NULL));
}

static void bench_open(bench *b)
{
    double before;

    assert_ok(d9d_device_simulate("h200", &b->dev));
    assert_ok(d9d_stage_timer_create(b->dev, &b->meter));
    before = d9d_sim_now(b->dev->stream);
    work(b, 1);
    before = d9d_sim_now(b->dev->stream);
    work(b, 1);
    b->unit = d9d_sim_now(b->dev->stream) - before;
}

static void bench_close(bench *b)
{
    d9d_stage_timer_free(b->meter);
    d9d_device_close(b->dev);
}

static void mark(const bench *b, d9d_pipe_action_kind verb, int stage, int micro)
{
    const d9d_pipe_action a = {.kind = verb, .stage = stage, .micro = micro};

    assert_ok(d9d_stage_timer_record(b->meter, &a));
}

static void check(double got, const bench *b, double units)
{
    assert_true(fabs(got - units * b->unit) < 1e-6 * b->unit + 1e-15);
}

/* Measures twice: events are reused. */
static void what_lies_between_marks(void **state)
{
    d9d_stage_times w[2];
    double busy, total;
    bench b;

    (void)state;
    bench_open(&b);
    assert_false(d9d_stage_timer_is_done(b.meter));
    for (int play = 1; play <= 2; play++) {
        assert_ok(d9d_stage_timer_begin(b.meter));
        work(&b, 2 * play); /* of no stage */
        mark(&b, D9D_PIPE_FORWARD, 1, 0);
        work(&b, 3);
        mark(&b, D9D_PIPE_DGRAD, 1, 0);
        work(&b, 1);
        assert_ok(d9d_stage_timer_record(b.meter, NULL));
        work(&b, 1);
        mark(&b, D9D_PIPE_WGRAD, 1, 0);
        work(&b, 2);
        mark(&b, D9D_PIPE_FORWARD, 1, 1);
        work(&b, 4);
        assert_ok(d9d_stage_timer_record(b.meter, NULL));
        assert_true(d9d_stage_timer_is_done(b.meter));
        assert_ok(d9d_stage_timer_read(b.meter, 2, w, &busy, &total));
        check(busy, &b, 10);
        check(total, &b, 11 + 2 * play);
        check(w[1].seconds[D9D_PIPE_FORWARD], &b, 7);
        check(w[1].seconds[D9D_PIPE_DGRAD], &b, 1);
        check(w[1].seconds[D9D_PIPE_WGRAD], &b, 2);
        check(w[0].seconds[D9D_PIPE_FORWARD] + w[1].seconds[D9D_PIPE_BACKWARD], &b, 0);
    }
    assert_int_equal(d9d_stage_timer_read(b.meter, 1, w, &busy, &total), D9D_EINVAL);
    bench_close(&b);
}

static void price_of(const char *lane, d9d_stage_times w, d9d_stage_costs want)
{
    d9d_stage_costs got;
    d9d_program p;

    assert_ok(d9d_program_init(1, 1, 2, D9D_PIPE_LOOP, true, &p));
    assert_ok(d9d_program_parse(&p, 0, lane));
    got = d9d_stage_times_cost(&w, &p, 0);
    assert_true(got.forward == want.forward && got.dgrad == want.dgrad && got.wgrad == want.wgrad);
    d9d_program_release(&p);
}

static void prices_are_means(void **state)
{
    (void)state;
    price_of("0F0 0F1 0B0 0B1", (d9d_stage_times){{4, 12, 0, 0}}, (d9d_stage_costs){2, 3, 3});
    price_of("0F0 0F1 0I0 0I1 0W0 0W1", (d9d_stage_times){{4, 0, 6, 2}},
             (d9d_stage_costs){2, 3, 1});
    /* Where halves were measured besides whole backwards, the costs are those of the halves. */
    price_of("0F0 0F1 0B0 0I1 0W1", (d9d_stage_times){{4, 9, 6, 2}}, (d9d_stage_costs){2, 6, 2});
    price_of("0F0 0F1", (d9d_stage_times){{4, 0, 0, 0}}, (d9d_stage_costs){2, 0, 0});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_lies_between_marks),
        cmocka_unit_test(prices_are_means),
    };

    return cmocka_run_group_tests_name("meter", tests, NULL, NULL);
}
