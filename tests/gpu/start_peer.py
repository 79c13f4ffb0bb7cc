"""One training step of a checkpoint with transformers, not compiled, for start.

    start_peer.py DIR ROWS LENGTH
"""

import sys

import torch
from transformers import AutoModelForCausalLM

rows, length = (int(v) for v in sys.argv[2:4])
model = AutoModelForCausalLM.from_pretrained(
    sys.argv[1], dtype=torch.bfloat16, attn_implementation="sdpa", device_map="cuda"
)
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
ids = torch.randint(model.config.vocab_size, (rows, length), device="cuda")
model(input_ids=ids, labels=ids).loss.backward()
optimizer.step()
torch.cuda.synchronize()
