#!/usr/bin/env python3
"""The configuration keys of the reference framework, d9d for PyTorch: model, field, first and last version.

    make_reference_keys.py WHEELS      a directory with one wheel of each version, such as pip download leaves

The first three columns of reference_configs/keys.tsv are these; a key of a new version is a line that is missing
there.  Reads the sources without importing them.
"""
import ast
import pathlib
import sys
import zipfile


def models(wheel):
    """{class: ([bases], [fields])} of a wheel's pydantic models."""
    classes = {}
    with zipfile.ZipFile(wheel) as z:
        for name in sorted(n for n in z.namelist() if n.endswith(".py")):
            for node in ast.walk(ast.parse(z.read(name))):
                if isinstance(node, ast.ClassDef):
                    bases = [ast.unparse(b).split("[")[0] for b in node.bases]
                    fields = [s.target.id for s in node.body if isinstance(s, ast.AnnAssign)]
                    classes[node.name] = (bases, [f for f in fields if f != "model_config"])
    known = {"BaseModel"}
    while more := {c for c, (bases, _) in classes.items() if c not in known and known.intersection(bases)}:
        known |= more
    return {c: classes[c][1] for c in known if c in classes}


def version(wheel):
    return tuple(int(part) for part in wheel.name.split("-")[1].split(".")[:2])


wheels = sorted(pathlib.Path(sys.argv[1]).glob("d9d-*.whl"), key=version)
seen = {}
for wheel in wheels:
    for model, fields in models(wheel).items():
        for field in fields:
            seen.setdefault((model, field), []).append("%d.%d" % version(wheel))
for (model, field), versions in sorted(seen.items()):
    print(model, field, versions[0] if len(versions) == 1 else f"{versions[0]}-{versions[-1]}", sep="\t")
