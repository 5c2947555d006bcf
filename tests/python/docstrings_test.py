"""The examples in the public docstrings run in a job of two ranks."""

import os
import pathlib
import re
import sys

import pytest
from finished import finished

PROGRAM = pathlib.Path(__file__).parent / "docstring_examples.py"

pytestmark = pytest.mark.usefixtures("usual_garbage")


def test_every_public_function_has_a_running_example(run_to_end):
    command = [sys.executable, "-P", "-m", "tf_hvd_command", "run", "-np", "2", sys.executable]
    code, output = run_to_end([*command, "-P", str(PROGRAM)], dict(os.environ), 600, cwd="/")
    assert code == 0, output
    assert "ranks: 2" in output
    assert re.search(r"ran \d\d", output), output


def test_example_of_run_works():
    done = finished([sys.executable, "-P", PROGRAM, "run"])
    assert (done.returncode, done.stdout) == (0, "ran 1\n"), done.stderr
