/* hash_counter.h - counts hashes in one text after the other, without clearing between them. */
#ifndef D9DI_DATA_FILTER_HASH_COUNTER_H
#define D9DI_DATA_FILTER_HASH_COUNTER_H

#include <stddef.h>
#include <stdint.h>

#include "d9d/base/status.h"

struct d9di_hash_counter_slot {
    uint64_t key;
    uint32_t turn, count;
};

typedef struct d9di_hash_counter {
    struct d9di_hash_counter_slot *slots;
    size_t n_slots; /* a power of two */
    uint32_t turn;
} d9di_hash_counter; /* zero-initialised is empty */

/* Forgets all hashes, and makes room for n. */
d9d_status d9di_hash_counter_begin(d9di_hash_counter *c, size_t n);
/* Adds one to the count of a hash, and returns the new count. */
uint32_t d9di_hash_counter_add(d9di_hash_counter *c, uint64_t key);
uint32_t d9di_hash_counter_get(const d9di_hash_counter *c, uint64_t key);
void d9di_hash_counter_release(d9di_hash_counter *c);

#endif
