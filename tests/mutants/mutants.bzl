"""Tests that a flaw in the code is detected."""

load("@tensorflow//:defs.bzl", "TF_PYTHON")
load("//build_defs:tf_hvd.bzl", "tf_hvd_cc_test")

def mutant_test(name, source, deps, srcs = [], table = "mutants.toml", **kwargs):
    """Builds a copy of one source file with a flaw, and a test that fails unless the flaw is detected.

    The copy's objects come before the library's, so the linker takes only the other objects from
    the library, and nothing else is recompiled.

    Args:
      name: name of the flaw in the table.
      source: label of the file with the flaw.
      deps: dependencies of the test, directly or indirectly including the source's library.
      srcs: the test's sources, if they are in none of `deps`.
      table: table of flaws; see mutate.py.
      **kwargs: passed to cc_test.
    """
    copy = "mutants/%s/%s" % (name, source.split(":")[1].split("/")[-1])
    native.genrule(
        name = name + "_source",
        testonly = True,
        srcs = [source, table],
        outs = [copy],
        cmd = "%s $(location //tests/mutants:mutate.py) $(location %s) %s $(location %s) $@" %
              (TF_PYTHON, table, name, source),
        tools = ["//tests/mutants:mutate.py"],
    )
    tf_hvd_cc_test(
        name = name + "_mutant_test",
        srcs = [copy] + srcs,
        tags = [
            "mutant",
            "no_sanitizer",
        ],
        deps = deps,
        **kwargs
    )

def mutant_tests(flaws, of, **kwargs):
    """A mutant_test for each flaw.

    Args:
      flaws: each flaw's source file, by the flaw's name.
      of: prefix of the sources' labels.
      **kwargs: passed to each mutant_test.
    """
    for name, source in flaws.items():
        mutant_test(name = name, source = of + source, **kwargs)
