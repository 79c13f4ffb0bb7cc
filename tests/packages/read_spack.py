#!/usr/bin/env python3
"""read_spack.py PACKAGE.py SPEC... - what a recipe of Spack says, where there is no Spack.

The names that Spack gives a recipe are stand-ins that write down what they are called with.  Lines:
"version V", "variant NAME DEFAULT", "depends NAME", "conflicts SPEC", and for each SPEC ("+mpi", "+cuda
cuda_arch=90") "arguments SPEC" and the words with which the recipe calls make, one a line.
"""
import importlib.util
import sys
import types


class When:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


def known(kinds):
    """Refuses an argument that the directive of Spack has not: a typing error of the recipe."""

    def check(given):
        for name in given:
            assert name in kinds, f"no such argument: {name}"

    return check


def version(number, **given):
    known({"sha256", "url", "branch", "tag", "commit"})(given)
    print("version", number)


def variant(name, **given):
    known({"default", "description", "values", "multi", "when"})(given)
    variants[name] = given["default"]
    print("variant", name, given["default"])


def depends_on(spec, **given):
    known({"type", "when", "patches"})(given)
    print("depends", spec.split("@")[0].split("+")[0])


def conflicts(spec, **given):
    known({"when", "msg"})(given)
    print("conflicts", spec)


class Package:
    """A base class: what a Spec says of the package is in self.spec, its folder in self.prefix."""

    prefix = "/opt/d9d"


class Dependency:
    def __init__(self, name):
        self.prefix = f"/opt/{name}"
        self.mpicc = f"/opt/{name}/bin/mpicc"


class Spec:
    def __init__(self, text):
        self.words = text.split()
        self.on = {name for name, value in variants.items() if value is True}
        for word in self.words:
            if word[0] in "+~":
                assert word[1:] in variants, f"no variant {word}"
                (self.on.add if word[0] == "+" else self.on.discard)(word[1:])
        values = [w.split("=")[1].split(",") for w in self.words if w.startswith("cuda_arch=")]
        self.variants = {"cuda_arch": types.SimpleNamespace(value=values[0] if values else ["none"])}

    def satisfies(self, text):
        assert text[0] in "+~" and text[1:] in variants, text
        return (text[1:] in self.on) == (text[0] == "+")

    def __getitem__(self, name):
        return Dependency(name)


variants = {"cuda": False}
spack = types.ModuleType("spack.package")
for function in (version, variant, depends_on, conflicts):
    setattr(spack, function.__name__, function)
spack.license = lambda text: print("license", text)
spack.when = lambda spec: When()
spack.run_after = spack.on_package_attributes = lambda *_, **__: lambda function: function
spack.spack_cc = "/opt/spack/cc"
spack.Executable = None
for name, content in {
    "spack": types.ModuleType("spack"),
    "spack.package": spack,
    "spack_repo": types.ModuleType("spack_repo"),
    "spack_repo.builtin": types.ModuleType("spack_repo.builtin"),
    "spack_repo.builtin.build_systems": types.ModuleType("build_systems"),
    "spack_repo.builtin.build_systems.cuda": types.SimpleNamespace(CudaPackage=type("CudaPackage", (), {})),
    "spack_repo.builtin.build_systems.makefile": types.SimpleNamespace(MakefilePackage=Package),
}.items():
    sys.modules[name] = content

spec = importlib.util.spec_from_file_location("recipe", sys.argv[1])
recipe = importlib.util.module_from_spec(spec)
spec.loader.exec_module(recipe)
for text in sys.argv[2:]:
    package = recipe.D9d()
    package.spec = Spec(text)
    print("arguments", text)
    for word in package.arguments():
        print(word)
