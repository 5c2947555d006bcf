"""The start of a rank: sets up standard input and output, then execs the program.

An isolated Python runs this file for every rank, so it imports only the standard library. The file
sets up standard input and output because MPI's launchers do so badly. Open MPI never closes rank
0's input. MPICH gives the other ranks a pipe that nothing writes to. Each MPI writes output files
in its own format.
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

if __name__ == "__main__":  # a package without __init__.py, which would load TensorFlow
    package = types.ModuleType("tf_hvd")
    sys.modules["tf_hvd"] = package
    package.__path__ = [os.path.join(os.path.dirname(__file__), "..", "..")]

from tf_hvd.core import contract, files, messages
from tf_hvd.launch.machine import keeper
from tf_hvd.launch.machine.rank_output import STREAMS, RankOutput

_NOT_FOUND, _NOT_RUNNABLE = 127, 126


def open_recording() -> int | None:
    """Create the file for the rank's recording, in memory and without a name.

    Returns:
        The file's descriptor, or None if the file cannot be created. The rank then creates a
        recording that no other process can read.
    """
    file = files.memory(contract.RECORDER)
    if file is None:
        path = f"/dev/shm/{contract.RECORDER}.{os.urandom(8).hex()}"
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            os.unlink(path)
        except OSError:
            return None
    os.set_inheritable(file, True)
    return file


def save_recording(file: int, folder: str, job: str, rank: int) -> str:
    """Copy a rank's recording to the job's folder within `folder` and return the job's folder.

    If the rank has recorded nothing yet, this function writes nothing and returns "".

    Args:
        file: descriptor of the rank's recording.
        folder: folder in which the job's folder is created.
        job: name of the job's folder.
        rank: the rank's number.

    Raises:
        OSError: the recording cannot be written.
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
    """Write a file atomically into a folder that only this user can write to.

    Raises:
        OSError: the file cannot be written, or other users can write to the folder and might
            have put a link there.
    """
    with files.own_folder(folder) as where:
        try:
            with files.writing(name, 0o600, folder=where) as file:
                file.write(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, os.path.join(folder, name)) from error


def begin(link: messages.Link, rank: int, recording: int | None) -> dict[str, int] | None:
    """Tell the agent that this rank is starting, and return the file descriptors from `tf_hvd run`.

    Returns:
        The descriptors of standard input (under the name `INPUT`) and standard error (`ERRORS`).
        None on another machine, or if `tf_hvd run` has ended.
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
    return dict(zip(answer["hands"], handed))  # noqa: B905 (equal lengths)


def is_restart(environ: Mapping[str, str]) -> bool:
    """Return whether this start of an elastic job is a restart."""
    return environ.get(contract.START, "") not in ("", "0")


def _become(command: list[str]) -> NoReturn:
    # Python ignores these signals, and ignored signals stay ignored after exec.
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signum, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        found = not isinstance(error, FileNotFoundError)
        sys.stderr.write(f"tf_hvd run: {command[0]}: {error.strerror}\n")
        sys.exit(_NOT_RUNNABLE if found else _NOT_FOUND)


def _forget_preloaded() -> None:
    """Remove the launcher's preloaded library (network.py), so programs can listen anywhere."""
    preloaded = os.environ.pop("LD_PRELOAD", "").split(":")
    theirs = [file for file in preloaded if os.path.basename(file) != contract.PRELOADED]
    if any(theirs):
        os.environ["LD_PRELOAD"] = ":".join(theirs)


def _output(options: Mapping[str, Any], rank: int, here: bool) -> RankOutput | None:
    """Return the output that the keeper forwards.

    The result is None if the program writes directly to the launcher's files.
    """
    asked = options["output"] or options["tags"] or options["timestamps"]
    marked = {1: options["tags"], 2: options["tags"] or (options["errors"] and not here)}
    labels = {
        to: f"[1,{rank}]<{name}>: " if marked[to] else ""
        for to, name in STREAMS.items()
        if asked or marked[to]
    }
    if asked:
        # Python would buffer output to a pipe.
        os.environ.setdefault("PYTHONUNBUFFERED", "1")
    if not labels:
        return None
    # Keep the output of earlier starts, which may show why the job was restarted.
    folder, adds = options["output"].format(rank=rank), is_restart(os.environ)
    return RankOutput(labels, folder, adds, options["timestamps"], without_mpi=not options["watch"])


def main(arguments: list[str]) -> NoReturn:
    """Start a rank.

    Args:
        arguments: the rank's options (`command_line.rank_command`), then the program and its
            arguments.
    """
    options, command = json.loads(arguments[0]), arguments[1:]
    launcher = os.getppid()  # before anything that waits
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
            with contextlib.suppress(OSError):  # an error could not be shown on another machine
                save_recording(recording, to, label, rank)

    link = handed = None
    with contextlib.suppress(OSError):  # another machine has no such agent
        link = messages.connect(options["job"])
        handed = begin(link, rank, recording)
    here = None if handed is None else link
    given = {contract.INPUT: os.open(os.devnull, os.O_RDONLY), **(handed or {})}
    if options["stdin"]:
        os.dup2(given[contract.INPUT], 0)
    if contract.ERRORS in given:
        os.dup2(given[contract.ERRORS], 2)
    # Exec closes all descriptors received with messages.
    output, error = None, ""
    try:
        output = _output(options, rank, here=handed is not None)
    except OSError as failed:
        error = f"tf_hvd run: --output-filename: {files.reason(failed)}"
    if options["watch"] or output:
        keeper.watch_child(
            here, rank, launcher, save, {str(recording)}, output, without_mpi=not options["watch"]
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
