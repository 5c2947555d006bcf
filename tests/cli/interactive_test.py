"""Debuggers and pytest in ranks."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("reads", ["breakpoint()", "input('continue? ')"])
def test_rank_without_input_is_explained(environ, call, program, closing, reads):
    """The message was only "BdbQuit:"."""
    write = program(f"if rank == 1: {reads}\nsay('after', rank)")
    code, output, errors = call("run", "-np", "2", *write, environ=environ)
    assert code == 1, errors
    assert "after 1" not in output
    told = closing(errors)
    assert told["what"].startswith("rank 1 was the first to end with an error (exit code 1): ")
    assert told["next"].startswith(
        "call breakpoint() or input() on rank 0 only: other ranks have no"
    )


def test_debugger_on_rank_0_reads_typed_input(environ, start, program):
    write = program("number = 6\nif rank == 0: breakpoint()\nsay('after', rank, number)")
    process = start("run", "-np", "2", *write, environ=environ, stdin=subprocess.PIPE)
    output, errors = process.communicate("number = 42\nc\n", timeout=600)
    assert process.returncode == 0, errors
    assert "after 0 42\n" in output
    assert "after 1 6\n" in output


TESTED = """
import os

def test_passes():
    pass

def test_of_rank_0():
    told = [os.environ.get(name) for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK")]
    assert "0" in told, "it is rank 1"
"""


def test_pytest_in_ranks_ends_with_its_code_where_one_fails(environ, call, closing, tmp_path):
    (tmp_path / "a_test.py").write_text(TESTED)
    pytest_in_ranks = [sys.executable, "-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider"]
    job = ["run", "-np", "2", *pytest_in_ranks, "a_test.py"]
    code, output, errors = call(*job, environ={**environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})
    assert code == 1, errors
    assert "AssertionError: it is rank 1" in output
    assert "1 failed, 1 passed" in output
    assert closing(errors)["what"] == "rank 1 was the first to end with an error (exit code 1)"
