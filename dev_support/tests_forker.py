"""Forks Python programs from a process that has loaded TensorFlow, started by tests_standby.py.

As soon as its Python starts, a rank's process hands its program over to a fork (`hand_over`).
After that it forwards signals to the fork, and ends as the fork ends. Between the forker (`serve`)
and each fork, a keeper kills the fork when the rank's process is gone.

It uses the messages by which a rank's keeper reports its process to the agent
(tf_hvd/core/messages.py). It also uses `close_all`, `end_as` and `set_process_name` of
tf_hvd/launch/machine/keeper.py.
"""

import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import resource
import runpy
import select
import signal
import socket
import struct
import sys
import time
import types

# The native library takes a fork's keeper for its launcher (base/processes.cc). No job uses this
# launcher.
_KEEPER = "mpiexec.gforker"
# Reports to a rank: the fork's process, and its end: exit code, or minus the signal.
_SAYS = struct.Struct("<ci")
_BEGINS, _ENDED = b"b", b"e"
_MOST_FILES = 253  # the kernel's limit for one message
_TO_END = 3.0  # seconds that a failed program's child processes may continue
_PR_SET_PDEATHSIG = 1
_HANDED_ON = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGALRM, signal.SIGVTALRM),
    *(signal.SIGPROF, signal.SIGPWR, signal.SIGURG, signal.SIGXCPU, signal.SIGWINCH),
)
_LIMITS = range(16)  # RLIM_NLIMITS


def program():
    """Return this process' program: Python's options, `-m`, `-c` or empty for a file, and its name.

    Returns None if the program cannot be forked.
    """
    *options, what = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1] or [""]
    if sys.argv[0] not in ("-m", "-c"):
        return (options, "", what) if os.path.isfile(what) else None
    return (options[:-1], options[-1], what) if options[-1:] == sys.argv[:1] else None


def hand_over(address, keeper, launched_by):
    """Run this process' program in a fork of the forker at `address`, and end as the program does.

    Returns if there is no forker.

    Args:
        address: address of the forker's socket.
        keeper: the module tf_hvd.launch.machine.keeper.
        launched_by: the job, this rank's number, and its keeper's process, 0 for none.
    """
    files = [number for number in map(int, os.listdir("/proc/self/fd")) if _is_inherited(number)]
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(address)
        request = {**_inheritance(), "files": files, "launched_by": launched_by}
        link.sendall(json.dumps(request).encode() + b"\n")
        says, fork = _SAYS.unpack(link.recv(_SAYS.size, socket.MSG_WAITALL))
    except (OSError, struct.error):
        says = b""
    if says != _BEGINS:
        return link.close()

    def hand_on(signum, *_):
        with contextlib.suppress(OSError):
            os.killpg(fork, signum)

    for signum in _HANDED_ON:
        signal.signal(signum, hand_on)
    code = -signal.SIGKILL  # if the forker is gone, and the fork with it
    with contextlib.suppress(OSError, struct.error):
        socket.send_fds(link, [b"f"], files)
        keeper.close_all({str(link.fileno())})
        _, code = _SAYS.unpack(link.recv(_SAYS.size, socket.MSG_WAITALL))
    keeper.end_as(code)


def _is_inherited(number):
    try:
        return not fcntl.fcntl(number, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    except OSError:  # the descriptor of the directory listing
        return False


def _inheritance():
    """Properties that the program inherits from this process, besides its files."""
    _, kind, what = program()
    folder, mask = os.getcwd(), os.umask(0)
    os.umask(mask)
    where = {"-m": folder, "-c": "", "": os.path.dirname(os.path.realpath(what))}[kind]
    return {
        "program": [kind, what],
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "path": [] if getattr(sys.flags, "safe_path", False) or sys.flags.isolated else [where],
        "environ": dict(os.environ),
        "folder": folder,
        "umask": mask,
        "cores": sorted(os.sched_getaffinity(0)),
        "limits": list(map(resource.getrlimit, _LIMITS)),
        "ignored": [each for each in _HANDED_ON if signal.getsignal(each) is signal.SIG_IGN],
    }


def serve(address, tests, modules, rank):
    """Fork on request until the tests end; in a fork, return the program to run.

    Args:
        address: address of the socket for requests.
        tests: the process that runs the tests.
        modules: modules to load before.
        rank: the module tf_hvd.launch.machine.rank.
    """
    for name in modules:
        importlib.import_module(name)
    if os.fork() == 0:  # the fork ends the threads of OpenBLAS in this process
        os._exit(0)
    os.wait()
    if len(os.listdir("/proc/self/task")) > 1:
        os._exit(1)
    gc.collect()
    gc.freeze()
    # Ranks that receive a termination signal may exit cleanly; ending this process would kill
    # them.
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(signum, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(socket.SOMAXCONN)
    sources = select.poll()
    sources.register(listener, select.POLLIN)
    sources.register(os.pidfd_open(tests), select.POLLIN)
    while [number for number, _ in sources.poll()] == [listener.fileno()]:
        link, _ = listener.accept()
        with link:
            if os.fork() == 0:
                listener.close()
                return _keep(link, rank)
    os._exit(0)  # keepers and forks end with it


def _keep(link, rank):
    """Keep a fork until its end; return in the fork."""
    _end_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with link.makefile("rb") as file:
        request = json.loads(file.readline() or os._exit(1))
    rank.keeper.close_all({str(link.fileno())})
    rank.keeper.set_process_name(_KEEPER)
    fork = os.fork()
    if fork == 0:
        return _take_place(request, link, rank)
    events = select.poll()
    events.register(link, 0)  # reports when the rank's process is gone
    events.register(os.pidfd_open(fork), select.POLLIN)
    events.poll()
    # Until the fork is waited for, no other process or group gets its number.
    ended = os.waitid(os.P_PID, fork, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended:
        exited = ended.si_code == os.CLD_EXITED
        with contextlib.suppress(OSError):
            link.sendall(_SAYS.pack(_ENDED, ended.si_status if exited else -ended.si_status))
        link.close()
        if exited and not ended.si_status:
            os._exit(0)
        time.sleep(_TO_END)
    for kill in (os.killpg, os.kill):  # the fork may not have a group yet
        with contextlib.suppress(OSError):
            kill(fork, signal.SIGKILL)
    os._exit(0)


def _end_with_parent():
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _take_place(request, link, rank):
    """Give this process, which was just forked, all properties of the rank's process."""
    _end_with_parent()
    os.setsid()
    os.chdir(request["folder"])
    os.umask(request["umask"])
    for kind, limits in zip(_LIMITS, request["limits"], strict=True):
        resource.setrlimit(kind, limits)
    os.sched_setaffinity(0, request["cores"])
    for signum in _HANDED_ON:
        given = signal.SIG_IGN if signum in request["ignored"] else signal.SIG_DFL
        signal.signal(signum, given)
    if signal.SIGINT not in request["ignored"]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environ"])
    rank.keeper.set_process_name("python")
    job = request["launched_by"].pop("job")
    moved = {"do": rank.contract.RUNS, "process": os.getpid(), "time": time.time_ns()}
    rank.messages.tell(job, moved | request["launched_by"])
    link.sendall(_SAYS.pack(_BEGINS, os.getpid()))
    _, files, _, _ = socket.recv_fds(link, 1, _MOST_FILES)
    link.close()
    if not files:
        os._exit(1)  # the rank's process has ended
    _put(dict(zip(request["files"], files, strict=True)))
    sys.argv, sys.orig_argv = request["argv"], request["orig_argv"]
    sys.path[: len(request["path"])] = request["path"]
    for stream in (sys.stdout, sys.stderr):
        if not stream.write_through:
            stream.reconfigure(line_buffering=stream.isatty() or stream is sys.stderr)
    # Python's own random numbers restart in each fork; NumPy's do not.
    sys.modules["numpy"].random.seed()
    importlib.invalidate_caches()
    return request["program"]


def _put(files):
    """Give files their final numbers: `files` has the final and present number of each."""
    above = max([*files, *files.values()]) + 1
    moved = {number: fcntl.fcntl(file, fcntl.F_DUPFD, above) for number, file in files.items()}
    for file in files.values():
        os.close(file)
    for number, file in moved.items():
        os.dup2(file, number)
        os.close(file)


def run(kind, what):
    """Run a program as Python does: as `__main__`, by the same functions."""
    sys.modules["__main__"] = types.ModuleType("__main__")
    vars(sys.modules["__main__"]).update(__annotations__={}, __builtins__=sys.modules["builtins"])
    if kind == "-m":
        try:
            runpy._run_module_as_main(what)
        except Exception as error:
            error = error.with_traceback(error.__traceback__.tb_next)  # without this frame
            sys.excepthook(type(error), error, error.__traceback__)
            sys.exit(1)
        return
    if kind == "-c":
        failed = ctypes.pythonapi.PyRun_SimpleStringFlags(os.fsencode(what), None)
    else:
        libc, path = ctypes.CDLL(None), os.fsencode(os.path.abspath(what))
        libc.fopen.restype = ctypes.c_void_p
        file = ctypes.c_void_p(libc.fopen(path, b"rb"))
        failed = ctypes.pythonapi.PyRun_SimpleFileExFlags(file, path, 1, None)
    # Python itself ends by SIGINT if the program does not catch it.
    if failed and not isinstance(getattr(sys, "last_value", None), KeyboardInterrupt):
        sys.exit(1)
