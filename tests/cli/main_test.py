"""The messages of `tf_hvd` without a command, and for programs with another Python."""

import json
import sys

import pytest


def test_a_bare_command_lists_the_commands(call):
    code, output, errors = call()
    assert (code, output) == (2, "")
    listed = [line.split()[0] for line in errors.splitlines() if line.startswith("    ")]
    assert {"run", "strip-ops", "bench", "doctor"} <= set(listed)
    assert "usage: tf_hvd" in errors


def test_full_disk_is_reported_in_one_line(start, tmp_path):
    """Each command except `run` ended with a traceback of up to 33 lines."""
    head = {"pid": 0, "ph": "M", "name": "tf_hvd", "args": {"size": 1, "host": "h", "process": 1}}
    (tmp_path / "a.json").write_text(f"[\n{json.dumps(head)},\n")
    for words in (["--version"], ["timeline", "a.json"], ["doctor"]):
        with open("/dev/full", "w") as full:
            command = start(*words, stdout=full)
        errors = command.communicate(timeout=600)[1]
        assert command.returncode == 2, errors
        assert errors == "tf_hvd: standard output: No space left on device\n"


@pytest.fixture
def other_python(tmp_path):
    """An executable named like Python, with nothing installed."""
    path = tmp_path / "python3"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("how", ["named", "in the script's first line"])
def test_python_without_tf_hvd_is_named(call, other_python, program, tmp_path, how):
    """The ranks' only message was "No module named 'keras'"."""
    _, script = program("import keras")
    words = [str(other_python), script]
    if how != "named":
        started = tmp_path / "train"
        with open(script) as file:
            started.write_text(f"#!{other_python}\n{file.read()}")
        started.chmod(0o755)
        words = [str(started)]
    code, _, errors = call("run", "-np", "1", *words)
    assert code == 1
    assert "No module named 'keras'" in errors
    assert errors.splitlines()[-1] == (
        f"tf_hvd run: tf_hvd is not installed in {other_python}, which ran the program; start it "
        f"with {sys.executable}, or install tf_hvd there"
    )


def test_other_failures_get_no_python_hint(call, other_python, program):
    failing = program("sys.exit(3)")
    assert call("run", "-np", "1", *failing) == (3, "", "")
    assert call("run", "-np", "1", str(other_python), "-c", "") == (0, "", "")
    assert call("run", "-np", "1", "false") == (1, "", "")
