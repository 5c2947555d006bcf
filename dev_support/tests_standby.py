"""Ranks that tests start are forked from a process that has loaded TensorFlow already.

To load it takes seconds of a core for each of the many hundred ranks. So a rank that begins in a
run of the tests (tests_start.pth) goes on in a fork of a standby (tests_forker.py), of which a run
of the tests has one for each environment that loading may read. The second job with an environment
has it started. tests/conftest.py says which tests do without, as they are about how processes begin
and end.

Until the standby is there, this knows the standard library alone. Standbys are children of the
process that runs the tests: as one of a job's processes they would end with that.
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
"""By this a rank knows the process whose tests it is of, and a folder: "PROCESS:FOLDER"."""
MOST = 10
"""Standbys at once: each takes a few hundred MiB."""
_ADDRESS = "\0tf_hvd_tests_standby/"
_STARTER = "\0tf_hvd_tests/"
RANK = "TF_HVD_LAUNCHED_RANK"
_JOB = "TF_HVD_JOB"
# The job of which this is a rank: what a rank starts knows by it that it is none. As all that
# begins so, it is each start's own.
_RANK_OF = "TF_HVD_LAUNCHER_TESTED"
# What is read as TensorFlow is loaded, or Python begins.
_READ = ("TF_", "KERAS_", "OMP_", "MKL_", "OPENBLAS_", "XLA_", "CUDA_", "LD_", "PYTHON")
_READ += ("MALLOC_", "GLIBC_", "LANG", "LC_", "HOME", "TMPDIR")
_NOT_READ = ("TF_HVD_", "CUDA_VISIBLE_DEVICES")
_TESTS_OWN = ("TF_HVD_TESTS_GC", "TF_HVD_TESTS_MARK")
_LIBRARIES = "LD_LIBRARY_PATH"
_CREDENTIALS = struct.Struct("3i")
_STARTED = "started"
_LIMIT = 120  # seconds until a standby is there
_START = """
import json
with open(0, closefd=False) as file:
    about = json.loads(file.readline())
import tests_standby
tests_standby.become(about)
"""


def hand_over():
    """Goes on in a standby, if this process can; returns where it cannot."""
    run, _, folder = os.environ[RUN].partition(":")
    job = os.environ.get(_JOB, "")
    rank_of, os.environ[_RANK_OF] = os.environ.get(_RANK_OF), job
    # A rank has started this process, say.
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
    """The module `rank` without its package, which loads TensorFlow; None if it is missing."""
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
    """Whether this process is on the tests' machine, as it seems to it, and has files like them."""
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
    """What a standby must have in common with its ranks."""
    read = {
        name: value
        for name, value in os.environ.items()
        if name in _TESTS_OWN or (name.startswith(_READ) and not name.startswith(_NOT_READ))
    }
    if _LIBRARIES in read:  # a launcher within a job adds what is there
        read[_LIBRARIES] = ":".join(dict.fromkeys(read[_LIBRARIES].split(":")))
    return read


def _token(run):
    told = [sorted(_environ().items()), tests_forker.program()[0], os.geteuid(), sys.executable]
    return f"tests.{run}.{hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]}"


class _Standbys:
    """Those of a run: a file for each, of its name, with the first job that could have used it.

    Its time is that of the last use.
    """

    def __init__(self, folder, job):
        self._folder, self._job = folder, job

    def has(self, run, token):
        """Whether there is this one; starts it for a second job."""
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
        # What one job alone would use does not pay; and one that has ended once may again.
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
        """Ends the one that was not used for the longest time, if there are too many."""
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
    """The standby of that name; 0 if there is none."""
    with socket.socket(socket.AF_UNIX) as link, contextlib.suppress(OSError):
        link.connect(_ADDRESS + token)
        return _peer(link)[0]
    return 0


def _peer(link):
    """The process on the other side, and its user."""
    told = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(told)[:2]


def start_what_is_asked_for():
    """Starts standbys for the ranks of this process' tests. A thread of its own; never returns."""
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
    """Is a standby until the tests end; in a fork, runs the program of a rank."""
    legacy = ["tf_keras"] if os.environ.get("TF_USE_LEGACY_KERAS") else []
    modules = ["numpy", "tensorflow", "keras", *legacy, "tf_hvd.elastic"]
    address = _ADDRESS + about["token"]
    tests_forker.run(*tests_forker.serve(address, about["run"], modules, rank_module()))
