"""The Python that runs a program; it need not be the one that tf_hvd is installed in."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tf_hvd.core import files

# Also for a Python 2, which says nothing then.
_ASK = "import importlib.util as u; print(u.find_spec('tf_hvd') is None)"
# As python3.13t, python3-dbg; not python_train.sh.
_NAME = re.compile(r"python[\d.]*[a-z]*(-dbg)?")
_PATIENCE = 10.0  # seconds
_SCRIPT = 1 << 24  # bytes


def is_interpreter(program: str) -> bool:
    """Whether a program is Python itself, told by its name."""
    return bool(_NAME.fullmatch(Path(os.path.realpath(program)).name))


def reads_program(command: Sequence[str]) -> bool:
    """Whether Python, with such a command line, reads its program from the standard input."""
    words = iter(command[1:])
    for word in words:
        if word in ("-W", "-X", "--check-hash-based-pycs"):
            next(words, None)
        elif word == "-" or not word.startswith("-"):
            return word == "-"
        elif word.startswith("--") or set(word) & set("cmVh?"):  # it has another program, or none
            return False
    return True


def is_python(program: str) -> bool:
    """Whether a program is Python or a script for it, told by its name and its first line."""
    return bool(python_of(program, os.environ))


def is_for_horovod(command: Sequence[str]) -> bool:
    """Whether a Python program may be written for Horovod, told by the script in its command."""
    script = next((word for word in command if word.endswith(".py")), None)
    if script is None:
        return True
    try:
        text = files.read(script, _SCRIPT)
    except OSError:  # Python has said enough
        return False
    return b"horovod" in text and b"tf_hvd" not in text


def python_of(program: str, environ: Mapping[str, str]) -> str:
    """The Python that runs a program: itself, or that of a script's first line; else empty."""
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
    """The line for a job that failed in a Python without tf_hvd; empty if it has it, or is none."""
    python = shutil.which(python_of(program, environ), path=environ.get("PATH"))
    if python is None or python == sys.executable or not _lacks_us(python, environ):
        return ""
    return (
        f"tf_hvd run: the program ran in {python}, which has no tf_hvd and none of what is "
        f"installed with it; start it with {sys.executable}, or install tf_hvd there"
    )


def _lacks_us(python: str, environ: Mapping[str, str]) -> bool:
    # Not from the folder that this is called in: a checkout of tf_hvd is no installation.
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
