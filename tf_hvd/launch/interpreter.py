"""The Python that runs a program, where it is not the one that tf_hvd is installed in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping

from tf_hvd.launch.job_watch import interpreter_of

# Also for a Python 2, which says nothing then.
_ASK = "import importlib.util as u; print(u.find_spec('tf_hvd') is None)"
_PATIENCE = 10.0  # seconds


def missing_text(program: str, environ: Mapping[str, str]) -> str:
    """The line for a job that failed in a Python without tf_hvd; empty if it has it, or is none.

    Args:
        program: the job's program as the user named it.
        environ: what it was started in.
    """
    python = shutil.which(interpreter_of(program, environ), path=environ.get("PATH"))
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
