"""Runs the examples of the public docstrings as one rank of a job, and prints their names."""

import inspect
import os
import pathlib
import re
import sys
import tempfile
import textwrap

import keras
import numpy as np
import tensorflow as tf

import tf_hvd as hvd

FIRST, LAST = ["pin_gpu"], ["install_as_horovod", "shutdown"]
# Examples for a program that is not a rank.
APART = ["run"]


def needs_example(name):
    """Whether a public name is a function, or a class that programs instantiate."""
    value = getattr(hvd, name)
    return callable(value) and not (isinstance(value, type) and issubclass(value, BaseException))


def example_of(name):
    """The code of the example in a docstring; None if there is none."""
    found = re.search(
        r"^Example:\n((?:  .*\n|\n)*)", inspect.getdoc(getattr(hvd, name)) + "\n", re.M
    )
    return textwrap.dedent(found[1]) if found else None


def run(name):
    known = {"hvd": hvd, "tf": tf, "np": np, "keras": keras, "os": os, "pathlib": pathlib}
    exec(compile(example_of(name), f"<example of {name}>", "exec"), known)


def main():
    names = [name for name in hvd.__all__ if needs_example(name)]
    without = [name for name in names if example_of(name) is None]
    assert not without, f"no example: {without}"
    middle = [name for name in names if name not in (*FIRST, *LAST, *APART)]
    hvd.init()
    print("ranks:", hvd.size())
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name in [*FIRST, *middle, *LAST]:
            print("example:", name, flush=True)
            run(name)
        os.chdir("/")
    print("ran", len(middle) + len(FIRST) + len(LAST))


if __name__ == "__main__":
    if sys.argv[1:] == APART:
        run(*APART)
        print("ran 1")
    else:
        main()
