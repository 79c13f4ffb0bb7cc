/* megatron_format.h - the header of a Megatron-LM index, for reader and writer. */
#ifndef D9DI_DATA_DATASET_MEGATRON_FORMAT_H
#define D9DI_DATA_DATASET_MEGATRON_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#define D9DI_MEGATRON_MAGIC "MMIDIDX\0" /* with the terminating NUL: 9 bytes */
enum { D9DI_MEGATRON_I32 = 4, D9DI_MEGATRON_U16 = 8, D9DI_MEGATRON_TYPES = 9 };

struct __attribute__((packed)) d9di_megatron_header {
    char magic[9];
    uint64_t version;
    uint8_t type;
    uint64_t sequences, bounds;
};
_Static_assert(sizeof(struct d9di_megatron_header) == 34, "the layout is Megatron's");

extern const size_t
    d9di_megatron_sizes[D9DI_MEGATRON_TYPES]; /* bytes of each type; 0: not an integer */

#endif
