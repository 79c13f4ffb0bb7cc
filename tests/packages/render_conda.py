#!/usr/bin/env python3
"""render_conda.py RECIPE VARIANTS - renders a recipe as rattler-build does; prints what each section requires."""
import sys

import rattler_build

recipe = rattler_build.Stage0Recipe.from_file(sys.argv[1])
for variant in recipe.render(rattler_build.VariantConfig.from_file(sys.argv[2])):
    rendered = variant.recipe.to_dict()
    print("package", rendered["package"]["name"], rendered["package"]["version"])
    for section, needed in sorted(rendered["requirements"].items()):
        for entry in needed:
            print(section, entry if isinstance(entry, str) else next(iter(entry.values())))
    print("tests", len(rendered["tests"]))
