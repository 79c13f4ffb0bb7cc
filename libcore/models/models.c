/* models.c - the families that are built in, by the sections of "model_provider": those of the
 * reference framework, then each family that a file of this folder makes. */
#include "d9d/models/models.h"

#include "model/family/model_choice.h"

/* The list has D9DI_FAMILY(name) for each D9D_FAMILY(name, ...) of the files here; make writes it.
 */
#define D9DI_FAMILY(name) extern const d9d_table d9d_##name##_section;
#include <models/family_list.h>
#undef D9DI_FAMILY

const d9d_table *const d9d_model_choices[] = {
    &d9d_model_auto_section,
    &d9d_qwen3_dense_section,
    &d9d_qwen3_moe_section,
#define D9DI_FAMILY(name) &d9d_##name##_section,
#include <models/family_list.h>
#undef D9DI_FAMILY
    NULL,
};

const d9d_model_provider *d9d_model_find(const d9d_table *const *choices, const char *model_type)
{
    for (; *choices != NULL; choices++)
        if (d9di_model_accepts_type((*choices)->row, model_type))
            return (*choices)->row;
    return NULL;
}
