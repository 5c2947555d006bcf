"""@tensorflow: the headers and the libraries of the installed wheel."""

load("//third_party:python.bzl", "TENSORFLOW_ENVIRON", "WORKSPACE_ATTR", "ask_python", "python_path", "tensorflow_python_path")

_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = glob(
        ["include/**/*.h", "include/**/*.hpp", "include/**/*.inc", "include/**/*.def", "include/Eigen/**",
         "include/unsupported/**", "include/third_party/eigen3/**"],
        exclude = ["include/**/BUILD", "include/**/* *"],
    ),
    defines = {defines},
    includes = ["include"],
)

# Headers that XLA's headers include, but that the wheel lacks.
cc_library(
    name = "xla_headers",
    hdrs = glob(
        ["xla_extra/**/*.h"],
        allow_empty = True,
    ),
    includes = ["xla_extra"],
    deps = [":headers"],
)

exports_files(["{library}"])

filegroup(
    name = "framework_library",
    srcs = ["{library}"],
)
"""

_DEFS = '''"""Properties of the installed TensorFlow."""

TF_VERSION = "{version}"
TF_MINOR = "{minor}"
TF_COMPILER = "{compiler}"
TF_CXX11_ABI = {abi}
TF_LIBRARY = "{library}"
TF_LIBRARY_DIR = "{lib}"

# Whether the build includes XLA's part: all of XLA's headers exist.
TF_HAS_XLA = {has_xla}

# The interpreter that runs the build's own scripts.
TF_PYTHON = "{python}"
'''

# TensorFlow's own headers, which some of its wheels lack.
_XLA_HEADERS = [
    "tensorflow/compiler/tf2xla/xla_op_kernel.h",
    "xla/ffi/api/ffi.h",
    "xla/hlo/builder/xla_builder.h",
]

# From libhighwayhash-dev and libfarmhash-dev. Linked one by one, for a compiler that does not
# search the machine's folders.
_XLA_EXTRA = {
    "/usr/include/farmhash.h": "farmhash.h",
    "/usr/include/highwayhash": "highwayhash",
}

def _has_xla(repository_ctx, include):
    found = [repository_ctx.path(include + "/" + header).exists for header in _XLA_HEADERS]
    for path, name in _XLA_EXTRA.items():
        found.append(repository_ctx.path(path).exists)
        if found[-1]:
            repository_ctx.symlink(path, "xla_extra/" + name)
    return all(found)

def _impl(repository_ctx):
    answers = ask_python(
        repository_ctx,
        repository_ctx.attr._probe,
        python = tensorflow_python_path(repository_ctx),
    )
    repository_ctx.symlink(answers["include"], "include")
    library = answers["library"]
    repository_ctx.symlink(answers["lib"] + "/" + library, library)
    defines = answers["defines"].split(" ")
    repository_ctx.file("BUILD", _BUILD.format(defines = repr(defines), library = library))
    repository_ctx.file("defs.bzl", _DEFS.format(
        abi = 1 if "_GLIBCXX_USE_CXX11_ABI=1" in defines else 0,
        compiler = answers["compiler"],
        has_xla = _has_xla(repository_ctx, answers["include"]),
        lib = answers["lib"],
        library = library,
        python = python_path(repository_ctx),
        minor = ".".join(answers["version"].split(".")[:2]),
        version = answers["version"],
    ))

tensorflow_configure = repository_rule(
    implementation = _impl,
    attrs = dict(
        WORKSPACE_ATTR,
        _probe = attr.label(default = "//third_party/tensorflow:probe.py", allow_single_file = True),
    ),
    environ = TENSORFLOW_ENVIRON,
    local = False,
    doc = "Queries tf.sysconfig, only once per environment, because importing TensorFlow takes seconds.",
)
