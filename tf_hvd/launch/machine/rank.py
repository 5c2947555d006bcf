"""Becomes a rank: takes the standard input and output that the launcher gives it, then execs.

Run as a file, by an isolated Python and on every rank, so it knows the standard library alone.
MPI's launchers cannot be left to this: Open MPI never ends rank 0's input, MPICH leaves the other
ranks a pipe that nobody writes to, and each has files of its own form for the output.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import types
from collections.abc import Mapping
from typing import Any, NoReturn

if __name__ == "__main__":  # a package without __init__.py, which loads TensorFlow
    package = types.ModuleType("tf_hvd")
    sys.modules["tf_hvd"] = package
    package.__path__ = [os.path.join(os.path.dirname(__file__), "..", "..")]

from tf_hvd.core import contract, files, messages
from tf_hvd.launch.machine import keeper
from tf_hvd.launch.machine.rank_output import STREAMS, RankOutput

_NEVER_EXECUTED = 0x8  # MFD_NOEXEC_SEAL, Linux 6.3
_NOT_FOUND, _NOT_RUNNABLE = 127, 126


def open_recording() -> int | None:
    """Makes the file in which the rank's calls are recorded: without a name, in memory.

    None if there can be none; the rank makes one then, which nobody else can look into.
    """
    for flags in (_NEVER_EXECUTED, 0):
        try:
            file = os.memfd_create(contract.RECORDER, flags)
            break
        # Older kernels do not know the flag, others demand it; a Python that was built for old
        # machines has none of it.
        except (OSError, AttributeError):
            continue
    else:
        path = f"/dev/shm/{contract.RECORDER}.{os.urandom(8).hex()}"
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            os.unlink(path)
        except OSError:
            return None
    os.set_inheritable(file, True)
    return file


def save_recording(file: int, folder: str, job: str, rank: int) -> str:
    """Copies a rank's recording to a folder of its job; returns that folder.

    Empty for a rank that did not get as far as to have one: nothing is written then.

    Raises:
        OSError: it cannot be written.
    """
    size = os.fstat(file).st_size
    if not size:
        return ""
    where = os.path.join(folder, job)
    os.makedirs(folder, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(where, 0o700)
    write_own(where, f"rank.{rank}", os.pread(file, size, 0))
    return where


def write_own(folder: str, name: str, data: bytes) -> None:
    """Writes a file, in one piece, into a folder that only this user can write to.

    Raises:
        OSError: others can, and may have put a link there, or it cannot be written.
    """
    with files.own_folder(folder) as where:
        try:
            with files.writing(name, 0o600, folder=where) as file:
                file.write(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, os.path.join(folder, name)) from error


def begin(link: messages.Link, rank: int, recording: int | None) -> dict[str, int] | None:
    """Tells the agent that this rank begins; returns what `tf_hvd run` hands over.

    By name: its standard input, `INPUT`, and where its standard error goes, `ERRORS`. None on
    another machine, and if there is no `tf_hvd run` any more.
    """
    try:
        files = [] if recording is None else [recording]
        said = {"do": contract.BEGINS, "rank": rank, "process": os.getpid()}
        link.send(said, files=files)
        answer, _ = link.receive()
    except (OSError, EOFError, messages.ProtocolError):
        return None
    handed, link.files = link.files, []
    if answer["hands"] is None:
        return None
    return dict(zip(answer["hands"], handed))  # noqa: B905 (as many)


def is_restart(environ: Mapping[str, str]) -> bool:
    """Whether this is an elastic job that has been started before."""
    return environ.get(contract.START, "") not in ("", "0")


def _become(command: list[str]) -> NoReturn:
    # Python ignores these, and what a process ignores, its successor ignores as well.
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signum, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        found = not isinstance(error, FileNotFoundError)
        sys.stderr.write(f"tf_hvd run: {command[0]}: {error.strerror}\n")
        sys.exit(_NOT_RUNNABLE if found else _NOT_FOUND)


def _forget_preloaded() -> None:
    """Takes away what was for the launcher alone (network.py): programs listen where they say."""
    preloaded = os.environ.pop("LD_PRELOAD", "").split(":")
    theirs = [file for file in preloaded if os.path.basename(file) != contract.PRELOADED]
    if any(theirs):
        os.environ["LD_PRELOAD"] = ":".join(theirs)


def _output(options: Mapping[str, Any], rank: int, here: bool) -> RankOutput | None:
    """The output that the keeper hands on; None if the program keeps the launcher's."""
    asked = options["output"] or options["tags"] or options["timestamps"]
    marked = {1: options["tags"], 2: options["tags"] or (options["errors"] and not here)}
    labels = {
        to: f"[1,{rank}]<{name}>: " if marked[to] else ""
        for to, name in STREAMS.items()
        if asked or marked[to]
    }
    if asked:
        # Python keeps back what it prints to a pipe, as these, until it has much of it.
        os.environ.setdefault("PYTHONUNBUFFERED", "1")
    if not labels:
        return None
    # What the starts before have printed may tell why there is another one.
    folder, adds = options["output"].format(rank=rank), is_restart(os.environ)
    return RankOutput(labels, folder, adds, options["timestamps"], alone=not options["watch"])


def main(arguments: list[str]) -> NoReturn:
    """Starts a rank.

    Args:
        arguments: its options (`command_line.by_way_of_rank`), then the program and its arguments.
    """
    options, command = json.loads(arguments[0]), arguments[1:]
    launcher = os.getppid()  # before this waits for anybody
    _forget_preloaded()
    rank, label = keeper.number_of(options, os.environ), options["label"]
    recording = open_recording()
    os.environ.pop(contract.RECORDING, None)
    if recording is not None:
        os.environ[contract.RECORDING] = f"{recording}:{label}"
    os.environ[contract.RANK] = str(rank)

    def save() -> None:
        to = os.environ.get(contract.DUMP_FOLDER)
        if to and recording is not None:
            with contextlib.suppress(OSError):  # on another machine nobody would read of it
                save_recording(recording, to, label, rank)

    link = handed = None
    with contextlib.suppress(OSError):  # on another machine, where there is none
        link = messages.connect(options["job"])
        handed = begin(link, rank, recording)
    here = None if handed is None else link
    given = {contract.INPUT: os.open(os.devnull, os.O_RDONLY), **(handed or {})}
    if options["stdin"]:
        os.dup2(given[contract.INPUT], 0)
    if contract.ERRORS in given:
        os.dup2(given[contract.ERRORS], 2)
    # All descriptors that came with messages are closed by exec.
    output, error = None, ""
    try:
        output = _output(options, rank, here=handed is not None)
    except OSError as failed:
        error = f"tf_hvd run: --output-filename: {files.reason(failed)}"
    if options["watch"] or output:
        keeper.watch_child(
            here, rank, launcher, save, {str(recording)}, output, alone=not options["watch"]
        )
    else:
        keeper.tell(here, contract.RUNS, rank, process=os.getpid(), keeper=0)
    if output:
        output.become()
    if error:
        sys.exit(error)
    _become(command)


if __name__ == "__main__":
    main(sys.argv[1:])
