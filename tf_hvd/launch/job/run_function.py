"""`run(func)`: a function on several ranks, from a script, a notebook or a test.

The ranks are processes of their own, which `tf_hvd run` starts. The function goes to
them, and their results come back, through files in a private folder: nothing listens
on the network.
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
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import cloudpickle

import tf_hvd_command
from tf_hvd.core import files
from tf_hvd.launch.job import job_output
from tf_hvd.launch.machine import task
from tf_hvd.launch.machine.lines import Reader

Result = TypeVar("Result")


# By these an elastic job is asked for.
_ELASTIC = ("--min-np", "--host-discovery-script")
# In seconds: how often what is not told is looked for; and how long the other ranks may still work
# when one has failed, to say what they saw.
_LOOK, _GRACE = 0.2, 5.0


class RankError(RuntimeError):
    """A rank of `run` raised, or ended without a result.

    Its `__cause__` is the exception of the rank, where that could be brought here.
    """

    def __init__(self, text: str, rank: int | None = None) -> None:
        super().__init__(text)
        self.rank = rank
        """The rank; None if it is not known."""


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
    """Calls a function on several ranks and waits for what it returns.

    The function is pickled by cloudpickle: it may be a lambda, a closure, or be defined
    in a script or a notebook. It calls `tf_hvd.init()` itself, and imports what it needs.

    Args:
      func: what every rank calls.
      args: its arguments.
      kwargs: its keyword arguments.
      np: the number of ranks.
      hosts: `name:slots,...`; by default this machine.
      hostfile: a file that names the hosts, instead.
      executable: the Python of the ranks; by default this one.
      directory: where the private folder is made; all hosts must see it. By default
        the temporary folder, or, with other hosts, the current folder.
      options: more options of `tf_hvd run`, as `["--mpi", "mpich"]`.

    Returns:
      What the function returned on each rank, in the order of the ranks.

    Raises:
      RankError: the function raised on a rank (the error names the first to do so, with its
        traceback), or a rank ended without a result.
      ValueError: `np`, `hosts`, `hostfile` or `options` are not what `tf_hvd run` takes;
        standard error says why. Or no folder can be made in `directory`.
      TypeError: `func` is not callable, `args` is neither a tuple nor a list, or the function or
        an argument cannot be pickled.
      KeyboardInterrupt: from the terminal; the job has been ended.
    """
    if not callable(func):
        raise TypeError(f"tf_hvd.run calls a function, and {func!r} is not callable.")
    if not isinstance(args, (list, tuple)):
        raise TypeError(f"args={args!r} must be a tuple or a list; for one argument ({args!r},).")
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
        code = _wait(command, folder, np, elastic)
        return _results(folder, int(np), code, elastic)


@contextlib.contextmanager
def _folder(directory: str | None) -> Iterator[pathlib.Path]:
    # mkdtemp: nobody else may look into it, or put anything there that we would unpickle.
    try:
        made = pathlib.Path(tempfile.mkdtemp(prefix="tf_hvd-run-", dir=directory)).resolve()
    except OSError as error:
        raise ValueError(
            f"tf_hvd.run cannot make a folder in {directory or 'the temporary folder'}: "
            f"{error.strerror}; pass directory=, a folder that you can write to."
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
            "Create in the function what cannot be pickled (files, locks, sessions)."
        ) from error
    # First where to import from: the function may need it to be unpickled.
    with files.writing(folder / task.CALL) as file:
        file.write(pickle.dumps(sys.path) + data.getvalue())


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Sends a function's file name too, by which a traceback of a rank shows the function's lines.

    cloudpickle 3.1.3 puts "<dynamic-code>" there, so that equal functions have equal pickles.
    """

    def reducer_override(self, obj: object) -> Any:
        if not isinstance(obj, types.CodeType):
            return super().reducer_override(obj)
        make, values = self.dispatch_table[types.CodeType](obj)
        return make, tuple(obj.co_filename if v == "<dynamic-code>" else v for v in values)


@contextlib.contextmanager
def _sent_whole(module: types.ModuleType | None) -> Iterator[None]:
    """What is defined in a module that the ranks cannot import is sent as it is."""
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


def _wait(command: Sequence[str], folder: pathlib.Path, ranks: int, elastic: bool) -> int:
    """The exit code of the job, which ends when a rank has failed: MPICH would wait for all.

    An elastic one is started again.
    """
    job, output = job_output.start(command, 0 if elastic else ranks)
    deadline = None
    try:
        while (code := job.poll()) is None:
            output.read(_LOOK)
            if deadline is None and not elastic and any(folder.glob(f"{task.FAILED}*")):
                deadline = time.monotonic() + _GRACE
            if deadline is not None and time.monotonic() > deadline:
                _end(job, output)
    except BaseException as error:
        # The ranks may save what they have: a first interrupt is handed on to them.
        interrupted = isinstance(error, KeyboardInterrupt)
        _end(job, output, signal.SIGINT if interrupted else signal.SIGTERM)
        raise
    finally:
        output.stop()
        output.finish()
    return code


def _end(job: subprocess.Popen[bytes], output: Reader, signum: int = signal.SIGTERM) -> None:
    """Ends the job, at once if it is interrupted again."""
    job.send_signal(signum)
    while job.poll() is None:
        try:
            output.read(_LOOK)
        except KeyboardInterrupt:
            job.send_signal(signal.SIGTERM)


def _unpickled(name: str, folder: int, rank: int) -> dict[str, Any]:
    """What a rank has left in a file of the folder, which is open.

    Raises:
        RankError: it is damaged, or what it holds cannot be made here.
    """
    try:
        with files.opened(name, folder=folder, follow=False) as file:
            result = pickle.load(file)
        if not (isinstance(result, dict) and result.keys() >= task.NOTHING.keys()):
            raise TypeError("it is not what a rank leaves; the program has written over it")
    except Exception as error:
        raise RankError(f"the result of rank {rank} cannot be unpickled: {error}", rank) from error
    return result


def _left(folder: pathlib.Path) -> dict[int, dict[str, Any]]:
    """What each rank has left; those of the last start, of an elastic job.

    Raises:
        RankError: what one has left cannot be read, or may be another user's.
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
    """Raises what the first rank that failed has raised; the others may have for that.

    Raises:
      RankError: there is one.
    """
    failed = [rank for rank in found if found[rank]["trace"] is not None]
    if failed:
        first = min(failed, key=lambda rank: float(found[rank].get("when", 0.0)))
        how = "raised" if found[first]["raised"] else "returned"
        text = f"rank {first} of {ranks} {how}:\n{found[first]['trace']}"
        raise RankError(text, first) from found[first]["error"]


def _results(folder: pathlib.Path, ranks: int, code: int, elastic: bool) -> list[Any]:
    if code == 2 and not any(folder.glob(f"{task.RESULT}*")):
        raise ValueError("tf_hvd run could not start the job; standard error says why.")
    found = _left(folder)
    # The last start of an elastic job had perhaps not as many.
    ranks = len(found) or ranks if elastic else ranks
    _raise_first(found, ranks)
    missing = [rank for rank in range(ranks) if rank not in found]
    if missing:
        names = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
        raise RankError(
            f"the job ended with exit code {code} and without a result of {names} (of {ranks}); "
            "standard error has what the ranks and the launcher said.",
            missing[0] if len(missing) == 1 else None,
        )
    if code:
        raise RankError(f"the job ended with exit code {code} after all ranks had returned.")
    return [found[rank]["value"] for rank in range(ranks)]
