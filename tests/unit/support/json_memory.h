/* json_memory.h - fault injection: Jansson runs out of memory at an allocation that a test chooses.
 *
 *     for (int left = 0; ; left++) {
 *         json_memory_begin(left);
 *         st = make(&v);
 *         if (!json_memory_end())
 *             break;          // it had as much as it asked for
 *         ...                 // st is ENOMEM, or v is whole all the same
 *     }
 */
#ifndef TEST_JSON_MEMORY_H
#define TEST_JSON_MEMORY_H

#include <stdbool.h>

/* After `left` allocations more there is none. */
void json_memory_begin(int left);
/* Memory is there again.  Was it out? */
bool json_memory_end(void);

#endif /* TEST_JSON_MEMORY_H */
