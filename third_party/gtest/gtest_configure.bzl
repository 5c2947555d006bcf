"""@gtest: GoogleTest compiled from its sources, so that sanitizers can check it.

Debian's package `googletest` puts them into /usr/src/googletest;
TF_HVD_GTEST_ROOT names another checkout.
"""

_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "gtest",
    testonly = True,
    srcs = glob(
        ["googletest/src/*.cc", "googletest/src/*.h", "googlemock/src/*.cc"],
        exclude = ["googletest/src/gtest-all.cc", "googletest/src/gtest_main.cc",
                   "googlemock/src/gmock-all.cc", "googlemock/src/gmock_main.cc"],
    ),
    hdrs = glob(["googletest/include/**/*.h", "googlemock/include/**/*.h"]),
    copts = ["-w"],
    includes = ["googletest", "googletest/include", "googlemock", "googlemock/include"],
    linkopts = ["-pthread"],
    linkstatic = True,
)

cc_library(
    name = "gtest_main",
    testonly = True,
    srcs = ["googlemock/src/gmock_main.cc"],
    copts = ["-w"],
    linkstatic = True,
    deps = [":gtest"],
)
"""

_MISSING = """
package(default_visibility = ["//visibility:public"])

genrule(
    name = "missing",
    outs = ["gtest/gtest.h"],
    cmd = "echo 'GoogleTest is missing: apt-get install googletest, or set TF_HVD_GTEST_ROOT to its sources' >&2; exit 1",
)

cc_library(
    name = "gtest",
    hdrs = [":missing"],
)

cc_library(
    name = "gtest_main",
    hdrs = [":missing"],
)
"""

def _impl(repository_ctx):
    root = repository_ctx.path(repository_ctx.os.environ.get("TF_HVD_GTEST_ROOT", "") or "/usr/src/googletest")
    if not root.exists:
        repository_ctx.file("BUILD", _MISSING)
        return
    for folder in ["googletest", "googlemock"]:
        repository_ctx.symlink(root.get_child(folder), folder)
    repository_ctx.file("BUILD", _BUILD)

gtest_configure = repository_rule(
    implementation = _impl,
    environ = ["TF_HVD_GTEST_ROOT"],
)
