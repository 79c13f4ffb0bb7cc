#!/bin/bash
# What a practitioner searches for is found: for each term, one of the first three hits of
# `git grep -i TERM -- libcore kernels` is in the file that does it, or names that file.
. "$(dirname "$0")/meta.bash"

# TERM | the file, as an extended regular expression
terms() {
    cat <<'TABLE'
ncclAllGather|comm/backend/comm_nccl.c
ncclCommSplit|comm/backend/comm_nccl.c
cudaIpc|comm/p2p/cuda_ipc.c
symmetric memory|comm/p2p/symm_buffer.c
CUDA IPC|comm/p2p/cuda_ipc.c
copy engine|comm/p2p/
flight recorder|comm/watch/flight_ring.c
desync|comm/watch/desync_check.c
watchdog|comm/watch/watchdog.c
PMIx|comm/bootstrap_pmix.c
device mesh|comm/group/mesh.c
process group|comm/group/mesh.c
unshard|parallel/fsdp.c
reshard|parallel/fsdp.c
FSDP|parallel/fsdp.c
HSDP|parallel/fsdp.c
ZeRO-3|parallel/fsdp.c
gradient bucket|parallel/buckets.c
tensor parallel|op/parallel/op_tp_overlap.c
context parallel|data/loader/cp_slice.c
zigzag|op/attention/op_cp_gather.c|cp_zigzag
ring attention|op/attention/op_cp_ring.c|attention_merge.cu
all-to-all|op/moe/op_moe_all_to_all.c
auxiliary loss|op/moe/op_router.c
1F1B|pipe/build.c
zero bubble|pipe/build_v.c
DualPipe|pipe/build_v.c
interleaved 1F1B|pipe/build_interleaved.c
gradient accumulation|engine/engine_step.c
clip_grad_norm|optim/grad_finalize.c
activation checkpointing|tape/recompute.c
recompute|tape/recompute.c|attention_bwd
dgrad|tape/backward.c|_dgrad
wgrad|tape/backward.c|_wgrad
caching allocator|device/pool.c
pinned memory|device/staging.c
master weights|optim/adam
stochastic rounding|optim/adam
Philox|common/philox.cuh
QK-norm|norm/norm_rope.cu|nn/attention_block.c
YaRN|nn/rope.c
sliding window|attention_dispatch.c|nn/attention_block.c
attention sink|attention_sink.cu|nn/attention_block.c
flash decoding|attention_decode.cu
split-KV|attention_decode.cu
FlashAttention|attention_bwd_sm90.cu|attention_cudnn.c
cu_seqlens|varlen
MLA|nn/mla_block.c
Gated DeltaNet|gdn/gated_delta.cu|nn/gated_delta_block.c
causal_conv1d|causal_conv1d
grouped GEMM|grouped_gemm_sm90.cu
skinny GEMM|gemm_skinny.cu
cuBLASLt|gemm/cublaslt.c
WGMMA|gemm/gemm_sm90.cuh|common/sm90.cuh
mbarrier|common/sm90.cuh
SwiGLU epilogue|gemm_swiglu_sm90.cu
PDL|common/sm90.cuh
linear cross entropy|linear_cross_entropy
KV cache|model/kv_cache.c|attention_decode.cu
prefill|infer/kv_decoder.c
continuous batching|infer/decode_batch.c
top-p|infer/token_sampler.c|elementwise/sample_tokens.cu
BPE|data/tokenizer/bpe.c
pre-tokenizer|data/tokenizer/pretok.c
chat template|data/chat/chat_template.c
sequence packing|data/build/packer.c
safetensors|ckpt/safetensors/
checkpoint conversion|convert/convert.c
async checkpoint|checkpointer/checkpointer_async.c
LoRA, PEFT|nn/adapter.c
lora_alpha|model/lora/
preemption|job/preemption.c
MFU|plan/plan.c
mesh search|plan/mesh_search.c
cost model|plan/plan.c|sim/sim_chip.c
TensorBoard|track/tb_event.c
InfoNCE|op/loss/op_info_nce.c
loss spike|report/spikes.c
TABLE
}

# In a tree without a repository the same, in the order of git.
hits() {
    if git rev-parse --git-dir >/dev/null 2>&1; then
        git grep -iF -e "$1" -- libcore kernels
    else
        find kernels libcore -type f | LC_ALL=C sort | xargs grep -iF -e "$1" /dev/null
    fi 2>/dev/null | head -n 3
}

check() {
    local term file hits
    cd "$1" || return 1
    while IFS='|' read -r term file; do
        hits=$(hits "$term")
        grep -qE "$file" <<<"$hits" || echo "\"$term\": $file is not in $(cut -c 1-60 <<<"$hits" | tr '\n' ' ')"
    done < <(terms)
}

plant_nothing() { put "$1/libcore/a/a.c" </dev/null; mkdir -p "$1/kernels"; }
meta_run
