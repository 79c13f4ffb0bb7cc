/* test_events.c - names of events: those that are triggered, their other names, and mistakes. */
#include "d9d/job/events.h"
#include "support/unit.h"

static d9d_status count(void *self, const d9d_job_event *e)
{
    (void)e;
    ++*(int *)self;
    return D9D_OK;
}

static void an_event_is_handled_by_either_of_its_names(void **state)
{
    static const d9d_job_event_handler both[] = {{"train.configuration.data_loader", count},
                                                 {"train.configuration.data_stream", count},
                                                 {NULL, NULL}};
    d9d_job_events *v;
    int n = 0;

    (void)state;
    assert_ok(d9d_job_events_create(&v));
    assert_false(d9d_job_events_has_subscriber(v, "train.configuration.data_loader"));
    assert_ok(d9d_job_events_subscribe(v, both + 1, &n));
    assert_true(d9d_job_events_has_subscriber(v, "train.configuration.data_loader"));
    assert_ok(d9d_job_events_subscribe(v, both, &n));
    assert_ok(d9d_job_events_trigger(v, &(d9d_job_event){.size = sizeof(d9d_job_event),
                                                         .id = "train.configuration.data_loader"}));
    assert_int_equal(n, 3);
    d9d_job_events_free(v);
}

static void a_name_of_no_event_is_a_mistake(void **state)
{
    static const d9d_job_event_handler wrong[] = {{"train.step.past", count}, {NULL, NULL}};
    d9d_job_events *v;

    (void)state;
    assert_ok(d9d_job_events_create(&v));
    assert_fails(d9d_job_events_subscribe(v, wrong, NULL), D9D_ECONFIG,
                 "event train.step.past: there is none of this name; did you mean "
                 "\"train.step.post\"?");
    d9d_job_events_free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_event_is_handled_by_either_of_its_names),
        cmocka_unit_test(a_name_of_no_event_is_a_mistake),
    };

    return cmocka_run_group_tests_name("events", tests, NULL, NULL);
}
