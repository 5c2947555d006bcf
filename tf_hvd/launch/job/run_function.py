"""`run(func)`: call a function on several ranks, from a script, a notebook or a test.

The ranks are separate processes that `tf_hvd run` starts. Files in a private folder pass the
function and the results, so nothing listens on the network.
"""

import contextlib
import importlib.machinery
import io
import os
import pathlib
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import cloudpickle

import tf_hvd_command
from tf_hvd.core import files
from tf_hvd.launch.job import job_output
from tf_hvd.launch.machine import task
from tf_hvd.launch.machine.lines import Reader
from tf_hvd.observe import failure

Result = TypeVar("Result")


# The options that make a job elastic.
_ELASTIC = ("--min-np", "--host-discovery-script")
_LOOK = 0.2  # the interval of polling, in seconds


class RankError(RuntimeError):
    """A rank in a call to `run` raised an exception or ended without a result.

    `__cause__` is the rank's exception, if it could be pickled.
    """

    def __init__(self, text: str, rank: int | None = None) -> None:
        super().__init__(text)
        self.rank = rank
        """The failed rank; None if unknown."""


def run(
    func: Callable[..., Result],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int = 1,
    *,
    hosts: str | None = None,
    hostfile: str | None = None,
    executable: str | None = None,
    directory: str | None = None,
    options: Sequence[str] = (),
) -> list[Result]:
    """Call a function on several ranks and return the results of all ranks.

    cloudpickle pickles the function, so it may be a lambda or a closure, or be defined in a script
    or a notebook. The function must import its modules and call `tf_hvd.init()` itself.

    Args:
      func: the function that every rank calls.
      args: tuple or list of positional arguments.
      kwargs: dict of keyword arguments.
      np: number of ranks (default: 1).
      hosts: hosts and slots, `name:slots,...` (default: this machine).
      hostfile: path of a file that lists the hosts, as an alternative to `hosts`.
      executable: path of the Python that runs the ranks (default: the current Python).
      directory: parent of the private folder, visible on all hosts (default: the temporary folder,
        or the current folder if `hosts` or `hostfile` is given).
      options: more `tf_hvd run` options, for example `["--mpi", "mpich"]`.

    Returns:
      List of the function's return values, in the order of the ranks.

    Raises:
      RankError: the function raised on a rank, or a rank ended without a result. The error names
        the first rank that raised and contains its traceback.
      ValueError: `tf_hvd run` does not accept `np`, `hosts`, `hostfile` or `options` (standard
        error says why), or no folder can be created in `directory`.
      TypeError: `func` is not callable, `args` is neither a tuple nor a list, or the function or
        an argument cannot be pickled.
      KeyboardInterrupt: the user pressed Ctrl-C; the job has been ended.

    Example:
      def train(rate):
          import tf_hvd as hvd

          hvd.init()
          return rate * hvd.size()

      assert hvd.run(train, args=(0.5,), np=2) == [1.0, 1.0]
    """
    if not callable(func):
        raise TypeError(f"tf_hvd.run: func={func!r} is not callable; pass a function.")
    if not isinstance(args, (list, tuple)):
        raise TypeError(
            f"args={args!r} must be a tuple or a list; for one argument pass ({args!r},)."
        )
    where = ["--hosts", hosts] if hosts is not None else []
    where += ["--hostfile", hostfile] if hostfile is not None else []
    if where and directory is None:
        directory = "."
    python = executable or sys.executable
    with _folder(directory) as folder:
        _leave_call(folder, (func, tuple(args), dict(kwargs or {})))
        command = tf_hvd_command.command("run", "-np", str(np), *where)
        command += ["--end-with-parent", str(folder), *job_output.options(), *options]
        elastic = any(word.startswith(_ELASTIC) for word in options)
        command += ["--", python, task.__file__, str(folder)]
        code = _wait(command, np, elastic)
        return _results(folder, int(np), code, elastic)


@contextlib.contextmanager
def _folder(directory: str | None) -> Iterator[pathlib.Path]:
    # mkdtemp: no other user can read the folder, or put files into it that we would unpickle.
    try:
        made = pathlib.Path(tempfile.mkdtemp(prefix="tf_hvd-run-", dir=directory)).resolve()
    except OSError as error:
        raise ValueError(
            f"tf_hvd.run cannot create a folder in {directory or 'the temporary folder'}: "
            f"{error.strerror}; set directory to a writable folder"
        ) from error
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _leave_call(folder: pathlib.Path, call: tuple[Any, ...]) -> None:
    try:
        with _sent_whole(sys.modules.get(getattr(call[0], "__module__", ""))):
            data = io.BytesIO()
            _Pickler(data).dump(call)
    except Exception as error:
        raise TypeError(
            f"tf_hvd.run cannot send the function and its arguments to the ranks: {error}. "
            "Create files, locks and sessions inside the function: they cannot be pickled."
        ) from error
    # The import path comes first, because unpickling the function may need it.
    with files.writing(folder / task.CALL) as file:
        file.write(pickle.dumps(sys.path) + data.getvalue())


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A pickler that keeps a function's file name, so that tracebacks show the function's lines.

    cloudpickle 3.1.3 replaces the name with "<dynamic-code>" to give equal functions equal pickles.
    """

    def reducer_override(self, obj: object) -> Any:
        if not isinstance(obj, types.CodeType):
            return super().reducer_override(obj)
        make, values = self.dispatch_table[types.CodeType](obj)
        return make, tuple(obj.co_filename if v == "<dynamic-code>" else v for v in values)


@contextlib.contextmanager
def _sent_whole(module: types.ModuleType | None) -> Iterator[None]:
    """Provide a context that pickles a module by value if the ranks cannot import it."""
    top = module.__name__.partition(".")[0] if module else ""
    known = top in {"", "__main__", *sys.builtin_module_names}
    if module is None or known or importlib.machinery.PathFinder.find_spec(top, sys.path):
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _wait(command: Sequence[str], ranks: int, elastic: bool) -> int:
    """Wait for the job and return its exit code. If a rank fails, `tf_hvd run` ends the job."""
    job, output = job_output.start(command, 0 if elastic else ranks)
    try:
        while (code := job.poll()) is None:
            output.read(_LOOK)
    except BaseException as error:
        # A first interrupt is forwarded to the ranks, so that they can save their state.
        interrupted = isinstance(error, KeyboardInterrupt)
        _end(job, output, signal.SIGINT if interrupted else signal.SIGTERM)
        raise
    finally:
        output.stop()
        output.finish()
    return code


def _end(job: subprocess.Popen[bytes], output: Reader, signum: int = signal.SIGTERM) -> None:
    """End the job; a second interrupt ends it immediately."""
    job.send_signal(signum)
    while job.poll() is None:
        try:
            output.read(_LOOK)
        except KeyboardInterrupt:
            job.send_signal(signal.SIGTERM)


def _unpickled(name: str, folder: int, rank: int) -> dict[str, Any]:
    """Read a rank's result from the file `name` in the folder with the descriptor `folder`.

    Raises:
        RankError: the file is damaged, or its contents cannot be unpickled here.
    """
    try:
        with files.opened(name, folder=folder, follow=False) as file:
            result = pickle.load(file)
        if not (isinstance(result, dict) and result.keys() >= task.NOTHING.keys()):
            raise TypeError("the program has overwritten the file")
    except Exception as error:
        raise RankError(f"the result of rank {rank} cannot be unpickled: {error}", rank) from error
    return result


def _left(folder: pathlib.Path) -> dict[int, dict[str, Any]]:
    """Return the ranks' results by rank; for an elastic job, the results of the last start.

    Raises:
        RankError: a result cannot be read, or the folder may belong to another user.
    """
    try:
        with files.own_folder(str(folder)) as where:
            numbers = {name.removeprefix(task.RESULT): name for name in os.listdir(where)}
            found = {
                int(number): _unpickled(name, where, int(number))
                for number, name in numbers.items()
                if number != name and number.isdigit()
            }
    except OSError as error:
        raise RankError(f"the results are lost: {files.reason(error)}") from error
    last = max((result["start"] for result in found.values()), default=0)
    return {rank: one for rank, one in found.items() if one["start"] == last}


def _raise_first(found: dict[int, Any], ranks: int) -> None:
    """Raise the error of the first failed rank, which may have caused the other ranks' errors.

    Errors that only report another rank as lost come last. Their times do not count, because the
    hosts' clocks may differ.

    Raises:
      RankError: a rank has failed.
    """
    failed = [rank for rank in found if found[rank]["trace"] is not None]
    if failed:

        def order(rank: int) -> tuple[bool, float]:
            return bool(failure.lost(found[rank]["trace"])), float(found[rank].get("when", 0.0))

        first = min(failed, key=order)
        how = "raised" if found[first]["raised"] else "returned"
        text = f"rank {first} of {ranks} {how}:\n{found[first]['trace']}"
        raise RankError(text, first) from found[first]["error"]


def _results(folder: pathlib.Path, ranks: int, code: int, elastic: bool) -> list[Any]:
    if code == 2 and not any(folder.glob(f"{task.RESULT}*")):
        raise ValueError("tf_hvd run could not start the job; standard error says why.")
    found = _left(folder)
    # The last start of an elastic job may have had fewer ranks.
    ranks = len(found) or ranks if elastic else ranks
    _raise_first(found, ranks)
    missing = [rank for rank in range(ranks) if rank not in found]
    if missing:
        names = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
        raise RankError(
            f"the job ended with exit code {code} and without a result of {names} (of {ranks}); "
            "see standard error for the messages of the ranks and the launcher.",
            missing[0] if len(missing) == 1 else None,
        )
    if code:
        raise RankError(f"the job ended with exit code {code} after all ranks had returned.")
    return [found[rank]["value"] for rank in range(ranks)]
