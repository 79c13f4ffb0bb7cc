/* stream.h - a stream of a device, on which kernels are enqueued. */
#ifndef D9D_KERNELS_STREAM_H
#define D9D_KERNELS_STREAM_H

#ifdef __cplusplus
extern "C" {
#endif

/* A stream of a device and what its kernels need besides, such as library handles and an allocator
 * of scratch memory. The device creates and owns it; NULL on the CPU. */
typedef struct d9d_stream_state *d9d_stream;

#ifdef __cplusplus
}
#endif
#endif /* D9D_KERNELS_STREAM_H */
