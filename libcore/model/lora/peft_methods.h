/* peft_methods.h - what the section of several methods has. */
#ifndef D9DI_MODEL_LORA_PEFT_METHODS_H
#define D9DI_MODEL_LORA_PEFT_METHODS_H

#include "d9d/model/lora/peft.h"

typedef struct d9di_peft_stack {
    d9d_list methods; /* of d9d_union */
} d9di_peft_stack;

#endif /* D9DI_MODEL_LORA_PEFT_METHODS_H */
