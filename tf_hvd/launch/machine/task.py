"""Runs one rank of `tf_hvd.run(func)`: calls the function, leaves what came of it in a file.

Run as a file and not as a module, so that the function meets a Python in which nothing is imported
that it did not import itself: settings of TensorFlow's that it makes come in time.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING or __package__:
    from tf_hvd.core import contract, files
else:  # as a file; the program may have modules of these names
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "core"))
    import contract
    import files

    del sys.path[0], sys.modules["contract"], sys.modules["files"]

CALL, RESULT, FAILED = "call", "result.", "failed."
NOTHING: dict[str, Any] = {"trace": None, "error": None, "value": None, "raised": True, "start": 0}
"""What a rank leaves, by name, before its function has returned or raised."""
# Where each family's launcher tells a rank its number. Others import it from this file.
RANK_VARIABLES = {
    "openmpi": ("OMPI_COMM_WORLD_RANK", "PMIX_RANK"),
    "mpich": ("PMI_RANK",),
    "slurm": ("SLURM_PROCID",),
}


def _rank() -> int:
    names = [name for family in RANK_VARIABLES.values() for name in family]
    return next((int(os.environ[name]) for name in names if name in os.environ), 0)


def _leave(folder: str, rank: int, result: dict[str, Any]) -> None:
    """Writes the result in one piece: a file of that name is whole."""
    import cloudpickle

    try:
        data = cloudpickle.dumps(result)
        if result["error"] is not None:
            pickle.loads(data)  # exceptions whose arguments are not those of __init__ cannot be
    except Exception:
        failed = result.get("error") is None
        result = {**result, "value": None, "error": None}
        if failed:
            result["trace"] = f"what cannot be pickled:\n{traceback.format_exc()}"
            result["raised"] = False
        data = cloudpickle.dumps(result)
    with files.writing(os.path.join(folder, f"{RESULT}{rank}")) as file:
        file.write(data)
    if result["trace"] is not None:
        with files.writing(os.path.join(folder, f"{FAILED}{rank}")):
            pass


def _open_call(folder: str) -> BinaryIO:
    """Opens what was sent; ends the rank if that is not there, or may be another user's."""
    try:
        with files.own_folder(folder) as where:
            return files.opened(CALL, folder=where, follow=False)
    except FileNotFoundError:
        sys.exit(
            f"tf_hvd.run: {socket.gethostname()} does not see {folder}; pass directory=, a folder "
            "that all hosts share"
        )
    except OSError as error:
        sys.exit(f"tf_hvd.run: {files.reason(error)}; pass another directory=")


def _unpickle(file: BinaryIO) -> tuple[Any, Any, Any]:
    with file:
        search = pickle.load(file)
        sys.path[:] = [*sys.path, *(entry for entry in search if entry not in sys.path)]
        sent: tuple[Any, Any, Any] = pickle.load(file)
    return sent


def main(folder: str) -> int:
    """Calls the function of `folder`; the exit code is 0 if it returned and its value was left."""
    rank, call = _rank(), _open_call(folder)
    start = os.environ.get(contract.START, "")
    result = {**NOTHING, "start": int(start or 0)}
    try:
        func, args, kwargs = _unpickle(call)
        result["value"] = func(*args, **kwargs)
    except (Exception, SystemExit) as error:  # argparse reads this process's arguments, and exits
        if start and getattr(error, "code", None) == contract.START_AGAIN:
            raise
        result |= {"error": error, "trace": traceback.format_exc(), "when": time.time()}
        # Prints it; tf_hvd, where it is imported, tells the other ranks why this one leaves.
        sys.excepthook(type(error), error, error.__traceback__)
    _leave(folder, rank, result)
    return 0 if result["trace"] is None else 1


if __name__ == "__main__":
    if sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
        del sys.path[0]  # modules of ours that nobody asks for
    sys.exit(main(sys.argv[1]))
