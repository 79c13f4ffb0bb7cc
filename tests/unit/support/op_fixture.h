/* op_fixture.h - vars and parameters of given shapes, to check that ops reject them. */
#ifndef D9D_OP_FIXTURE_H
#define D9D_OP_FIXTURE_H

#include "d9d/op/op.h"
#include "unit.h"

typedef struct op_fixture {
    d9d_device *dev;
    d9d_tape *tape;
    d9d_param param[16];
    size_t n_param;
    d9d_tensor tensor[16];
    size_t n_tensor;
} op_fixture;

/* Setup and teardown of a test whose *state is an op_fixture; nothing may be left. */
int op_fixture_open(void **state);
int op_fixture_close(void **state);
#define op_test(f) cmocka_unit_test_setup_teardown(f, op_fixture_open, op_fixture_close)

/* Filled with zeros; they live until the end of the test. */
d9d_var *op_var(op_fixture *f, d9d_dtype t, d9d_shape shape);
d9d_tensor *op_tensor(op_fixture *f, d9d_dtype t, d9d_shape shape);
d9d_param *op_param(op_fixture *f, const char *name, d9d_dtype t, d9d_shape shape);

/* EINVAL with this sentence, before anything was made. */
#define assert_refused(f, expr, sentence)                                                          \
    do {                                                                                           \
        const size_t mark_ = d9d_tape_mark((f)->tape);                                             \
        const uint64_t bytes_ = d9d_device_memory((f)->dev).in_use;                                \
        assert_fails(expr, D9D_EINVAL, sentence);                                                  \
        assert_int_equal(d9d_tape_mark((f)->tape), mark_);                                         \
        assert_int_equal(d9d_device_memory((f)->dev).in_use, bytes_);                              \
    } while (0)

#endif /* D9D_OP_FIXTURE_H */
