"""The warm standby: a process that has loaded TensorFlow, and becomes the ranks of a restart.

A rank asks for one when the training has come to its first commit; the commit store of the machine
starts it, with the rank's Python, environment and folder. It loads what the rank has loaded of
TensorFlow, Keras and tf_hvd, and waits. After a restart each rank of the machine is forked from it,
where the same Python is to run a program in an environment that is the same in all that loading may
have read: else a rank starts as ever. What an MPI's launcher has started stands in for the rank
(launch/stand_in.py).

What is forked has no thread besides the one that forks, and so no TensorFlow context either: that
is looked at each time.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import fcntl
import gc
import importlib
import importlib.machinery
import json
import os
import resource
import runpy
import selectors
import shutil
import signal
import socket
import struct
import sys
import time
import types
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tf_hvd.core import commit_store, config

# As in launch/stand_in.py.
_ADDRESS = "\0tf_hvd_standby/"
_STATUS = struct.Struct("<i")
# Of these the program has loaded something: the standby does as well.
_LOADED = ("numpy", "tensorflow", "keras", "tf_keras")
_OURS = "tf_hvd."
# Variables that each rank or start has its own of, and those that are read when they are needed.
_OF_A_RANK = (
    *("PMI", "OMPI_", "PRTE_", "HYDRA", "HYDI_", "MPIR_", "MPI_", "MPICH_", "SLURM_", "FI_"),
    *("SSH_", "XDG_SESSION_"),
    *("TF_HVD_ELASTIC_JOB", "TF_HVD_LAUNCHED_RANK", "TF_HVD_LAUNCHER_", "TF_HVD_LISTEN_ON"),
    *("TF_HVD_RECORDING", "TF_HVD_STARTED_BY"),
    *("CUDA_VISIBLE_DEVICES", "NCCL_", "UCX_", "_", "SHLVL", "PWD", "OLDPWD"),
)
_KINDS = ("-m", "-c")
# Options of Python that stand alone, and that a value follows.
_FLAGS = ("-u", "-P", "-s", "-S", "-E", "-I", "-B", "-O", "-OO", "-b", "-bb", "-q")
_WITH_VALUE = ("-W", "-X")
_DEAF_TO = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_TO_END = 3.0  # seconds that what a rank has started may go on after its bad end
_PATIENCE = 5.0  # for a request
_PR_SET_PDEATHSIG = 1
_MOST_FILES = 253  # the kernel's limit for one message
_NOT_FOUND = 2  # Python's exit code
# Python itself begins with the rank's first environment, and loads with that of its program now.
_START = """
open("/proc/self/comm", "w").write({name!r})
import sys
sys.path[:{old}] = {path!r}
import json, os
with open(0, "rb", 0, closefd=False) as file:
    about = json.loads(file.readline() or os._exit(1))
os.environ.clear()
os.environ.update(about["environ"])
from tf_hvd.elastic import standby
standby.main(about)
standby.run_program()
"""


@dataclass(frozen=True)
class Program:
    """A Python program, as it stands in a command line."""

    options: tuple[str, ...]
    """Of Python."""
    kind: str
    """`-m`, `-c`, or empty for a file."""
    what: str
    arguments: tuple[str, ...]

    def path_start(self, folder: str) -> list[str]:
        """What Python puts before `sys.path` for it, started in that folder."""
        if getattr(sys.flags, "safe_path", False) or sys.flags.isolated:
            return []
        if self.kind:
            return [folder if self.kind == "-m" else ""]
        return [os.path.dirname(os.path.realpath(os.path.join(folder, self.what)))]


def parse(words: Sequence[str]) -> Program | None:
    """A command line without its first word; None for one with options that are not known here."""
    options: list[str] = []
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word in _FLAGS or (word[:2] in _WITH_VALUE and len(word) > 2):
            options.append(word)
        elif word in _WITH_VALUE and rest:
            options += [word, rest.pop(0)]
        elif word in _KINDS and rest:
            return Program(tuple(options), word, rest[0], tuple(rest[1:]))
        else:
            return None
    return Program(tuple(options), "", rest[0], tuple(rest[1:])) if rest else None


def ask_for(ask: Callable[[bytes], None]) -> None:
    """Has the store of this machine start a standby, if there is none.

    Args:
        ask: sends the store what it needs for that.
    """
    with contextlib.suppress(OSError):  # its folder is gone, say: then there is none
        _ask_for(ask)


def _ask_for(ask: Callable[[bytes], None]) -> None:
    program = parse(sys.orig_argv[1:])
    if program is None or config.ELASTIC_STANDBY.read() == "off":
        return
    given = _given_environ()
    own = program.path_start(os.getcwd())
    about = {
        "token": os.environ[commit_store.JOB_VARIABLE].partition(":")[0],
        "options": program.options,
        "modules": [
            *(name for name in _LOADED if name in sys.modules),
            *(name for name in sorted(sys.modules) if name.startswith(_OURS)),
        ],
        "given": common(given),
        "environ": common(os.environ),
        "cores": sorted(os.sched_getaffinity(0)),
    }
    # `-c` has Python put "" there.
    start = _START.format(name=commit_store.STANDBY_NAME, old=len(own), path=sys.path[: len(own)])
    request = {
        "command": [sys.executable, *program.options, "-c", start],
        "environ": common(given),
        "folder": os.getcwd(),
        "about": about,
    }
    ask(json.dumps(request).encode())


def _given_environ() -> dict[str, str]:
    """The environment that this process began with."""
    if _environ is not None:
        return _environ
    with open("/proc/self/environ", "rb") as file:
        return dict(os.fsdecode(each).partition("=")[::2] for each in file.read().split(b"\0"))


def common(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that are equal in all ranks and starts: what loading may have read."""
    return {
        name: value for name, value in environ.items() if name and not name.startswith(_OF_A_RANK)
    }


@dataclass
class _Rank:
    """One that was forked."""

    link: socket.socket | None
    """To who stands in for it; None: it knows of the end, or has ended itself."""
    code: int | None = None
    """How it has ended; None: it has not."""
    until: float = 0.0
    """Since then what it has left, if that was badly, is killed."""


class Standby:
    """Waits for requests, and forks. The main thread; there is no other.

    Args:
        about: what `ask_for` has said of it.
    """

    def __init__(self, about: Mapping[str, Any]) -> None:
        self._about = about
        self._taken = _open_files() - {0, 1, 2}  # by what was loaded: a rank has these as well
        self._ranks: dict[int, _Rank] = {}  # by process
        self._chosen = selectors.PollSelector()  # which has no file of its own
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(_ADDRESS + about["token"])
        self._listener.listen(socket.SOMAXCONN)
        self._woken, self._wakes = socket.socketpair()
        for end in (self._woken, self._wakes):
            end.setblocking(False)
        for source in (sys.stdin.fileno(), self._listener, self._woken):
            self._chosen.register(source, selectors.EVENT_READ)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Ranks that are asked to end may do so in order: with this process they would be killed.
        for signum in _DEAF_TO:
            signal.signal(signum, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wakes.fileno())

    def serve(self) -> Program:
        """Serves until the store ends; returns in a forked rank alone, what that is to run."""
        while True:
            waits = [rank.until for rank in self._ranks.values() if rank.code is not None]
            pause = max(0.0, min(waits) - time.monotonic()) if waits else None
            for key, _ in self._chosen.select(pause):
                if key.fileobj is self._listener:
                    program = self._accept()
                    if program is not None:
                        return program
                elif key.fileobj is self._woken:
                    self._woken.recv(1 << 10)
                elif key.data is None:
                    os._exit(0)  # and the ranks with it
                else:
                    self._kill(key.data)
            self._look()

    def _accept(self) -> Program | None:
        """Forks, if it is asked for something that it can do; returns in the fork alone."""
        link, _ = self._listener.accept()
        if not commit_store.is_ours(link):
            link.close()
            return None
        link.settimeout(_PATIENCE)
        try:
            request, to = _receive(link)
        except (OSError, ValueError):
            link.close()
            return None
        with to:
            try:
                program = self._program_of(request)
            except (KeyError, TypeError, AttributeError):
                program = "no request"
            if isinstance(program, str):
                _send(to, {"refused": program})
                link.close()
                return None
            parent, child = os.getpid(), os.fork()
            if child == 0:
                self._close(link)
                _take_place(request, program, to, parent)
                return program
        self._ranks[child] = _Rank(link)
        self._chosen.register(link, selectors.EVENT_READ, child)
        return None

    def _program_of(self, request: Mapping[str, Any]) -> Program | str:
        """What it is to run, or why that cannot be done here."""
        command, environ = request["command"], request["environ"]
        program = parse(command[1:])
        if program is None or list(program.options) != self._about["options"]:
            return f"{' '.join(command[:3])}: it is for programs of Python with the same options"
        path = os.path.join(request["folder"], program.what)
        no_text = os.path.isdir(path) or path.endswith(".pyc") or zipfile.is_zipfile(path)
        if not program.kind and no_text:
            return f"{program.what} is no text"
        python = shutil.which(command[0], path=environ.get("PATH")) or ""
        if os.path.abspath(os.path.join(request["folder"], python)) != sys.executable:
            return f"{command[0]} is {python}, and the standby is {sys.executable}"
        given, has = self._about["given"], common(environ)
        for name in sorted({*given, *has}):
            if given.get(name) != has.get(name):
                return f"{name} is another one"
        if self._taken.intersection(request["files"]):
            return "its files have the numbers of others"
        return program if _threads() == 1 else "the standby has threads"

    def _close(self, link: socket.socket) -> None:
        """In the fork: what is the standby's."""
        signal.set_wakeup_fd(-1)
        for signum in (signal.SIGCHLD, *_DEAF_TO):
            signal.signal(signum, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for end in (link, self._listener, self._woken, self._wakes):
            end.close()
        for rank in self._ranks.values():
            if rank.link is not None:
                rank.link.close()

    def _look(self) -> None:
        """Looks which ranks have ended, and kills what those that ended badly have left."""
        now = time.monotonic()
        for process, rank in list(self._ranks.items()):
            if rank.code is None:
                # Until it is waited for, nothing else has its number, nor its group.
                ended = os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is None:
                    continue
                exited = ended.si_code == os.CLD_EXITED
                rank.code = ended.si_status if exited else -ended.si_status
                rank.until = now + (_TO_END if rank.code else 0.0)
                self._tell(rank)
            if now >= rank.until:
                if rank.code:
                    self._kill(process)
                os.waitpid(process, 0)
                del self._ranks[process]

    def _tell(self, rank: _Rank) -> None:
        """Tells who stands in for a rank how that has ended."""
        if rank.link is not None:
            with contextlib.suppress(OSError):
                rank.link.sendall(_STATUS.pack(rank.code or 0))
            self._close_link(rank)

    def _close_link(self, rank: _Rank) -> None:
        if rank.link is not None:
            self._chosen.unregister(rank.link)
            rank.link.close()
            rank.link = None

    def _kill(self, process: int) -> None:
        """Kills a rank that nobody stands in for any more, and what it has started."""
        self._close_link(self._ranks[process])
        for send in (os.killpg, os.kill):  # it may not have a group yet
            with contextlib.suppress(OSError):
                send(process, signal.SIGKILL)


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _open_files() -> set[int]:
    numbers = set()
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # what has listed them
            fcntl.fcntl(number, fcntl.F_GETFD)
            numbers.add(number)
    return numbers


def _receive(link: socket.socket) -> tuple[dict[str, Any], socket.socket]:
    """A request, and the socket to answer by.

    Raises:
        OSError, ValueError: there is none.
    """
    text, files, _, _ = socket.recv_fds(link, 1, 1)
    if len(files) != 1:
        raise ValueError("no request")
    to = socket.socket(fileno=files[0])
    try:
        with link.makefile("rb") as file:
            return json.loads(text + file.readline()), to
    except BaseException:
        to.close()
        raise


def _send(to: socket.socket, answer: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):
        to.sendall(json.dumps(answer).encode() + b"\n")


def _take_place(
    request: Mapping[str, Any], program: Program, to: socket.socket, parent: int
) -> None:
    """Makes this process, which was just forked, what the one that stands in for it would be.

    It ends where that does not go.
    """
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        os.chdir(request["folder"])
        os.umask(request["umask"])
        for kind, limits in request["limits"].items():
            resource.setrlimit(int(kind), tuple(limits))
        os.sched_setaffinity(0, request["cores"])
        for signum in request["ignored"]:
            signal.signal(signum, signal.SIG_IGN)
        os.environ.clear()
        os.environ.update(request["environ"])
        with open("/proc/self/comm", "w") as file:
            file.write("python")
    except (OSError, ValueError) as error:
        _send(to, {"refused": str(error)})
        os._exit(1)
    _send(to, {"process": os.getpid()})
    text, files, _, _ = socket.recv_fds(to, 1 << 16, _MOST_FILES)
    if not text:
        os._exit(1)  # who stands in for it has ended
    to.close()
    _put(dict(zip(json.loads(text), files, strict=True)))
    _begin_anew(request, program)


def _put(files: Mapping[int, int]) -> None:
    """Gives files the numbers that they are to have: number and present number of each."""
    above = max([*files, *files.values()], default=0) + 1
    moved = {number: fcntl.fcntl(file, fcntl.F_DUPFD, above) for number, file in files.items()}
    for file in files.values():
        os.close(file)
    for number, file in moved.items():
        os.dup2(file, number)
        os.close(file)


def _begin_anew(request: Mapping[str, Any], program: Program) -> None:
    """Makes this Python one that has just begun, but for what is loaded."""
    sys.argv = [program.kind or program.what, *program.arguments]
    sys.orig_argv = list(request["command"])
    global _environ
    _environ = request["environ"]
    sys.path[: len(program.path_start(""))] = program.path_start(request["folder"])
    streams: tuple[Any, ...] = (sys.stdout, sys.stderr)
    for stream in streams:
        if not stream.write_through:
            stream.reconfigure(line_buffering=stream.isatty() or stream is sys.stderr)
    # Python's own random numbers begin anew in each fork; NumPy's do not.
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    importlib.invalidate_caches()


# Of a rank that has come from a standby.
_program: Program | None = None
_environ: dict[str, str] | None = None  # as it began
_interrupted = False


def main(about: Mapping[str, Any]) -> None:
    """The standby; returns in a forked rank alone.

    Args:
        about: what `ask_for` has said of it.
    """
    atexit.register(_end_interrupted)  # the first, which is the last to be called
    os.sched_setaffinity(0, about["cores"])  # libraries count cores as they are loaded
    for name in about["modules"]:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    child = os.fork()  # ends threads that would be there again: those of OpenBLAS
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    if _threads() > 1:
        os._exit(1)
    gc.collect()
    gc.freeze()
    global _program
    _program = Standby(about).serve()


def run_program() -> None:
    """Runs the program of this rank as Python does: as `__main__`, and to its exit code."""
    assert _program is not None
    module = types.ModuleType("__main__")
    vars(module)["__builtins__"] = builtins
    sys.modules["__main__"] = module
    try:
        if _program.kind == "-m":
            vars(runpy)["_run_module_as_main"](_program.what)
        else:
            exec(_compiled(_program, module), vars(module))
    except SystemExit:
        raise
    except BaseException as error:
        _show(error)
        sys.exit(1)


def _compiled(program: Program, module: types.ModuleType) -> types.CodeType:
    """The program's code, which becomes that of a module."""
    if program.kind:
        vars(module).update(__annotations__={})
        return compile(program.what, "<string>", "exec", dont_inherit=True)
    path = os.path.abspath(program.what)
    try:
        with open(path, "rb") as file:
            text = file.read()
    except OSError as error:
        text_of = f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}]"
        sys.stderr.write(f"{text_of} {error.strerror}\n")
        sys.exit(_NOT_FOUND)
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    vars(module).update(__annotations__={}, __file__=path, __cached__=None, __loader__=loader)
    return compile(text, path, "exec", dont_inherit=True)


def _show(error: BaseException) -> None:
    """Tells of what the program has raised, without the frames of this module."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error = error.with_traceback(trace)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    sys.excepthook(type(error), error, trace)
    global _interrupted
    _interrupted = isinstance(error, KeyboardInterrupt)


def _end_interrupted() -> None:
    """Python ends itself by the signal then, when all is done."""
    if _interrupted:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
