"""@mpi: the headers of Open MPI and of MPICH, and the paths of their launchers.

Headers only: no target of this project links an MPI library.
"""

load("//third_party:python.bzl", "PYTHON_ENVIRON", "WORKSPACE_ATTR", "ask_python")

_FAMILIES = ["openmpi", "mpich"]

# mpi.h and the files that it includes, in either family.
_HEADER_FILES = ["mpi.h", "mpi_portable_platform.h", "mpi_proto.h"]

_HEADERS = """
cc_library(
    name = "{family}_headers",
    hdrs = glob(["{family}/include/*.h"]),
    includes = ["{family}/include"],
)
"""

_MISSING = """
genrule(
    name = "{family}_missing",
    outs = ["{family}/mpi.h"],
    cmd = "echo 'the {family} headers are missing: pip install {family}, or run ./dev setup' >&2; exit 1",
)

cc_library(
    name = "{family}_headers",
    hdrs = ["{family}/mpi.h"],
    includes = ["{family}"],
)
"""

def _impl(repository_ctx):
    answers = ask_python(repository_ctx, repository_ctx.attr._probe)
    build = ['package(default_visibility = ["//visibility:public"])']
    prefixes = {}
    versions = {}
    for family in _FAMILIES:
        prefix = answers.get(family, "")
        prefixes[family] = prefix
        versions[family] = answers.get(family + "_version", "")
        if prefix:
            for header in _HEADER_FILES:
                source = repository_ctx.path(prefix + "/include/" + header)
                if source.exists:
                    repository_ctx.symlink(source, family + "/include/" + header)
        build.append((_HEADERS if prefix else _MISSING).format(family = family))
    repository_ctx.file("BUILD", "\n".join(build))
    repository_ctx.file("defs.bzl", '"""Where each MPI family is installed; empty if it is not."""\n\nMPI_PREFIXES = %s\n\n# The versions of the headers.\nMPI_VERSIONS = %s\n' % (repr(prefixes), repr(versions)))

mpi_configure = repository_rule(
    implementation = _impl,
    attrs = dict(
        WORKSPACE_ATTR,
        _probe = attr.label(default = "//third_party/mpi:probe.py", allow_single_file = True),
    ),
    environ = PYTHON_ENVIRON + ["TF_HVD_OPENMPI_PREFIX", "TF_HVD_MPICH_PREFIX"],
)
