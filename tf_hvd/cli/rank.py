"""Becomes a rank: takes the standard input and output that the launcher gives it, then execs.

Run as a file, by an isolated Python and on every rank, so it knows the standard library alone.
MPI's launchers cannot be left to this: Open MPI never ends rank 0's input, MPICH leaves the other
ranks a pipe that nobody writes to, and each has files of its own form for the output.
"""

from __future__ import annotations

import array
import contextlib
import os
import resource
import selectors
import signal
import socket
import sys
import time
from typing import NoReturn

SOCKET, ENDED, RUNNING = "ranks", "ended.", "running."
_PIECE = 1 << 16
_NOT_FOUND, _NOT_RUNNABLE = 127, 126


def _rank(variables: str) -> int:
    for name in variables.split(","):
        text = os.environ.get(name, "")
        if text.isdigit():
            return int(text)
    return 0


def report(folder: str, rank: int) -> int | None:
    """Tells the launcher that this rank starts; returns the standard input that it hands over.

    None if it has none for this rank, or if there is no launcher on this machine.
    """
    try:
        where = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        with socket.socket(socket.AF_UNIX) as link:
            # By a short name: a socket's path may have 107 bytes.
            link.connect(f"/proc/self/fd/{where}/{SOCKET}")
            link.sendall(f"{rank} {os.getpid()}\n".encode())
            answer = link.recvmsg(1, socket.CMSG_SPACE(array.array("i").itemsize))
            for _, kind, data in answer[1]:
                if kind == socket.SCM_RIGHTS:
                    return array.array("i", data)[0]
    except OSError:
        pass
    finally:
        os.close(where)
    return None


def _take_input(descriptor: int | None) -> None:
    if descriptor is None:
        descriptor = os.open(os.devnull, os.O_RDONLY)
    if descriptor != 0:
        os.dup2(descriptor, 0)
        os.close(descriptor)


def copy_output(folder: str, timestamps: bool) -> None:
    """From now on what this process prints goes to files in `folder` as well.

    A process of its own copies: it ends when nobody has the output open any more.
    """
    os.makedirs(folder, exist_ok=True)
    pipes = {1: os.pipe(), 2: os.pipe()}
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
            _copy({pipes[1][0]: (1, "stdout"), pipes[2][0]: (2, "stderr")}, folder, timestamps)
        os._exit(0)
    os.waitpid(child, 0)
    for to, (read_end, write_end) in pipes.items():
        os.dup2(write_end, to)
        os.close(read_end)
        os.close(write_end)


def _copy(sources: dict[int, tuple[int, str]], folder: str, timestamps: bool) -> None:
    chosen = selectors.DefaultSelector()
    for source, (to, name) in sources.items():
        file = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        chosen.register(source, selectors.EVENT_READ, [to, file])
    at_line_start = dict.fromkeys(sources, True)
    while chosen.get_map():
        for key, _ in chosen.select():
            piece = os.read(key.fd, _PIECE)
            if not piece:
                chosen.unregister(key.fd)
                continue
            if timestamps:
                stamp = time.strftime("[%Y-%m-%d %H:%M:%S] ").encode()
                ends = piece.endswith(b"\n")
                text = piece[:-1] if ends else piece
                start = stamp if at_line_start[key.fd] else b""
                at_line_start[key.fd] = ends
                piece = start + text.replace(b"\n", b"\n" + stamp) + (b"\n" if ends else b"")
            for to in list(key.data):
                if not _write(to, piece):
                    key.data.remove(to)


def _write(to: int, data: bytes) -> bool:
    try:
        while data:
            data = data[os.write(to, data) :]
    except OSError:
        return False  # a full disk or a reader that is gone must not end the rank
    return True


def watch_child(folder: str, rank: int) -> None:
    """Forks: the child returns and becomes the rank, this process notes that it runs, how it ends.

    MPICH's launcher does not say which rank it was that ended the job, and Open MPI's only if
    others ran still. A signal that the launcher sends goes to both, as they are one process group.
    """
    running = os.path.join(folder, f"{RUNNING}{rank}")
    with contextlib.suppress(OSError):  # on another machine
        os.close(os.open(running, os.O_CREAT | os.O_WRONLY, 0o600))
    child = os.fork()
    if child == 0:
        return
    # By this name the ranks know that the program is the child (IsKeeper in runtime/transport).
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as name:
        name.write("tf_hvd_run_rank")
    # The launcher waits for the end of some of these.
    os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, signal.SIG_IGN)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        try:
            with open(os.path.join(folder, f"{ENDED}{rank}"), "w") as file:
                file.write(str(code))
        except OSError:
            pass  # on another machine
    else:
        with contextlib.suppress(OSError):  # on another machine
            os.unlink(running)
    if code < 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child has left one, if wanted
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


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


def main(arguments: list[str]) -> NoReturn:
    """Starts a rank.

    Args:
        arguments: the launcher's folder; the variables that may hold the rank, comma-separated;
            what is wanted, comma-separated: `stdin`, `timestamps`, `watch`; the output's folder
            with `{rank:0Nd}` in it, or nothing; then the program and its arguments.
    """
    folder, variables, chosen, output, *command = arguments
    rank, wanted = _rank(variables), chosen.split(",")
    if "watch" in wanted:
        watch_child(folder, rank)
    descriptor = report(folder, rank)
    if "stdin" in wanted:
        _take_input(descriptor)
    elif descriptor is not None:
        os.close(descriptor)
    if output:
        try:
            copy_output(output.format(rank=rank), "timestamps" in wanted)
        except OSError as error:
            sys.exit(f"tf_hvd run: --output-filename: {error.filename}: {error.strerror}")
    _become(command)


if __name__ == "__main__":
    main(sys.argv[1:])
