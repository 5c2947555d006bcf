"""Counts the functions that `tf_hvd run` runs before it starts MPI's launcher.

    PYTHONSAFEPATH=1 .venv/bin/python dev_support/launch_steps.py [-v] [OPTIONS OF tf_hvd run]

Runs the command in this process with an empty job. Follows the main thread from the command's
function to the start of MPI's launcher. Prints the number of the package's functions that were
entered, of calls, of files, and of return statements in these functions. With -v, also lists the
functions.
"""

import ast
import pathlib
import subprocess
import sys
from types import FrameType
from typing import Any

import tf_hvd.launch.commands.main as command

PACKAGE = str(pathlib.Path(command.__file__).resolve().parents[2])
LAUNCHERS = ("prterun", "mpirun", "mpiexec", "mpiexec.hydra", "mpirun.openmpi", "mpiexec.mpich")
START = "_start_run"
"""The function that the parser calls for `tf_hvd run`."""
JOB = ("-np", "2", sys.executable, "-c", "pass")


class Followed:
    """Functions that were entered after `START`."""

    def __init__(self) -> None:
        self.entered: dict[tuple[str, str, int], int] = {}
        self._on_the_way = False

    def see(self, frame: FrameType, event: str, _: Any) -> None:
        """Record a call; the interpreter calls this."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE):
            return
        self._on_the_way |= code.co_name == START
        if self._on_the_way and not code.co_name.startswith("<"):
            key = (code.co_filename, code.co_name, code.co_firstlineno)
            self.entered[key] = self.entered.get(key, 0) + 1

    def arrived(self) -> None:
        """Stop following: MPI's launcher is being started."""
        sys.setprofile(None)
        self._on_the_way = False


def returns(file: str, name: str, line: int) -> int:
    """Number of return statements in a function, without those in nested functions."""
    tree = ast.parse(pathlib.Path(file).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)

    def count(node: ast.AST) -> int:
        inside = (child for child in ast.iter_child_nodes(node) if not isinstance(child, kinds))
        return isinstance(node, ast.Return) + sum(map(count, inside))

    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if first == line:
                return count(node)
    return 0


def main(words: list[str]) -> int:
    """Count and print."""
    verbose = words[:1] == ["-v"]
    words = words[verbose:]
    followed = Followed()
    begin = subprocess.Popen.__init__

    def started(self: Any, arguments: Any, *rest: Any, **options: Any) -> None:
        names = [arguments] if isinstance(arguments, str) else list(arguments)
        if pathlib.Path(str(names[0])).name in LAUNCHERS and "--version" not in names:
            followed.arrived()
        begin(self, arguments, *rest, **options)

    subprocess.Popen.__init__ = started  # type: ignore[method-assign]
    sys.setprofile(followed.see)
    try:
        code = command.main(["run", *(words or JOB)])
    finally:
        sys.setprofile(None)
    found = {key: returns(*key) for key in followed.entered}
    if verbose:
        for file, name, line in followed.entered:
            print(f"  {pathlib.Path(file).relative_to(PACKAGE)}:{line} {name}")
    print(
        f"{len(found)} functions in {len({file for file, _, _ in found})} files, entered "
        f"{sum(followed.entered.values())} times, with {sum(found.values())} return statements"
    )
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
