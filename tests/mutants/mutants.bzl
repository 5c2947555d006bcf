"""Tests that a flaw in the code is noticed."""

load("@tensorflow//:defs.bzl", "TF_PYTHON")
load("//build_defs:tf_hvd.bzl", "tf_hvd_cc_test")

def mutant_test(name, source, deps, srcs = [], table = "mutants.toml", **kwargs):
    """Builds a copy of one source file with a flaw, and the test that fails without noticing it.

    The copy's objects come before the library's, of which the linker then
    takes the others only: nothing else is compiled again.

    Args:
      name: of the flaw in the table.
      source: label of the file that has it.
      deps: of the test; the library that the source belongs to is one of them,
        or of theirs.
      srcs: of the test, where it is in none of these.
      table: of flaws; see mutate.py.
      **kwargs: cc_test's.
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
      flaws: the source file of each, by its name.
      of: what the label of a source begins with.
      **kwargs: mutant_test's, for all of them.
    """
    for name, source in flaws.items():
        mutant_test(name = name, source = of + source, **kwargs)
