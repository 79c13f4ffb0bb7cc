/* others.h - which files of a checkpoint directory are weights. */
#ifndef D9DI_CKPT_OTHERS_H
#define D9DI_CKPT_OTHERS_H

#include <stdbool.h>

/* Weights in another format than safetensors, by their name: pytorch_model.bin and what else
 * has "model" in its name and ends in .bin; .pt .pth .ckpt .gguf .onnx .h5 .msgpack ... */
bool d9di_is_foreign_weights(const char *name);

#endif /* D9DI_CKPT_OTHERS_H */
