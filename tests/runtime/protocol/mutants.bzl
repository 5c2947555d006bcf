"""Tests that a flaw in the controller is noticed."""

load("@tensorflow//:defs.bzl", "TF_PYTHON")
load("//build_defs:tf_hvd.bzl", "tf_hvd_cc_test")

def mutant_test(name, source):
    """Builds a copy of one source file with a flaw, and the test that fails without noticing it.

    The copy's objects come before the library's, of which the linker then
    takes the others only: nothing else is compiled again.

    Args:
      name: of the flaw in mutate.py.
      source: the file in //runtime that has it.
    """
    copy = "mutants/%s/%s" % (name, source)
    native.genrule(
        name = name + "_source",
        testonly = True,
        srcs = ["//runtime:" + source],
        outs = [copy],
        cmd = "%s $(location mutate.py) %s $(location //runtime:%s) $@" % (TF_PYTHON, name, source),
        tools = ["mutate.py"],
    )
    tf_hvd_cc_test(
        name = name + "_mutant_test",
        srcs = [
            copy,
            "mutant_test.cc",
        ],
        tags = ["no_sanitizer"],
        deps = [
            ":simulation",
            "//runtime:controller",
        ],
    )
