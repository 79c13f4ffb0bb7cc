/* others.h - which files of a checkpoint directory are weights. */
#ifndef D9DI_CKPT_OTHERS_H
#define D9DI_CKPT_OTHERS_H

#include <stdbool.h>
#include <string.h>

static inline bool d9di_ends_with(const char *name, const char *tail)
{
    const size_t n = strlen(name), k = strlen(tail);

    return n >= k && strcmp(name + n - k, tail) == 0;
}

/* Weights in another format than safetensors, by their name: pytorch_model.bin and what else
 * has "model" in its name and ends in .bin; .pt .pth .ckpt .gguf .onnx .h5 .msgpack ... */
bool d9di_is_foreign_weights(const char *name);

#endif /* D9DI_CKPT_OTHERS_H */
