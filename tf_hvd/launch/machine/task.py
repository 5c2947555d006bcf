"""One rank of `tf_hvd.run(func)`: calls the function and writes the result to a file.

This file is run as a script and not as a module, so that nothing is imported before the function
runs. The function can therefore change settings before it imports TensorFlow.
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
else:  # run as a file; the program may have modules with these names
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "core"))
    import contract
    import files

    del sys.path[0], sys.modules["contract"], sys.modules["files"]

CALL, RESULT, FAILED = "call", "result.", "failed."
NOTHING: dict[str, Any] = {"trace": None, "error": None, "value": None, "raised": True, "start": 0}
"""The fields of a rank's result, before its function has returned or raised."""
# The variables with which each family's launcher gives a rank its number. Other modules import it.
RANK_VARIABLES = {
    "openmpi": ("OMPI_COMM_WORLD_RANK", "PMIX_RANK"),
    "mpich": ("PMI_RANK",),
    "slurm": ("SLURM_PROCID",),
}


def _rank() -> int:
    names = [name for family in RANK_VARIABLES.values() for name in family]
    return next((int(os.environ[name]) for name in names if name in os.environ), 0)


def _leave(folder: str, rank: int, result: dict[str, Any]) -> None:
    """Write the result atomically, so that an existing file is always complete."""
    import cloudpickle

    error = result["error"]
    try:
        data = cloudpickle.dumps(result)
        if error is not None:
            pickle.loads(data)  # fails if an exception's args do not match its __init__
    except Exception:
        result = {**result, "value": None, "error": None}
        if error is None:
            result["trace"] = f"a result that cannot be pickled:\n{traceback.format_exc()}"
            result["raised"] = False
        data = cloudpickle.dumps(result)
    with files.writing(os.path.join(folder, f"{RESULT}{rank}")) as file:
        file.write(data)
    if result["trace"] is not None:
        how = "returned a result that cannot be pickled"
        if result["raised"]:
            how = f"raised {type(error).__name__}"
        with files.writing(os.path.join(folder, f"{FAILED}{rank}")) as file:
            file.write(how.encode())


def _open_call(folder: str) -> BinaryIO:
    """Open the file that contains the call.

    End the rank if the file is missing or may belong to another user.
    """
    try:
        with files.own_folder(folder) as where:
            return files.opened(CALL, folder=where, follow=False)
    except FileNotFoundError:
        sys.exit(
            f"tf_hvd.run: {folder} does not exist on {socket.gethostname()}; set directory to a "
            "folder that all hosts share"
        )
    except OSError as error:
        sys.exit(f"tf_hvd.run: {files.reason(error)}; set directory to another folder")


def _unpickle(file: BinaryIO) -> tuple[Any, Any, Any]:
    with file:
        search = pickle.load(file)
        sys.path[:] = [*sys.path, *(entry for entry in search if entry not in sys.path)]
        sent: tuple[Any, Any, Any] = pickle.load(file)
    return sent


def main(folder: str) -> int:
    """Call the function in `folder`; return 0 if it returned and its value was written, else 1."""
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
        # Prints the exception. If tf_hvd is imported, it reports the reason to the other ranks.
        sys.excepthook(type(error), error, error.__traceback__)
    _leave(folder, rank, result)
    return 0 if result["trace"] is None else 1


if __name__ == "__main__":
    if sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
        del sys.path[0]  # the folder of our modules
    sys.exit(main(sys.argv[1]))
