"""@nccl: nccl.h from a wheel or the system, or a stub if it is missing.

NCCL itself is opened at run time, never linked.
"""

load("//third_party:python.bzl", "PYTHON_ENVIRON", "WORKSPACE_ATTR", "ask_python")

_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = glob(["include/*.h"], allow_empty = True),
    includes = ["include"],
)
"""

def _impl(repository_ctx):
    header = ask_python(repository_ctx, repository_ctx.attr._probe).get("header", "")
    if header:
        repository_ctx.symlink(header, "include/nccl.h")
    repository_ctx.file("BUILD", _BUILD)
    repository_ctx.file("defs.bzl", '"""Whether nccl.h was found."""\n\nHAVE_NCCL = %s\n' % bool(header))

nccl_configure = repository_rule(
    implementation = _impl,
    attrs = dict(
        WORKSPACE_ATTR,
        _probe = attr.label(default = "//third_party/nccl:probe.py", allow_single_file = True),
    ),
    environ = PYTHON_ENVIRON,
)
