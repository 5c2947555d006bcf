"""@nvrtc: the path of NVRTC 12 from PyPI, or an empty path."""

load("//third_party:python.bzl", "PYTHON_ENVIRON", "WORKSPACE_ATTR", "ask_python")

def _impl(repository_ctx):
    answers = ask_python(repository_ctx, repository_ctx.attr._probe)
    library, version = answers.get("library", ""), answers.get("version", "")
    repository_ctx.file("BUILD", "")
    repository_ctx.file("defs.bzl", '"""NVRTC; empty if not installed."""\n\nNVRTC_LIBRARY = "%s"\nNVRTC_VERSION = "%s"\n' % (library, version))

nvrtc_configure = repository_rule(
    implementation = _impl,
    attrs = dict(
        WORKSPACE_ATTR,
        _probe = attr.label(default = "//third_party/nvrtc:probe.py", allow_single_file = True),
    ),
    environ = PYTHON_ENVIRON,
)
