#!/usr/bin/env python3
"""Records of d9d-train to Weights & Biases, from outside of the run.

    "logging": {"tracker": {"provider": "command", "command": ["python3", "to_wandb.py", "my-project"]}}

The run's id makes a run that goes on the same one there.  Any other client is fed alike: the first line is about the
run, those with a "loss" are steps, those with an "evaluation" what the model is worth after one.
"""
import json
import sys

import wandb

about = json.loads(sys.stdin.readline())
run = wandb.init(project=sys.argv[1], id=about["run"], name=about["name"], notes=about["description"],
                 config=about["hparams"], resume="allow")
for line in sys.stdin:
    record = json.loads(line)
    if "loss" in record or record.pop("evaluation", None):
        run.log(record, step=record.pop("step"))
run.finish()
