/* peft_methods.h - what the section of several methods has. */
#ifndef D9DI_MODEL_LORA_PEFT_METHODS_H
#define D9DI_MODEL_LORA_PEFT_METHODS_H

#include "d9d/model/lora/peft.h"

typedef struct d9di_peft_stack {
    d9d_list methods; /* of d9d_union */
} d9di_peft_stack;

/* ECONFIG if a rank_pattern or alpha_pattern of the section, whose table is t, matches none of the
 * modules [n] with an adapter. */
d9d_status d9di_peft_patterns_check(const d9d_table *t, const void *section,
                                    const char *const *names, size_t n);

#endif /* D9DI_MODEL_LORA_PEFT_METHODS_H */
