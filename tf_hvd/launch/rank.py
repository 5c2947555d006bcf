"""Becomes a rank: takes the standard input and output that the launcher gives it, then execs.

Run as a file, by an isolated Python and on every rank, so it knows the standard library alone.
MPI's launchers cannot be left to this: Open MPI never ends rank 0's input, MPICH leaves the other
ranks a pipe that nobody writes to, and each has files of its own form for the output.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import re
import resource
import select
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from typing import NoReturn

SOCKET, MACHINE, ENDED, RUNNING, JOINED = "ranks", "machine", "ended.", "running.", "joined."
FOLDER_VARIABLE = "TF_HVD_LAUNCHER_FOLDER"
# What a keeper is told (deputy.py): to hold its rank's end back, and no longer.
HOLD, RELEASE = signal.SIGRTMIN + 4, signal.SIGRTMIN + 5
# By this name others know that a keeper's program is its child: the ranks (IsKeeper in
# runtime/base), and deputy.py.
KEEPER = "tf_hvd_run_rank"
# What is for the program alone, of what comes to both.
_NOT_OURS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
# MPICH, Open MPI, Open MPI before 5 and Intel MPI name their shared memory so.
_SEGMENTS = ("mpich_shm_", "sm_segment.", "vader_segment.", "Intel_MPI_")
# In seconds: between two looks whether the launcher is there, and from SIGTERM to SIGKILL.
_LOOK, _GRACE = 2.0, 5.0
# What the launcher says that it hands over.
INPUT, ERRORS, NOTHING = "i", "e", "-"
# How a line of standard error on another machine tells whose it is: as --tag-output does.
LABEL = re.compile(r"\[1,(\d+)\]<stderr>: ")
_PRELOADED = "libtf_hvd_listen.so"
# By these its recorder knows the file that it writes to, and the job: "5:tf_hvd-x7k2"
# (runtime/base/config.cc); and by this name in what a file is called others know one.
RECORDING, _RECORDER = "TF_HVD_RECORDING", "tf_hvd_recorder"
_NEVER_EXECUTED = 0x8  # MFD_NOEXEC_SEAL, Linux 6.3
DUMP_FOLDER = "TF_HVD_DUMP_DIR"
# By this the program knows which of the launcher's ranks it is (tf_hvd/core/_launcher.py).
_NUMBER = "TF_HVD_LAUNCHED_RANK"
_PMI = "PMI_FD"  # MPICH's, and MPIs that come from it
_STREAMS = {1: "stdout", 2: "stderr"}
_PIECE = 1 << 16
# In seconds: a line that takes longer to write is shown as far as it is.
_PATIENCE = 0.1
_LINE_END = re.compile(b"([\r\n])")
_NOT_FOUND, _NOT_RUNNABLE = 127, 126


def _rank(variables: str) -> int:
    for name in variables.split(","):
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    return 0


def machine() -> str:
    """What is the same for all processes that can be told apart by their ids alone."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _is_of_this_machine(folder: str) -> bool:
    """Whether the launcher's folder is one of this machine, and not one that several share."""
    with contextlib.suppress(OSError), open(os.path.join(folder, MACHINE)) as file:
        return file.read() == machine()
    return False


def open_recording() -> int | None:
    """Makes the file in which the rank's calls are recorded: without a name, in memory.

    None if there can be none; the rank makes one then, which nobody else can look into.
    """
    for flags in (_NEVER_EXECUTED, 0):
        try:
            file = os.memfd_create(_RECORDER, flags)
            break
        # Older kernels do not know the flag, others demand it; a Python that was built for old
        # machines has none of it.
        except (OSError, AttributeError):
            continue
    else:
        path = f"/dev/shm/{_RECORDER}.{os.getpid()}"
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


def report(folder: str, rank: int, recording: int | None) -> dict[str, int] | None:
    """Tells the launcher that this rank starts; returns what it hands over.

    By name: its standard input, `INPUT`, and where its standard error goes, `ERRORS`. None if there
    is no launcher on this machine.
    """
    try:
        where = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        with socket.socket(socket.AF_UNIX) as link:
            # By a short name: a socket's path may have 107 bytes.
            link.connect(f"/proc/self/fd/{where}/{SOCKET}")
            files = [] if recording is None else [recording]
            sent = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))]
            link.sendmsg([f"{rank} {os.getpid()}\n".encode()], sent if files else [])
            room = socket.CMSG_SPACE(2 * array.array("i").itemsize)
            names, ancillary, _, _ = link.recvmsg(2, room)
            handed = array.array("i")
            for _, kind, data in ancillary:
                if kind == socket.SCM_RIGHTS:
                    handed.frombytes(data)
            return dict(zip(names.decode(), handed))  # noqa: B905 (as many, or "-" and none)
    except OSError:
        return None
    finally:
        os.close(where)


def _take(handed: dict[str, int], wanted: list[str]) -> None:
    """Makes what the launcher has handed over the standard input and error."""
    if "stdin" in wanted:
        _become_descriptor(handed.get(INPUT, -1), 0)
    elif INPUT in handed:
        os.close(handed[INPUT])
    if ERRORS in handed:
        _become_descriptor(handed[ERRORS], 2)


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


def _created(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)


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


def watch_child(folder: str, rank: int, save: Callable[[], None]) -> None:
    """Forks: the child returns and becomes the rank, this process notes that it runs, how it ends.

    MPICH's launcher does not say which rank it was that ended the job, and Open MPI's only if
    others ran still. A signal that the launcher sends goes to both, as they are one process group.

    Args:
        folder: the launcher's; empty on another machine.
        rank: whose child it is.
        save: called at a bad end.
    """
    launcher = os.getppid()
    running = os.path.join(folder, f"{RUNNING}{rank}")
    if folder:
        with contextlib.suppress(OSError):
            os.close(os.open(running, os.O_CREAT | os.O_WRONLY, 0o600))
    # From before the fork on: a keeper that got no core would not be known, or be ended.
    handled = signal.pthread_sigmask(signal.SIG_BLOCK, _Keeper.HEARD | set(_NOT_OURS))
    _call_oneself(KEEPER)
    child = os.fork()
    if child == 0:
        _call_oneself("python")
        signal.pthread_sigmask(signal.SIG_SETMASK, handled)
        return
    keeper = _Keeper(child, launcher)
    # The launcher waits for the end of some of these. But MPICH's kills us as well when nobody
    # holds this one any more, before it is told how the rank has ended.
    kept = os.environ.get(_PMI, "")
    recording = "" if folder else os.environ.get(RECORDING, "").partition(":")[0]
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and str(number) not in (kept, recording):
            with contextlib.suppress(OSError):  # what has listed them
                os.close(number)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    for signum in _NOT_OURS:
        signal.signal(signum, signal.SIG_IGN)
    code = keeper.wait()
    if folder:
        with contextlib.suppress(OSError):
            _note_end(folder, rank, code)
    elif code:
        save()
    keeper.hold()
    if code < 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child has left one, if wanted
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


def _note_end(folder: str, rank: int, code: int) -> None:
    if not code:
        os.unlink(os.path.join(folder, f"{RUNNING}{rank}"))
        return
    new = os.path.join(folder, f"new.{ENDED}{rank}")
    with open(new, "w") as file:
        file.write(str(code))
    # In one piece: the launcher may kill us here, and the file be read.
    os.rename(new, os.path.join(folder, f"{ENDED}{rank}"))


def _call_oneself(name: str) -> None:
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write(name)


class _Keeper:
    """Waits for a rank's program, `child`, which `launcher`, a process, has started.

    The signals that it hears are blocked.
    """

    HEARD = frozenset({signal.SIGCHLD, HOLD, RELEASE})

    def __init__(self, child: int, launcher: int) -> None:
        self._child = child
        self._launcher = launcher
        self._held = False
        self._segments: set[str] = set()  # that it had when it was to be held

    def wait(self) -> int:
        """Waits for the program's end; returns its exit code, or minus the signal.

        Ends it if the launcher's process that has started it is gone, which has not ended it then:
        both were killed.
        """
        orphaned = None
        while True:
            ended, status = os.waitpid(self._child, os.WNOHANG)
            if ended:
                # It may have been killed, and on another machine nobody else knows of them.
                remove_segments(self._segments)
                return os.waitstatus_to_exitcode(status)
            if orphaned is None and os.getppid() != self._launcher:
                orphaned = time.monotonic()
                remove_segments(_segments_of(self._child))
                with contextlib.suppress(OSError):  # what it has started as well, its data loaders
                    os.killpg(os.getpgid(self._child), signal.SIGTERM)
            elif orphaned is not None and time.monotonic() - orphaned >= _GRACE:
                os.kill(self._child, signal.SIGKILL)
            self._hear(_LOOK)

    def hold(self) -> None:
        """Returns when this end may be known, at which MPI's launchers may kill the other ranks.

        They may be saving a checkpoint, where all are asked to end.
        """
        while self._hear(0.0):
            pass
        while self._held and os.getppid() == self._launcher:
            self._hear(_LOOK)

    def _hear(self, seconds: float) -> bool:
        heard = signal.sigtimedwait(self.HEARD, seconds)
        if heard is not None and heard.si_signo != signal.SIGCHLD:
            self._held = heard.si_signo == HOLD
            if self._held:
                self._segments |= _segments_of(self._child)
        return heard is not None


def _segments_of(process: int) -> set[str]:
    """The names in /dev/shm that a process uses."""
    with contextlib.suppress(OSError), open(f"/proc/{process}/maps", errors="replace") as maps:
        return {line.rstrip("\n").partition("/dev/shm/")[2] for line in maps}
    return set()


def remove_segments(names: Iterable[str]) -> None:
    """Removes those in /dev/shm that are MPI's and nobody else removes; who uses one keeps it."""
    for name in names:
        if name.startswith(_SEGMENTS) and "/" not in name:
            with contextlib.suppress(OSError):
                os.unlink(f"/dev/shm/{name}")


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
    theirs = [file for file in preloaded if os.path.basename(file) != _PRELOADED]
    if any(theirs):
        os.environ["LD_PRELOAD"] = ":".join(theirs)


def main(arguments: list[str]) -> NoReturn:
    """Starts a rank.

    Args:
        arguments: the launcher's folder; the variables that may hold the rank, comma-separated;
            what is wanted, comma-separated: `stdin`, `errors`, `tags`, `timestamps`, `watch`; the
            output's folder with `{rank:0Nd}` in it, or nothing; then the program and its arguments.
    """
    folder, variables, chosen, output, *command = arguments
    _forget_preloaded()
    rank, wanted = _rank(variables), chosen.split(",")
    here = _is_of_this_machine(folder)
    if not here:
        os.environ.pop(FOLDER_VARIABLE, None)
    recording, job = open_recording(), os.path.basename(folder)
    os.environ.pop(RECORDING, None)
    if recording is not None:
        os.environ[RECORDING] = f"{recording}:{job}"

    def save() -> None:
        to = os.environ.get(DUMP_FOLDER)
        if to and recording is not None:
            with contextlib.suppress(OSError):  # on another machine nobody would read of it
                save_recording(recording, to, job, rank)

    if "watch" in wanted:
        watch_child(folder if here else "", rank, save)
    os.environ[_NUMBER] = str(rank)
    handed = report(folder, rank, recording) if here else None
    _take(handed or {}, wanted)
    label = f"[1,{rank}]<{{}}>: "
    tags, timestamps = "tags" in wanted, "timestamps" in wanted
    try:
        if output or tags or timestamps:
            # Python keeps back what it prints to a pipe, as this one, until it has much of it.
            os.environ.setdefault("PYTHONUNBUFFERED", "1")
            copy_output(output.format(rank=rank), label if tags else "", timestamps)
        if "errors" in wanted and handed is None:
            copy_output("", label, timestamps=False, streams={2: _STREAMS[2]})
    except OSError as error:
        sys.exit(f"tf_hvd run: --output-filename: {error.filename}: {error.strerror}")
    _become(command)


if __name__ == "__main__":
    main(sys.argv[1:])
