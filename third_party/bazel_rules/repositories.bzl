"""The rules_* repositories that Bazel 4's own BUILD files load.

Bazel 4 has the C++, Java and proto rules built in, but its @bazel_tools loads
them through @rules_cc, @rules_java and @rules_proto, which it would download.
Each of these is written here in a few lines that re-export the built-in rule.
It would also download its coverage tools before it runs any test; this project
measures no coverage with Bazel, so an empty repository replaces them.
From Bazel 5 on nothing is declared: each Bazel fetches the versions it needs.
"""

def _native_rules_impl(repository_ctx):
    repository_ctx.file("BUILD", "")
    repository_ctx.file(repository_ctx.attr.package + "/BUILD", "")
    lines = ["%s = native.%s" % (rule, rule) for rule in repository_ctx.attr.rules]
    lines += repository_ctx.attr.extra
    repository_ctx.file(
        repository_ctx.attr.package + "/defs.bzl",
        "\n".join(['"""Re-exports of Bazel\'s built-in rules."""', ""] + lines) + "\n",
    )

_native_rules = repository_rule(
    implementation = _native_rules_impl,
    attrs = {
        "extra": attr.string_list(),
        "package": attr.string(mandatory = True),
        "rules": attr.string_list(mandatory = True),
    },
    doc = "A repository with <package>/defs.bzl files that re-export built-in rules.",
)

def _no_coverage_tools_impl(repository_ctx):
    repository_ctx.file("BUILD", """
package(default_visibility = ["//visibility:public"])

[filegroup(name = name) for name in ["coverage_report_generator", "lcov_merger"]]
""")

_no_coverage_tools = repository_rule(
    implementation = _no_coverage_tools_impl,
    doc = "Satisfies @bazel_tools//tools/test, which only `bazel coverage` uses.",
)

def _is_bazel_4():
    # Debian's build of 4.2.3 reports no version at all.
    version = native.bazel_version
    return not version or not version[0].isdigit() or version.startswith("4.")

def bazel_rules_repositories():
    """Declares the repositories that Bazel 4 would download."""
    if not _is_bazel_4():
        return
    _native_rules(
        name = "rules_cc",
        package = "cc",
        rules = [
            "cc_binary",
            "cc_import",
            "cc_library",
            "cc_proto_library",
            "cc_test",
            "cc_toolchain",
            "cc_toolchain_suite",
            "objc_library",
        ],
    )
    _native_rules(
        name = "rules_java",
        package = "java",
        rules = [
            "java_binary",
            "java_import",
            "java_library",
            "java_proto_library",
            "java_runtime",
            "java_test",
            "java_toolchain",
        ],
    )
    _native_rules(
        name = "rules_proto",
        package = "proto",
        rules = ["proto_lang_toolchain", "proto_library"],
        # A global name cannot be exported under itself in one step.
        extra = ["_ProtoInfo = ProtoInfo", "ProtoInfo = _ProtoInfo"],
    )
    _no_coverage_tools(name = "remote_coverage_tools")
