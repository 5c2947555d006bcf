"""@cuda: nvcc and the toolkit's headers, or a stub if they are missing.

TF_HVD_CUDA=0 asks for the stub, TF_HVD_CUDA=/path/to/toolkit for that toolkit.
Without it, CUDA_HOME is used, then nvcc on the PATH.
"""

_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = glob(["include/**"], allow_empty = True),
    includes = ["include"],
)
"""

_STUB = """
package(default_visibility = ["//visibility:public"])

cc_library(name = "headers")
"""

def _toolkit(repository_ctx):
    environ = repository_ctx.os.environ
    asked = environ.get("TF_HVD_CUDA", "")
    if asked == "0":
        return None
    for named in [asked, environ.get("CUDA_HOME", "")]:
        if named and repository_ctx.path(named + "/bin/nvcc").exists:
            return repository_ctx.path(named)
    if asked:
        fail("TF_HVD_CUDA=%s does not contain bin/nvcc; set TF_HVD_CUDA=0 to build without CUDA" % asked)
    nvcc = repository_ctx.which("nvcc")
    return _toolkit_of(repository_ctx, nvcc) if nvcc else None

def _toolkit_of(repository_ctx, nvcc):
    # The nvcc on the PATH may be a script that calls the toolkit's. Only the latter knows its
    # folder, and prints it as "#$ TOP=/usr/local/cuda/bin/..".
    said = repository_ctx.execute([nvcc, "-dryrun", "-x", "cu", "-c", "/dev/null"]).stderr
    for line in said.splitlines():
        if line.startswith("#$ TOP="):
            return repository_ctx.path(line[len("#$ TOP="):].strip())
    return nvcc.realpath.dirname.dirname

def _impl(repository_ctx):
    toolkit = _toolkit(repository_ctx)

    # nvcc is useless without the headers.
    usable = toolkit and toolkit.get_child("include").get_child("cuda_runtime.h").exists
    if usable:
        repository_ctx.symlink(toolkit.get_child("include"), "include")
    repository_ctx.file("BUILD", _BUILD if usable else _STUB)
    repository_ctx.file("defs.bzl", '"""The CUDA toolkit; empty if not installed."""\n\nCUDA_TOOLKIT = "%s"\n' % (toolkit if usable else ""))

cuda_configure = repository_rule(
    implementation = _impl,
    environ = ["TF_HVD_CUDA", "CUDA_HOME", "PATH"],
)
