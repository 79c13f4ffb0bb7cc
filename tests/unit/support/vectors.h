/* vectors.h - arrays of golden files, and the distance of two arrays. */
#ifndef D9D_TEST_VECTORS_H
#define D9D_TEST_VECTORS_H

#include <stddef.h>
#include <stdint.h>

#include "d9d/ckpt/safetensors/safetensors.h"

/* The tensor's elements as float or int32 (I64 and I32 files); malloc'd, count in *n.  A file or
 * tensor that is not there fails the test. */
float *vectors_f32(const d9d_safetensors_file *f, const char *name, size_t *n);
int32_t *vectors_i32(const d9d_safetensors_file *f, const char *name, size_t *n);
const d9d_safetensors_tensor *vectors_find(const d9d_safetensors_file *f, const char *name);

/* |a - b| / |b| in the 2-norm; when |b| is below floor, |a - b| / floor. */
double vectors_distance(const float *a, const float *b, size_t n, double floor);
double vectors_norm(const float *a, size_t n);

/* Path of a file of tests/golden, from the repository's root or D9D_ROOT; static storage. */
const char *vectors_path(const char *dir, const char *file);

#endif /* D9D_TEST_VECTORS_H */
