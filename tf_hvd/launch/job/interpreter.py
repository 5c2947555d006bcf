"""Find the Python that runs a program. That Python may not have tf_hvd installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tf_hvd.core import files

# Python 2 also runs this code, but prints nothing.
_ASK = "import importlib.util as u; print(u.find_spec('tf_hvd') is None)"
# Matches python3.13t and python3-dbg, but not python_train.sh.
_NAME = re.compile(r"python[\d.]*[a-z]*(-dbg)?")
_PATIENCE = 10.0  # seconds
_SCRIPT = 1 << 24  # bytes


def is_interpreter(program: str) -> bool:
    """Return whether a program is a Python interpreter, judged by its file name."""
    return bool(_NAME.fullmatch(Path(os.path.realpath(program)).name))


def reads_program(command: Sequence[str]) -> bool:
    """Return whether Python, started with these words, reads its program from standard input."""
    words = iter(command[1:])
    for word in words:
        if word in ("-W", "-X", "--check-hash-based-pycs"):
            next(words, None)
        elif word == "-" or not word.startswith("-"):
            return word == "-"
        elif word.startswith("--") or set(word) & set("cmVh?"):  # it has another program, or none
            return False
    return True


def ignoring_option(command: Sequence[str]) -> str:
    """Return the option that makes Python ignore PYTHONPATH (-I or -E); "" if there is none."""
    if not is_interpreter(command[0]):
        return ""
    for word in command[1:]:
        if not word.startswith("-") or word.startswith("--") or word in ("-", "-c", "-m"):
            break
        found = set(word) & set("IE")
        if found and word[1] not in "WX":
            return f"-{found.pop()}"
    return ""


def is_python(program: str) -> bool:
    """Return whether a program is Python or a Python script, judging by name and first line."""
    return bool(python_of(program, os.environ))


def is_for_horovod(command: Sequence[str]) -> bool:
    """Return whether a Python program may be written for Horovod, judged by the script's text."""
    text = _script(command)
    return text is None or (b"horovod" in text and b"tf_hvd" not in text)


def is_for_keras_distribution(command: Sequence[str]) -> bool:
    """Return whether a script uses keras.distribution without tf_hvd, judged by its text."""
    text = _script(command) or b""
    uses = b"keras.distribution" in text or b"from keras import distribution" in text
    return uses and b"tf_hvd" not in text


def _script(command: Sequence[str]) -> bytes | None:
    """Return the text of a command's script, b"" if it cannot be read, None without a script."""
    script = next((word for word in command if word.endswith(".py")), None)
    if script is None:
        return None
    try:
        return files.read(script, _SCRIPT)
    except OSError:  # Python has reported the error
        return b""


def python_of(program: str, environ: Mapping[str, str]) -> str:
    """Return the Python that runs a program, or "" if the program is not Python.

    The result is the program itself, or the interpreter in the first line of a script.
    """
    if is_interpreter(program):
        return program
    try:
        with files.opened(shutil.which(program, path=environ.get("PATH")) or program) as file:
            first = os.fsdecode(file.readline(256))
    except OSError:
        return ""
    if not first.startswith("#!") or "python" not in first:
        return ""
    words = first[2:].split()
    if os.path.basename(words[0]) == "env":
        return next((word for word in words[1:] if not word.startswith("-")), "")
    return words[0]


def missing_text(program: str, environ: Mapping[str, str]) -> str:
    """Return the message for a job that failed in a Python without tf_hvd; "" in other cases."""
    python = shutil.which(python_of(program, environ), path=environ.get("PATH"))
    if python is None or python == sys.executable or not _lacks_us(python, environ):
        return ""
    return (
        f"tf_hvd run: tf_hvd is not installed in {python}, which ran the program; start it with "
        f"{sys.executable}, or install tf_hvd there"
    )


def _lacks_us(python: str, environ: Mapping[str, str]) -> bool:
    # Not in the current folder, which may be a checkout of tf_hvd rather than an installation.
    try:
        answer = subprocess.run(
            [python, "-c", _ASK],
            env={**environ, "PYTHONSAFEPATH": "1"},
            cwd=os.path.sep,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.stdout.strip() == "True"
