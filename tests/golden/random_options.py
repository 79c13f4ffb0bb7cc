"""Options that the programs which draw at random share."""
import argparse
from pathlib import Path


def options(count, out, families=()):
    """How many are drawn of each, from which seed, and where to."""
    p = argparse.ArgumentParser()
    if families:
        p.add_argument("--family", action="append", choices=list(families), metavar="KIND")
    p.add_argument("--count", type=int, default=count)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--out", type=Path, default=Path(out))
    return p
