#!/usr/bin/env python3
"""Records of d9d-train to Weights & Biases, from outside of the run.

    "logging": {"tracker": {"provider": "command", "command": ["python3", "to_wandb.py", "my-project"]}}

The run's id makes a resumed run continue there.  Any other client works the same way: the first line describes the
run, lines with a "loss" are steps, lines with an "evaluation" are evaluations.
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
