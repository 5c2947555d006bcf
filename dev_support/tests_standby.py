"""Forks ranks that tests start from a process that has already loaded TensorFlow.

Loading TensorFlow takes seconds of a core for each of the many hundred ranks. So a rank that starts
in a test run (tests_start.pth) continues in a fork of a standby (tests_forker.py). A test run has
one standby for each environment that affects loading. The second job with an environment starts
its standby. tests/conftest.py lists the tests that do without, because they test how processes
start and end.

Until a standby is ready, this uses only the standard library. Standbys are children of the process
that runs the tests: as children of a job's process they would end with the job.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time

import tests_forker

RUN = "TF_HVD_TESTS_STANDBY"
"""Gives a rank the process of its tests and a folder: "PROCESS:FOLDER"."""
MOST = 10
"""Maximum number of standbys at once: each takes a few hundred MiB."""
_ADDRESS = "\0tf_hvd_tests_standby/"
_STARTER = "\0tf_hvd_tests/"
RANK = "TF_HVD_LAUNCHED_RANK"
_JOB = "TF_HVD_JOB"
# The job of this rank: a process started by a rank sees from it that it is not a rank itself.
# Every process that starts this way has it, so each start has a separate value.
_RANK_OF = "TF_HVD_LAUNCHER_TESTED"
# Variables that are read when TensorFlow is loaded or Python starts.
_READ = ("TF_", "KERAS_", "OMP_", "MKL_", "OPENBLAS_", "XLA_", "CUDA_", "LD_", "PYTHON")
_READ += ("MALLOC_", "GLIBC_", "LANG", "LC_", "HOME", "TMPDIR")
_NOT_READ = ("TF_HVD_", "CUDA_VISIBLE_DEVICES")
_TESTS_OWN = ("TF_HVD_TESTS_GC", "TF_HVD_TESTS_MARK")
_LIBRARIES = "LD_LIBRARY_PATH"
_CREDENTIALS = struct.Struct("3i")
_STARTED = "started"
_LIMIT = 120  # seconds until a standby is ready
_START = """
import json
with open(0, closefd=False) as file:
    about = json.loads(file.readline())
import tests_standby
tests_standby.become(about)
"""


def hand_over():
    """Continue in a standby if this process can; otherwise return."""
    run, _, folder = os.environ[RUN].partition(":")
    job = os.environ.get(_JOB, "")
    rank_of, os.environ[_RANK_OF] = os.environ.get(_RANK_OF), job
    # For example, a rank has started this process.
    if rank_of == job or tests_forker.program() is None or not _may(run):
        return
    rank = rank_module()
    token = _token(run)
    if rank is not None and _Standbys(folder, job).has(run, token):
        with open(f"/proc/{os.getppid()}/comm") as file:
            keeper = os.getppid() if file.read().strip() == rank.contract.KEEPER else 0
        launched_by = {"job": job, "rank": int(os.environ[RANK]), "keeper": keeper}
        tests_forker.hand_over(_ADDRESS + token, rank.keeper, launched_by)


def rank_module():
    """Load the module `rank` without its package, which loads TensorFlow; None if missing."""
    package = importlib.util.find_spec("tf_hvd")
    if package is None:
        return None
    before = set(sys.modules)
    sys.modules.setdefault("tf_hvd", importlib.util.module_from_spec(package))
    try:
        return importlib.import_module("tf_hvd.launch.machine.rank")
    finally:
        for name in set(sys.modules) - before:
            del sys.modules[name]


def _may(run):
    """Whether this process sees the same machine and files as the process that runs the tests."""
    own_files = "/pytest-of-" in os.environ.get("PYTHONPATH", "")  # pytest's tmp_path
    if own_files or "LD_PRELOAD" in os.environ:
        return False
    try:
        for kind in ("net", "pid", "mnt", "user", "ipc", "uts"):
            if os.readlink(f"/proc/self/ns/{kind}") != os.readlink(f"/proc/{run}/ns/{kind}"):
                return False
        with open("/proc/self/cgroup") as own, open(f"/proc/{run}/cgroup") as theirs:
            return own.read() == theirs.read()
    except OSError:
        return False


def _environ():
    """Variables that a standby and its ranks must have in common."""
    read = {
        name: value
        for name, value in os.environ.items()
        if name in _TESTS_OWN or (name.startswith(_READ) and not name.startswith(_NOT_READ))
    }
    if _LIBRARIES in read:  # a launcher within a job repeats folders
        read[_LIBRARIES] = ":".join(dict.fromkeys(read[_LIBRARIES].split(":")))
    return read


def _token(run):
    identity = [sorted(_environ().items()), tests_forker.program()[0], os.geteuid(), sys.executable]
    return f"tests.{run}.{hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]}"


class _Standbys:
    """Standbys of a test run: one file per standby, with the first job that could have used it.

    The file's time is that of the last use.
    """

    def __init__(self, folder, job):
        self._folder, self._job = folder, job

    def has(self, run, token):
        """Whether this standby exists; a second job starts it."""
        if not _process_of(token):
            os.makedirs(self._folder, exist_ok=True)
            lock = os.open(self._folder, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not self._start(run, token):
                    return False
            finally:
                os.close(lock)
        os.utime(self._file(token))
        return True

    def _file(self, token):
        return os.path.join(self._folder, token)

    def _start(self, run, token):
        if _process_of(token):
            return True
        with open(self._file(token), "a+") as file:
            file.seek(0)
            first = file.read()
            if not first:
                file.write(self._job or "none")
        # A standby for a single job is not worth it, and one that has ended may end again.
        if first in ("", self._job, _STARTED) or not self._have_room():
            return False
        with open(self._file(token), "w") as file:
            file.write(_STARTED)
        about = {"run": int(run), "token": token, "options": tests_forker.program()[0]}
        asked = {"python": sys.executable, "environ": _environ(), "about": about}
        with socket.socket(socket.AF_UNIX) as link, link.makefile("rw") as starter:
            link.connect(_STARTER + run)
            starter.write(json.dumps(asked) + "\n")
            starter.flush()
            process = int(starter.readline())
        deadline = time.monotonic() + _LIMIT
        while time.monotonic() < deadline and os.path.exists(f"/proc/{process}/exe"):
            if _process_of(token):
                return True
            time.sleep(0.05)
        return False

    def _have_room(self):
        """End the least recently used standby if there are too many."""
        there = {token: _process_of(token) for token in os.listdir(self._folder)}
        there = {token: process for token, process in there.items() if process}
        if len(there) < MOST:
            return True
        for token in sorted(there, key=lambda each: os.stat(self._file(each)).st_mtime):
            with open(f"/proc/{there[token]}/task/{there[token]}/children") as ranks:
                if ranks.read():
                    continue
            os.kill(there[token], signal.SIGKILL)
            os.unlink(self._file(token))
            return True
        return False


def _process_of(token):
    """Return the standby's process; 0 if it does not exist."""
    with socket.socket(socket.AF_UNIX) as link, contextlib.suppress(OSError):
        link.connect(_ADDRESS + token)
        return _peer(link)[0]
    return 0


def _peer(link):
    """Return the process on the other side, and its user."""
    credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(credentials)[:2]


def start_what_is_asked_for():
    """Start standbys for the ranks of this process' tests. Runs in a thread; never returns."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{_STARTER}{os.getpid()}")
    listener.listen()
    started = []
    while True:
        link, _ = listener.accept()
        started = [each for each in started if each.poll() is None]
        with contextlib.suppress(OSError, ValueError), link, link.makefile("rw") as rank:
            if _peer(link)[1] == os.geteuid():
                asked = json.loads(rank.readline())
                started.append(_popen(**asked))
                rank.write(f"{started[-1].pid}\n")


def _popen(python, environ, about):
    process = subprocess.Popen(
        [python, *about["options"], "-c", _START],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
    process.stdin.write(json.dumps(about).encode() + b"\n")
    process.stdin.close()
    return process


def become(about):
    """Be a standby until the tests end; in a fork, run the program of a rank."""
    legacy = ["tf_keras"] if os.environ.get("TF_USE_LEGACY_KERAS") else []
    modules = ["numpy", "tensorflow", "keras", *legacy, "tf_hvd.elastic"]
    address = _ADDRESS + about["token"]
    tests_forker.run(*tests_forker.serve(address, about["run"], modules, rank_module()))
