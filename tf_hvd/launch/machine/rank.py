"""Becomes a rank: takes the standard input and output that the launcher gives it, then execs.

Run as a file, by an isolated Python and on every rank, so it knows the standard library alone.
MPI's launchers cannot be left to this: Open MPI never ends rank 0's input, MPICH leaves the other
ranks a pipe that nobody writes to, and each has files of its own form for the output.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import select
import selectors
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING or __package__:
    from tf_hvd.core import contract, messages
    from tf_hvd.launch.machine import keeper
else:  # as a file
    sys.path.append(os.path.dirname(__file__))
    import keeper
    from keeper import contract, messages

# How a line of standard error on another machine tells whose it is: as --tag-output does.
LABEL = re.compile(r"\[1,(\d+)\]<stderr>: ")
_NEVER_EXECUTED = 0x8  # MFD_NOEXEC_SEAL, Linux 6.3
_STREAMS = {1: "stdout", 2: "stderr"}
_PIECE = 1 << 16
# In seconds: a line that takes longer to write is shown as far as it is.
_PATIENCE = 0.1
_LINE_END = re.compile(b"([\r\n])")
_NOT_FOUND, _NOT_RUNNABLE = 127, 126


def is_of_job(words: Sequence[str], job: str) -> bool:
    """Whether a process with this command line began as a rank of a job."""
    return bool(job) and keeper.options_of(words).get("job") == job


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
        path = f"/dev/shm/{contract.RECORDER}.{os.getpid()}"
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
    where = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        about = os.fstat(where)
        if about.st_uid != os.geteuid() or about.st_mode & 0o022:
            raise PermissionError(errno.EPERM, "the folder is not this user's own", folder)
        new = f"new.{name}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new, dir_fd=where)

        def opener(path: str, _: int) -> int:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            return os.open(path, flags, 0o600, dir_fd=where)

        with open(new, "wb", opener=opener) as file:
            file.write(data)
        os.rename(new, name, src_dir_fd=where, dst_dir_fd=where)
    finally:
        os.close(where)


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


def _take(handed: dict[str, int], takes_input: bool) -> None:
    """Makes what the launcher has handed over the standard input and error."""
    if takes_input:
        _become_descriptor(handed.get(contract.INPUT, -1), 0)
    elif contract.INPUT in handed:
        os.close(handed[contract.INPUT])
    if contract.ERRORS in handed:
        _become_descriptor(handed[contract.ERRORS], 2)


def _become_descriptor(given: int, standard: int) -> None:
    """Puts a descriptor in the place of a standard one; -1 stands for an empty file."""
    if given == -1:
        given = os.open(os.devnull, os.O_RDONLY)
    if given != standard:
        os.dup2(given, standard)
        os.close(given)


def copy_output(
    folder: str, label: str, timestamps: bool, streams: dict[int, str] = _STREAMS
) -> None:
    """From now on a process of its own hands on what this one prints, until nobody prints any more.

    Args:
        folder: gets a copy, in the files `stdout` and `stderr`; empty for none.
        label: what is put before each line that goes on, with the stream's name in it; empty for
            lines as they are.
        timestamps: whether each line begins with the time, also in the files.
        streams: which descriptors, and what their streams are called.
    """
    files = {}
    if folder:
        os.makedirs(folder, exist_ok=True)
        files = {name: _created(os.path.join(folder, name)) for name in streams.values()}
    pipes = {to: os.pipe() for to in streams}
    child = os.fork()
    if child == 0:
        # Nobody's child: the program must not find one that it did not start. And deaf: the last
        # words of a rank that is being ended are wanted too.
        os.setsid()
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(signum, signal.SIG_IGN)
        if os.fork() == 0:
            for _, write_end in pipes.values():
                os.close(write_end)
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            _copy(
                {
                    pipes[to][0]: _Copy(to, label.format(name), files.get(name), timestamps)
                    for to, name in streams.items()
                }
            )
        os._exit(0)
    os.waitpid(child, 0)
    for to, (read_end, write_end) in pipes.items():
        os.dup2(write_end, to)
        os.close(read_end)
        os.close(write_end)
    for file in files.values():
        os.close(file)


def is_restart(environ: Mapping[str, str]) -> bool:
    """Whether this is an elastic job that has been started before."""
    return environ.get(contract.START, "") not in ("", "0")


def _created(path: str) -> int:
    # What the starts before have printed may tell why there is another one.
    how = os.O_APPEND if is_restart(os.environ) else os.O_TRUNC
    return os.open(path, os.O_WRONLY | os.O_CREAT | how, 0o666)


class _Copy:
    """One stream on its way out: as it is, or in whole lines that each tell whose they are.

    A line that is redrawn, as a progress bar is, ends with a carriage return. One that its rank
    does not end for a while is shown so far as such a line, and whole when it ends: launchers mix
    the ranks' output wherever a write ends.
    """

    def __init__(self, to: int, label: str, file: int | None, timestamps: bool) -> None:
        self._to: int | None = to
        self._label = label.encode()
        self._file = file
        self._timestamps = timestamps
        self._line = b""
        self._drawn = b""  # the line that stands there after a carriage return
        self._begun: float | None = None
        self._at_line_start = True

    @property
    def wait(self) -> float | None:
        """Seconds until `show_line`; None if nothing waits for it."""
        if self._begun is None:
            return None
        return max(0.0, self._begun + _PATIENCE - time.monotonic())

    def add(self, piece: bytes) -> None:
        """Hands a piece of output on; empty at the end."""
        if self._file is not None and not write_all(self._file, self._stamped(piece)):
            self._file = None
        if not self._label and not self._timestamps:
            self._send(piece)
            return
        *whole, self._line = _LINE_END.split(self._line + piece)
        if self._line and (not piece or len(self._line) >= _PIECE):
            whole += [self._line, b"\n"]
            self._line = b""
        lines = []
        for text, end in zip(whole[::2], whole[1::2], strict=True):
            text = text.rstrip(b"\b")  # Keras goes back by these as well
            if end == b"\n":
                lines.append((text or self._drawn, end))
                self._drawn = b""
            elif text:
                lines.append((text, end))
                self._drawn = text
        self._send_lines(lines)
        self._begun = time.monotonic() if self._line else None

    def show_line(self) -> None:
        """Shows the line that has not ended."""
        self._begun = None
        self._send_lines([(self._line, b"\r")])

    def _send_lines(self, lines: list[tuple[bytes, bytes]]) -> None:
        start = self._label + (_stamp() if self._timestamps else b"")
        pieces = [b""]
        for text, end in lines:
            line = start + text + end
            # A pipe takes so much in one piece, or nothing of it.
            if len(pieces[-1]) + len(line) > select.PIPE_BUF:
                pieces.append(b"")
            pieces[-1] += line
        for piece in pieces:
            self._send(piece)

    def _send(self, data: bytes) -> None:
        if self._to is not None and not write_all(self._to, data):
            self._to = None

    def _stamped(self, piece: bytes) -> bytes:
        if not self._timestamps or not piece:
            return piece
        ends = piece.endswith(b"\n")
        text = piece[:-1] if ends else piece
        start = _stamp() if self._at_line_start else b""
        self._at_line_start = ends
        return start + text.replace(b"\n", b"\n" + _stamp()) + (b"\n" if ends else b"")


def _stamp() -> bytes:
    return time.strftime("[%Y-%m-%d %H:%M:%S] ").encode()


def _copy(sources: dict[int, _Copy]) -> None:
    chosen = selectors.DefaultSelector()
    for source, copy in sources.items():
        chosen.register(source, selectors.EVENT_READ, copy)
    while chosen.get_map():
        copies: list[_Copy] = [key.data for key in chosen.get_map().values()]
        for key, _ in chosen.select(
            min((c.wait for c in copies if c.wait is not None), default=None)
        ):
            piece = os.read(key.fd, _PIECE)
            key.data.add(piece)
            if not piece:
                chosen.unregister(key.fd)
        for copy in copies:
            if copy.wait == 0.0:
                copy.show_line()


def write_all(to: int, data: bytes) -> bool:
    """Writes to a descriptor until all is written; False if it takes no more.

    A full disk, or a reader that is gone, must not end a rank.
    """
    try:
        while data:
            data = data[os.write(to, data) :]
    except OSError:
        return False
    return True


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
    if options["watch"]:
        keeper.watch_child(here, rank, launcher, save, {str(recording)})
    else:
        keeper.tell(here, contract.RUNS, rank, process=os.getpid(), keeper=0)
    if link:
        link.close()
    _take(handed or {}, options["stdin"])
    label = f"[1,{rank}]<{{}}>: "
    try:
        if options["output"] or options["tags"] or options["timestamps"]:
            # Python keeps back what it prints to a pipe, as this one, until it has much of it.
            os.environ.setdefault("PYTHONUNBUFFERED", "1")
            folder = options["output"].format(rank=rank)
            copy_output(folder, label if options["tags"] else "", options["timestamps"])
        if options["errors"] and handed is None:
            copy_output("", label, timestamps=False, streams={2: _STREAMS[2]})
    except OSError as error:
        sys.exit(f"tf_hvd run: --output-filename: {error.filename}: {error.strerror}")
    _become(command)


if __name__ == "__main__":
    main(sys.argv[1:])
