"""Training steps of one random model with transformers, several ways, for shapes and families.

    shapes_peer.py CONFIG.json ROWS full|packed|padded STEPS READY

ROWS has the lengths of a row's documents in each line.  All ways are compiled first; then the file
READY is made, and they are timed when a line comes from standard input.  Prints "WAY MILLISECONDS GIB"
a line, the median of a step; a way that fails prints nothing, and why to standard error.
"""

import inspect
import os
import statistics
import sys

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.attention.varlen import varlen_attn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
    AutoModelForCausalLM,
)

from compare_peer import (
    compiled_as,
    make_model,
    optimizer_of,
    parts_in_use,
    step_ms,
    use_liger,
    use_parts,
)

config_path, rows_path, kind, steps, ready = sys.argv[1:6]
rows = [[int(n) for n in line.split()] for line in open(rows_path)]
steps = int(steps)
packed = kind == "packed"
# What attention of packed rows knows of the documents.
documents = [n for row in rows for n in row]
state = {}

causal = (
    {"window_size": (-1, 0)}
    if "window_size" in inspect.signature(varlen_attn).parameters
    else {"is_causal": True}
)
grouped = (
    {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}
)


def attend_varlen(module, query, key, value, mask, scaling=None, **_):
    """[1, heads, tokens, features] of all documents."""
    q, k, v = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
    ends, most = state["ends"], state["most"]
    o = varlen_attn(q, k, v, ends, ends, most, most, **causal, **grouped)
    return o.unsqueeze(0), None


def attend_flex(module, query, key, value, mask, scaling=None, **_):
    o = flex_attention(
        query, key, value, block_mask=state["mask"], scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
    )
    return o.transpose(1, 2).contiguous(), None


for name, f in ("varlen", attend_varlen), ("flex", attend_flex):
    AttentionInterface.register(name, f)
    AttentionMaskInterface.register(name, lambda *a, **k: None)


def prepare_documents():
    ends = torch.tensor([0] + documents, dtype=torch.int32, device="cuda").cumsum(0, dtype=torch.int32)
    of = torch.repeat_interleave(
        torch.arange(len(documents), device="cuda"), torch.tensor(documents, device="cuda")
    )
    n = len(of)
    state.update(
        ends=ends,
        most=max(documents),
        mask=create_block_mask(
            lambda b, h, i, j: (i >= j) & (of[i] == of[j]), None, None, n, n, device="cuda"
        ),
    )


def batch_of(vocabulary):
    """Packed rows are one row; padding has no targets, and no mask, which causal rows need not."""
    if packed:
        ids = torch.randint(vocabulary, (1, sum(documents)), device="cuda")
        at = torch.cat([torch.arange(n, device="cuda") for n in documents])
        return {"input_ids": ids, "labels": ids, "position_ids": at.unsqueeze(0)}
    ids = torch.randint(vocabulary, (len(rows), max(documents)), device="cuda")
    labels = ids.clone()
    for i, row in enumerate(rows):
        labels[i, row[0] :] = -100
    return {"input_ids": ids, "labels": labels}


class Way:
    def __init__(self, name, how, attention):
        self.name, self.parts = name, parts_in_use(config_path)
        self.model = make_model(config_path, attention)
        self.call = compiled_as(how, self.model)

    def warm(self):
        """Two steps, and out of the way."""
        optimizer = optimizer_of(self.model)
        for _ in range(2):
            step_ms(self.call, optimizer, batch_of(self.model.config.vocab_size))
        self.model.cpu()

    def time(self):
        use_parts(self.parts)
        self.model.cuda()
        torch.cuda.reset_peak_memory_stats()
        optimizer = optimizer_of(self.model)
        times = [
            step_ms(self.call, optimizer, batch_of(self.model.config.vocab_size)) for _ in range(steps)
        ]
        print(self.name, statistics.median(times[4:]), torch.cuda.max_memory_allocated() / 2**30, flush=True)
        self.model.cpu()


def every_way():
    """Liger's are made last, as models of before could not be made any more."""
    if packed:
        prepare_documents()
        yield "layers-varlen", "layers", "varlen"
        yield "layers-flex", "layers", "flex"
        if has_liger():
            yield "liger-varlen", "liger", "varlen"
            yield "liger-flex", "liger", "flex"
    else:
        # Sinks are FlexAttention's or nobody's; of sliding windows it may be the faster.
        at = attentions()
        yield "model", "model", at[0]
        for attention in at:
            yield "layers" + suffix(attention), "layers", attention
        if has_liger():
            yield "liger", "liger", at[0]


def has_liger():
    return attempt("liger", lambda: (use_liger(config_path), True)[1])


def attentions():
    """What transformers offers for the model, but its plain one."""
    config = AutoConfig.from_pretrained(config_path)
    model = AutoModelForCausalLM._model_mapping[type(config)]
    sliding = "sliding_attention" in (getattr(config, "layer_types", None) or [])
    found = ["sdpa"] * model._supports_sdpa
    found += ["flex_attention"] * (model._supports_flex_attn and (sliding or not found))
    return found or ["eager"]


def suffix(attention):
    return "" if attention == "sdpa" else "-" + attention.split("_")[0]


def attempt(name, f):
    try:
        return f()
    except Exception as e:
        print(f"{name}: {type(e).__name__}: {str(e)[:600]}", file=sys.stderr, flush=True)
        if "illegal" in str(e) and not os.path.exists(ready) and "D9D_NO_CUDNN" not in os.environ:
            # Nothing works in this process any more: once again, without cuDNN's attention.
            os.execve(sys.executable, [sys.executable] + sys.argv, {**os.environ, "D9D_NO_CUDNN": "1"})
    finally:
        torch.cuda.empty_cache()
    return None


torch._dynamo.config.recompile_limit = 64
ways = []
wanted = os.environ.get("D9D_WAYS", "").split()
for name, how, attention in every_way():
    if wanted and name not in wanted:
        continue
    way = attempt(name, lambda: Way(name, how, attention))
    if way is not None and attempt(name, lambda: (way.warm(), True)[1]):
        ways.append(way)
open(ready, "w").close()
sys.stdin.readline()
for way in ways:
    attempt(way.name, way.time)
