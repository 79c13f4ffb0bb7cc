# Recipe of d9d for Spack 1.0 and newer.  The sources are those of the tree that `spack dev-build` is called in, or
# an archive d9d-VERSION.tar.gz in a mirror.
import os

from spack_repo.builtin.build_systems.cuda import CudaPackage
from spack_repo.builtin.build_systems.makefile import MakefilePackage

from spack.package import *


class D9d(MakefilePackage, CudaPackage):
    """Tools for training large language models on Slurm clusters, in C."""

    manual_download = True
    license("Apache-2.0")

    version("0.1.0")

    variant("mpi", default=True, description="Meshes of several ranks on CPUs")
    variant("pmix", default=True, description="Jobs of several tasks")
    variant("plots", default=True, description="PNG and PDF images, drawn by cairo")

    depends_on("c", type="build")
    depends_on("cxx", type="build", when="+cuda")
    depends_on("gmake", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("jansson")
    depends_on("pcre2")
    depends_on("utf8proc")
    depends_on("zstd")
    depends_on("zlib-api")
    depends_on("xxhash")
    depends_on("lmdb")
    depends_on("cairo+pdf+png", when="+plots")
    depends_on("pmix@3:", when="+pmix")
    depends_on("mpi", when="+mpi")
    with when("+cuda"):
        depends_on("cuda@12.4:")
        depends_on("nccl")
        depends_on("cudnn@9:")

    conflicts("%gcc@:10", msg="d9d needs gcc 11 or newer")
    conflicts("%clang@:13", msg="d9d needs clang 14 or newer")
    conflicts("cuda_arch=none", when="+cuda", msg="cuda_arch says for which GPUs, 80 or 90")

    def arguments(self):
        spec = self.spec
        made = [f"PREFIX={self.prefix}", f"CC={spack_cc}", "NO_INSTALL=1"]
        made.append(f"MPICC={spec['mpi'].mpicc}" if spec.satisfies("+mpi") else "MPICC=")
        if not spec.satisfies("+cuda"):
            return made + ["NVCC="]
        # Kernels for Hopper use instructions of its own, sm_90a.
        archs = ["90a" if a == "90" else a for a in spec.variants["cuda_arch"].value]
        return made + [
            f"CUDA_HOME={spec['cuda'].prefix}",
            f"NCCL_HOME={spec['nccl'].prefix}",
            f"CUDNN_HOME={spec['cudnn'].prefix}",
            f"CUDA_ARCH={' '.join(archs)}",
        ]

    def build(self, spec, prefix):
        make(*self.arguments())

    def install(self, spec, prefix):
        make("install", *self.arguments())

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_numbers(self):
        Executable(os.path.join(self.prefix.share, "d9d", "reference", "check"))()
