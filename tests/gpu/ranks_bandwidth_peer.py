"""Bus bandwidth of torch.distributed's collectives of bfloat16, for ranks; by torchrun.

Prints, as comm_driver bandwidth of tests/multirank does, a line a call and size: its name, MiB, GB/s.
"""

import os
import time

import torch
import torch.distributed as dist

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
size = dist.get_world_size()
a = torch.randn(512 << 20, device=device, dtype=torch.bfloat16) * 1e-3
b = torch.empty_like(a)
calls = {
    "all_reduce": (2, lambda n: dist.all_reduce(a[:n])),
    "all_gather": (1, lambda n: dist.all_gather_into_tensor(b[:n], a[: n // size])),
    "reduce_scatter": (1, lambda n: dist.reduce_scatter_tensor(b[: n // size], a[:n])),
    "all_to_all": (1, lambda n: dist.all_to_all_single(b[:n], a[:n])),
}
for name, (times, call) in calls.items():
    for mib in 16, 256, 1024:
        rounds = 20 if mib > 256 else 50
        for _ in range(3):
            call(mib << 19)
        torch.cuda.synchronize()
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(rounds):
            call(mib << 19)
        torch.cuda.synchronize()
        s = (time.perf_counter() - begin) / rounds
        if dist.get_rank() == 0:
            print(name, mib, 1e-9 * times * (size - 1) / size * (mib << 20) / s)
dist.destroy_process_group()
