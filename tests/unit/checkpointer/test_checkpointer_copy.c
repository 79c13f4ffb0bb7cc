/* test_checkpointer_copy.c - copies beside training have the bits that the device held: what
 * changes after the beginning is found, wherever it is. */
#include <string.h>

#include "checkpointer/checkpointer_copy.h"
#include "support/unit.h"

enum { N = 3, BYTES = 1001 };

typedef struct fixture {
    d9d_device *dev;
    d9d_tensor tensor[N]; /* the one in the middle is empty */
    d9d_checkpointer_tensor items[N];
    d9d_checkpointer_set set;
    d9di_checkpointer_copy copy;
    d9d_arena arena;
} fixture;

static void fixture_open(fixture *f)
{
    static const char *const names[N] = {"a", "b", "c"};

    *f = (fixture){.dev = NULL};
    assert_ok(d9d_device_open("cpu", &f->dev));
    for (int i = 0; i < N; i++) {
        assert_ok(d9d_tensor_alloc(f->dev, D9D_U8, D9D_SHAPE(i == 1 ? 0 : BYTES), &f->tensor[i]));
        f->items[i] = (d9d_checkpointer_tensor){.name = names[i], .tensor = &f->tensor[i]};
        if (i != 1)
            memset(d9d_tensor_data(&f->tensor[i]), 'a' + i, BYTES);
    }
    f->set = (d9d_checkpointer_set){.items = f->items, .n = N};
    assert_ok(d9di_checkpointer_copy_open(&f->copy, &f->set, f->dev, &f->arena));
}

static void fixture_close(fixture *f)
{
    d9di_checkpointer_copy_release(&f->copy);
    for (int i = 0; i < N; i++)
        d9d_tensor_release(&f->tensor[i]);
    d9d_arena_release(&f->arena);
    d9d_device_close(f->dev);
}

static void it_is_what_was_there(void **state)
{
    char to[BYTES];
    fixture f;

    (void)state;
    fixture_open(&f);
    for (int again = 0; again < 2; again++) {
        memset(d9d_tensor_data(&f.tensor[2]), 'c' + again, BYTES);
        assert_ok(d9di_checkpointer_copy_begin(&f.copy));
        for (size_t i = 0; i < N; i += 2) {
            assert_ok(d9di_checkpointer_copy_tensor(&f.copy, i, to));
            assert_memory_equal(to, d9d_tensor_data(&f.tensor[i]), BYTES);
        }
    }
    fixture_close(&f);
}

/* Each bit of the last word counts, which is not whole. */
static void what_changes_is_not_kept(void **state)
{
    char to[BYTES];
    fixture f;

    (void)state;
    fixture_open(&f);
    for (int bit = 0; bit < 16; bit++) {
        char *byte = (char *)d9d_tensor_data(&f.tensor[2]) + (bit < 8 ? BYTES - 1 : 0);

        assert_ok(d9di_checkpointer_copy_begin(&f.copy));
        *byte ^= (char)(1 << bit % 8);
        assert_ok(d9di_checkpointer_copy_tensor(&f.copy, 0, to));
        assert_fails_like(
            d9di_checkpointer_copy_tensor(&f.copy, 2, to), D9D_ECORRUPT,
            "c changed while it was copied for a checkpoint, of which nothing is kept");
        *byte ^= (char)(1 << bit % 8);
        assert_ok(d9di_checkpointer_copy_tensor(&f.copy, 2, to));
    }
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_what_was_there),
        cmocka_unit_test(what_changes_is_not_kept),
    };

    return cmocka_run_group_tests_name("copies", tests, NULL, NULL);
}
